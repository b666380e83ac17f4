"""Writes a study's reports into its folder."""

from __future__ import annotations

from reports.best_folder import write_best
from reports.markdown import report_text
from reports.study_facts import StudyFacts
from reports.summary import Summary
from tuner.study_folder import StudyFolder, write_atomically


def write_reports(folder: StudyFolder, summary: Summary) -> None:
    """Writes ``report.md``, and ``best/`` when a plan has trained.

    Raises:
        UserError: a file of the study folder cannot be read.
    """
    facts = StudyFacts.read(folder)
    write_atomically(folder.report_file, report_text(summary, facts).encode())
    if summary.best is not None:
        write_best(folder, summary, summary.best, facts)
