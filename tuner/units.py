"""Sizes and times as text, both ways; everywhere else they are bytes and seconds."""

from __future__ import annotations

import re

KIB = 1024
MIB = 1024**2
GIB = 1024**3

MOST_GPUS = 1_000_000
"""Of a cluster, and of every degree: ten times the largest there are."""
MOST_LAYERS = 100_000
MOST_COUNT = 2**31 - 1
"""Of anything that is counted: products of a few still fit the arrays' 64 bits."""

_SIZES = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1024**4,
}
_TIMES = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _number_and_unit(text: str) -> tuple[float, str]:
    match = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    if match is None:
        return -1.0, ""
    return float(match.group(1)), match.group(2).lower()


def parsed_bytes(text: str) -> int:
    """Bytes meant by a text such as ``70GiB`` (1024) or ``80GB`` (1000).

    Raises:
        ValueError: the text is no positive size with a known unit.
    """
    number, unit = _number_and_unit(text)
    if number <= 0 or unit not in _SIZES:
        raise ValueError(f"a size must look like 70GiB, 80GB or 512MiB, got {text!r}")
    return round(number * _SIZES[unit])


def parsed_seconds(text: str) -> float:
    """Seconds meant by a text such as ``90s``, ``30m`` or ``2h``.

    Raises:
        ValueError: the text is no positive time with a known unit.
    """
    number, unit = _number_and_unit(text)
    if number <= 0 or unit not in _TIMES:
        raise ValueError(f"a time must look like 90s, 30m or 2h, got {text!r}")
    return number * _TIMES[unit]


def size_text(num_bytes: float) -> str:
    """A size for people: ``1.50 GiB``."""
    for name, size in (("TiB", 1024**4), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:.2f} {name}"
    return f"{num_bytes:.0f} B"


def time_text(seconds: float) -> str:
    """A time for people: ``3.2 ms``, ``1.25 s``, ``4m 05s``, ``2h 03m``."""
    if seconds < 0.9995:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 100:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    return f"{minutes // 60}h {minutes % 60:02d}m"


def count_text(count: float) -> str:
    """A count for people: ``24.4M``, ``8.03B``."""
    for name, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.3g}{name}"
    return f"{count:.0f}"
