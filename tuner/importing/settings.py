"""A nested file as a reader takes it apart: typed values by dotted key, and what was left over."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.importing.imported import IgnoredKey, PinnedKey

_MISSING = object()


class Settings:
    """The keys of one file; what is taken is remembered, so that the rest can be listed."""

    def __init__(self, values: Mapping[str, Any], *, file: Path, text: str) -> None:
        self._values = values
        self._text = text
        self._taken: set[str] = set()
        self.file = file

    def has(self, key: str) -> bool:
        """Whether a key is there; null counts as absent."""
        return self._value(key) is not None

    def stands(self, key: str) -> bool:
        """Whether a key is there, also with null."""
        *blocks, name = key.split(".")
        block = self._value(".".join(blocks)) if blocks else self._values
        return isinstance(block, Mapping) and name in block

    def take(self, key: str) -> Any:
        """A value as it is, or None."""
        value = self._value(key)
        if value is not None:
            self._taken.add(key)
        return value

    def peek(self, key: str) -> Any:
        """A value as it is, or None; it counts as not read."""
        return self._value(key)

    def size(self, key: str) -> int:
        """A whole number, also spelled as a power of ten: DeepSpeed takes 5e8.

        Raises:
            UserError: it is something else.
        """
        value = self.take(key)
        known = isinstance(value, int | float) and not isinstance(value, bool)
        if not known or not abs(value) < 2**63 or value != int(value):  # not < also for nan
            raise self.error(key, f"must be a whole number, got {value!r}")
        return int(value)

    def whole(self, key: str, default: int, *, least: int = 1) -> int:
        """A whole number.

        Raises:
            UserError: it is something else, or too small.
        """
        value = self.take(key)
        if value is None:
            return default
        if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,18}\s*", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, f"must be a whole number of at least {least}, got {value!r}")
        if value >= 2**53:
            raise self.error(key, f"must be a whole number below 2^53, got {value}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false, also spelled as text.

        Raises:
            UserError: it is something else.
        """
        value = self.take(key)
        if value is None:
            return default
        known = {"true": True, "false": False, "yes": True, "no": False}
        answer = known.get(str(value).lower())
        if answer is None:
            raise self.error(key, f"must be true or false, got {value!r}")
        return answer

    def word(self, key: str, options: Collection[str], default: str) -> str:
        """One of these words.

        Raises:
            UserError: it is something else.
        """
        value = self.take(key)
        if value is None:
            return default
        if str(value) not in options:
            raise self.error(key, f"must be one of {', '.join(options)}, got {value!r}")
        return str(value)

    def forget(self) -> None:
        """Takes nothing as read: looking a file over is not reading it."""
        self._taken.clear()

    def line(self, key: str) -> int | None:
        """The line that a key stands on."""
        position = 0
        for part in key.split("."):
            found = re.compile(rf"(?<![\w-]){re.escape(part)}[\"']?\s*[:=\]]").search(
                self._text, position
            )
            if found is None:
                return None
            position = found.start()
        return self._text.count("\n", 0, position) + 1

    def error(self, key: str, sentence: str) -> UserError:
        """The user's mistake, with file, line and key."""
        line = self.line(key)
        place = f"{self.file}: line {line}" if line else str(self.file)
        return UserError(f"{place}: {key} {sentence}")

    def left(self) -> Iterator[tuple[str, Any]]:
        """What was not taken: dotted keys of leaves, in the file's order."""
        for key, value in _leaves(self._values):
            if not any(key == taken or key.startswith(f"{taken}.") for taken in self._taken):
                yield key, value

    def _value(self, key: str) -> Any:
        value: Any = self._values
        for part in key.split("."):
            if not isinstance(value, Mapping):
                return None
            value = value.get(part)
        return value


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def sorted_out(
    left: Iterator[tuple[str, Any]], known: Mapping[str, str | None]
) -> tuple[tuple[str, ...], tuple[IgnoredKey, ...], tuple[PinnedKey, ...]]:
    """What is left of a file as unknown, ignored and pinned keys.

    Args:
        left: leaves that no knob came from.
        known: keys, or the blocks that they stand in, to why they are ignored; None pins them.
            The longest one that fits decides.
    """
    unknown, ignored, pinned = [], [], []
    for key, value in left:
        reason = known_reason(key, known)
        if reason is _MISSING:
            unknown.append(_unknown_block(key, known))
        elif reason is None:
            pinned.append(PinnedKey(key=key, value=value_text(value)))
        else:
            ignored.append(IgnoredKey(key=key, reason=str(reason)))
    return tuple(dict.fromkeys(unknown)), tuple(ignored), tuple(pinned)


def _unknown_block(key: str, known: Mapping[str, str | None]) -> str:
    """The outermost block of an unknown key that nothing known stands in."""
    parts = key.split(".")
    for length in range(1, len(parts)):
        block = ".".join(parts[:length])
        if not any(name == block or name.startswith(f"{block}.") for name in known):
            return block
    return key


def known_reason(key: str, known: Mapping[str, str | None]) -> object:
    """Of the longest known key that this one is, or stands in."""
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in known:
            return known[prefix]
    return _MISSING


def value_text(value: Any) -> str:
    """As the file would say it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def nearest_hint(name: str, known: Collection[str]) -> str:
    """``; did you mean X?`` where some known name is like it."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""
