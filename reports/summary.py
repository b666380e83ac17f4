"""What came of a study, in numbers: pure, and the same for every way of showing it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from reports.baseline import Baseline, BaselineResult, baseline_result
from tuner.finals import Finalist, Finals, confirmed, failed_finalists, standings
from tuner.framework_settings.table import settings_text
from tuner.launch import Settings
from tuner.outcome import Measured, OutOfMemory, Source
from tuner.plan import Backend, ParallelPlan
from tuner.second_pass import SecondPass
from tuner.trial import Trial
from tuner.verification import Verification

_SHORTEST_S = 1e-6
"""No optimizer step is shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTrial:
    """A trial that trained, with its numbers at hand."""

    trial: Trial
    measured: Measured
    settings: Settings = ()
    """Framework settings that the second pass kept for it, on top of what the trial had."""
    run: int | None = None
    """The run of the second pass whose launch files say them; None: the trial's own files."""

    @property
    def label(self) -> str:
        """Of its plan, with the settings that were kept."""
        also = f" with {settings_text(self.settings)}" if self.settings else ""
        return f"{self.plan.label()}{also}"

    @property
    def plan(self) -> ParallelPlan:
        """What was tried."""
        return self.trial.plan

    @property
    def number(self) -> int:
        """Of the trial in its study."""
        return self.trial.number


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultPlan:
    """What a framework does unless told otherwise, and what came of it here."""

    backend: Backend
    plan: ParallelPlan
    trial: Trial | None
    """None: not tried yet."""
    speedup: float | None
    """How many times faster the best plan is; None where the default was not measured."""
    source: Source = Source.MEASURED
    """Of the default's own step time."""
    is_tie: bool = False
    """Whether noise leaves open that it is as fast as the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A study so far. Times compare whole optimizer steps of the same global batch."""

    trials: tuple[Trial, ...]
    """All, by number."""
    num_gpus: int
    source: Source
    """Of the winner's numbers; simulated trials share a study with no others."""
    ranking: tuple[MeasuredTrial, ...]
    """Those that trained: the fastest first, of equals the one that needs less memory; first
    those measured with full steps, then those of which full steps are extrapolated."""
    counts: tuple[tuple[str, int], ...]
    """Trials by kind of outcome, most frequent first."""
    defaults: tuple[DefaultPlan, ...]
    ties: tuple[MeasuredTrial, ...] = ()
    """All that may be as fast as the best, the fastest first: finalists by the finals, others by
    the intervals."""
    failed_again: tuple[int, ...] = ()
    """Trials that trained once and did not when they were measured again."""
    finals: tuple[Finalist, ...] = ()
    """The best plans, measured again side by side, the winner first; empty where it was clear."""
    verification: Verification | None = None
    """Of the best plan: whether it computes what one rank does; None = not looked at."""
    baseline: BaselineResult | None = None
    """The user's own plan, where one was given."""
    second_pass: SecondPass | None = None
    """Framework settings tried on the best plan; None where none were."""

    @property
    def best(self) -> MeasuredTrial | None:
        """The fastest; None when nothing trained."""
        return self.ranking[0] if self.ranking else None

    @property
    def runner_up(self) -> MeasuredTrial | None:
        """The second of the finals; without them the fastest of all others, however it is known."""
        others = self.ranking[1:]
        return next(iter(others), None) if len(self.finals) > 1 else self._fastest(others)

    @property
    def extrapolated(self) -> tuple[MeasuredTrial, ...]:
        """Those of the ranking whose full steps are extrapolated from shorter ones."""
        return tuple(r for r in self.ranking if r.measured.source is Source.EXTRAPOLATED)

    @property
    def measured(self) -> tuple[MeasuredTrial, ...]:
        """Those of the ranking that ran full steps, or were simulated in a simulated study."""
        return tuple(r for r in self.ranking if r.measured.source is not Source.EXTRAPOLATED)

    @property
    def is_tie(self) -> bool:
        """Whether noise leaves open which is the fastest."""
        return bool(self.ties)

    @property
    def margin(self) -> tuple[float, float, float] | None:
        """How much longer the runner-up's step takes, as a part of the winner's, with interval.

        From the two intervals alone, where no finals have set the two side by side.
        """
        if self.best is None or self.runner_up is None:
            return None
        best, second = self.best.measured, self.runner_up.measured
        low = second.step_time_ci_s[0] / best.step_time_ci_s[1] - 1
        # A trial of another runner, or kept by an older version, may have an interval from 0 on.
        high = second.step_time_ci_s[1] / max(best.step_time_ci_s[0], _SHORTEST_S) - 1
        behind = next((f.behind for f in self.finals if f.trial == self.runner_up.number), None)
        winner_is_fastest = bool(self.finals) and self.finals[0].behind is None
        if behind is not None and winner_is_fastest and not self.best.settings:
            low, high = behind
        return second.step_time_s / best.step_time_s - 1, low, high

    @property
    def median_step_time_s(self) -> float | None:
        """Over all plans that trained."""
        if not self.ranking:
            return None
        return median(ranked.measured.step_time_s for ranked in self.ranking)

    @property
    def speedup_over_median(self) -> float | None:
        """How many times faster the best plan is than the median of those that trained."""
        if self.best is None or self.median_step_time_s is None:
            return None
        return self.median_step_time_s / self.best.measured.step_time_s

    @property
    def others(self) -> tuple[Trial, ...]:
        """The trials that did not train to the end, by number."""
        return tuple(t for t in self.trials if not isinstance(t.outcome, Measured))

    def full_steps(self, trial: Trial) -> Measured | None:
        """What full steps of a trial said, of its own or, where it ran short ones, later."""
        if not isinstance(trial.outcome, Measured):
            return None
        if trial.outcome.source is not Source.EXTRAPOLATED:
            return trial.outcome
        return next((r.measured for r in self.measured if r.number == trial.number), None)

    def best_of(self, backend: Backend) -> MeasuredTrial | None:
        """The fastest plan of one framework."""
        return next(iter(self.fastest_first(backend)), None)

    def fastest_first(self, backend: Backend | None = None) -> tuple[MeasuredTrial, ...]:
        """The best, then by step time; those that failed when they ran again come last."""
        own = (r for r in self.ranking if backend in (None, r.plan.backend))
        return tuple(
            sorted(
                own,
                key=lambda r: (
                    r is not self.best,
                    r.number in self.failed_again,
                    r.measured.step_time_s,
                ),
            )
        )

    def _fastest(self, ranked: Iterable[MeasuredTrial]) -> MeasuredTrial | None:
        """Measured or extrapolated; those that failed when they ran again come last."""
        return min(
            ranked,
            key=lambda r: (r.number in self.failed_again, r.measured.step_time_s),
            default=None,
        )

    def tokens_per_s_per_gpu(self, ranked: MeasuredTrial) -> float:
        """Throughput of one GPU."""
        return ranked.measured.tokens_per_s / self.num_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterTrials:
    """What was done with the best plans once they had been tried; None where it was not."""

    finals: Finals | None = None
    """The best plans measured again; what they say replaces what their trials said."""
    second_pass: SecondPass | None = None
    """Settings tried on a winner; one of another plan than the best is left out."""
    verification: Verification | None = None
    """The last that was made; one of another plan than the best is left out."""


