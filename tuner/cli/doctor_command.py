"""What this machine can run: versions, GPUs, compilers, limits, and what to do about each."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runners.machine_facts import MachineFacts, machine_facts
from tuner.cli.doctor_abilities import ability_checks
from tuner.cli.doctor_checks import Check, Status, can_run, checks

_MARKS = {
    Status.OK: "[green]ok[/green]",
    Status.NOTE: "[yellow]note[/yellow]",
    Status.PROBLEM: "[bold red]problem[/bold red]",
}

EXAMPLE = "paratune doctor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``paratune doctor``."""
    parser.add_argument("--ray-address", metavar="A", help="of a Ray to ask too, or auto")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(options: argparse.Namespace) -> int:
    """0 when a study can run here, 1 when something makes it impossible."""
    with Console(stderr=True).status("Importing the frameworks, each in a process of its own"):
        facts = machine_facts(Path.cwd(), options.ray_address)
    found = findings(facts)
    if options.json:
        print(json.dumps({"checks": [asdict(check) for check in found], "can_run": can_run(found)}))
    else:
        _show(found)
    return 0 if can_run(found) else 1


def findings(facts: MachineFacts) -> tuple[Check, ...]:
    """All checks of a machine."""
    return (*checks(facts), *ability_checks(facts))


def _show(found: tuple[Check, ...]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("check", "status"):
        table.add_column(column, no_wrap=True)
    table.add_column("found", overflow="fold", ratio=3)
    table.add_column("what to do", overflow="fold", ratio=4)
    for check in found:
        mark = _MARKS[check.status]
        table.add_row(escape(check.name), mark, escape(check.found), escape(check.advice))
    console = Console(highlight=False)
    console.print(table)
    console.print(f"\n[bold]{escape(_verdict(found))}[/bold]")


def _verdict(found: tuple[Check, ...]) -> str:
    problems = [check.name for check in found if check.status is Status.PROBLEM]
    if problems:
        return f"A study cannot run here before this is mended: {', '.join(problems)}."
    notes = sum(check.status is Status.NOTE for check in found)
    return f"A study can run here; {notes} notes say what would be slower or left out."
