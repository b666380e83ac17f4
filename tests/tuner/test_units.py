"""Sizes and times as text, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.units import parsed_bytes, parsed_seconds, size_text, time_text


@pytest.mark.parametrize(
    ("text", "size"),
    [("70GiB", 70 * 2**30), ("80GB", 80 * 10**9), ("1.5 MiB", 1572864), ("512b", 512)],
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert parsed_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0MB", "5 parsecs", "1e9"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="70GiB"):
        parsed_bytes(text)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200)])
def test_a_time_is_read(text: str, seconds: float) -> None:
    assert parsed_seconds(text) == seconds


def test_a_time_without_a_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="30m"):
        parsed_seconds("30")


@given(st.integers(1, 2**50))
def test_a_size_survives_being_written_and_read(size: int) -> None:
    assert parsed_bytes(size_text(size)) == pytest.approx(size, rel=0.006)


def test_times_are_written_for_people() -> None:
    assert [time_text(s) for s in (0.0032, 1.25, 245, 7380)] == [
        "3.2 ms",
        "1.25 s",
        "4m 05s",
        "2h 03m",
    ]
