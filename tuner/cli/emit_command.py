"""Writes a plan as the files of the tools that people start training with."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from reports.best_folder import launch_environment
from reports.emit.formats import Format, emitted
from reports.emit.readme import (
    README,
    Numbers,
    outcome_numbers,
    predicted_numbers,
    readme,
    study_id,
)
from reports.emit.subject import Subject, Unsayable
from reports.study_facts import StudyFacts
from reports.summary import MeasuredTrial
from runners.backends.launch import launch_for
from search_spaces.enumeration import rejections
from tuner.cli.explain_command import parsed_plan
from tuner.cli.folder_summary import folder_summary
from tuner.cli.found_cluster import found_cluster
from tuner.cli.setting import job_setting
from tuner.cluster import Device
from tuner.cost_model.prediction import prediction
from tuner.errors import UserError
from tuner.finals import confirmed
from tuner.job import read_job
from tuner.launch import ENVIRONMENT_FILE, LaunchFile, LaunchSpec
from tuner.outcome import Rejected
from tuner.plan import Backend, ParallelPlan
from tuner.study_folder import StudyFolder
from tuner.trial import Trial

_OWN_BACKEND = {
    Format.DEEPSPEED: Backend.DEEPSPEED,
    Format.HF_DEEPSPEED: Backend.DEEPSPEED,
    Format.MEGATRON: Backend.MEGATRON,
    Format.MEGATRON_BRIDGE: Backend.MEGATRON,
    Format.TORCHTITAN: Backend.PYTORCH,
}
"""Formats of one framework: the fastest trial of that one is meant."""
Emission = tuple[Subject, Numbers, dict[str, Any]]
"""What is emitted, what is known of it, and what the JSON document says of it."""
_LISTING = ".emitted.json"
"""Names of the files that emit wrote into a folder."""

EXAMPLE = "paratune emit studies/tiny-cpu --format torchrun"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``paratune emit``."""
    parser.add_argument(
        "source", type=Path, metavar="STUDY|JOB.yaml", help="a study folder, or a job with --plan"
    )
    parser.add_argument(
        "--format", required=True, choices=[str(one) for one in Format], help="of which tool"
    )
    parser.add_argument("--trial", type=int, metavar="N", help="of the study; the fastest if left")
    parser.add_argument("--plan", metavar="k=v,...", help="of a job: any legal plan")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to; said at the end")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(options: argparse.Namespace) -> int:
    """0 with files written, 1 where no trial has trained."""
    form = Format(options.format)
    from_study = options.source.is_dir()
    _check_source(options, from_study=from_study)
    if from_study:
        emission = _from_study(StudyFolder(options.source), options.trial, form)
        if emission is None:
            return 1
        subject, numbers, document = emission
        out = options.out or options.source / "emitted" / form
    else:
        subject, numbers, document = _of_job(options.source, parsed_plan(options.plan))
        out = options.out or Path("emitted") / form
    files = (*emitted(subject, form), readme(subject, form, numbers))
    _write(out, files)
    document = {
        "format": str(form),
        "plan": subject.plan.to_dict(),
        **document,
        "numbers": numbers.kind,
        "paratune_version": version("paratune"),
        "out": str(out),
        "files": [file.name for file in files],
    }
    _say(options, subject, document)
    return 0


def _check_source(options: argparse.Namespace, *, from_study: bool) -> None:
    if from_study and options.plan is not None:
        raise UserError(
            f"--plan must go with a job file, but {options.source} is a study folder; "
            "choose one of its trials with --trial N"
        )
    if not from_study and options.trial is not None:
        raise UserError(
            f"--trial must go with a study folder, but {options.source} is none; "
            "give a folder, or a plan of the job with --plan"
        )
    if not from_study and options.plan is None:
        raise UserError(
            f"{options.source} must be a study folder, or a job file with --plan "
            "backend=...,tp=...; got neither"
        )


def _from_study(folder: StudyFolder, number: int | None, form: Format) -> Emission | None:
    """Of the trial that is named, else of the fastest that the format can say."""
    if number is not None:
        trials = {trial.number: trial for trial in folder.trials()}
        if number not in trials:
            known = ", ".join(map(str, trials)) or "none"
            raise UserError(f"--trial must be one of the study's trials ({known}), got {number}")
        return _of_study(folder, trials[number], None)
    summary = folder_summary(folder)
    backend = _OWN_BACKEND.get(form)
    candidates = summary.fastest_first(backend)
    if not candidates:
        what = "trial" if backend is None else f"trial of {backend}"
        print(
            f"paratune: no {what} of {folder.path} has trained, so there is nothing to emit as "
            f"{form}; name one with --trial, or go on with: paratune tune",
            file=sys.stderr,
        )
        return None
    refusal: Unsayable | None = None
    for candidate in candidates:
        emission = _of_study(folder, candidate.trial, candidate)
        try:
            emitted(emission[0], form)
        except Unsayable as error:
            refusal = refusal or error
        else:
            return _said_to_be_slower(emission, candidate, summary.ranking[0], form)
    assert refusal is not None
    raise refusal


