"""The user's own plan against the best, in words; pure."""

from __future__ import annotations

from typing import Any

from reports.baseline import Baseline, BaselineResult, ChangeBought
from reports.summary import MeasuredTrial, Summary
from reports.wording import WITHIN_NOISE, outcome_words, source_mark
from tuner.framework_settings.table import settings_text
from tuner.outcome import Measured, OutOfMemory, TimedOut
from tuner.units import time_text

_MOST_CHANGES = 3
"""Named in one line; the report has them all."""
_LEAST_GAIN, _LEAST_LOSS = 1.005, 0.995
"""What is between them is 1.00x as it is shown."""


def baseline_line(summary: Summary) -> str | None:
    """``yours: 14,200 tokens/s; best: 19,800 tokens/s (1.39x), because ...``; None without one."""
    result = summary.baseline
    if result is None:
        return None
    own, best = result.measured, summary.best
    if own is None or best is None:
        return f"yours ({result.given.plan.label()}) {_end_words(result)}{_best_words(summary)}"
    yours = f"yours: {own.tokens_per_s:,.0f} tokens/s{source_mark(own.source)}"
    if best.plan == result.given.plan:
        return (
            f"{yours}, the fastest of the {len(summary.ranking)} plans that trained{_tuned(best)}"
        )
    line = f"{yours}; best: {best.measured.tokens_per_s:,.0f} ({result.speedup:.2f}x)"
    if result.is_tie:
        return f"{line}, which may be no difference: {WITHIN_NOISE}"
    return line + _because(result)


def _tuned(best: MeasuredTrial) -> str:
    return f"; faster with {settings_text(best.settings)}" if best.settings else ""


def note_lists(given: Baseline, *, mark: str = "") -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What is to be known of the file beside its plan: a title and its lines, where it has any.

    ``mark`` stands on both sides of a key: Markdown's for code, say.
    """
    lists = (
        ("Worth knowing", given.notes),
        ("Keys that the framework does not know", given.unknown_keys),
        (
            f"Settings carried into every plan of {given.plan.backend}",
            tuple(settings_text([setting]) for setting in given.settings),
        ),
        (
            "Keys without a knob, which were not carried over",
            tuple(f"{mark}{key}{mark}: {value or 'given'}" for key, value in given.pinned),
        ),
        (
            "Keys that do not matter here",
            tuple(f"{mark}{key}{mark}: {reason}" for key, reason in given.ignored_keys),
        ),
    )
    return tuple((title, lines) for title, lines in lists if lines)


CHANGES_HEADER = (
    "change",
    "step time after it (predicted)",
    "speed-up (predicted)",
    "speed-up (measured)",
)


def change_rows(result: BaselineResult) -> tuple[tuple[str, ...], ...]:
    """A row a change, under ``CHANGES_HEADER``."""
    return tuple(
        (
            one.text,
            time_text(one.change.predicted_step_time_s),
            factor_words(one.predicted_factor),
            factor_words(one.measured_factor),
        )
        for one in result.bought
    )


def _because(result: BaselineResult) -> str:
    largest = _gains(result)[:_MOST_CHANGES]
    return f", because {'; '.join(change_words(one) for one in largest)}" if largest else ""


def _gains(result: BaselineResult) -> list[ChangeBought]:
    """The changes that made it faster, the largest first: none that is shown as 1.00x or less."""
    gains = [one for one in result.bought if one.factor >= _LEAST_GAIN]
    return sorted(gains, key=lambda one: -one.factor)


def path_words(result: BaselineResult) -> str:
    """What the table of the changes is, a sentence or two."""
    gains = _gains(result)
    largest = (
        f"the largest gain is {change_words(gains[0])}"
        if gains
        else "none of them makes it faster by itself"
    )
    return (
        "What each change should have bought, one after another in the order of the path from "
        f"your plan to the best; {largest}. A change is measured only where the plans before and "
        "after it were both tried."
    )


def factor_words(factor: float | None) -> str:
    """``1.15x``, ``0.90x (slower)``; nothing where it is not known."""
    if factor is None:
        return ""
    return f"{factor:.2f}x{' (slower)' if factor < _LEAST_LOSS else ''}"


def change_words(bought: ChangeBought) -> str:
    """``tp 1 -> 2 (predicted 1.20x; measured 1.15x)``."""
    measured = bought.measured_factor
    confirmed = "" if measured is None else f"; measured {factor_words(measured)}"
    return f"{bought.text} (predicted {factor_words(bought.predicted_factor)}{confirmed})"


def _end_words(result: BaselineResult) -> str:
    if result.trial is None:
        return "has not been tried yet"
    match result.trial.outcome:
        case OutOfMemory():
            return f"ran out of memory here (trial {result.trial.number}): no speed to compare"
        case TimedOut():
            return f"timed out here (trial {result.trial.number}): no speed to compare"
        case Measured():
            return "trained"
        case outcome:
            said = outcome_words(outcome)
            return f"did not run here (trial {result.trial.number}: {said}): no speed to compare"


def _best_words(summary: Summary) -> str:
    best = summary.best
    if best is None:
        return ""
    return f"; best: {best.measured.tokens_per_s:,.0f} tokens/s{source_mark(summary.source)}"


def baseline_record(summary: Summary) -> dict[str, Any] | None:
    """For the JSON document."""
    result = summary.baseline
    if result is None:
        return None
    given, own = result.given, result.measured
    return {
        "plan": given.plan.to_dict(),
        "file": given.file,
        "format": given.format,
        "unknown_keys": list(given.unknown_keys),
        "ignored_keys": [{"key": key, "reason": reason} for key, reason in given.ignored_keys],
        "settings": dict(given.settings),
        "pinned": dict(given.pinned),
        "notes": list(given.notes),
        "trial": result.trial.number if result.trial else None,
        "outcome": result.trial.outcome.kind if result.trial else None,
        "step_time_s": own.step_time_s if own else None,
        "tokens_per_s": own.tokens_per_s if own else None,
        "speedup": result.speedup,
        "is_tie": result.is_tie,
        "changes": [
            {
                "knobs": {name: [was, now] for name, was, now in one.change.knobs},
                "plan": one.change.plan.to_dict(),
                "predicted_step_time_s": one.change.predicted_step_time_s,
                "predicted_factor": one.predicted_factor,
                "measured_factor": one.measured_factor,
            }
            for one in result.bought
        ],
        "sentence": baseline_line(summary),
    }
