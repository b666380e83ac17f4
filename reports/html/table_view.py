"""A table as text: what the page's plain tables are made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A heading, and how the cells under it are set."""

    title: str
    numeric: bool = False
    code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A caption, headings and rows of as many cells."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"a row of {self.caption!r} must have {len(self.columns)} cells, got {len(row)}"
                )