NOTHING_AFTER = AfterTrials()


def summarize(
    trials: tuple[Trial, ...],
    *,
    num_gpus: int,
    defaults: Mapping[Backend, ParallelPlan],
    baseline: Baseline | None = None,
    after: AfterTrials = NOTHING_AFTER,
) -> Summary:
    """The summary of these trials.

    Args:
        trials: all of the study.
        num_gpus: of the whole cluster; every plan uses all of them.
        defaults: each framework's own plan, where it is legal.
        baseline: the user's own plan, where one was given.
        after: what was done with the best of them since.

    Raises:
        ValueError: measured and simulated numbers are mixed.
    """
    finals, verification, second_pass = after.finals, after.verification, after.second_pass
    standing = _standing(finals, trials)
    failed = failed_finalists(finals) if finals else ()
    again = confirmed(finals) | {finalist.trial: finalist.measured for finalist in standing}
    ranking = _ranking(trials, standing, again, failed)
    if second_pass is not None and not (ranking and ranking[0].plan == second_pass.plan):
        second_pass = None
    ranking = _with_settings(ranking, second_pass)
    ties = _ties(ranking, standing, failed)
    tied = frozenset(ranked.plan for ranked in ties)
    counts = Counter(trial.outcome.kind for trial in trials)
    return Summary(
        trials=tuple(sorted(trials, key=lambda trial: trial.number)),
        num_gpus=num_gpus,
        source=_source(trials),
        ranking=ranking,
        counts=tuple((str(kind), number) for kind, number in counts.most_common()),
        defaults=tuple(
            replace(_default(backend, plan, trials, ranking), is_tie=plan in tied)
            for backend, plan in defaults.items()
        ),
        ties=ties,
        failed_again=failed,
        finals=standing,
        verification=(
            verification
            if verification is not None and ranking and _is_of(verification, ranking[0])
            else None
        ),
        baseline=(
            None
            if baseline is None
            else baseline_result(
                baseline,
                tuple(replace(t, outcome=again.get(t.number, t.outcome)) for t in trials),
                ranking[0].trial if ranking else None,
                ranking[0].measured if ranking else None,
                tied,
            )
        ),
        second_pass=second_pass,
    )


