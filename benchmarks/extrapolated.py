"""Short steps against full ones: both kinds run in turns in the same ranks, plan after plan."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.side_by_side import run_both
from runners.bench.launch_folder import LaunchFolder
from runners.bench.measure import steps_rule
from tests.runners.bench_ranks import trained
from tests.tiny_job import tiny_workload
from tuner.finals import FinalRun, Finals, confirmed, leader_to_confirm
from tuner.launch import AdaptiveSteps, Measurement
from tuner.outcome import Measured, Source
from tuner.plan import ParallelPlan
from tuner.short_steps import ShortSteps, short_steps_end
from tuner.step_statistics import (
    StepsRule,
    first_counted,
    step_statistics,
    steps_end,
)
from tuner.trial import Trial

NUM_RANKS = 2
SHAPE = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 2048}
"""A full step takes seconds: of shorter ones a busy machine's noise leaves nothing to compare."""
TIME_S = 240.0
"""Of the full steps of a plan, where that many do not take less: on a shared machine their times
scatter by 4 % to 20 %."""
_PYTORCH, _DEEPSPEED, _MEGATRON = (
    {"backend": name, "precision": "fp32"} for name in ("pytorch", "deepspeed", "megatron")
)
PLANS: tuple[dict[str, Any], ...] = (
    *({**_PYTORCH, "zero_stage": stage} for stage in (0, 2, 3)),
    {**_PYTORCH, "micro_batch": 2},
    {**_PYTORCH, "recompute": "full"},
    {**_PYTORCH, "tp": 2, "micro_batch": 2},
    {**_PYTORCH, "tp": 2, "micro_batch": 4, "sequence_parallel": True},
    {**_PYTORCH, "pp": 2},
    {**_PYTORCH, "pp": 2, "vpp": 2, "micro_batch": 2},
    *({**_DEEPSPEED, "zero_stage": stage} for stage in (0, 2, 3)),
    {**_DEEPSPEED, "zero_stage": 1, "micro_batch": 2},
    {**_DEEPSPEED, "tp": 2, "micro_batch": 2},
    {**_DEEPSPEED, "pp": 2, "micro_batch": 2},
    {**_MEGATRON},
    {**_MEGATRON, "zero_stage": 1},
    {**_MEGATRON, "tp": 2, "micro_batch": 2},
    {**_MEGATRON, "pp": 2, "micro_batch": 2},
    {**_MEGATRON, "pp": 2, "vpp": 2, "micro_batch": 2},
)
"""Of 64 sequences a step: 16 to 64 micro-batches."""


@dataclass(frozen=True, kw_only=True)
class BothKinds:
    """All steps of one plan."""

    plan: ParallelPlan
    short: ShortSteps
    rule: StepsRule
    full_s: tuple[float, ...]
    pairs: tuple[tuple[float, float], ...]

    @property
    def counted_s(self) -> tuple[float, ...]:
        """All its full steps behind the warm-up."""
        return self.full_s[first_counted(self.full_s, self.rule) :]

    @property
    def step_time_s(self) -> float:
        """Of the counted steps."""
        return step_statistics(self.counted_s).level_s

    @property
    def halves_apart(self) -> float:
        """By how much the first half of the full steps and the second differ: the noise floor."""
        middle = len(self.counted_s) // 2
        halves = (self.counted_s[:middle], self.counted_s[middle:])
        first, second = (step_statistics(half).level_s for half in halves)
        return abs(first / second - 1)

    def measured(self, incumbent_s: float | None) -> tuple[Measured, float]:
        """As the product would have with full steps, and the seconds that it takes."""
        rule = replace(self.rule, incumbent_step_time_s=incumbent_s)
        for used in range(1, len(self.full_s) + 1):
            if (end := steps_end(self.full_s[:used], rule)) is not None:
                break
        start = end[1] if end is not None else first_counted(self.full_s, rule)
        return _outcome(self.full_s[start:used], Source.MEASURED), sum(self.full_s[:used])

    def extrapolated(self, incumbent_s: float | None) -> tuple[Measured, float]:
        """As the product would have with short steps, and the seconds that it takes."""
        rule = replace(self.rule, incumbent_step_time_s=incumbent_s)
        for used in range(1, len(self.pairs) + 1):
            if (end := short_steps_end(self.pairs[:used], self.short, rule)) is not None:
                break
        start = end[1] if end is not None else 1
        times_s = [self.short.full_step_s(*pair) for pair in self.pairs[start:used]]
        spent_s = sum(low_s + high_s for low_s, high_s in self.pairs[:used])
        return _outcome(times_s, Source.EXTRAPOLATED), spent_s


def _outcome(times_s: Sequence[float], source: Source) -> Measured:
    known = step_statistics(times_s)
    return Measured(
        step_times_s=tuple(times_s),
        step_time_s=known.level_s,
        step_time_ci_s=known.interval_s,
        tokens_per_s=1.0,
        peak_memory_bytes=1,
        peak_memory_bytes_by_rank=(1,),
        source=source,
    )


