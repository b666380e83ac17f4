"""The kinds of value that a job file holds: sizes, times, rates, degrees, lists of options."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from tuner.units import MOST_COUNT, parsed_bytes, parsed_seconds

_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kKMGT])(b|B|bit)(?:/s|ps)\s*")
_PREFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def parsed_bytes_per_s(text: str) -> float:
    """Bytes per second meant by ``400Gb/s`` (bits), ``400Gbps`` (bits) or ``50GB/s`` (bytes).

    Raises:
        ValueError: the text is no positive rate with a known unit.
    """
    match = _RATE.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise ValueError(
            f"a rate must look like 400Gb/s (bits) or 50GB/s (bytes) and be above 0, got {text!r}"
        )
    in_bytes = match[3] == "B"
    return float(match[1]) * _PREFIXES[match[2]] / (1 if in_bytes else 8)


def _size(value: Any) -> Any:
    return parsed_bytes(value) if isinstance(value, str) else value


def _time(value: Any) -> Any:
    return parsed_seconds(value) if isinstance(value, str) else value


def _rate(value: Any) -> Any:
    return parsed_bytes_per_s(value if isinstance(value, str) else repr(value))


def _listed(value: Any) -> Any:
    if value == "auto":
        return None
    if value is None:
        raise ValueError("it must be a list, one value, or auto, got nothing")
    return value if isinstance(value, list) else [value]


@dataclass(frozen=True, slots=True)
class Spelled:
    """How a value is written in the file, in the words of the reference page."""

    words: str


Listed = BeforeValidator(_listed)
"""A list, one value, or auto (None)."""
Size = Annotated[
    int, BeforeValidator(_size), Field(gt=0, lt=2**63), Spelled("a size: `70GiB`, `480MiB`")
]
Seconds = Annotated[float, BeforeValidator(_time), Field(gt=0), Spelled("a time: `90s`, `2h`")]
Rate = Annotated[float, BeforeValidator(_rate), Spelled("a rate: `400Gb/s`, `50GB/s`")]
"""Bytes per second; always a text with its unit, for bits and bytes are taken for each other."""
Degree = Annotated[int, Field(ge=1, le=MOST_COUNT, strict=True)]
Degrees = Annotated[list[Degree] | None, Listed, Field(min_length=1)]


class Strict(BaseModel):
    """A section of which an unknown key is an error; the text under a key is its meaning."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
