"""The default sampler: ranks all legal plans by what is expected of them, and says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from tuner.samplers.acquisition import Proposal, proposal
from tuner.samplers.candidates import Candidates
from tuner.samplers.evidence import BoolArray, Evidence, IntArray
from tuner.samplers.plan_belief import Belief, Outlook
from tuner.units import time_text

MEMORY_ATTR = "peak_memory_bytes"
"""User attribute of a told trial: peak bytes of the fullest rank."""
OOM_ATTR = "out_of_memory"
"""User attribute of a told trial that ran out of memory."""
INTERRUPTED_ATTR = "interrupted"
"""User attribute of a trial that was ended from outside: its plan may be tried again."""
POSITION_ATTR = "paratune:candidate"
"""System attribute of a trial: which candidate was proposed, for others that ask meanwhile."""
MIN_GAIN = 0.01
"""A search is over when no untried plan is expected to be faster by this share."""
MIN_MEASURED = 5
"""Measured trials before that is believed."""
MIN_CHANCE_OF_FIRST = 0.5
"""A plan that the user wants tried first is left to the search if it is less likely to run."""
EVERY_TRIAL = 48
"""Finished trials up to which what is believed is fitted anew after each; then after every tenth
part more, so that the thousandth proposal costs no more than the fiftieth."""
_FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a finished trial says of a candidate."""

    row: int
    seconds: float | None = None
    """Of a step; None where it did not run."""
    peak_bytes: float | None = None
    out_of_memory: bool = False


class PlanSampler(optuna.samplers.BaseSampler):
    """Proposes only candidates, none twice: first those asked for, then always the best bet.

    Usable in any Optuna study that minimises seconds and suggests the knobs of ``candidates`` as
    categoricals. A trial that did not run is told as PRUNED (or FAIL), with the user attribute
    ``out_of_memory`` where that was why.
    """

    def __init__(
        self,
        candidates: Candidates,
        belief: Belief,
        *,
        first: Sequence[tuple[int, str]] = (),
        earlier: Sequence[Told] = (),
        seed: int = 0,
    ) -> None:
        """Takes what to try first, with the reason, and what other studies told of candidates."""
        self.candidates = candidates
        self.reason = ""
        """Why the last plan was proposed, in words."""
        self._belief = belief
        self._first, self._earlier = tuple(first), tuple(earlier)
        self._tie_break = np.random.default_rng(seed).random(len(candidates))
        self._told: dict[int, Told | None] = {}
        self._ready: tuple[tuple[int, ...], Proposal | None] | None = None
        self._outlook: tuple[int, Outlook] | None = None
        """With how many finished trials it was made; only of late ones."""
        self._lock = Lock()

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All knobs are sampled together."""
        return {
            name: CategoricalDistribution(options)
            for name, options in self.candidates.options.items()
        }

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """The knobs of the next plan; empty when every candidate has been tried."""
        if (enqueued := trial.system_attrs.get("fixed_params")) is not None:
            # Optuna takes these whatever is proposed; no other plan is to be kept from others.
            self.reason = "enqueued"
            return dict(enqueued)
        with self._lock:
            chosen = self._proposal(study, asking=trial.number)
            if chosen is None:
                return {}
            study._storage.set_trial_system_attr(trial._trial_id, POSITION_ATTR, chosen.row)
            return dict(self.candidates.values(chosen.row))

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Called only when no candidate is left, or for a knob that the candidates lack.

        Raises:
            RuntimeError: always.
        """
        if param_name not in self.candidates.options:
            raise RuntimeError(
                f"the plan sampler proposes the knobs {', '.join(self.candidates.names)}; "
                f"{param_name!r} is not among them: add it to the candidates"
            )
        raise RuntimeError("every candidate has been tried; ask stop_reason() before each trial")

    def stop_reason(self, study: optuna.Study) -> str | None:
        """Why nothing is worth trying any more, with the number; None while something is."""
        with self._lock:
            evidence = self._evidence(study)
            chosen = self._proposal(study, asking=None)
        if chosen is None:
            return "every legal plan has been tried"
        if len(evidence.measured) < MIN_MEASURED or chosen.gain >= MIN_GAIN:
            return None
        return (
            f"no untried plan is expected to gain more than {MIN_GAIN:.0%} "
            f"(the most promising of {len(self.candidates) - len(evidence.tried)}: "
            f"{chosen.gain:.1%})"
        )

    def _proposal(self, study: optuna.Study, *, asking: int | None) -> Proposal | None:
        evidence = self._evidence(study, asking=asking)
        key = tuple(
            len(rows)
            for rows in (evidence.measured, evidence.too_large, evidence.failed, evidence.running)
        ) + tuple(evidence.running.tolist())
        if self._ready is None or self._ready[0] != key:
            self._ready = (key, self._chosen(evidence))
        return self._ready[1]

    def _chosen(self, evidence: Evidence) -> Proposal | None:
        left = self._untried(evidence)
        if not left.any():
            return None
        if (asked := self._asked_for(evidence, left)) is not None:
            return asked
        best = float(evidence.seconds.min()) if len(evidence.seconds) else None
        chosen = proposal(self._expected(evidence, left), best, self._tie_break)
        self.reason = proposal_reason(chosen, best)
        return chosen

    def _untried(self, evidence: Evidence) -> BoolArray:
        left = np.ones(len(self.candidates), dtype=np.bool_)
        left[evidence.tried] = False
        return left

    def _expected(self, evidence: Evidence, left: BoolArray) -> Outlook:
        """Of those that are left: by all trials, or by those up to the last fit."""
        num_finished = len(evidence.tried) - len(evidence.running)
        last_fit = _last_fit(num_finished)
        if last_fit == num_finished <= EVERY_TRIAL:
            # Earlier studies teach; what they measured is still worth a trial of this one.
            return self._belief.outlook(self._with_earlier(evidence), left)
        if self._outlook is None or self._outlook[0] != last_fit:
            then = _evidence_of(self._finished()[:last_fit], ())
            known = self._with_earlier(then)
            self._outlook = (last_fit, self._belief.outlook(known, self._untried(then)))
        outlook = self._outlook[1].kept(left)
        return outlook if len(outlook.rows) else self._belief.outlook(evidence, left)

    def _finished(self) -> list[Told]:
        # In the order of their numbers, as a later process reads them: sums differ by their order.
        ordered = [self._told[number] for number in sorted(self._told)]
        return [one for one in ordered if one is not None]

    def _asked_for(self, evidence: Evidence, left: BoolArray) -> Proposal | None:
        """The next plan that is to be tried first, where it is likely to run."""
        wanted = [(row, reason) for row, reason in self._first if left[row]]
        if not wanted or len(evidence.tried) > EVERY_TRIAL:
            return None
        known = self._with_earlier(evidence)
        fit = self._belief.chance_to_run(known, _rows([row for row, _ in wanted]))
        for (row, reason), chance in zip(wanted, fit.tolist(), strict=True):
            if chance >= MIN_CHANCE_OF_FIRST:
                self.reason = reason
                return Proposal(row=row, gain=1.0, fit=chance, seconds=0.0)
        return None

    def _with_earlier(self, evidence: Evidence) -> Evidence:
        earlier = _evidence_of(self._earlier, ())
        return Evidence(
            measured=np.concatenate([earlier.measured, evidence.measured]),
            seconds=np.concatenate([earlier.seconds, evidence.seconds]),
            peaks={**earlier.peaks, **evidence.peaks},
            too_large=np.concatenate([earlier.too_large, evidence.too_large]),
            failed=np.concatenate([earlier.failed, evidence.failed]),
            running=evidence.running,
        )

    def _evidence(self, study: optuna.Study, *, asking: int | None = None) -> Evidence:
        """What all trials tell; finished ones are read once."""
        running = []
        for trial in study.get_trials(deepcopy=False):
            if trial.number in self._told or trial.number == asking:
                continue
            if trial.state in _FINISHED:
                self._told[trial.number] = self._told_by(trial)
            elif (row := self._row_of_running(trial)) is not None:
                running.append(row)
        return _evidence_of(self._finished(), running)

    def _row_of_running(self, trial: FrozenTrial) -> int | None:
        row = trial.system_attrs.get(POSITION_ATTR)
        if isinstance(row, int) and row < len(self.candidates):
            return row
        return self.candidates.find(trial.system_attrs.get("fixed_params") or trial.params)

    def _told_by(self, trial: FrozenTrial) -> Told | None:
        """None for a trial of other knobs, and for one that was interrupted."""
        row = self.candidates.find(trial.params)
        if row is None or trial.user_attrs.get(INTERRUPTED_ATTR):
            return None
        measured = trial.state is TrialState.COMPLETE and trial.value is not None
        peak = trial.user_attrs.get(MEMORY_ATTR)
        return Told(
            row=row,
            seconds=float(trial.value) if measured and trial.value is not None else None,
            peak_bytes=float(peak) if peak else None,
            out_of_memory=bool(trial.user_attrs.get(OOM_ATTR)),
        )


