"""How far measurements can be believed: ``measurement.py simulated|load|layouts|extrapolated|all``.

simulated: repeated studies on a simulated cluster with 8 % noise from step to step;
load: real trials of three CPU plans, with and without a competing load on the machine;
extrapolated: short steps against full ones, in turns in the same ranks;
layouts: right layouts and planted mistakes on real CPU ranks, held against one rank;
all: one after the other, the quick ones first.
Run from the root of a checkout: ``python -m benchmarks.measurement simulated``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tuner.finals import FinalRun, Finals, finalists, finals_measurement, next_runs, standings
from tuner.launch import AdaptiveSteps, Measurement, ReferenceSplit
from tuner.outcome import Measured
from tuner.plan import Backend, ParallelPlan
from tuner.step_statistics import StepsRule, step_statistics, steps_end
from tuner.trial import Trial

PARTS = ("simulated", "load", "layouts", "extrapolated")
MEASUREMENT = Measurement(warmup_steps=1, steps=5, adaptive=AdaptiveSteps())
"""The defaults of a job file."""
NOISE, CORRELATION, RUN_NOISE = 0.08, 0.2, 0.005
"""From step to step, between neighbours, and from run to run of the same plan."""


class SimulatedSteps:
    """Step times of a plan whose true step time, their mean, is known."""

    def __init__(self, true_s: float, rng: np.random.Generator) -> None:
        self._rng, self._last = rng, float(rng.normal())
        self._level_s = true_s * math.exp(RUN_NOISE * float(rng.normal()))
        self._slow = [3.0, *([1.3] * int(rng.integers(0, 3)))]

    def next_s(self) -> float:
        fresh = math.sqrt(1 - CORRELATION**2) * float(self._rng.normal())
        self._last = CORRELATION * self._last + fresh
        slow = self._slow.pop(0) if self._slow else 1.0
        return self._level_s * slow * math.exp(NOISE * self._last - NOISE**2 / 2)


def simulated_trial(
    true_s: float, rule: StepsRule, rng: np.random.Generator
) -> tuple[Measured, int]:
    steps, times_s = SimulatedSteps(true_s, rng), list[float]()
    while (end := steps_end(times_s, rule)) is None:
        times_s.append(steps.next_s())
    counted = tuple(times_s[end[1] :])
    known = step_statistics(counted)
    measured = Measured(
        step_times_s=counted,
        step_time_s=known.level_s,
        step_time_ci_s=known.interval_s,
        tokens_per_s=1 / known.level_s,
        peak_memory_bytes=100,
        peak_memory_bytes_by_rank=(100,),
        steps_end=end[0],
    )
    return measured, len(times_s)


def rule_of(measurement: Measurement, incumbent_s: float | None) -> StepsRule:
    adaptive = measurement.adaptive
    assert adaptive is not None
    return StepsRule(
        warmup_steps=measurement.warmup_steps,
        steps=measurement.steps,
        max_steps=adaptive.max_steps,
        relative_half_width=adaptive.relative_half_width,
        incumbent_step_time_s=incumbent_s,
    )


def simulated_study(seed: int, num_plans: int = 40) -> dict[str, Any]:
    """All plans tried in random order, then the finals."""
    rng = np.random.default_rng(seed)
    # Half of the plans crowd within 10 % of the best, as good layouts do; the rest are slower.
    true_s = np.concatenate(
        [1 + rng.uniform(0, 0.1, num_plans // 2), np.exp(rng.uniform(0.1, 1.5, num_plans // 2))]
    )
    trials: list[Trial] = []
    num_steps, incumbent_s = 0, None
    for number in rng.permutation(num_plans):
        plan = ParallelPlan(backend=Backend.PYTORCH, micro_batch=int(number) + 1)
        rule = rule_of(MEASUREMENT, incumbent_s)
        measured, steps = simulated_trial(float(true_s[number]), rule, rng)
        num_steps += steps
        incumbent_s = min(incumbent_s or math.inf, measured.step_time_s)
        trials.append(
            Trial(number=int(number), plan=plan, outcome=measured, started_at=0.0, wall_s=1.0)
        )
    contenders = finalists(trials, 3)
    plans = {trial.number: trial.plan for trial in contenders}
    finals, final_steps = Finals(trials=tuple(plans)), 0
    while contenders and (numbers := next_runs(finals, plans)):
        for number in numbers:
            rule = rule_of(finals_measurement(MEASUREMENT), None)
            measured, steps = simulated_trial(float(true_s[number]), rule, rng)
            final_steps += steps
            done = sum(run.trial == number for run in finals.runs)
            run = FinalRun(round=done, trial=number, outcome=measured)
            finals = replace(finals, runs=(*finals.runs, run))
    if contenders:
        first = standings(finals, plans)[0]
        winner, measured = first.trial, first.measured
    else:
        winner, measured = min(
            ((t.number, t.outcome) for t in trials if isinstance(t.outcome, Measured)),
            key=lambda entry: entry[1].step_time_s,
        )
    low, high = measured.step_time_ci_s
    return {
        "behind_best": float(true_s[winner] / true_s.min() - 1),
        "covers": bool(low <= true_s[winner] <= high),
        "half_width": (high - low) / 2 / measured.step_time_s,
        "steps": num_steps,
        "final_steps": final_steps,
        "fixed_steps": num_plans * (1 + MEASUREMENT.adaptive.max_steps),  # type: ignore[union-attr]
    }


def simulated(num_studies: int, first_seed: int) -> dict[str, Any]:
    studies = [simulated_study(first_seed + number) for number in range(num_studies)]
    return {
        "studies": num_studies,
        "first_seed": first_seed,
        "best_or_within_1_percent": float(np.mean([s["behind_best"] <= 0.01 for s in studies])),
        "worst_behind_best": max(s["behind_best"] for s in studies),
        "interval_covers_truth": float(np.mean([s["covers"] for s in studies])),
        "median_half_width": float(np.median([s["half_width"] for s in studies])),
        "steps_of_trials": float(np.mean([s["steps"] for s in studies])),
        "steps_of_finals": float(np.mean([s["final_steps"] for s in studies])),
        "steps_if_every_trial_ran_to_the_most": studies[0]["fixed_steps"],
    }


def _burn(stop: Any) -> None:
    while not stop.is_set():
        sum(range(20_000))


@contextlib.contextmanager
def competing_load(processes: int) -> Iterator[None]:
    stop = multiprocessing.Event()
    burning = [
        multiprocessing.Process(target=_burn, args=(stop,), daemon=True) for _ in range(processes)
    ]
    for process in burning:
        process.start()
    try:
        yield
    finally:
        stop.set()
        for process in burning:
            process.join()


def load(num_rounds: int) -> dict[str, Any]:
    """Three plans; in every round one of them has a competitor."""
    from runners.local_runner import LocalRunner
    from tests.tiny_job import cpu_cluster, tiny_workload
    from tuner.outcome import Phase

    plans = [
        ParallelPlan.from_dict({"backend": "pytorch", "precision": "fp32", **knobs})
        for knobs in ({"micro_batch": 4}, {"micro_batch": 1}, {"tp": 2, "micro_batch": 1})
    ]
    workload = replace(tiny_workload(), global_batch_sequences=32)
    measurement = replace(MEASUREMENT, adaptive=AdaptiveSteps(max_steps=10))
    runner = LocalRunner(workload, cpu_cluster(2), measurement, dict.fromkeys(Phase, 120.0))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(num_rounds):
            for index, plan in enumerate(plans):
                loaded = index == number % 3
                with competing_load(2) if loaded else contextlib.nullcontext():
                    outcome = runner.run(plan, Path(folder) / "trial", lambda _: None)
                assert isinstance(outcome, Measured), outcome
                rows.append(
                    {
                        "round": number,
                        "plan": plan.label(),
                        "loaded": loaded,
                        "step_time_s": outcome.step_time_s,
                        "marks": outcome.marks,
                    }
                )
    loaded_rows = [row for row in rows if row["loaded"]]
    others = [row for row in rows if not row["loaded"]]
    return {
        "loaded_trials_marked": f"{sum(bool(r['marks']) for r in loaded_rows)}/{len(loaded_rows)}",
        "other_trials_marked": f"{sum(bool(r['marks']) for r in others)}/{len(others)}",
        **_rankings(rows, num_rounds),
        "trials": rows,
    }


def _rankings(rows: list[dict[str, Any]], num_rounds: int) -> dict[str, Any]:
    """Whether load changes who is first, second and third, and whether that is said."""
    by_round = [[row for row in rows if row["round"] == number] for number in range(num_rounds)]
    orders = [
        [row["plan"] for row in sorted(of_round, key=lambda row: float(row["step_time_s"]))]
        for of_round in by_round
    ]
    alone_s = {
        plan: float(
            np.median([r["step_time_s"] for r in rows if r["plan"] == plan and not r["loaded"]])
        )
        for plan in dict.fromkeys(row["plan"] for row in rows)
    }
    right = sorted(alone_s, key=lambda plan: alone_s[plan])
    unsaid = [
        number
        for number, (order, of_round) in enumerate(zip(orders, by_round, strict=True))
        if order != right and not all(row["marks"] for row in of_round if row["loaded"])
    ]
    return {
        "rounds_with_the_ranking_of_undisturbed_trials": f"{orders.count(right)}/{num_rounds}",
        "rounds_with_another_ranking_and_no_mark": f"{len(unsaid)}/{num_rounds}",
    }


RIGHT: tuple[dict[str, Any], ...] = (
    *({"backend": "pytorch", "zero_stage": z, "micro_batch": m} for z in range(4) for m in (1, 2)),
    {"backend": "pytorch", "tp": 2},
    {"backend": "pytorch", "tp": 2, "sequence_parallel": True, "micro_batch": 2},
    {"backend": "pytorch", "pp": 2, "micro_batch": 2},
    {"backend": "pytorch", "recompute": "full"},
    {"backend": "pytorch", "precision": "bf16"},
    {"backend": "pytorch", "zero_stage": 3, "precision": "bf16"},
    *({"backend": "deepspeed", "zero_stage": z, "micro_batch": 2} for z in range(4)),
    *({"backend": "deepspeed", "zero_stage": z, "precision": "bf16"} for z in (0, 3)),
    {"backend": "deepspeed", "precision": "fp16"},
    {"backend": "deepspeed", "pp": 2, "micro_batch": 2},
    {"backend": "deepspeed", "tp": 2},
    {"backend": "megatron"},
    {"backend": "megatron", "zero_stage": 1, "micro_batch": 2},
    {"backend": "megatron", "tp": 2},
    {"backend": "megatron", "tp": 2, "sequence_parallel": True, "precision": "bf16"},
    {"backend": "megatron", "pp": 2, "micro_batch": 2},
    {"backend": "megatron", "pp": 2, "vpp": 2, "micro_batch": 2},
    {"backend": "megatron", "recompute": "full", "precision": "bf16"},
)
WRONG: tuple[tuple[str, dict[str, Any]], ...] = (
    ("unsynchronised", {}),
    ("unsynchronised", {"micro_batch": 2}),
    ("doubled", {}),
    ("doubled", {"micro_batch": 2}),
    ("doubled", {"pp": 2, "micro_batch": 2}),
    *(
        (mistake, {"backend": backend, "micro_batch": 2})
        for mistake in ("unsynchronised", "doubled")
        for backend in ("deepspeed", "megatron")
    ),
    ("shifted", {}),
    ("shifted", {"pp": 2, "micro_batch": 2}),
)


def layouts() -> dict[str, Any]:
    """Each judged by the verdict that ``paratune verify`` gives."""
    from tests.runners.bench_ranks import trained
    from tuner.verification import Reference, verification

    steps = Measurement(warmup_steps=1, steps=2)
    references: dict[tuple[str, int, int], Reference] = {}

    def judged(mistake: str, knobs: dict[str, Any]) -> Any:
        plan = ParallelPlan.from_dict({"backend": "pytorch", "precision": "fp32", **knobs})
        own = "megatron" if plan.backend is Backend.MEGATRON else "pytorch"
        key = (own, plan.data_parallel(2), plan.micro_batch)
        if key not in references:
            split = ReferenceSplit(data_parallel=key[1], micro_batch=key[2])
            one = ParallelPlan.from_dict(
                {"backend": own, "precision": "fp32", "micro_batch": plan.micro_batch}
            )
            with tempfile.TemporaryDirectory() as folder:
                (result,) = trained(
                    one, Path(folder), num_ranks=1, measurement=replace(steps, reference=split)
                )
            references[key] = Reference(losses=tuple(result["losses"]), **result["effective"])
        with tempfile.TemporaryDirectory() as folder:
            results = trained(plan, Path(folder), num_ranks=2, measurement=steps, mistake=mistake)
        return verification(plan, results[0]["losses"], references[key], num_layers=4)

    right = [judged("", knobs) for knobs in RIGHT]
    wrong = [(mistake, judged(mistake, knobs)) for mistake, knobs in WRONG]
    return {
        "right": len(right),
        "right_accused": [f"{v.plan.label()}: {v.sentence}" for v in right if v.verdict != "right"],
        "planted": len(wrong),
        "planted_caught": sum(v.verdict == "wrong" for _, v in wrong),
        "sentences": [f"{mistake}: {v.sentence}" for mistake, v in wrong],
    }


def _extrapolated(num_rounds: int, only: list[int], earlier: Path | None) -> dict[str, Any]:
    from benchmarks.extrapolated import documented, extrapolated, recorded

    return extrapolated(num_rounds, only) if earlier is None else documented(recorded(earlier))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=(*PARTS, "all"))
    parser.add_argument("--repeats", type=int, default=0, help="studies (30) or rounds (3, 160)")
    parser.add_argument("--first-seed", type=int, default=0, help="of the simulated studies")
    parser.add_argument("--recorded", type=Path, help="what extrapolated printed, judged again")
    parser.add_argument(
        "--only", type=int, nargs="+", default=[], help="plans of extrapolated, by number"
    )
    options = parser.parse_args()
    began = time.perf_counter()
    parts = {
        "simulated": lambda: simulated(options.repeats or 30, options.first_seed),
        "load": lambda: load(options.repeats or 3),
        "layouts": layouts,
        "extrapolated": lambda: _extrapolated(
            options.repeats or 160, options.only, options.recorded
        ),
    }
    if options.part == "all":
        if options.repeats or options.only or options.recorded:
            parser.error("--repeats, --only and --recorded are of one part; name it instead of all")
        document = {part: parts[part]() for part in PARTS}
    else:
        document = parts[options.part]()
    print(json.dumps(document | {"took_s": time.perf_counter() - began}, indent=2))


if __name__ == "__main__":
    main()
