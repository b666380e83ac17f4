"""``python -m tuner.cli.references docs`` writes the pages that follow from schema and parsers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tuner.cli.command_reference import command_reference
from tuner.cli.job_reference import job_reference

PAGES: Mapping[str, Callable[[], str]] = {
    "job-file.md": job_reference,
    "commands.md": command_reference,
}


def write_references(folder: Path) -> None:
    """Writes every generated page into the folder of the documentation."""
    for name, page in PAGES.items():
        (folder / name).write_text(page())


if __name__ == "__main__":
    write_references(Path(sys.argv[1]))