def proposal_reason(chosen: Proposal, best_s: float | None) -> str:
    """What is hoped for of a proposal, in a sentence for people."""
    expected = f"{time_text(chosen.seconds)} a step, give or take {chosen.spread:.0%}"
    fit = f"{chosen.fit:.0%} likely to fit"
    if best_s is None:
        return f"the fastest by prediction ({expected}), {fit}"
    than = (
        f"faster than the best ({time_text(best_s)})"
        if chosen.seconds < best_s
        else f"so it may beat the best ({time_text(best_s)})"
    )
    return f"expected {expected}, {than}; expected gain {chosen.gain:.1%}, {fit}"


def _evidence_of(told: Sequence[Told], running: Sequence[int]) -> Evidence:
    measured = [(one.row, one.seconds) for one in told if one.seconds is not None]
    lost = [one for one in told if one.seconds is None]
    return Evidence(
        measured=_rows([row for row, _ in measured]),
        seconds=np.array([seconds for _, seconds in measured], dtype=np.float64),
        peaks={one.row: one.peak_bytes for one in told if one.peak_bytes is not None},
        too_large=_rows([one.row for one in lost if one.out_of_memory]),
        failed=_rows([one.row for one in lost if not one.out_of_memory]),
        running=_rows(running),
    )


def _last_fit(num_finished: int) -> int:
    """With how many of the finished trials what is believed is fitted."""
    fitted = min(num_finished, EVERY_TRIAL)
    while (later := fitted + fitted // 10) <= num_finished and later > fitted:
        fitted = later
    return fitted


def _rows(positions: Sequence[int]) -> IntArray:
    return np.asarray(positions, dtype=np.int64)
