"""Files that outlive a crash: replaced whole, and refused by their name where they are damaged."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from tuner.errors import UserError

_T = TypeVar("_T")


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file at once: a reader, or a crash, never finds half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)  # what a crash has left; a link would be followed
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def read_kept(
    path: Path,
    adapter: TypeAdapter[_T],
    what: str,
    *,
    way_out: str = "move it away to go on without it",
) -> _T | None:
    """What a file holds that a study need not have; None where it has not.

    Raises:
        UserError: the file cannot be read.
    """
    if not path.exists():
        return None
    try:
        return adapter.validate_json(path.read_bytes())
    except (ValidationError, OSError) as error:
        raise UserError(
            f"{path} must be {what}, but it cannot be read ({first_line(error)}); {way_out}"
        ) from error


def first_line(error: Exception) -> str:
    """The first thing that is wrong, with the field of a value that was read."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"
    return str(error).splitlines()[0]
