"""The user's own configuration against the best: sentences, and what each change bought; pure."""

from __future__ import annotations

from dataclasses import dataclass

from reports.baseline import BaselineResult
from reports.baseline_wording import (
    CHANGES_HEADER,
    baseline_line,
    change_rows,
    note_lists,
    path_words,
)
from reports.html.table_view import Column, Table
from reports.summary import Summary
from reports.wording import outcome_words


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineView:
    """What the section of the baseline says."""

    file: str
    format: str
    label: str
    came: str
    """What came of its trial."""
    sentence: str
    path: str
    """What the table of the changes is."""
    changes: Table | None
    notes: tuple[tuple[str, tuple[str, ...]], ...]
    """A title and its lines; without those that have none."""


def baseline_view(summary: Summary) -> BaselineView | None:
    """None where the user gave no configuration."""
    result = summary.baseline
    if result is None:
        return None
    given = result.given
    line = baseline_line(summary) or ""
    return BaselineView(
        file=given.file,
        format=given.format,
        label=given.plan.label(),
        came="not tried yet" if result.trial is None else outcome_words(result.trial.outcome),
        sentence=f"{line[:1].upper()}{line[1:]}",
        path=path_words(result),
        changes=_changes(result),
        notes=note_lists(given),
    )


def _changes(result: BaselineResult) -> Table | None:
    if not result.bought:
        return None
    return Table(
        caption="What each change should have bought, one after another",
        columns=tuple(
            Column(title=title, numeric=place > 0) for place, title in enumerate(CHANGES_HEADER)
        ),
        rows=change_rows(result),
    )
