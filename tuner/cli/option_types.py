"""What several commands take in the same words: whole numbers, and the seed of a search."""

from __future__ import annotations

import argparse

_MOST_SEED = 2**32 - 1
"""numpy's generators, which some samplers use, take no more."""


def positive(text: str) -> int:
    """A whole number above 0."""
    return _whole(text, 1, None, "above 0")


def seed(text: str) -> int:
    """A seed that every sampler takes."""
    return _whole(text, 0, _MOST_SEED, f"from 0 to {_MOST_SEED}")


def _whole(text: str, least: int, most: int | None, words: str) -> int:
    try:
        value = int(text) if text.isdecimal() else None
    except ValueError:  # more digits than Python reads
        value = None
    if value is None or value < least or (most is not None and value > most):
        raise argparse.ArgumentTypeError(f"must be a whole number {words}, got {text!r}")
    return value
