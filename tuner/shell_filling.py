"""Variables of a shell script filled in: values that hold one another cannot grow without end."""

from __future__ import annotations

import re
from collections.abc import Callable

from tuner.units import KIB, MIB

MOST_OF_A_LINE = 64 * KIB
_MOST_OF_A_SCRIPT = 16 * MIB


class Filling:
    """What one script has been filled in with so far."""

    def __init__(self) -> None:
        self._characters = 0

    def filled(
        self, pattern: re.Pattern[str], value_of: Callable[[re.Match[str]], str], text: str
    ) -> str:
        """A line, or a value, with every name replaced.

        Raises:
            ValueError: it, or the script as a whole, becomes too long.
        """
        before = self._characters

        def counted(match: re.Match[str]) -> str:
            value = value_of(match)
            self._characters += len(value)
            of_line = self._characters - before
            if of_line > MOST_OF_A_LINE or self._characters > _MOST_OF_A_SCRIPT:
                raise ValueError(
                    f"{text.strip()[:60]!r} must come to at most {MOST_OF_A_LINE} characters once "
                    f"its variables are filled in (a script to {_MOST_OF_A_SCRIPT}); do its "
                    "variables hold one another?"
                )
            return value

        return pattern.sub(counted, text)
