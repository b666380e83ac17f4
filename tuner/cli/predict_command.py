"""Predictions for the rows of a recorded sweep; what was measured is not read."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from tuner.cli.sureness_wording import WITHIN, fit_text, within_text
from tuner.cli.wide_console import wide_console
from tuner.cost_model.calibration import (
    Calibration,
    MeasuredPlans,
    calibrated,
    informative_rows,
    measured_stage,
)
from tuner.cost_model.case import Subject
from tuner.cost_model.coefficients import DEFAULT
from tuner.cost_model.fit import usable_bytes
from tuner.cost_model.prediction import (
    needed_memory,
    predictions,
    rows_of_subjects,
    stage_peaks,
    step_times,
)
from tuner.cost_model.stages import has_work_for_all
from tuner.cost_model.sureness import Sureness, sureness
from tuner.errors import UserError
from tuner.plan_arrays import BoolArray, PlanArrays
from tuner.sweep_table import SweepGroup, SweepTable, read_sweep
from tuner.units import size_text, time_text

EXAMPLE = "paratune predict examples/sweeps/gpt-3.6b-64xa100.csv --calibrate 5"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``paratune predict``."""
    parser.add_argument("table", type=Path, metavar="TABLE.csv", help="a recorded sweep")
    parser.add_argument(
        "--calibrate",
        type=int,
        default=0,
        metavar="N",
        help="fit on N rows of each workload, chosen before any is read",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document a row on stdout")


def run(options: argparse.Namespace) -> int:
    """0 when at least one row is answered."""
    if options.calibrate < 0:
        raise UserError(f"--calibrate must be a number of rows, 0 or more, got {options.calibrate}")
    sweep = read_sweep(options.table)
    for reason, rows in sweep.skipped.items():
        print(f"paratune: {len(rows)} rows skipped: {reason}", file=sys.stderr)
    fits = calibrations(sweep, options.calibrate)
    lines = sorted(
        (line for group, fit in fits for line in answers(group, fit)),
        key=lambda line: int(line["row"]),
    )
    if options.json:
        for line in lines:
            print(json.dumps(line))
    else:
        _show(lines, sweep, _sureness(fits))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFit:
    """What a workload's rows are predicted with, and which of them it was fitted to."""

    calibration: Calibration
    chosen: tuple[int, ...] = ()
    """Positions in the group."""


_WORTH_MEASURING = 3.0
"""Times the fastest predicted step: plans slower than that are not measured to calibrate."""
_SAME_PROGRAM = 0.5
"""Workloads of one table are of one program on one cluster: their coefficients differ less."""


def calibrations(sweep: SweepTable, count: int) -> list[tuple[SweepGroup, GroupFit]]:
    """Fits the table as a whole to the chosen rows of all workloads, then each workload to its own.

    Args:
        sweep: the table.
        count: rows of each workload to fit to; 0 = none, nothing measured is read.
    """
    if count < 1:
        before = GroupFit(calibration=calibrated(()))
        return [(group, before) for group in sweep.groups]
    chosen = [chosen_positions(group, count) for group in sweep.groups]
    measured = [_measured(sweep, g, of) for g, of in zip(sweep.groups, chosen, strict=True)]
    everything = [part for parts in measured for part in parts]
    stage = measured_stage(everything, of_all_ranks=sweep.measures_all_ranks)
    table = calibrated(everything, stage=stage).coefficients
    fits = []
    for group, positions, parts in zip(sweep.groups, chosen, measured, strict=True):
        own = calibrated(parts, table, stage=stage, prior_width=_SAME_PROGRAM)
        fits.append((group, GroupFit(calibration=own, chosen=positions)))
    return fits


def answers(group: SweepGroup, fit: GroupFit) -> Iterator[dict[str, Any]]:
    """The contract's document of every row of a workload."""
    coefficients = fit.calibration.coefficients
    for subject, where in rows_of_subjects(group.subjects):
        plans = group.plans.kept(where)
        found = predictions(subject, plans, coefficients)
        stages = stage_peaks(subject, plans, coefficients)
        limit = usable_bytes(subject.cluster.gpu)
        runs = _runs(subject, plans)
        for index, position in enumerate(where):
            peak = max(stages[index])
            known = group.memory_known[position]
            yield {
                "row": group.rows[position],
                "fits": bool(found.needed_memory_bytes[index] <= limit and runs[index])
                if known
                else None,
                "predicted_step_time_s": float(found.step_time_s[index]),
                "predicted_peak_memory_bytes": round(peak),
                "predicted_peak_memory_bytes_by_stage": [round(size) for size in stages[index]],
                "calibrated_on": position in fit.chosen,
            }


def _sureness(fits: Sequence[tuple[SweepGroup, GroupFit]]) -> dict[int, Sureness]:
    """How sure the prediction of each row is."""
    found: dict[int, Sureness] = {}
    for group, fit in fits:
        for subject, where in rows_of_subjects(group.subjects):
            limit = usable_bytes(subject.cluster.gpu)
            sure = sureness(fit.calibration, subject, group.plans.kept(where), limit)
            found |= {group.rows[at]: of for at, of in zip(where, sure, strict=True)}
    return found


def chosen_positions(group: SweepGroup, count: int) -> tuple[int, ...]:
    """Rows of a workload that would teach most, among those that should run."""
    if count < 1:
        return ()
    parts = rows_of_subjects(group.subjects)
    positions = np.concatenate([where for _, where in parts])
    subjects = [(subject, group.plans.kept(where)) for subject, where in parts]
    safe = np.concatenate(
        [
            (needed_memory(subject, plans, DEFAULT.memory) <= usable_bytes(subject.cluster.gpu))
            & _runs(subject, plans)
            for subject, plans in subjects
        ]
    )
    seconds = np.concatenate([step_times(s, plans, DEFAULT.time) for s, plans in subjects])
    if safe.any():
        safe &= seconds <= _WORTH_MEASURING * seconds[safe].min()
    chosen = informative_rows(subjects, count, safe if safe.any() else np.ones_like(safe))
    return tuple(int(positions[index]) for index in chosen)


def _measured(sweep: SweepTable, group: SweepGroup, chosen: Sequence[int]) -> list[MeasuredPlans]:
    """What the table says of the chosen rows, the only ones whose outcome is read."""
    parts = []
    for subject, where in rows_of_subjects([group.subjects[position] for position in chosen]):
        positions = [chosen[index] for index in where]
        read = [sweep.measurement(group.rows[position]) for position in positions]
        parts.append(
            MeasuredPlans(
                subject=subject,
                plans=group.plans.kept(np.asarray(positions)),
                step_time_s=np.array([row.step_time_s or np.nan for row in read]),
                peak_memory_bytes=np.array([row.peak_memory_bytes or np.nan for row in read]),
                out_of_memory=np.array([row.outcome == "out_of_memory" for row in read]),
            )
        )
    return parts


def _runs(subject: Subject, plans: PlanArrays) -> BoolArray:
    """Whether every pipeline stage has something to do, shape (n,)."""
    depths = plans.ints("pp")
    can = {
        int(depth): has_work_for_all(subject.shape, subject.software, int(depth))
        for depth in np.unique(depths)
    }
    return np.array([can[int(depth)] for depth in depths])


def _show(lines: Sequence[dict[str, Any]], sweep: SweepTable, sure: Mapping[int, Sureness]) -> None:
    plans = {
        row: group.plans[at].label() for group in sweep.groups for at, row in enumerate(group.rows)
    }
    table = Table(title="predicted, not measured", title_justify="left")
    for name in ("row", "step time", "within", "peak memory", "within", "fits"):
        table.add_column(name, justify="right")
    table.add_column("plan", overflow="fold")
    for line in lines:
        table.add_row(
            str(line["row"]),
            time_text(line["predicted_step_time_s"]),
            within_text(sure[line["row"]].time_factor),
            size_text(line["predicted_peak_memory_bytes"]),
            within_text(sure[line["row"]].memory_factor),
            fit_text(line["fits"], sure[line["row"]].zone),
            plans[line["row"]],
        )
    console = wide_console()
    console.print(table)
    console.print(WITHIN)
    if any(line["fits"] is None for line in lines):
        console.print(
            "fits is ? where the memory of the GPU is not known: the table has no gpu_mem_gb of "
            "the row, and GPUs of that name are made with several sizes."
        )
