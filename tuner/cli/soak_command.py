"""Runs a study's winner for minutes: does it stay in memory, and as fast?"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from reports.wording import headroom_words, interval_words, nearly_full_words, outcome_words
from tuner.cli.folder_summary import folder_summary
from tuner.cli.interrupts import ends_in_order
from tuner.cli.kept_study import KeptStudy, runner_named, set_settings
from tuner.errors import UserError
from tuner.launch import AdaptiveSteps, Measurement
from tuner.outcome import Measured, Outcome, Phase
from tuner.plan import ParallelPlan
from tuner.study_folder import StudyFolder
from tuner.units import parsed_seconds, size_text

_MOST_STEPS = 10**7
_NEVER_PRECISE = 1e-12

EXAMPLE = "paratune soak studies/tiny-cpu --time 2m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``paratune soak``."""
    parser.add_argument("study", type=Path, metavar="STUDY", help="a study folder")
    parser.add_argument(
        "--time", default="10m", metavar="T", help="of the steps: 90s, 10m, 1h; default 10m"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(options: argparse.Namespace) -> int:
    """0 when it trained to the end, 1 when it did not or there is no winner."""
    try:
        time_s = parsed_seconds(options.time)
    except ValueError as error:
        raise UserError(f"--time: {error}") from error
    folder = StudyFolder(options.study)
    kept = KeptStudy.read(folder)
    kept.refuse_simulated("soaked")
    best = folder_summary(folder).best
    if best is None:
        print(f"paratune: {folder.path}: no plan has trained, nothing to soak", file=sys.stderr)
        return 1
    with ends_in_order(), folder.locked():
        launch = folder.winner_launch_folder(best.number, best.run)
        outcome = soaked(kept, best.plan, launch, time_s)
    document = soak_document(best.plan, outcome, kept.memory_limit_bytes)
    folder.write_json(folder.soak_file, document)
    print(json.dumps(document) if options.json else _text(best.plan, outcome, kept))
    return 0 if isinstance(outcome, Measured) else 1


def soaked(kept: KeptStudy, plan: ParallelPlan, launch: Path, time_s: float) -> Outcome:
    """What comes of a plan that trains for so long; the limit of the steps phase grows with it."""
    measurement = Measurement(
        warmup_steps=1,
        steps=2,
        memory_limit_bytes=kept.memory_limit_bytes,
        adaptive=AdaptiveSteps(
            max_steps=_MOST_STEPS, relative_half_width=_NEVER_PRECISE, time_s=time_s
        ),
        routing=kept.routing(launch),
    )
    limits_s = {**kept.limits_s, Phase.STEPS: time_s + kept.limits_s[Phase.STEPS]}
    workload = kept.workload(launch)
    runner = runner_named(kept.choice, workload, kept.cluster, measurement, limits_s)
    set_settings(runner, kept.folder.asked_settings(launch))
    try:
        return runner.run(plan, kept.folder.soak_folder, lambda _: None)
    finally:
        runner.close()


def soak_document(plan: ParallelPlan, outcome: Outcome, limit_bytes: int) -> dict[str, Any]:
    """What came of it, as JSON: seconds and bytes."""
    document: dict[str, Any] = {"plan": plan.to_dict(), "outcome": outcome.kind}
    if not isinstance(outcome, Measured):
        return document | {"message": outcome_words(outcome)}
    facts = asdict(replace(outcome, step_times_s=(), losses=(), warmup_times_s=()))
    names = (
        "step_time_s",
        "step_time_ci_s",
        "peak_memory_bytes",
        "memory_growth_bytes",
        "reserved_unused_bytes",
        "allocator_retries",
    )
    return document | {
        **{name: facts[name] for name in names},
        "headroom_bytes": limit_bytes - outcome.peak_memory_bytes,
        "is_nearly_full": outcome.is_nearly_full,
        "num_steps": len(outcome.step_times_s),
        "drift": drift(outcome.step_times_s),
    }


def drift(times_s: tuple[float, ...]) -> float:
    """How much slower the last quarter of the steps was than the first, as a part of it."""
    quarter = max(1, len(times_s) // 4)
    first, last = statistics.median(times_s[:quarter]), statistics.median(times_s[-quarter:])
    return last / first - 1


def _text(plan: ParallelPlan, outcome: Outcome, kept: KeptStudy) -> str:
    if not isinstance(outcome, Measured):
        return f"{plan.label()}: {outcome_words(outcome)}"
    lines = [
        f"{plan.label()}: {len(outcome.step_times_s)} steps, {interval_words(outcome)}, the last "
        f"quarter {drift(outcome.step_times_s):+.1%} against the first",
        f"memory: {headroom_words(outcome, kept.memory_limit_bytes)}; its peak grew by "
        f"{size_text(outcome.memory_growth_bytes)} after the second step",
    ]
    if outcome.is_nearly_full:
        lines.append(f"nearly out of memory: {nearly_full_words(outcome)}")
    return "\n".join(lines)
