"""Legal plans ranked by prediction, and what the rules removed; needs no GPU."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from tuner.cli.advice import Change, helpful_changes, nothing_fits, nothing_legal
from tuner.cli.setting import Planned, planned
from tuner.units import size_text, time_text

EXAMPLE = "paratune plans examples/llama-3-8b-8xh100.yaml --top 5"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``paratune plans``."""
    parser.add_argument("job", type=Path, metavar="JOB.yaml", help="the job file")
    parser.add_argument(
        "--top", type=_count, default=20, metavar="N", help="plans to show; default 20"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """0 when a plan is predicted to fit, 1 when none does, 2 when what is pinned is illegal."""
    job = planned(options.job)
    changes = () if job.num_fitting else helpful_changes(job.job)
    shown = ranked(job)[: options.top]
    if options.json:
        print(json.dumps(_document(job, shown, changes)))
    elif len(job.space.plans):
        _show(job, shown)
    if not len(job.space.plans):
        print(f"paratune: {options.job}: {nothing_legal(job, changes)}", file=sys.stderr)
        return 2 if job.job.asked else 1
    if not job.num_fitting:
        print(f"paratune: {options.job}: {nothing_fits(job, changes)}", file=sys.stderr)
        return 1
    return 0


def ranked(job: Planned) -> NDArray[np.int64]:
    """Positions of the legal plans: those that fit first, the fastest first."""
    predicted = job.predicted
    if predicted is None:
        return np.arange(len(job.space.plans))
    return np.lexsort((predicted.step_time_s, ~predicted.fits))


def _document(job: Planned, shown: NDArray[np.int64], changes: Sequence[Change]) -> dict[str, Any]:
    return {
        "waterfall": [
            {"rule": r.rule, "removed": r.removed, "sentence": r.sentence}
            for r in job.space.waterfall
        ],
        "num_combinations": job.space.num_combinations,
        "num_legal": len(job.space.plans),
        "num_fitting": job.num_fitting,
        "plans": [_plan_document(job, int(index)) for index in shown],
        "changes": [change.document() for change in changes],
    }


def _plan_document(job: Planned, index: int) -> dict[str, Any]:
    predicted = job.predicted
    return {
        "plan": job.space.plans[index].to_dict(),
        "predicted_step_time_s": float(predicted.step_time_s[index]) if predicted else None,
        "predicted_peak_memory_bytes": (
            round(float(predicted.peak_memory_bytes[index])) if predicted else None
        ),
        "fits": bool(predicted.fits[index]) if predicted else None,
    }


def _show(job: Planned, shown: NDArray[np.int64]) -> None:
    console = Console()
    waterfall = Table(title=f"{job.space.num_combinations:,} combinations", title_justify="left")
    waterfall.add_column("rule")
    waterfall.add_column("removed", justify="right")
    waterfall.add_column("what must hold")
    for removal in job.space.waterfall:
        waterfall.add_row(removal.rule, f"{removal.removed:,}", removal.sentence)
    console.print(waterfall)
    console.print(
        f"{len(job.space.plans):,} legal plans, {job.num_fitting:,} predicted to fit in "
        f"{size_text(job.job.memory_limit_bytes)} a rank. Predicted, not measured:",
        highlight=False,
    )
    table = Table()
    for name in ("step time", "memory", "fits"):
        table.add_column(name, justify="right")
    table.add_column("plan")
    for index in shown:
        table.add_row(*_cells(job, int(index)), job.space.plans[int(index)].label())
    console.print(table)


def _cells(job: Planned, index: int) -> tuple[str, str, str]:
    if job.predicted is None:
        return "?", "?", "?"
    return (
        time_text(float(job.predicted.step_time_s[index])),
        size_text(float(job.predicted.peak_memory_bytes[index])),
        "yes" if job.predicted.fits[index] else "no",
    )
