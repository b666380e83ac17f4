"""The user's own configuration against the best: sentences, and what each change bought; pure."""

from __future__ import annotations

from dataclasses import dataclass

from reports.baseline import BaselineResult
from reports.baseline_wording import baseline_line, carried_words, factor_words, path_words
from reports.html.table_view import Column, Table
from reports.summary import Summary
from reports.wording import outcome_words
from tuner.units import time_text


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
    lists = (
        ("Worth knowing", given.notes),
        ("Keys that the framework does not know", given.unknown_keys),
        (f"Settings carried into every plan of {given.plan.backend}", carried_words(given)),
        (
            "Keys without a knob, which were not carried over",
            tuple(f"{key}: {value or 'given'}" for key, value in given.pinned),
        ),
        (
            "Keys that do not matter here",
            tuple(f"{key}: {reason}" for key, reason in given.ignored_keys),
        ),
    )
    return BaselineView(
        file=given.file,
        format=given.format,
        label=given.plan.label(),
        came="not tried yet" if result.trial is None else outcome_words(result.trial.outcome),
        sentence=f"{line[:1].upper()}{line[1:]}",
        path=path_words(result),
        changes=_changes(result),
        notes=tuple((title, lines) for title, lines in lists if lines),
    )


def _changes(result: BaselineResult) -> Table | None:
    if not result.bought:
        return None
    return Table(
        caption="What each change should have bought, one after another",
        columns=(
            Column(title="change"),
            Column(title="step time after it (predicted)", numeric=True),
            Column(title="speed-up (predicted)", numeric=True),
            Column(title="speed-up (measured)", numeric=True),
        ),
        rows=tuple(
            (
                one.text,
                time_text(one.change.predicted_step_time_s),
                factor_words(one.predicted_factor),
                factor_words(one.measured_factor),
            )
            for one in result.bought
        ),
    )
