"""Runs a study on a far Ray cluster: sent there as a Ray job, followed, brought back."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports.json_summary import study_document
from reports.write import write_reports
from tuner.cli.brought_back import bring_back, check_place
from tuner.cli.folder_summary import folder_summary
from tuner.cli.job_package import JobPackage, pack_baseline, pack_job, pack_warm_starts
from tuner.cli.report_extras import report_extras
from tuner.cli.tune_command import STORAGE_VARIABLE, add_study_options
from tuner.errors import UserError
from tuner.job import read_job
from tuner.job_cluster import cpu_cluster_of_this_machine
from tuner.study_folder import StudyFolder

if TYPE_CHECKING:
    from runners.ray_jobs import JobState, RayJobs

EXAMPLE = "paratune submit job.yaml --address http://head:8265 --trials 20"
PASSED = (
    *("trials", "time", "sampler", "second_pass", "seed", "parallel", "storage"),
    *("runner", "no_warm_pool", "no_verify"),
)
"""Options of tune that go along as they are; files are packed, and these words are the rest."""
_RAY_LINES = ("Running entrypoint for job", " job_manager.py:")
"""What Ray itself writes into a job's log: the command, and how the runtime environment goes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``paratune submit``."""
    parser.add_argument("job", type=Path, nargs="?", metavar="JOB.yaml", help="the job file")
    parser.add_argument(
        "--address", required=True, metavar="URL", help="of the dashboard: http://head:8265"
    )
    parser.add_argument(
        "--study",
        type=Path,
        metavar="DIR",
        help="where it comes back to, here; default studies/NAME-OF-THE-JOB",
    )
    parser.add_argument(
        "--remote-study",
        metavar="DIR",
        help="where it is kept on the head; default ~/paratune-studies/NAME-OF-THE-STUDY",
    )
    parser.add_argument(
        "--attach", metavar="ID", help="follow a job again that was submitted before"
    )
    parser.add_argument("--detach", action="store_true", help="submit only, and print the job's ID")
    add_study_options(parser)


