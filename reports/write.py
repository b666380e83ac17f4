"""Writes a study's reports into its folder."""

from __future__ import annotations

from reports.best_folder import write_best
from reports.html.page import report_page
from reports.markdown import report_text
from reports.report_facts import ReportExtras
from reports.study_facts import StudyFacts
from reports.study_files import StudyFiles
from reports.summary import Summary
from reports.trials_csv import trials_csv
from tuner.kept_files import write_atomically
from tuner.study_folder import StudyFolder

NOTHING_PREDICTED = ReportExtras()


def write_reports(
    folder: StudyFolder, summary: Summary, extras: ReportExtras = NOTHING_PREDICTED
) -> None:
    """Writes ``report.md``, ``report.html``, ``trials.csv``, and ``best/`` when a plan has trained.

    Args:
        folder: where to.
        summary: of that folder's trials.
        extras: what was predicted of the trials, for those parts of ``report.html``.

    Raises:
        UserError: a file of the study folder cannot be read.
    """
    facts = StudyFacts.read(folder)
    study = StudyFiles.read(folder, summary)
    write_atomically(folder.report_file, report_text(summary, facts).encode())
    write_atomically(folder.trials_file, trials_csv(summary).encode("utf-8", errors="replace"))
    write_atomically(folder.html_report_file, report_page(summary, facts, study, extras))
    if summary.best is not None:
        write_best(folder, summary, summary.best, facts)
