"""The section of ``report.md`` about the user's own configuration; pure."""

from __future__ import annotations

from reports.baseline import BaselineResult
from reports.baseline_wording import baseline_line, carried_words, factor_words, path_words
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
        *_listed("Worth knowing", given.notes),
        *_listed("Keys that the framework does not know", given.unknown_keys),
        *_listed(f"Settings carried into every plan of {given.plan.backend}", carried_words(given)),
        *_listed(
            "Keys without a knob, which were not carried over",
            tuple(f"`{key}`: {value or 'given'}" for key, value in given.pinned),
        ),
        *_listed(
            "Keys that do not matter here",
            tuple(f"`{key}`: {reason}" for key, reason in given.ignored_keys),
        ),
    ]


def _changes(result: BaselineResult) -> list[str]:
    if not result.bought:
        return []
    lines = [
        "",
        path_words(result),
        "",
        "| change | step time after it (predicted) | speed-up (predicted) | speed-up (measured) |",
        "| --- | --- | --- | --- |",
    ]
    for one in result.bought:
        predicted, measured = factor_words(one.predicted_factor), factor_words(one.measured_factor)
        after_ms = one.change.predicted_step_time_s * 1e3
        lines.append(f"| {one.text} | {after_ms:,.1f} ms | {predicted} | {measured} |")
    return lines


def _listed(title: str, items: tuple[str, ...]) -> list[str]:
    return ["", f"{title}:", "", *(f"- {one_line(item)}" for item in items)] if items else []
