"""Where a plan's bytes and seconds should go, or the rules that it breaks; needs no GPU."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from search_spaces.enumeration import rejections
from tuner.cli.advice import nearest_plans, one_knob_away, stack_hint
from tuner.cli.found_cluster import found_cluster
from tuner.cli.setting import Planned, job_setting, planned_job
from tuner.cli.sureness_wording import within_text
from tuner.cli.wide_console import wide_console
from tuner.cost_model.calibration import calibrated
from tuner.cost_model.case import subject_of
from tuner.cost_model.fit import usable_within
from tuner.cost_model.prediction import breakdown
from tuner.cost_model.sureness import FitZone, sureness
from tuner.errors import UserError
from tuner.job import Job, read_job
from tuner.plan import ParallelPlan
from tuner.plan_arrays import PlanArrays
from tuner.units import count_text, size_text, time_text

EXAMPLE = (
    "paratune explain examples/llama-3-8b-8xh100.yaml "
    "--plan backend=pytorch,zero_stage=3,recompute=full,precision=bf16"
)


_SHOWN_S = 5e-5
"""Less than this is printed as 0.0 ms, and left out."""
_MEMORY_WORDS = {
    "given_back_late": "buffers that the allocator frees late",
    "context": "context and libraries",
    "logits": "logits and loss",
    "optimizer": "optimizer states",
}
_TIME_WORDS = {
    "elementwise": "elementwise operations",
    "tensor_parallel": "tensor-parallel communication",
    "context_parallel": "context-parallel communication",
    "expert_parallel": "expert-parallel communication",
    "data_parallel": "data-parallel communication",
    "waiting_for_host_or_weights": "GPU idle: the host or gathered weights are late",
    "hand_over": "passing activations between stages",
    "pipeline_bubble": "pipeline bubble: stages without work",
    "optimizer": "optimizer update",
    "step": "fixed overhead of a step",
}
"""Terms whose names say too little."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``paratune explain``."""
    parser.add_argument("job", type=Path, metavar="JOB.yaml", help="the job file")
    parser.add_argument(
        "--plan", required=True, metavar="k=v,...", help="a plan; knobs left out at their defaults"
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
        hint = stack_hint(job, [rejection["sentence"] for rejection in document["rejections"]])
        if hint:
            print(f"paratune: {hint}", file=sys.stderr)
    return 0 if document["legal"] else 1


def parsed_plan(text: str) -> ParallelPlan:
    """The plan of a text such as ``backend=megatron,tp=4,pp=2``; other knobs at their defaults.

    Raises:
        UserError: an unknown knob or option, or a knob twice.
    """
    values: dict[str, Any] = {}
    for clause in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = clause.partition("=")
        if not equals:
            raise UserError(f"--plan must be knob=value pairs joined by commas, got {clause!r}")
        name = name.strip()
        if name in values:
            raise UserError(f"--plan must give each knob once, got {name} twice: {text!r}")
        values[name] = _value(value.strip())
    try:
        return ParallelPlan.from_dict({"backend": "pytorch"} | values)
    except ValueError as error:
        raise UserError(f"--plan: {error}") from error


def _value(text: str) -> Any:
    if text.isdecimal():
        return int(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def explanation(job: Job, plan: ParallelPlan) -> dict[str, Any]:
    """The contract's JSON document: the rules that are broken, or bytes and seconds by term.

    Also the nearest legal plans for a plan that is not, and for one that does not fit the plans
    that do and differ in one knob, the fastest first.
    """
    shape = job.workload.shape
    broken = rejections(plan, job_setting(job))
    document: dict[str, Any] = {
        "plan": plan.to_dict(),
        "num_params": shape.num_params if shape else None,
        "legal": not broken,
        "rejections": [{"rule": rule, "sentence": sentence} for rule, sentence in broken],
        "fits": None,
        "memory_limit_bytes": job.memory_limit_bytes,
        "memory_bytes": {},
        "memory_bytes_by_stage": [],
        "time_s": {},
        "nearest_plans": [],
    }
    subject = subject_of(job.workload, job.cluster)
    if subject is None:
        return document
    free = planned_job(replace(job, asked={"precision": (str(plan.precision),)}))
    if broken:
        near = nearest_plans(plan, free)
        document["nearest_plans"] = [_near_document(free, other) for other in near]
        return document
    found = breakdown(subject, plan)
    document["memory_bytes"] = {term: round(size) for term, size in found.memory_bytes.items()}
    document["memory_bytes_by_stage"] = [round(size) for size in found.memory_bytes_by_stage]
    document["time_s"] = dict(found.time_s)
    usable_bytes = usable_within(subject.cluster.gpu, job.memory_limit_bytes)
    (sure,) = sureness(calibrated(()), subject, PlanArrays.of_plans([plan]), usable_bytes)
    document |= sure.document()
    document["fits"] = sure.fit_probability >= 0.5
    if not document["fits"]:
        near = one_knob_away(plan, free)
        document["nearest_plans"] = [_near_document(free, other) for other in near]
    return document


def _near_document(free: Planned, plan: ParallelPlan) -> dict[str, Any]:
    index = free.space.plans.find(plan)
    assert index is not None, "nearest plans are taken from the legal ones"
    assert free.predicted is not None, "of a model with a shape"
    return {
        "plan": plan.to_dict(),
        "predicted_step_time_s": float(free.predicted.step_time_s[index]),
        "predicted_peak_memory_bytes": round(float(free.predicted.peak_memory_bytes[index])),
        "fits": bool(free.predicted.fits[index]),
    }


def _show(plan: ParallelPlan, document: dict[str, Any]) -> None:
    console = wide_console()
    params = document["num_params"]
    console.print(f"{plan.label()}" + (f", {count_text(params)} parameters" if params else ""))
    for rejection in document["rejections"]:
        console.print(f"breaks {rejection['rule']}: {rejection['sentence']}")
    if document["legal"]:
        _show_terms(console, document)
    if document["nearest_plans"]:
        _show_nearest(console, plan, document)


def _show_terms(console: Console, document: dict[str, Any]) -> None:
    console.print("Predicted, not measured, for the fullest rank:")
    table = Table()
    table.add_column("term")
    table.add_column("predicted", justify="right")
    for term, size in document["memory_bytes"].items():
        if size:
            table.add_row(_words(term, _MEMORY_WORDS), size_text(size))
    table.add_row("in all", size_text(sum(document["memory_bytes"].values())), end_section=True)
    for term, seconds in document["time_s"].items():
        if abs(seconds) >= _SHOWN_S:
            table.add_row(_words(term, _TIME_WORDS), time_text(seconds))
    table.add_row("in all", time_text(sum(document["time_s"].values())))
    console.print(table)
    console.print("Terms that are zero, or hidden behind computation, are left out.")
    if document["fits"] is not None:
        limit = size_text(document["memory_limit_bytes"])
        memory_factor = document["predicted_peak_memory_within_factor"]
        time_factor = document["predicted_step_time_within_factor"]
        says = "fits in" if document["fits"] else "does not fit in"
        sure = "probably " if document["fit_zone"] == FitZone.UNCERTAIN else ""
        chance = min(0.99, max(0.01, document["fit_probability"]))
        console.print(
            f"It {sure}{says} the {limit} that a rank may allocate (chance to fit {chance:.0%}). "
            f"With 95 % the memory is within {within_text(memory_factor)} of this, the step time "
            f"within {within_text(time_factor)}."
        )


def _words(term: str, known: Mapping[str, str]) -> str:
    return known.get(term, term.replace("_", " "))


def _show_nearest(console: Console, plan: ParallelPlan, document: dict[str, Any]) -> None:
    title = "Fits, one knob away:" if document["legal"] else "Nearest legal plans:"
    console.print(title)
    own = plan.to_dict()
    for near in document["nearest_plans"]:
        changes = [f"{k} {own[k]} -> {v}" for k, v in near["plan"].items() if own[k] != v]
        step_time = time_text(near["predicted_step_time_s"])
        memory = size_text(near["predicted_peak_memory_bytes"])
        fits = "fits" if near["fits"] else "does not fit"
        option = _plan_option(ParallelPlan.from_dict(near["plan"]))
        console.print(f"  {', '.join(changes)}: {step_time}, {memory}, {fits}", markup=False)
        console.print(f"    --plan {option}", markup=False, soft_wrap=True)


def _plan_option(plan: ParallelPlan) -> str:
    """What ``--plan`` would be given for it: the knobs that are not at their defaults."""
    usual = ParallelPlan(backend=plan.backend).to_dict()
    knobs = {k: v for k, v in plan.to_dict().items() if k == "backend" or v != usual[k]}
    return ",".join(f"{name}={str(value).lower()}" for name, value in knobs.items())
