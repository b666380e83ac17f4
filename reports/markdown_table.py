"""A table of a Markdown page, whatever its cells hold; pure."""

from __future__ import annotations

from collections.abc import Iterable

from reports.wording import one_line


def markdown_table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Its lines; a cell is one line, and a bar in it does not end it."""
    return [_row(header), "|" + " --- |" * len(header), *(_row(row) for row in rows)]


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(_escaped(one_line(cell) if cell else "") for cell in cells) + " |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
