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
from rich.table import Table

from tuner.cli.advice import Change, helpful_changes, nothing_fits, nothing_legal, stack_hint
from tuner.cli.setting import Planned, planned
from tuner.cli.sureness_wording import WITHIN, fit_text, within_text
from tuner.cli.wide_console import wide_console
from tuner.cost_model.sureness import Sureness
from tuner.model_presets import preset_model, preset_named
from tuner.units import count_text, size_text, time_text

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
    hint = stack_hint(job.job, [f"{r.sentence} {r.example}" for r in job.space.waterfall])
    if hint:
        print(f"paratune: {hint}", file=sys.stderr)
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
        "plans": [
            _plan_document(job, int(index), sure)
            for index, sure in zip(shown, _sureness(job, shown), strict=True)
        ],
        "changes": [change.document() for change in changes],
    }


def _sureness(job: Planned, shown: NDArray[np.int64]) -> Sequence[Sureness | None]:
    return job.sureness_of(shown.tolist()) or [None] * len(shown)


def _plan_document(job: Planned, index: int, sure: Sureness | None) -> dict[str, Any]:
    predicted = job.predicted
    return {
        "plan": job.space.plans[index].to_dict(),
        "predicted_step_time_s": float(predicted.step_time_s[index]) if predicted else None,
        "predicted_peak_memory_bytes": (
            round(float(predicted.peak_memory_bytes[index])) if predicted else None
        ),
        "fits": bool(predicted.fits[index]) if predicted else None,
        **(sure.document() if sure else {}),
    }


def _show(job: Planned, shown: NDArray[np.int64]) -> None:
    console = wide_console()
    console.print(_header(job))
    waterfall = Table(title=f"{job.space.num_combinations:,} combinations", title_justify="left")
    waterfall.add_column("rule")
    waterfall.add_column("removed", justify="right")
    waterfall.add_column("what must hold")
    for removal in job.space.waterfall:
        waterfall.add_row(removal.rule, f"{removal.removed:,}", removal.sentence)
    console.print(waterfall)
    console.print(
        f"{len(job.space.plans):,} legal plans, {job.num_fitting:,} predicted to fit in "
        f"{size_text(job.job.memory_limit_bytes)} a rank. Predicted, not measured:"
    )
    table = Table()
    for name in ("step time", "within", "memory", "within", "fits"):
        table.add_column(name, justify="right")
    table.add_column("plan")
    for index, sure in zip(shown, _sureness(job, shown), strict=True):
        table.add_row(*_cells(job, int(index), sure), job.space.plans[int(index)].label())
    console.print(table)
    console.print(WITHIN)


def _header(job: Planned) -> str:
    """What is planned, as it was understood."""
    workload, cluster = job.job.workload, job.job.cluster
    model, shape = workload.model, workload.shape
    given = job.job.resolved["workload"]["model"]
    is_preset = (
        isinstance(given, str)
        and preset_named(given) is not None
        and preset_model(given, named=given) == model
    )
    parts = [
        f"{'preset ' if is_preset else ''}{model.name}",
        f"{count_text(shape.num_params)} parameters" if shape else "parameters unknown",
        f"{cluster.num_gpus} {cluster.gpu.name}",
        f"sequences of {workload.seq_len:,} tokens",
        f"global batch {workload.global_batch_sequences:,}",
        f"precision {' or '.join(str(p) for p in dict(job.space.knobs)['precision'])}",
    ]
    return ", ".join(parts)


def _cells(job: Planned, index: int, sure: Sureness | None) -> Sequence[str]:
    if job.predicted is None or sure is None:
        return ["?"] * 5
    return (
        time_text(float(job.predicted.step_time_s[index])),
        within_text(sure.time_factor),
        size_text(float(job.predicted.peak_memory_bytes[index])),
        within_text(sure.memory_factor),
        fit_text(bool(job.predicted.fits[index]), sure.zone),
    )