def _with_settings(
    ranking: tuple[MeasuredTrial, ...], found: SecondPass | None
) -> tuple[MeasuredTrial, ...]:
    """The best with the settings that were kept for it, and the numbers that it has with them."""
    if found is None or found.measured is None:
        return ranking
    tuned = replace(ranking[0], measured=found.measured, settings=found.changes_kept, run=found.run)
    return (tuned, *ranking[1:])


def _ties(
    ranking: tuple[MeasuredTrial, ...], finals: tuple[Finalist, ...], failed: tuple[int, ...]
) -> tuple[MeasuredTrial, ...]:
    """All that noise does not tell from the best; finals know more than intervals do."""
    if not ranking:
        return ()
    best, *others = ranking
    by_finals = {} if best.settings else {f.trial: f.may_be_fastest for f in finals}
    limit_s = best.measured.step_time_ci_s[1]
    close = (
        r
        for r in others
        if r.number not in failed
        and by_finals.get(r.number, r.measured.step_time_ci_s[0] <= limit_s)
    )
    return tuple(sorted(close, key=lambda r: (r.measured.step_time_s, r.number)))


def _is_of(verification: Verification, best: MeasuredTrial) -> bool:
    return verification.plan == best.plan and verification.settings == best.settings


def _standing(finals: Finals | None, trials: tuple[Trial, ...]) -> tuple[Finalist, ...]:
    if finals is None or not finals.is_contest:
        return ()
    plans = {trial.number: trial.plan for trial in trials}
    return standings(finals, plans) if plans.keys() >= set(finals.trials) else ()


def _ranking(
    trials: tuple[Trial, ...],
    finals: tuple[Finalist, ...],
    again: Mapping[int, Measured],
    failed: tuple[int, ...],
) -> tuple[MeasuredTrial, ...]:
    """Finalists first, as the finals have them; last those that trained once and then no more."""
    places = {finalist.trial: place for place, finalist in enumerate(finals)}
    ran = [
        MeasuredTrial(trial=trial, measured=again.get(trial.number, trial.outcome))
        for trial in trials
        if isinstance(trial.outcome, Measured)
    ]
    return tuple(
        sorted(
            ran,
            key=lambda r: (
                r.number in failed,
                r.measured.source is Source.EXTRAPOLATED,
                places.get(r.number, len(places)),
                r.measured.step_time_s,
                r.measured.peak_memory_bytes,
                r.number,
            ),
        )
    )


def _source(trials: tuple[Trial, ...]) -> Source:
    sources = {
        Source.SIMULATED if trial.outcome.source is Source.SIMULATED else Source.MEASURED
        for trial in trials
        if isinstance(trial.outcome, Measured | OutOfMemory)
    }
    if len(sources) > 1:
        raise ValueError(
            "a study must hold measured or simulated trials, got both; keep them apart"
        )
    return sources.pop() if sources else Source.MEASURED


def _default(
    backend: Backend,
    plan: ParallelPlan,
    trials: tuple[Trial, ...],
    ranking: tuple[MeasuredTrial, ...],
) -> DefaultPlan:
    ran = next((ranked for ranked in ranking if ranked.plan == plan), None)
    if ran is not None:
        speedup = ran.measured.step_time_s / ranking[0].measured.step_time_s
        return DefaultPlan(
            backend=backend,
            plan=plan,
            trial=ran.trial,
            speedup=speedup,
            source=ran.measured.source,
        )
    tried = [trial for trial in trials if trial.plan == plan]
    return DefaultPlan(backend=backend, plan=plan, trial=tried[-1] if tried else None, speedup=None)
