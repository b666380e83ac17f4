"""The winner's framework settings as a table of ``report.html``; pure."""

from __future__ import annotations

from reports.html.table_view import Column, Table
from reports.second_pass_wording import HEADER, NUMERIC, second_pass_rows
from reports.summary import Summary


def second_pass_table(summary: Summary) -> Table | None:
    """None where none was tried."""
    found = summary.second_pass
    if found is None or not found.decisions:
        return None
    return Table(
        caption=f"Framework settings tried on trial {found.trial}",
        columns=tuple(Column(title=title, numeric=title in NUMERIC) for title in HEADER),
        rows=second_pass_rows(found),
    )