def both_kinds(knobs: dict[str, Any], num_rounds: int) -> BothKinds:
    """Runs full steps and pairs of short ones in turns."""
    plan = ParallelPlan.from_dict(knobs)
    workload = replace(tiny_workload(**SHAPE), seq_len=128, global_batch_sequences=64)
    measurement = Measurement(
        warmup_steps=1,
        steps=5,
        adaptive=AdaptiveSteps(max_steps=num_rounds - 1, time_s=TIME_S),
        short_steps=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        result = trained(
            plan,
            Path(folder),
            num_ranks=NUM_RANKS,
            workload=workload,
            measurement=measurement,
            limit_s=3 * TIME_S,
            rank_program=run_both,
        )[0]
        rule = steps_rule(LaunchFolder.read(Path(folder) / "launch").training)
    short = {name: result["short_steps"][name] for name in ("low", "high", "full")}
    return BothKinds(
        plan=plan,
        short=ShortSteps(**short),
        rule=rule,
        full_s=tuple(result["step_times_s"]),
        pairs=tuple((low_s, high_s) for low_s, high_s in result["short_steps"]["times_s"]),
    )


def by_full_steps(kinds: Sequence[BothKinds], *, early: bool) -> tuple[int, float]:
    """The winner of a study that measures all plans with full steps, and its rank-seconds."""
    best_s, winner, spent_s = None, 0, 0.0
    for number, both in enumerate(kinds):
        measured, seconds = both.measured(best_s if early else None)
        spent_s += seconds
        if best_s is None or measured.step_time_s < best_s:
            best_s, winner = measured.step_time_s, number
    return winner, spent_s * NUM_RANKS


def by_short_steps(kinds: Sequence[BothKinds]) -> tuple[int, float, int]:
    """The winner by short steps, full ones for who leads; rank-seconds; how many ran full ones."""
    best_s, spent_s = None, 0.0
    trials: list[Trial] = []
    for number, both in enumerate(kinds):
        outcome, seconds = both.extrapolated(best_s)
        spent_s += seconds
        best_s = min(outcome.step_time_s, best_s or outcome.step_time_s)
        trials.append(
            Trial(number=number, plan=both.plan, outcome=outcome, started_at=0.0, wall_s=1.0)
        )
    finals = Finals(trials=(), most=1)
    while (leader := leader_to_confirm(trials, finals)) is not None:
        measured, seconds = kinds[leader.number].measured(None)
        spent_s += seconds
        run = FinalRun(round=0, trial=leader.number, outcome=measured)
        finals = replace(finals, trials=(*finals.trials, leader.number), runs=(*finals.runs, run))
    again = confirmed(finals)
    winner = min(again, key=lambda number: again[number].step_time_s)
    return winner, spent_s * NUM_RANKS, len(finals.runs)


def extrapolated(num_rounds: int, only: Sequence[int] = ()) -> dict[str, Any]:
    """Errors of the step time, and what studies of these plans (all, or some) would have cost."""
    kinds = []
    for knobs in [PLANS[number] for number in only] or PLANS:
        kinds.append(both_kinds(knobs, num_rounds))
        row = {name: value for name, value in _row(kinds[-1]).items() if name != "times"}
        print(json.dumps(row), file=sys.stderr, flush=True)
    return documented(kinds)


def recorded(path: Path) -> list[BothKinds]:
    """All steps of an earlier run, from what it printed."""
    printed = path.read_text()
    document = json.loads(printed[printed.index("{") :])  # a library may have logged before it
    plans = {plan.label(): plan for plan in map(ParallelPlan.from_dict, PLANS)}
    kinds = []
    for row in document["rows"]:
        low, high, full = row["microbatches"]
        kinds.append(
            BothKinds(
                plan=plans[row["plan"]],
                short=ShortSteps(low=low, high=high, full=full),
                rule=StepsRule(**document["rule"]),
                full_s=tuple(row["times"]["full_s"]),
                pairs=tuple((low_s, high_s) for low_s, high_s in row["times"]["pairs_s"]),
            )
        )
    return kinds


def documented(kinds: Sequence[BothKinds]) -> dict[str, Any]:
    """The figures from all steps of all plans."""
    rows = [_row(both) for both in kinds]
    errors = np.abs([row["error"] for row in rows])
    winner, spent_s, num_confirmed = by_short_steps(kinds)
    full_winner, full_s = by_full_steps(kinds, early=False)
    early_winner, early_s = by_full_steps(kinds, early=True)
    best_s = min(both.step_time_s for both in kinds)
    return {
        "plans": len(kinds),
        "fewest_microbatches": min(both.short.full for both in kinds),
        "rule": asdict(kinds[0].rule),
        "median_error": float(np.median(errors)),
        "p90_error": float(np.quantile(errors, 0.9)),
        "halves_of_full_steps_apart": float(np.median([row["halves_apart"] for row in rows])),
        "rank_s_of_steps": {
            "short": spent_s,
            "full": full_s,
            "full, slower plans ended early": early_s,
        },
        "share_of_full": spent_s / full_s,
        "share_of_full_ended_early": spent_s / early_s,
        "leaders_confirmed": num_confirmed,
        "winner": kinds[winner].plan.label(),
        "winner_by_full_steps": kinds[full_winner].plan.label(),
        "winner_by_full_steps_ended_early": kinds[early_winner].plan.label(),
        "winner_behind_best": kinds[winner].step_time_s / best_s - 1,
        "rows": rows,
    }


def _row(both: BothKinds) -> dict[str, Any]:
    short, seconds = both.extrapolated(None)
    full, full_seconds = both.measured(None)
    return {
        "plan": both.plan.label(),
        "microbatches": [both.short.low, both.short.high, both.short.full],
        "full_step_s": both.step_time_s,
        "extrapolated_s": short.step_time_s,
        "error": short.step_time_s / both.step_time_s - 1,
        "halves_apart": both.halves_apart,
        "error_of_a_full_measurement": full.step_time_s / both.step_time_s - 1,
        "share": seconds / full_seconds,
        "times": {"full_s": both.full_s, "pairs_s": both.pairs},
    }
