"""What a rule's sentence offers: the values that would do."""

from __future__ import annotations

from collections.abc import Callable, Iterable

_MOST = 8


def options_text(candidates: Iterable[int], is_legal: Callable[[int], bool]) -> str:
    """``1, 2, 4``: those that would do, or that none would."""
    legal = [str(number) for number in candidates if is_legal(number)]
    if not legal:
        return "another layout: no value would do"
    return ", ".join(legal[:_MOST]) + (", ..." if len(legal) > _MOST else "")


def divisors(number: int) -> list[int]:
    """All of them, in order."""
    return [n for n in range(1, number + 1) if number % n == 0]
