"""The user's own plan against the best: what came of it, and what each change should have bought.

Pure. Measured and predicted numbers stay apart: a step between two plans has a predicted factor,
and a measured one only where both plans were measured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.launch import Settings
from tuner.outcome import Measured, Source
from tuner.plan import ParallelPlan
from tuner.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What the user has, as ``tuner.importing`` read it and the study folder kept it."""

    plan: ParallelPlan
    file: str
    format: str
    unknown_keys: tuple[str, ...]
    ignored_keys: tuple[tuple[str, str], ...]
    """Keys with the reason."""
    settings: Settings
    """Framework settings, carried into every plan of the framework that they apply to."""
    pinned: tuple[tuple[str, str], ...]
    """Other keys without a knob, with their values."""
    notes: tuple[str, ...]
    changes: BaselineChanges | None = None

    @classmethod
    def of_documents(
        cls, document: Mapping[str, Any], changes: Mapping[str, Any] | None
    ) -> Baseline:
        """From the JSON that the study folder keeps."""
        return cls(
            plan=ParallelPlan.from_dict(document["plan"]),
            file=document["file"],
            format=document["format"],
            unknown_keys=tuple(document["unknown_keys"]),
            ignored_keys=tuple((one["key"], one["reason"]) for one in document["ignored_keys"]),
            settings=tuple(document.get("settings", {}).items()),
            pinned=tuple(document["pinned"].items()),
            notes=tuple(document["notes"]),
            changes=None if changes is None else BaselineChanges.of_document(changes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedChange:
    """One or more knobs changed at once, on the way from the user's plan to the best."""

    knobs: tuple[tuple[str, str, str], ...]
    """Name, value before, value after."""
    plan: ParallelPlan
    """After the change."""
    predicted_step_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineChanges:
    """The way from the user's plan to a winner, by prediction."""

    winner: ParallelPlan
    predicted_step_time_s: float
    """Of the user's plan."""
    steps: tuple[PredictedChange, ...]

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> BaselineChanges:
        """From the JSON that the study folder keeps."""
        return cls(
            winner=ParallelPlan.from_dict(document["winner"]),
            predicted_step_time_s=document["predicted_step_time_s"],
            steps=tuple(
                PredictedChange(
                    knobs=tuple((name, *map(str, values)) for name, values in one["knobs"].items()),
                    plan=ParallelPlan.from_dict(one["plan"]),
                    predicted_step_time_s=one["predicted_step_time_s"],
                )
                for one in document["steps"]
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeBought:
    """What a change should have bought, and what it did where both plans were measured."""

    change: PredictedChange
    predicted_factor: float
    """How many times faster the plan after it is than the plan before."""
    measured_factor: float | None

    @property
    def factor(self) -> float:
        """As measured, or else as predicted."""
        return self.predicted_factor if self.measured_factor is None else self.measured_factor

    @property
    def text(self) -> str:
        """``tp 1 -> 2, pp 4 -> 2``."""
        return ", ".join(f"{name} {was} -> {now}" for name, was, now in self.change.knobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineResult:
    """The user's plan in a study."""

    given: Baseline
    trial: Trial | None
    """None: not tried yet."""
    speedup: float | None
    """How many times faster the best plan is; None where the user's was not measured."""
    is_tie: bool
    """Whether noise leaves open that the user's plan is as fast as the best."""
    bought: tuple[ChangeBought, ...]
    """In the order of the changes; empty where the best is the user's, or nothing is predicted."""

    @property
    def measured(self) -> Measured | None:
        """Its numbers, where it trained."""
        outcome = None if self.trial is None else self.trial.outcome
        return outcome if isinstance(outcome, Measured) else None


def baseline_result(
    given: Baseline,
    trials: tuple[Trial, ...],
    best: Trial | None,
    fastest: Measured | None,
    tied: Collection[ParallelPlan],
) -> BaselineResult:
    """What came of the user's plan.

    Args:
        given: the plan and its file.
        trials: all of the study.
        best: the fastest that trained.
        fastest: its numbers, by the last that was measured of it.
        tied: plans that may be as fast as the best.
    """
    measured = {t.plan: t.outcome for t in trials if isinstance(t.outcome, Measured)}
    tried = [trial for trial in trials if trial.plan == given.plan]
    own = measured.get(given.plan)
    return BaselineResult(
        given=given,
        trial=tried[-1] if tried else None,
        speedup=None if own is None or fastest is None else own.step_time_s / fastest.step_time_s,
        is_tie=given.plan in tied,
        bought=_bought(given, measured, best),
    )


def _bought(
    given: Baseline, measured: Mapping[ParallelPlan, Measured], best: Trial | None
) -> tuple[ChangeBought, ...]:
    changes = given.changes
    if changes is None or best is None or changes.winner != best.plan:
        return ()
    bought = []
    before, before_s = given.plan, changes.predicted_step_time_s
    for step in changes.steps:
        was, now = measured.get(before), measured.get(step.plan)
        # The whole way measured is the speed-up itself, and confirms no single change.
        # A ratio of an extrapolated time and a measured one confirms nothing either.
        known = {both.source for both in (was, now) if both is not None}
        told = was is not None and now is not None and len(changes.steps) > 1
        told = told and Source.EXTRAPOLATED not in known
        bought.append(
            ChangeBought(
                change=step,
                predicted_factor=before_s / step.predicted_step_time_s,
                measured_factor=was.step_time_s / now.step_time_s if told and was and now else None,
            )
        )
        before, before_s = step.plan, step.predicted_step_time_s
    return tuple(bought)
