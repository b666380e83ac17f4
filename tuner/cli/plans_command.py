"""Legal plans ranked by prediction, and what the rules removed; needs no GPU."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tuner.cli.setting import Planned, nothing_legal, planned
from tuner.cost_model.prediction import Prediction
from tuner.plan import ParallelPlan
from tuner.units import size_text, time_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``paratune plans``."""
    parser.add_argument("job", type=Path, metavar="JOB.yaml")
    parser.add_argument("--top", type=int, default=20, help="how many plans to show (20)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(options: argparse.Namespace) -> int:
    """0 when a plan is predicted to fit, 1 when none is legal or none fits."""
    job = planned(options.job)
    limit = job.job.memory_limit_bytes
    ranked = _ranked(job)
    num_fitting = sum(_fits(p, limit) is not False for _, p in ranked)
    if options.json:
        print(json.dumps(_document(job, ranked[: options.top], num_fitting)))
    else:
        _show(job, ranked[: options.top], num_fitting)
    if not ranked:
        print(f"paratune: {nothing_legal(job)}", file=sys.stderr)
    return 0 if num_fitting else 1


def _fits(prediction: Prediction | None, limit_bytes: int) -> bool | None:
    return None if prediction is None else prediction.peak_memory_bytes <= limit_bytes


def _ranked(job: Planned) -> list[tuple[ParallelPlan, Prediction | None]]:
    """Those that fit first, the fastest first."""
    limit = job.job.memory_limit_bytes
    pairs = list(zip(job.space.plans, job.predictions, strict=True))
    return sorted(
        pairs,
        key=lambda pair: (
            _fits(pair[1], limit) is False,
            pair[1].step_time_s if pair[1] is not None else 0.0,
        ),
    )


def _document(
    job: Planned, shown: list[tuple[ParallelPlan, Prediction | None]], num_fitting: int
) -> dict[str, Any]:
    return {
        "waterfall": [
            {"rule": r.rule, "removed": r.removed, "sentence": r.sentence}
            for r in job.space.waterfall
        ],
        "num_combinations": job.space.num_combinations,
        "num_legal": len(job.space.plans),
        "num_fitting": num_fitting,
        "plans": [
            {
                "plan": plan.to_dict(),
                "predicted_step_time_s": p.step_time_s if p else None,
                "predicted_peak_memory_bytes": round(p.peak_memory_bytes) if p else None,
                "fits": _fits(p, job.job.memory_limit_bytes),
            }
            for plan, p in shown
        ],
    }


def _show(
    job: Planned, shown: list[tuple[ParallelPlan, Prediction | None]], num_fitting: int
) -> None:
    console = Console()
    waterfall = Table(title=f"{job.space.num_combinations} combinations", title_justify="left")
    waterfall.add_column("rule")
    waterfall.add_column("removed", justify="right")
    waterfall.add_column("what must hold")
    for removal in job.space.waterfall:
        waterfall.add_row(removal.rule, str(removal.removed), removal.sentence)
    console.print(waterfall)
    console.print(
        f"{len(job.space.plans)} legal plans, {num_fitting} predicted to fit in "
        f"{size_text(job.job.memory_limit_bytes)} a rank. Predicted, not measured:"
    )
    table = Table()
    for name in ("step time", "memory", "fits"):
        table.add_column(name, justify="right")
    table.add_column("plan")
    for plan, p in shown:
        fits = {True: "yes", False: "no", None: "?"}[_fits(p, job.job.memory_limit_bytes)]
        table.add_row(
            time_text(p.step_time_s) if p else "?",
            size_text(p.peak_memory_bytes) if p else "?",
            fits,
            plan.label(),
        )
    console.print(table)
