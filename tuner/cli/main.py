"""The front door: one subcommand a module; the one place where a user's mistake is printed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence

from tuner.cli import (
    doctor_command,
    emit_command,
    explain_command,
    plans_command,
    predict_command,
    replay_command,
    report_command,
    soak_command,
    submit_command,
    tune_command,
    verify_command,
)
from tuner.cli.parser import Command, PlainParser, command_parser
from tuner.errors import UserError

FOUND, NOTHING_RAN, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130
"""Exit codes of every command."""

_COMMANDS: Mapping[str, Command] = {
    "tune": tune_command,
    "submit": submit_command,
    "plans": plans_command,
    "explain": explain_command,
    "predict": predict_command,
    "replay": replay_command,
    "report": report_command,
    "verify": verify_command,
    "soak": soak_command,
    "emit": emit_command,
    "doctor": doctor_command,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code: 0 found, 1 nothing ran or fits, 2 wrong input, 130 Ctrl-C."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    try:
        options = parser().parse_args(arguments)
        return int(_COMMANDS[options.command].run(options))
    except UserError as error:
        print(f"paratune: {error}", file=sys.stderr)
        return WRONG_INPUT
    except RecursionError:
        print("paratune: a file that was given is nested too deeply", file=sys.stderr)
        return WRONG_INPUT
    except RuntimeError as error:
        print(f"paratune: the study cannot go on: {error}", file=sys.stderr)
        return NOTHING_RAN
    except KeyboardInterrupt:
        print("paratune: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader (head, less) has left: nothing more to say
        return FOUND


def parser() -> PlainParser:
    """The parser of all commands."""
    return command_parser(_COMMANDS)
