"""The second pass over the winner's framework settings, in words and as a record; pure."""

from __future__ import annotations

from typing import Any

from reports.summary import Summary
from reports.wording import interval_words, outcome_words
from tuner.framework_settings.table import settings_text, value_text
from tuner.outcome import Measured
from tuner.second_pass import ALL_TOGETHER, Decision, SecondPass, TriedOption, Verdict

HEADER = ("setting", "was", "tried", "step time", "longer without it (95 % interval)", "verdict")
NUMERIC = ("was", "step time")


def second_pass_line(summary: Summary) -> str | None:
    """``overlap_comm=false (a step without it takes +1.2 % to +4.0 %)``; None without a pass."""
    found = summary.second_pass
    if found is None:
        return None
    kept = found.changes_kept
    if kept:
        gain = "" if found.gain is None else f" (a step without takes {gain_words(found.gain)})"
        return f"{settings_text(kept)}{gain}{_unfinished(found)}"
    tried = sum(len(decision.tried) for decision in found.decisions)
    if not found.decisions:
        return f"none was tried{_why_none(found)}{_unfinished(found)}"
    options = "option" if tried == 1 else "options"
    return (
        f"as they were: of {tried} {options} tried none is faster for certain{_unfinished(found)}"
    )


def _why_none(found: SecondPass) -> str:
    if not found.is_over:
        return ""
    if found.runs and not isinstance(found.runs[0].outcome, Measured):
        return f": run again, the plan did not train ({outcome_words(found.runs[0].outcome)})"
    return ": this plan has none to turn here"


def _unfinished(found: SecondPass) -> str:
    return "" if found.is_over else f"; not finished after {len(found.runs)} runs"


def gain_words(gain: tuple[float, float]) -> str:
    """How much longer, as an interval."""
    return f"{gain[0]:+.1%} to {gain[1]:+.1%}"


def second_pass_rows(found: SecondPass) -> tuple[tuple[str, ...], ...]:
    """A row an option, under ``HEADER``."""
    return tuple(
        _row(decision, option) for decision in found.decisions for option in decision.tried
    )


def _row(decision: Decision, option: TriedOption) -> tuple[str, ...]:
    together = decision.setting == ALL_TOGETHER
    return (
        decision.setting,
        "none of them" if together else value_text(decision.was),
        settings_text(option.changes),
        interval_words(option.outcome) if isinstance(option.outcome, Measured) else "",
        "" if option.gain is None else gain_words(option.gain),
        _verdict_words(option),
    )


def _verdict_words(option: TriedOption) -> str:
    if option.verdict is Verdict.FAILED:
        return f"{option.verdict}: {outcome_words(option.outcome)}"
    if option.verdict is Verdict.UNFOLLOWED and isinstance(option.outcome, Measured):
        return f"{option.verdict}: {'; '.join(option.outcome.unfollowed)}"
    return str(option.verdict)


def second_pass_record(summary: Summary) -> dict[str, Any] | None:
    """For the JSON document."""
    found = summary.second_pass
    if found is None:
        return None
    return {
        "trial": found.trial,
        "plan": found.plan.to_dict(),
        "settings": dict(found.changes_kept),
        "gain": None if found.gain is None else list(found.gain),
        "num_runs": len(found.runs),
        "is_over": found.is_over,
        "tried": [
            _option_record(decision, option)
            for decision in found.decisions
            for option in decision.tried
        ],
        "sentence": second_pass_line(summary),
    }


def _option_record(decision: Decision, option: TriedOption) -> dict[str, Any]:
    measured = option.outcome if isinstance(option.outcome, Measured) else None
    return {
        "setting": decision.setting,
        "was": decision.was,
        "changes": dict(option.changes),
        "verdict": str(option.verdict),
        "kept": option.verdict is Verdict.KEPT,
        "outcome": option.outcome.kind,
        "step_time_s": measured.step_time_s if measured else None,
        "step_time_ci_s": list(measured.step_time_ci_s) if measured else None,
        "gain": None if option.gain is None else list(option.gain),
    }
