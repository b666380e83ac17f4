"""Makes the reports of a study again from its folder."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from reports.json_summary import study_document
from reports.terminal import answer_panel, trials_table
from reports.write import write_reports
from tuner.cli.folder_summary import folder_summary
from tuner.study_folder import StudyFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``paratune report``."""
    parser.add_argument("study", type=Path, metavar="STUDY", help="a study folder")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(options: argparse.Namespace) -> int:
    """0 with a winner, 1 when nothing has run."""
    folder = StudyFolder(options.study)
    summary = folder_summary(folder)
    write_reports(folder, summary)
    if options.json:
        print(json.dumps(study_document(folder, summary)))
    else:
        console = Console(highlight=False)
        console.print(trials_table(summary))
        console.print(answer_panel(summary, folder))
        console.print(f"The report: {folder.report_file}")
    return 0 if summary.best is not None else 1
