"""Prints how far predictions are from measured sweeps, and how long a million take.

Run from the repository: ``python benchmarks/predict.py [--shared ../shared]``. The sweeps and the
scorer are not part of the repository; without them only the speed is printed.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from tuner.cli.predict_command import calibrations
from tuner.cost_model.calibration import MeasuredPlans, calibrated
from tuner.cost_model.coefficients import Coefficients
from tuner.cost_model.fit import usable_bytes
from tuner.cost_model.prediction import predictions, predictions_of_rows, rows_of_subjects
from tuner.plan import Backend, ParallelPlan
from tuner.plan_arrays import PlanArrays
from tuner.sweep_table import SweepGroup, SweepTable, read_sweep

GIB = 2**30
H100, A100 = "h100_llama_tp_pp_zero_sweep.csv", "a100_gpt_tp_pp_sweep.csv"
LAST = ("--stage", "last", "--memory-column", "mem_gb_last_rank_peak")
SCORES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("b200_megatron_memory_by_rank.csv", ()),
    ("h100_megatron_core_memory.csv", LAST),
    ("h100_megatron_core_memory.csv", (*LAST, "--calibrate", "3")),
    (H100, ("--stage", "first")),
    (H100, ("--stage", "first", "--calibrate", "3")),
    (H100, ("--stage", "first", "--calibrate", "5")),
    (A100, ()),
    (A100, ("--calibrate", "5")),
    ("torchtitan.csv", ()),
    ("fsdp_mpt_throughput.csv", ()),
    ("v100_megatron_deepspeed_memory.csv", ()),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    shared = parser.parse_args().shared
    print_speed()
    data, scorer = shared / "data", shared / "tools" / "score_predict.py"
    if not scorer.exists():
        print(f"no {scorer}: the measured sweeps are not here, their figures are left out")
        return
    ranking([data / H100, data / A100])
    fastest_refused(data / H100)
    by_rank(data / "b200_megatron_memory_by_rank.csv")
    across_scale(data / H100)
    small_workloads(data / H100)
    other_model(data / H100)
    for table, options in SCORES:
        score(scorer, data / table, options)


def print_speed() -> None:
    """A million plans of a 7B model on 64 GPUs, one core."""
    row = Path(__file__).with_name("llama_7b_row.csv")
    subject = read_sweep(row).groups[0].subjects[0]
    some = [
        ParallelPlan(backend=Backend.MEGATRON, tp=tp, pp=pp, micro_batch=mb, zero_stage=zero)
        for tp in (1, 2, 4, 8)
        for pp in (1, 2, 4, 8)
        for mb in (1, 2, 4)
        for zero in (0, 1)
    ]
    arrays = PlanArrays.of_plans(some)
    times = 1_000_000 // len(some) + 1
    many = PlanArrays(columns={n: np.tile(a, times)[:1_000_000] for n, a in arrays.columns.items()})
    began = time.process_time()
    predictions(subject, many)
    print(f"one million plans, on one core: {time.process_time() - began:.2f} s")


def score(scorer: Path, table: Path, options: Sequence[str]) -> None:
    command = [sys.executable, str(scorer), str(table), "--json", *options]
    command += ["--command", f"{sys.executable} -m tuner predict"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    print(f"\n{table.name} {' '.join(options)}")
    for name, value in json.loads(done.stdout).items():
        print(f"  {name}: {value:.4g}")


def ranking(paths: Sequence[Path]) -> None:
    """Median rank correlation over the workloads of several tables, at least 8 rows each."""
    for count in (0, 5):
        found = []
        for path in paths:
            sweep = read_sweep(path)
            for group, fit in calibrations(sweep, count):
                seconds = predictions_of_rows(
                    group.subjects, group.plans, fit.calibration.coefficients
                )
                pairs = [
                    (seconds.step_time_s[index], measured)
                    for index, row in enumerate(group.rows)
                    if index not in fit.chosen
                    and (measured := sweep.measurement(row).step_time_s) is not None
                ]
                if len(pairs) >= 8:
                    ranks = np.argsort(np.argsort(np.array(pairs), axis=0), axis=0)
                    found.append(np.corrcoef(ranks.T)[0, 1])
        print(
            f"both sweeps --calibrate {count}: median Spearman {np.median(found):.3f} "
            f"over {len(found)} workloads"
        )


def fastest_refused(path: Path) -> None:
    """Of the fastest tenth of every workload, the plans predicted not to fit."""
    sweep, refused, fastest = read_sweep(path), 0, 0
    for group in sweep.groups:
        found = predictions_of_rows(group.subjects, group.plans)
        limit = usable_bytes(group.subjects[0].cluster.gpu)
        seconds = [sweep.measurement(row).step_time_s or np.inf for row in group.rows]
        ran = int(np.isfinite(seconds).sum())
        best = np.argsort(seconds)[: max(1, ran // 10)]
        fastest += len(best)
        refused += int((found.needed_memory_bytes[best] > limit).sum())
    print(f"{path.name}: {refused} of the {fastest} fastest plans predicted not to fit")


def by_rank(path: Path) -> None:
    """Every rank of the table that tells them apart, against its stage's prediction."""
    command = [sys.executable, "-m", "tuner", "predict", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    errors = []
    for line in map(json.loads, done.stdout.splitlines()):
        measured = json.loads(rows[line["row"]]["alloc_gb_by_rank"])
        stages = line["predicted_peak_memory_bytes_by_stage"]
        for rank, size in enumerate(measured):
            stage = rank * len(stages) // len(measured)  # pipeline stages are the outermost axis
            errors.append(abs(stages[stage] / GIB / size - 1))
    print(
        f"\n{path.name}, each of {len(errors)} ranks: median error {np.median(errors):.3f}, "
        f"p90 {np.quantile(errors, 0.9):.3f}"
    )


def across_scale(path: Path) -> None:
    """Fitted to workloads of up to 64 GPUs: where the best plans of larger ones are ranked."""
    sweep = read_sweep(path)
    fitted = _fit(sweep, lambda group: int(group.key["gpus"]) <= 64)
    found = [_best_is_among(sweep, group, fitted, 5) for group in _groups(sweep, above=64)]
    print(
        f"\n{path.name}, fitted on <= 64 GPUs: a plan within 5 % of the best among the first 5 "
        f"predicted in {sum(found)} of {len(found)} workloads on 128 to 512"
    )


def other_model(path: Path) -> None:
    """Fitted to one model, asked of the other."""
    sweep = read_sweep(path)
    for model in sorted({group.key["model"] for group in sweep.groups}):
        fitted = _fit(sweep, partial(_is_of, model))
        errors = []
        for group in sweep.groups:
            if group.key["model"] != model:
                errors += _time_errors(sweep, group, fitted)
        print(f"{path.name}, fitted on {model}: median error of the other {np.median(errors):.3f}")


def small_workloads(path: Path) -> None:
    """The median time error with five rows of each workload, up to 32 GPUs and over all."""
    command = [sys.executable, "-m", "tuner", "predict", str(path), "--json", "--calibrate", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    small = []
    for line in map(json.loads, done.stdout.splitlines()):
        row = rows[line["row"]]
        if row["outcome"] == "measured" and not line["calibrated_on"] and int(row["gpus"]) <= 32:
            small.append(abs(line["predicted_step_time_s"] / float(row["step_time_s"]) - 1))
    print(f"{path.name} --calibrate 5, up to 32 GPUs: median time error {np.median(small):.3f}")


def _is_of(model: str, group: SweepGroup) -> bool:
    return group.key["model"] == model


def _groups(sweep: SweepTable, *, above: int) -> Iterator[SweepGroup]:
    return (group for group in sweep.groups if int(group.key["gpus"]) > above)


def _fit(sweep: SweepTable, wanted: Callable[[SweepGroup], bool]) -> Coefficients:
    measured = []
    for group in sweep.groups:
        if not wanted(group):
            continue
        for subject, where in rows_of_subjects(group.subjects):
            read = [sweep.measurement(group.rows[position]) for position in where]
            measured.append(
                MeasuredPlans(
                    subject=subject,
                    plans=group.plans.kept(where),
                    step_time_s=np.array([row.step_time_s or np.nan for row in read]),
                    peak_memory_bytes=np.full(len(read), np.nan),
                    out_of_memory=np.zeros(len(read), dtype=np.bool_),
                )
            )
    return calibrated(measured).coefficients


def _best_is_among(sweep: SweepTable, group: SweepGroup, fitted: Coefficients, first: int) -> bool:
    predicted = predictions_of_rows(group.subjects, group.plans, fitted).step_time_s
    seconds = np.array([sweep.measurement(row).step_time_s or np.inf for row in group.rows])
    ran = np.flatnonzero(np.isfinite(seconds))
    order = ran[np.argsort(predicted[ran])][:first]
    return bool(seconds[order].min() <= 1.05 * seconds[ran].min())


def _time_errors(sweep: SweepTable, group: SweepGroup, fitted: Coefficients) -> list[float]:
    predicted = predictions_of_rows(group.subjects, group.plans, fitted).step_time_s
    seconds = [sweep.measurement(row).step_time_s for row in group.rows]
    return [abs(p / s - 1) for p, s in zip(predicted, seconds, strict=True) if s]


if __name__ == "__main__":
    main()
