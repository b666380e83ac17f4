"""Files of a user as text and values: a regular file of a sane size, not nested without end."""

from __future__ import annotations

import errno
import json
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.units import MIB

JOB_BYTES = MIB
CONFIG_BYTES = 10 * MIB
TABLE_BYTES = 500 * MIB
_MOST_LEVELS = 64
"""Far more than any configuration has, far less than Python's own recursion bears."""


class UnreadableError(ValueError):
    """Why a file cannot be read, as the end of a sentence."""


def checked_file(path: Path, most_bytes: int) -> None:
    """Looks before a file is opened: a device or a pipe would hang its reader.

    Raises:
        UnreadableError: it is not there, no regular file, or larger than that.
    """
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise UnreadableError(getattr(error, "strerror", None) or str(error)) from error
    if stat.S_ISDIR(found.st_mode):
        raise UnreadableError(os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise UnreadableError("it is no regular file but a device, a pipe or a socket")
    if found.st_size > most_bytes:
        raise UnreadableError(f"it is larger than {most_bytes // MIB} MiB")


def text_of(path: Path, most_bytes: int = CONFIG_BYTES) -> str:
    """The text of a file, without a byte-order mark.

    Raises:
        UnreadableError: it cannot be read, or is not text.
    """
    checked_file(path, most_bytes)
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UnreadableError(error.strerror) from error
    except UnicodeDecodeError as error:
        raise UnreadableError("it is not text") from error


@contextmanager
def said_where_unparsable(named: object) -> Iterator[None]:
    """Within, what a parser stumbles over beyond its own errors is a sentence.

    Raises:
        UserError: it is nested too deeply, or a value is none (a number of 5000 digits).
    """
    try:
        yield
    except (json.JSONDecodeError, tomllib.TOMLDecodeError):
        raise  # the parser's own, said by who called it
    except RecursionError:
        raise too_deep(named) from None
    except ValueError as error:
        said = " ".join(str(error).split())
        if "integer string conversion" in said:
            said = "a number has more than 4300 digits"
        raise UserError(f"{named} must hold values that can be read, but {said}") from error


def too_deep(named: object) -> UserError:
    """What is said of a file that no one wrote by hand."""
    return UserError(f"{named} is nested too deeply; it must have at most {_MOST_LEVELS} levels")


def check_depth(value: Any, named: object) -> None:
    """Refuses what later code, which goes down level by level, could not bear.

    Raises:
        UserError: more levels than any configuration has, or an alias that holds itself.
    """
    level = [value] if isinstance(value, Mapping | list | tuple) else []
    for _ in range(_MOST_LEVELS):
        inner: dict[int, Any] = {}
        for one in level:
            held = one.values() if isinstance(one, Mapping) else one
            inner |= {id(v): v for v in held if isinstance(v, Mapping | list | tuple)}
        if not inner:
            return
        level = list(inner.values())
    raise too_deep(named)
