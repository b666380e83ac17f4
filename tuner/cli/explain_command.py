"""Where a plan's bytes and seconds should go, or the rules that it breaks; needs no GPU."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from search_spaces.enumeration import rejections
from tuner.cli.found_cluster import found_cluster
from tuner.cli.setting import job_setting
from tuner.cost_model.case import Subject
from tuner.cost_model.prediction import breakdown
from tuner.errors import UserError
from tuner.job import Job, read_job
from tuner.plan import ParallelPlan
from tuner.units import count_text, size_text, time_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``paratune explain``."""
    parser.add_argument("job", type=Path, metavar="JOB.yaml")
    parser.add_argument(
        "--plan", required=True, metavar="k=v,...", help="e.g. backend=megatron,tp=4,pp=2"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(options: argparse.Namespace) -> int:
    """0 when the plan is legal, 1 when it breaks rules."""
    plan = parsed_plan(options.plan)
    job = read_job(options.job, found_cluster)
    document = explanation(job, plan)
    if options.json:
        print(json.dumps(document))
    else:
        _show(plan, document)
    return 0 if document["legal"] else 1


def parsed_plan(text: str) -> ParallelPlan:
    """The plan of a text such as ``backend=megatron,tp=4,pp=2``; other knobs at their defaults.

    Raises:
        UserError: an unknown knob or option.
    """
    values: dict[str, Any] = {"backend": "pytorch"}
    for clause in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = clause.partition("=")
        if not equals:
            raise UserError(f"--plan must be knob=value pairs joined by commas, got {clause!r}")
        values[name.strip()] = _value(value.strip())
    try:
        return ParallelPlan.from_dict(values)
    except (ValueError, TypeError) as error:
        raise UserError(f"--plan: {error}") from error


def _value(text: str) -> Any:
    if text.isdecimal():
        return int(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def explanation(job: Job, plan: ParallelPlan) -> dict[str, Any]:
    """The contract's JSON document: the rules that are broken, or bytes and seconds by term."""
    shape = job.workload.shape
    broken = rejections(plan, job_setting(job))
    document: dict[str, Any] = {
        "num_params": shape.num_params if shape else None,
        "legal": not broken,
        "rejections": [{"rule": rule, "sentence": sentence} for rule, sentence in broken],
        "memory_bytes": {},
        "memory_bytes_by_stage": [],
        "time_s": {},
    }
    if shape is not None and not broken:
        subject = Subject(shape=shape, workload=job.workload, cluster=job.cluster)
        found = breakdown(subject, plan)
        document["memory_bytes"] = {t: round(size) for t, size in found.memory_bytes.items()}
        document["memory_bytes_by_stage"] = [round(size) for size in found.memory_bytes_by_stage]
        document["time_s"] = dict(found.time_s)
    return document


def _show(plan: ParallelPlan, document: dict[str, Any]) -> None:
    console = Console()
    params = document["num_params"]
    console.print(f"{plan.label()}" + (f", {count_text(params)} parameters" if params else ""))
    for rejection in document["rejections"]:
        console.print(f"breaks {rejection['rule']}: {rejection['sentence']}", highlight=False)
    if not document["legal"]:
        return
    table = Table(title="predicted, not measured; fullest rank", title_justify="left")
    table.add_column("term")
    table.add_column("predicted", justify="right")
    for term, size in document["memory_bytes"].items():
        table.add_row(term.replace("_", " "), size_text(size))
    table.add_section()
    for term, seconds in document["time_s"].items():
        table.add_row(term.replace("_", " "), time_text(seconds))
    console.print(table)
