"""The end of a run of a study: its winner checked, its reports written, and what is said of it."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

from rich.console import Console

from reports.json_summary import study_document
from reports.summary import Summary
from reports.terminal import answer_panel, trials_table
from reports.write import write_reports
from tuner.cli.advice import nothing_measured
from tuner.cli.baseline_changes import explained
from tuner.cli.folder_summary import folder_summary
from tuner.cli.kept_study import KeptStudy
from tuner.cli.live import LiveView
from tuner.cli.report_extras import report_extras
from tuner.cli.setting import Planned
from tuner.cli.verify_command import verified_winner
from tuner.outcome import Measured
from tuner.study import StudyEnd
from tuner.study_folder import StudyFolder


def finished(
    job: Planned,
    folder: StudyFolder,
    end: StudyEnd,
    options: argparse.Namespace,
    view: LiveView,
) -> int:
    """The winner checked, the reports written, the end said; the exit code.

    A first signal ends what goes on here and leaves whole reports; the next ends at once.
    """
    if not (end.interrupted or options.no_verify or options.runner == "simulated"):
        try:
            _verify(folder, view)
        except KeyboardInterrupt:
            reason = "it was interrupted while its winner was checked"
            end = replace(end, reason=reason, interrupted=True)
    try:
        summary = _reported(job, folder)
    except KeyboardInterrupt:  # the next one ends this process at once
        end = replace(end, reason="it was interrupted at its report", interrupted=True)
        summary = _reported(job, folder)
    if options.json:
        print(json.dumps(study_document(folder, summary)))
    _say_end(job, folder, end, summary, options)
    if end.interrupted:
        return 130
    return 0 if summary.best is not None else 1


def _reported(job: Planned, folder: StudyFolder) -> Summary:
    summary = explained(job.job, folder, folder_summary(folder))
    write_reports(folder, summary, report_extras(folder, summary))
    return summary


def _verify(folder: StudyFolder, view: LiveView) -> None:
    """The winner's verdict, once; a study that goes on with the same winner keeps it."""
    best, known = folder_summary(folder).best, folder.verification()
    if best is None:
        return
    if known is None or (known.plan, known.settings) != (best.plan, best.settings):
        view.note("checking the winner's losses against one rank")
        verified_winner(KeptStudy.read(folder))


def _say_end(
    job: Planned,
    folder: StudyFolder,
    end: StudyEnd,
    summary: Summary,
    options: argparse.Namespace,
) -> None:
    console = Console(stderr=options.json, quiet=options.quiet and options.json, highlight=False)
    if any(isinstance(trial.outcome, Measured) for trial in end.trials):
        console.print(trials_table(summary))
        console.print(answer_panel(summary, folder))
    elif end.trials or not end.interrupted:
        console.print(nothing_measured(job, end.trials), style="bold", markup=False)
    before = " before any trial had ended" if end.interrupted and not end.trials else ""
    console.print(f"The study ended because {end.reason}{before}. Its report: {folder.report_file}")
    if end.interrupted:
        console.print("Nothing is lost: the same command goes on where it stopped.")