def run(options: argparse.Namespace) -> int:
    """The exit code of the study there; 130 where Ctrl-C left it running, 0 once submitted."""
    if (options.job is None) == (options.attach is None):
        raise UserError("submit must be given JOB.yaml, or --attach ID of a job, one of the two")
    if options.attach is not None:
        return _attach(options)
    place = StudyFolder(options.study or Path("studies") / options.job.stem)
    name = place.path.resolve().name
    remote = options.remote_study or f"~/paratune-studies/{name}"
    _check_options(options)
    check_place(place, {"remote_study": remote})
    package = JobPackage()
    arguments = _packed(package, options)
    sent = package.text()
    jobs = _connected(options.address)
    package.add(jobs.entry_file, jobs.entry_file.name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "paratune-job.zip"
        package.write(file)
        if (busy := jobs.running(remote)) is not None:
            raise UserError(
                f"the study {remote} of the cluster must have one driver, but job {busy} is "
                f"running it; follow it with: {_attach_command(options, busy)}"
            )
        job = jobs.submit(name, remote, arguments, file)
    _say(options, f"Sent {sent}")
    _say(options, f"Job {job} runs the study {remote} on {jobs.address}")
    return _followed(jobs, job, place, remote, options)


def _connected(address: str) -> RayJobs:
    """Ray is imported only here: it takes a second and a half."""
    from runners.ray_jobs import RayJobs

    return RayJobs(address)


def _check_options(options: argparse.Namespace) -> None:
    if options.runner == "local":
        raise UserError("submit needs --runner ray (or simulated), got local: it runs on a Ray")
    if options.remote_study is not None and options.remote_study[0:1] not in ("/", "~"):
        raise UserError(
            "--remote-study must begin with / or ~, for a job's own folder is gone after it, got "
            f"{options.remote_study!r}"
        )
    if options.storage is not None and _holds_secret(options.storage):
        raise UserError(
            "--storage must not hold a password to be sent to a cluster, where the options of a "
            f"job are seen by everyone; set {STORAGE_VARIABLE} in the environment that Ray is "
            "started with on the head, or leave the password to PGPASSWORD or ~/.pgpass there"
        )


def _holds_secret(url: str) -> bool:
    from tuner.storage_url import holds_secret, parsed_url  # SQLAlchemy takes half a second

    return holds_secret(parsed_url(url))


def _packed(package: JobPackage, options: argparse.Namespace) -> list[str]:
    """Packs what job and options name; the arguments of ``paratune tune`` there."""
    # Only the file is judged here; the cluster that is found there judges the rest.
    job = read_job(options.job, cpu_cluster_of_this_machine)
    arguments = [pack_job(package, options.job, job)]
    for name in PASSED:
        value, flag = getattr(options, name), f"--{name.replace('_', '-')}"
        if value is True:
            arguments.append(flag)
        elif value is not None and value is not False:
            arguments += [flag, f"{value}s" if name == "time" else str(value)]
    if options.baseline is not None:
        arguments += ["--baseline", pack_baseline(package, options.baseline)]
    if options.baseline_arguments is not None:
        file = options.baseline_arguments
        arguments += ["--baseline-arguments", package.add(file, f"baseline/{file.name}")]
    for packed in pack_warm_starts(package, options.warm_start or ()):
        arguments += ["--warm-start", packed]
    return arguments


def _attach(options: argparse.Namespace) -> int:
    jobs = _connected(options.address)
    name, remote = jobs.submitted(options.attach)
    place = StudyFolder(options.study or Path("studies") / name)
    check_place(place, {"remote_study": remote})
    return _followed(jobs, options.attach, place, remote, options)


def _followed(
    jobs: RayJobs, job: str, place: StudyFolder, remote: str, options: argparse.Namespace
) -> int:
    origin = {"address": jobs.address, "job": job, "remote_study": remote}
    if options.detach:
        _say(options, f"Follow it with: {_attach_command(options, job)}")
        print(json.dumps(origin) if options.json else job)
        return 0
    code = 0
    try:
        state = jobs.follow(job, lambda line: _show(options, line))
        code = _exit_code(state)
        if code != 2:  # then nothing was run
            _bring_back(jobs, place, origin, options)
    except KeyboardInterrupt:
        _say(options, f"\nThe study goes on. Follow it with: {_attach_command(options, job)}")
        return 130
    except (RuntimeError, OSError) as error:  # of the cluster, or of the disk here
        print(
            f"paratune: {error}; what is on the cluster stays there, try again with: "
            f"{_attach_command(options, job)}",
            file=sys.stderr,
        )
        return code or 1
    return code


def _exit_code(state: JobState) -> int:
    """Of the study: what Ray says of its job where it has none of its own."""
    match state.status, state.exit_code:
        case "STOPPED", _:
            print("paratune: the job was stopped; the same command goes on", file=sys.stderr)
            return 130
        case _, 127:
            raise RuntimeError(
                "the cluster must have `python` on the PATH of its head, but there is none; start "
                "Ray there from an activated environment that has paratune"
            )
        case _, int(code) if code in (0, 1, 2, 130):
            return code
        case _, code:
            last = " ".join(state.message.split())[-300:]
            raise RuntimeError(f"the job ended as {state.status} with exit code {code}: {last}")


def _bring_back(
    jobs: RayJobs, place: StudyFolder, origin: Mapping[str, str], options: argparse.Namespace
) -> None:
    left_out = bring_back(jobs.study_archive(origin["remote_study"]), place, origin)
    if left_out is None:
        return  # it ended before there was a trial, and has said why
    summary = folder_summary(place)
    write_reports(place, summary, report_extras(place, summary))  # with the paths of this machine
    if left_out:
        _say(options, f"{len(left_out)} logs of ranks were too large to come back: {left_out[0]}")
    if options.json:
        document: dict[str, Any] = study_document(place, summary)
        print(json.dumps({**document, "submitted": dict(origin)}))
    else:
        print(f"The study folder is here: {place.path}. Its report: {place.report_file}")


def _attach_command(options: argparse.Namespace, job: str) -> str:
    study = f" --study {options.study}" if options.study is not None else ""
    return f"paratune submit --address {options.address} --attach {job}{study}"


def _show(options: argparse.Namespace, line: str) -> None:
    if not any(words in line for words in _RAY_LINES):
        _say(options, line)


def _say(options: argparse.Namespace, text: str) -> None:
    if not options.quiet:
        print(text, file=sys.stderr)
