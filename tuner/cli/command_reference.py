"""The reference page of the commands, from their parsers: every option with its meaning."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tuner.cli.main import parser
from tuner.cli.parser import EXIT_CODES

_HEAD = """# Commands

<!-- Written by `python -m tuner.cli.references docs` from the parsers: do not edit. -->

`paratune COMMAND --help` says the same in a terminal. `python -m tuner` is `paratune`.

With `--json` exactly one JSON document (or one a line, where said) goes to stdout, progress and
logs to stderr; sizes in it are bytes, times seconds.

## Exit codes

| code | meaning |
|---|---|"""
_COMPLETION = """## Completion

```sh
paratune --print-completion bash > ~/.local/share/bash-completion/completions/paratune
paratune --print-completion zsh > "${fpath[1]}/_paratune"     # a folder of your $fpath
```

A new shell then completes commands, options, their choices and files. The scripts are fixed text:
make them again after an update.
"""


def command_reference() -> str:
    """The page, in Markdown."""
    lines = [_HEAD, *(f"| {code} | {words} |" for code, words in EXIT_CODES.items()), ""]
    for name, command in parser().commands.items():
        lines += _command(name, command)
    return "\n".join([*lines, _COMPLETION])


def _command(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    example = (command.epilog or "").split("\n\n")[0].partition("\n")[2].strip()
    yield f"## `paratune {name}`\n"
    yield f"{command.description}\n"
    yield f"```sh\n{example}\n```\n"
    yield "| argument, option | meaning |"
    yield "|---|---|"
    for group in command._action_groups:
        actions = [one for one in group._group_actions if "--help" not in one.option_strings]
        if actions and group.title not in ("positional arguments", "options"):
            yield f"| **{group.title}** | |"
        yield from map(_row, actions)
    yield ""


def _row(action: argparse.Action) -> str:
    value = action.metavar or ""
    if action.choices is not None:
        value = f"{{{','.join(map(str, action.choices))}}}"
    words = [*action.option_strings, *([str(value)] if action.nargs != 0 else [])]
    return f"| `{_cell(' '.join(words))}` | {_cell(action.help or '')} |"


def _cell(text: str) -> str:
    """No bar: it would end the cell, and escaped its backslash would show in code."""
    return text.replace("|", " or ")
