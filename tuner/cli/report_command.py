"""Makes the reports of a study again from its folder; with a second study, compares both."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from reports.compare import (
    ComparedStudy,
    Comparison,
    comparison,
    comparison_document,
    comparison_text,
)
from reports.comparison_terminal import comparison_panel
from reports.html.page import comparison_page
from reports.json_summary import study_document
from reports.study_facts import StudyFacts
from reports.summary import Summary
from reports.terminal import answer_panel, trials_table
from reports.write import write_reports
from tuner.cli.folder_summary import folder_summary
from tuner.cli.report_extras import report_extras
from tuner.errors import UserError
from tuner.kept_files import write_atomically
from tuner.study_folder import StudyFolder

EXAMPLE = "paratune report studies/tiny-cpu"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``paratune report``."""
    parser.add_argument("study", type=Path, metavar="STUDY", help="a study folder")
    parser.add_argument(
        "other", type=Path, nargs="?", metavar="STUDY_B", help="another one, to compare with"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(options: argparse.Namespace) -> int:
    """0 with a winner (of both, where two are compared), 1 when nothing has run."""
    folder = StudyFolder(options.study)
    if options.other is not None:
        return _compare(folder, StudyFolder(options.other), as_json=options.json)
    summary = _remade(folder)
    if options.json:
        print(json.dumps(study_document(folder, summary)))
    else:
        console = Console(highlight=False)
        console.print(trials_table(summary))
        console.print(answer_panel(summary, folder))
        files = (folder.report_file, folder.html_report_file, folder.trials_file)
        console.print(f"The reports: {', '.join(str(file) for file in files)}", soft_wrap=True)
    return 0 if summary.best is not None else 1


def _remade(folder: StudyFolder) -> Summary:
    summary = folder_summary(folder)
    write_reports(folder, summary, report_extras(folder, summary))
    return summary


def _compare(folder: StudyFolder, other: StudyFolder, *, as_json: bool) -> int:
    """Remakes both reports, and writes the comparison into the first study's folder."""
    if folder.path.resolve() == other.path.resolve():
        raise UserError(f"report must be given two different studies to compare, got {other.path}")
    first, second = _remade(folder), _remade(other)
    names = _names(folder.path, other.path)
    compared = comparison(
        _side(folder, first, names[0]),
        _side(other, second, names[1]),
    )
    files = _write_comparison(folder, compared)
    if as_json:
        print(json.dumps(_document(folder, other, compared)))
    else:
        console = Console(highlight=False)
        console.print(comparison_panel(compared))
        console.print(f"The comparison: {', '.join(str(file) for file in files)}", soft_wrap=True)
    return 0 if first.best is not None and second.best is not None else 1


def _names(first: Path, second: Path) -> tuple[str, str]:
    """The folders' names; where they are the same, their paths."""
    one, other = first.resolve().name, second.resolve().name
    return (one, other) if one != other else (str(first), str(second))


def _side(folder: StudyFolder, summary: Summary, name: str) -> ComparedStudy:
    return ComparedStudy(
        name=name,
        summary=summary,
        facts=StudyFacts.read(folder),
        identity=folder.read_json(folder.job_file)["identity"],
    )


def _write_comparison(folder: StudyFolder, compared: Comparison) -> tuple[Path, Path]:
    markdown, page = folder.comparison_files
    write_atomically(markdown, comparison_text(compared).encode("utf-8", errors="replace"))
    write_atomically(page, comparison_page(compared))
    return markdown, page


def _document(folder: StudyFolder, other: StudyFolder, compared: Comparison) -> dict[str, Any]:
    return {
        "studies": [
            study_document(folder, compared.first.summary),
            study_document(other, compared.second.summary),
        ],
        "comparison": comparison_document(compared),
    }
