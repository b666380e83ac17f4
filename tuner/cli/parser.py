"""The parser of the command line: its help, its mistakes, its completion; runs nothing."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, Protocol

import shtab

from tuner.errors import UserError

EXIT_CODES = {
    0: "an answer was found",
    1: "nothing ran or nothing fits; said why",
    2: "the input is wrong; said which and what to do",
    130: "interrupted with all state saved",
}
_CODES = "exit codes:\n" + "\n".join(f"  {code:<3} {words}" for code, words in EXIT_CODES.items())
_CHOICE = re.compile(r"argument (.+): invalid choice: '(.*?)' \(choose from (.*)\)", re.DOTALL)
"""How argparse says that a word is none of those known."""
_NUMBER = re.compile(r": invalid (int|float) value:")
_NUMBERS = {"int": "whole number", "float": "number"}

_PREFIXES = {
    "the following arguments are required: ": "{} must be given",
    "argument ": "{}",
}
"""What argparse begins a message with, and what stands there instead."""


class Command(Protocol):
    """The module of a command; the first line of its docstring is what it does."""

    __doc__: str | None
    EXAMPLE: str
    """A command line that a reader can copy."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's options."""
        ...

    def run(self, options: argparse.Namespace) -> int:
        """Carries the command out; its exit code."""
        ...


def command_parser(commands: Mapping[str, Command]) -> PlainParser:
    """The parser of ``paratune`` with these commands."""
    parser = PlainParser(
        prog="paratune",
        description="Finds the fastest way to train a model on given GPUs, by measuring.",
        epilog="help on one:\n  paratune COMMAND --help\n\n" + _CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"paratune {version('paratune')}")
    shtab.add_argument_to(
        parser, "--print-completion", help="a script for this shell: see the page on commands"
    )
    found = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=PlainParser
    )
    for name, module in commands.items():
        summary = (module.__doc__ or "").splitlines()[0]
        command = found.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=f"example:\n  {module.EXAMPLE}\n\n{_CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        for action in command._actions:
            if action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab's way to say so
        parser.commands[name] = command
    return parser


class PlainParser(argparse.ArgumentParser):
    """Says of an unknown word which known one is nearest, as any other mistake of the user."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.commands: dict[str, argparse.ArgumentParser] = {}

    def parse_args(  # type: ignore[override]  # the namespace is always a new one
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parses; a word that no option or argument takes is refused."""
        options, left = self.parse_known_args(args, namespace)
        if left:
            command = self.commands.get(getattr(options, "command", ""), self)
            _refuse(command, _unknown_option(command, left[0]))
        return options

    def _print_message(self, message: str, file: Any = None) -> None:
        """Where help cannot be written, argparse's own would end as if it had been."""
        out = file or sys.stderr
        if message and out is not None:  # None where the shell has closed it (>&-)
            out.write(message)

    def error(self, message: str) -> NoReturn:
        """Ends with the message in our words."""
        choice = _CHOICE.fullmatch(message)
        if choice is not None:
            what = "command" if choice[1] == "COMMAND" else choice[1]
            message = _nearest(what, choice[2], re.findall(r"[^\s',]+", choice[3]))
        message = _NUMBER.sub(lambda found: f" must be a {_NUMBERS[found[1]]}, got", message)
        for begin, put in _PREFIXES.items():
            if message.startswith(begin):
                message = put.format(message.removeprefix(begin).replace(": must", " must"))
        _refuse(self, message)


def _unknown_option(parser: argparse.ArgumentParser, word: str) -> str:
    known = [option for action in parser._actions for option in action.option_strings]
    if not word.startswith("-"):
        return f"{word!r} is one argument too many; an option's name begins with --"
    return _nearest("option", word.partition("=")[0], [o for o in known if o.startswith("--")])


def _nearest(what: str, got: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(got, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    if what in ("command", "option"):
        return f"{got!r} is no {what}; {hint}"
    return f"{what} must be one of {', '.join(known)}, got {got!r}" + (f"; {hint}" if near else "")


def _refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    raise UserError(f"{message}\nSee {parser.prog} --help")
