"""Finds the fastest plan by real training steps; the same command again goes on."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from runners.backends.launch import launch_for
from runners.ray_cluster import ray_nodes
from tuner.cli.advice import helpful_changes, nothing_legal
from tuner.cli.baseline import (
    Document,
    baseline_plan,
    baseline_settings,
    given_baseline,
    settled_baseline,
    what_is_left_out,
    with_baseline,
)
from tuner.cli.baseline_confirmation import confirm_largest_change
from tuner.cli.cluster_room import check_room
from tuner.cli.deferred_runner import DeferredRunner
from tuner.cli.finals_stage import FinalStage
from tuner.cli.finished_study import finished
from tuner.cli.interrupts import ends_in_order
from tuner.cli.kept_study import (
    RUNNERS,
    RunnerChoice,
    keep_job,
    remember_model,
    runner_named,
    set_settings,
)
from tuner.cli.live import LiveView
from tuner.cli.option_types import positive, seed
from tuner.cli.plan_prior import job_sampler
from tuner.cli.root_traceback import root_traceback
from tuner.cli.second_pass_stage import SecondPassStage
from tuner.cli.setting import Planned, default_plans, planned
from tuner.errors import UserError
from tuner.job import Job
from tuner.runner import Runner, Slots
from tuner.samplers.registry import SAMPLERS, Sampler
from tuner.stack import COMPONENTS, installed_stack
from tuner.study import Budget, Study, StudyEnd
from tuner.study_folder import StudyFolder, said_where_unwritable
from tuner.study_storage import check_storage
from tuner.undisturbed import UndisturbedRunner
from tuner.units import parsed_seconds

STORAGE_VARIABLE = "PARATUNE_STORAGE"
"""Environment variable: the storage's URL, which may hold a password."""
EXAMPLE = "paratune tune examples/tiny-cpu.yaml --runner local --trials 6"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``paratune tune``."""
    parser.add_argument("job", type=Path, metavar="JOB.yaml", help="the job file")
    parser.add_argument(
        "--study",
        type=Path,
        metavar="DIR",
        help="where to keep it; default studies/NAME-OF-THE-JOB",
    )
    parser.add_argument(
        "--ray-address", metavar="A", help="of a running cluster; else a local Ray is started"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show what the first trial would start; start nothing",
    )
    add_study_options(parser)


def add_study_options(parser: argparse.ArgumentParser) -> None:
    """What a study may be told wherever it runs."""
    _add_search(parser.add_argument_group("the search"))
    run = parser.add_argument_group("its trials")
    run.add_argument("--runner", choices=RUNNERS, default="ray", help="default: ray")
    run.add_argument(
        "--no-warm-pool", action="store_true", help="every rank starts anew and imports by itself"
    )
    run.add_argument(
        "--no-verify", action="store_true", help="do not hold the winner's losses against one rank"
    )
    _add_baseline(parser.add_argument_group("what you run now"))
    output = parser.add_argument_group("what is shown")
    output.add_argument("--quiet", action="store_true", help="no progress")
    output.add_argument("--json", action="store_true", help="one JSON document on stdout")


def _add_search(group: Any) -> None:
    group.add_argument(
        "--trials", type=positive, metavar="N", help="in all, over all runs; default: the job's"
    )
    group.add_argument(
        "--time", type=_seconds, metavar="T", help="of this run: 90s, 30m, 2h; default: the job's"
    )
    group.add_argument("--sampler", choices=SAMPLERS, default="plan", help="default: plan")
    group.add_argument(
        "--second-pass",
        type=positive,
        metavar="N",
        help="at the end, up to N runs of the winner with other framework settings; default: the "
        "job's, which is none",
    )
    group.add_argument(
        "--seed", type=seed, default=0, metavar="S", help="of the sampler; default 0"
    )
    group.add_argument(
        "--parallel",
        type=positive,
        default=1,
        metavar="N",
        help="trials at a time, where the cluster is a multiple of the job's; default 1",
    )
    group.add_argument(
        "--storage",
        metavar="URL",
        help="a database, as postgresql://USER@HOST/NAME, instead of the folder's journal; "
        f"default: ${STORAGE_VARIABLE}, which no process list shows",
    )
    group.add_argument(
        "--warm-start",
        type=Path,
        action="append",
        metavar="FILE_OR_STUDY",
        help="a measured table (CSV) or study folder of the same model and cluster to learn from",
    )


def _add_baseline(group: Any) -> None:
    group.add_argument(
        "--baseline", type=Path, metavar="FILE", help="its configuration, tried first: see the docs"
    )
    group.add_argument(
        "--baseline-arguments",
        type=Path,
        metavar="FILE",
        help='Hugging Face TrainingArguments that fill in "auto" and the micro-batch',
    )


def _seconds(text: str) -> float:
    try:
        return parsed_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run(options: argparse.Namespace) -> int:
    """0 with a winner, 1 when nothing ran, 130 when interrupted (state is saved)."""
    if options.ray_address is not None and options.runner != "ray":
        raise UserError(f"--ray-address needs --runner ray, got --runner {options.runner}")
    with ends_in_order():
        remember_model(_folder(options))
        return tuned(planned(options.job, options.ray_address), options)


def tuned(job: Planned, options: argparse.Namespace) -> int:
    """The study of a job that has been read; ``options.job`` is what messages call it."""
    if options.second_pass is not None and options.runner == "simulated":
        raise UserError("--second-pass needs real trials, got --runner simulated; leave one out")
    if not len(job.space.plans):
        changes = helpful_changes(job.job)
        print(f"paratune: {options.job}: {nothing_legal(job, changes)}", file=sys.stderr)
        return 2 if job.job.asked else 1
    baseline = given_baseline(options.baseline, options.baseline_arguments, job)
    if options.dry_run:
        return _dry_run(job, baseline)
    if options.runner != "simulated":
        _check_stack(options.job, job.job)
    if options.ray_address is not None and job.job.resolved["cluster"] != "auto":
        nodes = ray_nodes(options.ray_address)
        check_room(job.job.cluster, nodes, named=f"{options.job}: cluster")
    folder = _folder(options)
    folder.check_format()
    baseline = settled_baseline(folder, baseline, job)
    job = with_baseline(job, baseline)
    search = _search(job, options, baseline)
    folder.create()
    with folder.locked(), said_where_unwritable(folder):
        keep_job(folder, job, _runner_choice(options), baseline)
        view = _view(job, folder, options)
        for line in what_is_left_out(baseline) if baseline and options.baseline else ():
            view.note(line)
        try:
            end = _studied(job, folder, options, search, view)
        except KeyboardInterrupt:  # before its trials, or after all stages
            end = StudyEnd(trials=folder.trials(), reason="it was interrupted", interrupted=True)
        return finished(job, folder, end, options, view)


def _folder(options: argparse.Namespace) -> StudyFolder:
    return StudyFolder(options.study or Path("studies") / options.job.stem.strip("."))


def _check_stack(path: Path, job: Job) -> None:
    """Trials run what is installed; legal plans of another stack may not even start."""
    here = installed_stack().versions
    differing = [name for name in COMPONENTS if job.stack.versions.get(name) != here.get(name)]
    if differing:
        name = differing[0]
        raise UserError(
            f"{path}: stack.{name} must be what is installed here ({here.get(name, 'none')}) to "
            f"run trials, got {job.stack.versions.get(name, 'none')}; install it, remove it from "
            "stack, or plan only with: paratune plans"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """What plans are proposed by and first, and where Optuna keeps them."""

    sampler: Sampler
    baseline: Document | None
    storage_url: str | None


def _search(job: Planned, options: argparse.Namespace, baseline: Document | None) -> _Search:
    """All that the command line names beside the job, read before there is a folder.

    Raises:
        UserError: a warm start is of another job, or the storage cannot be reached.
    """
    url: str | None = options.storage
    if url is None:
        url = os.environ.get(STORAGE_VARIABLE) or None  # set to nothing, it is not set
    sampler = job_sampler(
        job, options.sampler, seed=options.seed, warm_start=options.warm_start or ()
    )
    check_storage(url)
    return _Search(sampler=sampler, baseline=baseline, storage_url=url)


def _runner_choice(options: argparse.Namespace) -> RunnerChoice:
    return RunnerChoice(
        name=options.runner,
        ray_address=options.ray_address,
        slots=Slots(count=options.parallel, warm=not options.no_warm_pool),
    )


def _runner(job: Job, options: argparse.Namespace, view: LiveView) -> Runner:
    if options.runner == "ray":
        at = options.ray_address
        view.note("starting Ray" if at is None else f"joining the Ray at {at}")
    return runner_named(
        _runner_choice(options), job.workload, job.cluster, job.measurement, job.phase_limits_s
    )


def _dry_run(job: Planned, baseline: Document | None) -> int:
    own = [] if baseline is None else [baseline_plan(baseline)]
    first = next(iter([*own, *default_plans(job.space).values(), *job.space.plans]))
    spec = launch_for(
        first,
        job.job.workload,
        job.job.cluster,
        job.job.measurement,
        baseline_settings(baseline),
    )
    print(f"{first.label()}: {spec.num_nodes} x {spec.ranks_per_node} ranks")
    for name, value in spec.env:
        print(f"{name}={value}")
    for file in spec.files:
        print(f"--- {file.name}\n{file.text}", end="")
    return 0


def _budget(job: Planned, options: argparse.Namespace) -> Budget:
    return Budget(
        trials=options.trials or job.job.trials,
        time_s=options.time if options.time is not None else job.job.time_s,
    )


def _view(job: Planned, folder: StudyFolder, options: argparse.Namespace) -> LiveView:
    return LiveView(
        _budget(job, options),
        quiet=options.quiet,
        num_refused=job.space.num_combinations - len(job.space.plans),
        root_lines=partial(root_traceback, folder),
    )


def _studied(
    job: Planned,
    folder: StudyFolder,
    options: argparse.Namespace,
    search: _Search,
    view: LiveView,
) -> StudyEnd:
    budget, baseline = _budget(job, options), search.baseline
    # Ray takes seconds to start: not before there is a plan to run.
    deferred = DeferredRunner(partial(_runner, job.job, options, view), job.job.measurement)
    runner = UndisturbedRunner(deferred)
    set_settings(runner, baseline_settings(baseline))
    study = Study(
        space=job.space,
        runner=runner,
        folder=folder,
        sampler=search.sampler,
        storage_url=search.storage_url,
        parallel=options.parallel,
        current=None if baseline is None else baseline_plan(baseline),
        prepare=deferred.start,
    )
    started = time.monotonic()

    def time_left() -> bool:
        return budget.time_s is None or time.monotonic() - started < budget.time_s

    try:
        end = study.run(budget, view)
        if end.interrupted:
            return end
        finals = FinalStage(
            folder=folder, runner=runner, listener=view.final_run, time_left=time_left
        )
        second_pass = SecondPassStage(
            folder=folder,
            runner=runner,
            measurement=job.job.measurement,
            listener=view.second_pass_run,
        )
        return _after_trials(end, job, (finals, second_pass), view, options)
    finally:
        view.stop()
        runner.close()


def _after_trials(
    end: StudyEnd,
    job: Planned,
    stages: tuple[FinalStage, SecondPassStage],
    view: LiveView,
    options: argparse.Namespace,
) -> StudyEnd:
    """Ctrl-C in the finals, or after, loses none of their runs: the same command goes on."""
    finals, second_pass = stages
    is_real = options.runner != "simulated"
    try:
        if is_real:
            confirm_largest_change(job.job, finals.folder, finals.runner, view)
        finals.run(job.job.finals)
        if is_real:
            second_pass.run(options.second_pass or job.job.second_pass)
    except KeyboardInterrupt:
        return replace(end, reason="it was interrupted after its trials", interrupted=True)
    return end
