"""The section of ``report.md`` about the user's own configuration; pure."""

from __future__ import annotations

from reports.baseline import BaselineResult
from reports.baseline_wording import (
    CHANGES_HEADER,
    baseline_line,
    change_rows,
    note_lists,
    path_words,
)
from reports.markdown_table import markdown_table
from reports.summary import Summary
from reports.wording import one_line, outcome_words


def baseline_section(summary: Summary) -> list[str]:
    """What it is, what came of it, what was changed; no lines without one."""
    result = summary.baseline
    if result is None:
        return []
    given = result.given
    line = baseline_line(summary) or ""
    came = "not tried yet" if result.trial is None else outcome_words(result.trial.outcome)
    return [
        "## Your configuration against the best",
        "",
        f"`{given.file}` ({given.format}) is **`{given.plan.label()}`**: {came}.",
        "",
        f"{line[:1].upper()}{line[1:]}.",
        *_changes(result),
        *(line for title, items in note_lists(given, mark="`") for line in _listed(title, items)),
    ]


def _changes(result: BaselineResult) -> list[str]:
    if not result.bought:
        return []
    return ["", path_words(result), "", *markdown_table(CHANGES_HEADER, change_rows(result))]


def _listed(title: str, items: tuple[str, ...]) -> list[str]:
    return ["", f"{title}:", "", *(f"- {one_line(item)}" for item in items)]
