"""A comparison on a terminal, as things that rich prints; nothing is printed here."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from reports.compare import Comparison, shared_rows, verdict, winner_rows

_MAX_ROWS = 20
"""Of the plans in both; the files have all."""


def comparison_panel(compared: Comparison) -> RenderableType:
    """The verdict, both winners, what differs, and the plans in both."""
    first, second = compared.first.name, compared.second.name
    parts: list[RenderableType] = [
        Text(verdict(compared), style="bold"),
        _table("The winners", ("", first, second), winner_rows(compared)),
    ]
    if differing := (*compared.workload_differences, *compared.other_differences):
        parts.append(_table("What differs", ("what", first, second), differing))
    if rows := shared_rows(compared):
        header = ("plan", first, second, f"{second} is as fast")
        title = f"Plans in both, step times ({compared.first.summary.source})"
        parts.append(_table(title, header, rows[:_MAX_ROWS]))
    if len(rows) > _MAX_ROWS:
        parts.append(Text(f"and {len(rows) - _MAX_ROWS} more, in the files"))
    return Group(*parts)


def _table(title: str, header: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in header:
        table.add_column(Text(name))
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
