"""The front door: one subcommand a module; the one place where a user's mistake is printed."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

# NumPy reads it when it is imported. The matrices of a study are small: threads over them only
# take cores from trials that are being measured.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

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
        return _ran(arguments)
    except UserError as error:
        print(f"paratune: {error}", file=sys.stderr)
        return WRONG_INPUT
    except RecursionError:
        print("paratune: a file that was given is nested too deeply", file=sys.stderr)
        return WRONG_INPUT
    except RuntimeError as error:
        if isinstance(error.__cause__, OSError) and _output_fails():
            return _unwritten(error.__cause__)
        print(f"paratune: the study cannot go on: {error}", file=sys.stderr)
        return NOTHING_RAN
    except KeyboardInterrupt:
        print("paratune: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader (head, less) has left: nothing more to say
        return FOUND
    except OSError as error:
        if not _output_fails():
            raise
        return _unwritten(error)


def _ran(arguments: Sequence[str] | None) -> int:
    """The exit code of a command whose output has been written."""
    try:
        options = parser().parse_args(arguments)
        code = int(_COMMANDS[options.command].run(options))
    except SystemExit:  # help and the like
        _flush()
        raise
    _flush()
    return code


def _flush() -> None:
    if sys.stdout is not None:  # None where the shell has closed it (>&-)
        sys.stdout.flush()


def _output_fails() -> bool:
    """Whether standard output can no longer be written: its error names no file."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _unwritten(error: OSError) -> int:
    print(
        f"paratune: standard output must be writable, but writing to it failed ({error.strerror}); "
        "what was found is lost there: make room, or send it elsewhere",
        file=sys.stderr,
    )
    with suppress(OSError, ValueError):  # else Python tries again at its end, and says so
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return NOTHING_RAN


def parser() -> PlainParser:
    """The parser of all commands."""
    return command_parser(_COMMANDS)
