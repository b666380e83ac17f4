"""Checks that a study's winner computes the losses that one rank computes."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tuner.cli.folder_summary import folder_summary
from tuner.cli.interrupts import ends_in_order
from tuner.cli.kept_study import KeptStudy, runner_named, set_settings
from tuner.cli.shallow import is_legal, shallow_workload
from tuner.launch import Measurement, ReferenceSplit, Settings
from tuner.outcome import Measured, Outcome
from tuner.plan import Backend, ParallelPlan, Precision
from tuner.study_folder import StudyFolder
from tuner.verification import Reference, Verdict, Verification, verification
from tuner.workload import Workload

_STEPS = Measurement(warmup_steps=1, steps=2)

EXAMPLE = "paratune verify studies/tiny-cpu"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``paratune verify``."""
    parser.add_argument("study", type=Path, metavar="STUDY", help="a study folder")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(options: argparse.Namespace) -> int:
    """0 when the winner is right, 1 when it is wrong or that cannot be told."""
    folder = StudyFolder(options.study)
    kept = KeptStudy.read(folder)
    kept.refuse_simulated("verified")
    with ends_in_order(), folder.locked():
        found = verified_winner(kept)
    if found is None:
        print(f"paratune: {folder.path}: no plan has trained, nothing to verify", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(verification_document(found)))
    else:
        print(f"{found.plan.label()}: {found.verdict}: {found.sentence}")
        for mistake in found.blind_to:
            print(f"It would not have shown here if {mistake}.")
    return 0 if found.verdict is Verdict.RIGHT else 1


def verification_document(found: Verification) -> dict[str, Any]:
    """The verdict as JSON."""
    return asdict(found) | {"plan": found.plan.to_dict()}


def verified_winner(kept: KeptStudy) -> Verification | None:
    """The verdict on the fastest plan, kept in the folder; None where nothing trained."""
    best = folder_summary(kept.folder).best
    if best is None:
        return None
    launch = kept.folder.winner_launch_folder(best.number, best.run)
    found = _verified(kept, best.plan, kept.workload(launch), kept.folder.asked_settings(launch))
    found = replace(found, settings=best.settings)
    kept.folder.keep_verification(found)
    return found


def _verified(
    kept: KeptStudy, plan: ParallelPlan, workload: Workload, settings: Settings
) -> Verification:
    """In fp32 too where the plan can: there, rounding hides no mistake of the layout."""
    small = shallow_workload(plan, workload, kept.cluster)
    plans = [plan]
    twin = replace(plan, precision=Precision.FP32)
    if twin != plan and is_legal(twin, small, kept.cluster):
        plans.insert(0, twin)
    reference = _reference(kept, plan, small)
    if isinstance(reference, str):
        return _unknown(plan, small, f"one rank did not train: {reference}")
    found = []
    for number, tried in enumerate(plans):
        outcome = _run(kept, _Run(plan=tried, settings=settings, name=f"plan-{number}"), small)
        if not isinstance(outcome, Measured):
            found.append(_unknown(tried, small, f"the plan did not train: {_why(outcome)}"))
            continue
        found.append(verification(tried, outcome.losses, reference, num_layers=_depth(small)))
    # The verdict is on the plan as it was measured, unless its fp32 twin shows more.
    worst = next((each for each in found if each.verdict is Verdict.WRONG), found[-1])
    keen = [set(each.blind_to) for each in found if each.verdict is not Verdict.UNKNOWN]
    blind = set.intersection(*keen) if keen else set()
    return replace(worst, plan=plan, blind_to=tuple(sorted(blind)))


def _reference(kept: KeptStudy, plan: ParallelPlan, small: Workload) -> Reference | str:
    """What one rank computes, or why it did not."""
    data_parallel = plan.data_parallel(kept.cluster.num_gpus)
    split = ReferenceSplit(data_parallel=data_parallel, micro_batch=plan.micro_batch)
    own = Backend.MEGATRON if plan.backend is Backend.MEGATRON else Backend.PYTORCH
    one = ParallelPlan(backend=own, precision=Precision.FP32, micro_batch=plan.micro_batch)
    outcome = _run(kept, _Run(plan=one, reference=split, name="one-rank"), small)
    if not isinstance(outcome, Measured):
        return _why(outcome)
    report = kept.folder.read_json(kept.folder.verification_folder / "one-rank" / "rank-0.json")
    return Reference(losses=outcome.losses, **report["result"]["effective"])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run of a verification."""

    name: str
    plan: ParallelPlan
    settings: Settings = ()
    reference: ReferenceSplit | None = None
    """Set for the one rank that the plan is held against."""


def _run(kept: KeptStudy, one: _Run, workload: Workload) -> Outcome:
    measurement = replace(
        _STEPS, memory_limit_bytes=kept.memory_limit_bytes, reference=one.reference
    )
    cluster = kept.cluster
    if one.reference is not None:
        cluster = replace(cluster, num_nodes=1, gpus_per_node=1)
    runner = runner_named(kept.choice, workload, cluster, measurement, kept.limits_s)
    set_settings(runner, one.settings)
    try:
        return runner.run(one.plan, kept.folder.verification_folder / one.name, lambda _: None)
    finally:
        runner.close()


def _unknown(plan: ParallelPlan, small: Workload, sentence: str) -> Verification:
    return Verification(
        plan=plan, verdict=Verdict.UNKNOWN, sentence=sentence, num_layers=_depth(small)
    )


def _depth(workload: Workload) -> int | None:
    return workload.shape.num_layers if workload.shape is not None else None


def _why(outcome: Outcome) -> str:
    return " ".join(str(getattr(outcome, "message", outcome.kind)).split())[:300] or outcome.kind
