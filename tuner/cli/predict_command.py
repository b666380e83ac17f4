"""Predictions for the rows of a recorded sweep; what was measured is not read."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tuner.cost_model.coefficients import DEFAULT, Coefficients
from tuner.cost_model.fit import usable_bytes
from tuner.cost_model.prediction import predictions, rows_of_subjects, stage_peaks
from tuner.cost_model.stages import has_work_for_all
from tuner.sweep_table import SweepGroup, SweepTable, read_sweep
from tuner.units import size_text, time_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``paratune predict``."""
    parser.add_argument("table", type=Path, metavar="TABLE.csv")
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
    sweep = read_sweep(options.table)
    for reason, rows in sweep.skipped.items():
        print(f"paratune: {len(rows)} rows skipped: {reason}", file=sys.stderr)
    lines = sorted(
        (line for group in sweep.groups for line in answers(sweep, group, options.calibrate)),
        key=lambda line: int(line["row"]),
    )
    if options.json:
        for line in lines:
            print(json.dumps(line))
    else:
        _show(lines)
    return 0


def answers(sweep: SweepTable, group: SweepGroup, num_calibration: int) -> Iterator[dict[str, Any]]:
    """The contract's document of every row of a workload."""
    chosen: Sequence[int] = ()
    coefficients: Coefficients = DEFAULT
    for subject, where in rows_of_subjects(group.subjects):
        plans = group.plans.kept(where)
        found = predictions(subject, plans, coefficients)
        stages = stage_peaks(subject, plans, coefficients)
        limit = usable_bytes(subject.cluster.gpu)
        depths = plans.ints("pp")
        runs = [has_work_for_all(subject.shape, subject.software, int(pp)) for pp in depths]
        for index, position in enumerate(where):
            peak = max(stages[index])
            known = group.memory_known[position]
            yield {
                "row": group.rows[position],
                "fits": bool(peak <= limit and runs[index]) if known else None,
                "predicted_step_time_s": float(found.step_time_s[index]),
                "predicted_peak_memory_bytes": round(peak),
                "predicted_peak_memory_bytes_by_stage": [round(size) for size in stages[index]],
                "calibrated_on": bool(np.isin(position, chosen)),
            }


def _show(lines: Sequence[dict[str, Any]]) -> None:
    table = Table(title="predicted, not measured", title_justify="left")
    for name in ("row", "step time", "peak memory", "fits"):
        table.add_column(name, justify="right")
    for line in lines:
        table.add_row(
            str(line["row"]),
            time_text(line["predicted_step_time_s"]),
            size_text(line["predicted_peak_memory_bytes"]),
            {True: "yes", False: "no", None: "?"}[line["fits"]],
        )
    Console().print(table)