def _said_to_be_slower(
    emission: Emission, taken: MeasuredTrial, best: MeasuredTrial, form: Format
) -> Emission:
    """With a word, also in the page, where another trial than the winner had to be taken."""
    subject, numbers, document = emission
    if taken == best:
        return emission
    factor = taken.measured.step_time_s / best.measured.step_time_s
    note = (
        f"the winner (trial {best.number}, {best.label}) cannot be said in {form}; this is trial "
        f"{taken.number}, the fastest that can: {factor:.2f}x the winner's step time"
    )
    print(f"paratune: {note}", file=sys.stderr)
    lines = (note[0].upper() + note[1:], *numbers.lines)
    return subject, replace(numbers, lines=lines), document | {"winner": best.number}


def _of_study(folder: StudyFolder, trial: Trial, best: MeasuredTrial | None) -> Emission:
    if isinstance(trial.outcome, Rejected):
        raise UserError(
            f"trial {trial.number} must be of a legal plan, but {'; '.join(trial.outcome.reasons)}"
        )
    again = confirmed(folder.finals()).get(trial.number)
    trial = trial if again is None else replace(trial, outcome=again)
    facts = StudyFacts.read(folder)
    name = _name(folder)
    run = None if best is None else best.run
    launch = folder.winner_launch_folder(trial.number, run)
    outcome = trial.outcome if best is None else best.measured
    spec = LaunchSpec(
        plan=trial.plan,
        num_nodes=facts.num_nodes,
        ranks_per_node=facts.gpus_per_node,
        files=_kept_files(launch),
        env=tuple(launch_environment(folder, launch).items()),
        settings=folder.asked_settings(launch),
    )
    subject = Subject(
        spec=spec,
        on_cpu=facts.gpu == "cpu",
        origin=f"paratune {version('paratune')}: trial {trial.number} of study {name}, "
        f"{trial.plan.label() if best is None else best.label}",
    )
    document = {
        "trial": trial.number,
        "second_pass_run": run,
        "settings": dict(spec.settings),
        "study": str(folder.path),
        "study_id": name,
    }
    return subject, outcome_numbers(outcome, facts), document


def _name(folder: StudyFolder) -> str:
    job = folder.read_json(folder.job_file)
    started = min(trial.started_at for trial in folder.trials())
    return study_id(json.dumps(job["identity"], sort_keys=True), started)


def _kept_files(launch: Path) -> tuple[LaunchFile, ...]:
    if not launch.is_dir():
        raise UserError(
            f"{launch} must hold the launch files of the trial, but it is no folder; bring it "
            "back, or name another trial with --trial"
        )
    return tuple(
        LaunchFile(name=path.name, text=path.read_bytes().decode())
        for path in sorted(launch.iterdir())
        if path.is_file() and path.name != ENVIRONMENT_FILE
    )


def _of_job(path: Path, plan: ParallelPlan) -> Emission:
    job = read_job(path, found_cluster)
    broken = rejections(plan, job_setting(job))
    if broken:
        sentences = "".join(f"\n  {rule}: {sentence}" for rule, sentence in broken)
        raise UserError(f"--plan must be legal, but {plan.label()} breaks{sentences}")
    subject = Subject(
        spec=launch_for(plan, job.workload, job.cluster, job.measurement),
        on_cpu=job.cluster.gpu.device is Device.CPU,
        origin=f"paratune {version('paratune')}: {plan.label()} for {path.name}, not tried",
    )
    said = prediction(job.workload, job.cluster, plan)
    numbers = predicted_numbers(
        said.step_time_s if said else None, said.peak_memory_bytes if said else None
    )
    return subject, numbers, {"trial": None, "settings": {}, "study": None, "study_id": None}


def _write(out: Path, files: tuple[LaunchFile, ...]) -> None:
    """Writes the files; those of an earlier emission make way, and only those."""
    listing = out / _LISTING
    if out.exists() and not listing.is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(
            f"--out must be a new folder, or one that emit wrote before, got {out}; "
            "give another folder"
        )
    try:
        if listing.is_file():
            for name in json.loads(listing.read_text()):
                (out / Path(name).name).unlink(missing_ok=True)
        out.mkdir(parents=True, exist_ok=True)
        listing.write_text(json.dumps([file.name for file in files]))
        for file in files:
            (out / file.name).write_bytes(file.text.encode())
            if file.name.endswith(".sh"):
                (out / file.name).chmod(0o755)
    except OSError as error:
        raise UserError(
            f"--out must be a folder that can be written, but {error}; give another folder"
        ) from error


def _say(options: argparse.Namespace, subject: Subject, document: dict[str, Any]) -> None:
    if options.json:
        print(json.dumps(document))
        return
    print(f"{subject.plan.label()}, {document['numbers']}, as {document['format']}:")
    for name in document["files"]:
        print(f"  {Path(document['out']) / name}")
    print(f"How to start them: {Path(document['out']) / README}")
