"""The end of a study on a terminal, as things that rich prints; nothing is printed here."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from reports.answer_wording import answer_lines
from reports.baseline_wording import baseline_line
from reports.best_folder import launch_environment
from reports.launch_commands import folded, torchrun_command
from reports.study_facts import StudyFacts
from reports.summary import MeasuredTrial, Summary
from reports.wording import (
    KIND_NAMES,
    outcome_words,
    plan_words,
    source_mark,
)
from tuner.outcome import Source
from tuner.study_folder import StudyFolder
from tuner.units import size_text, time_text

_COMMAND_WIDTH = 78
"""Narrower than any terminal, so that a command is copied as it is."""


def trials_table(summary: Summary) -> RenderableType:
    """All trials, the fastest first; those that did not train last, each with its reason."""
    tables = []
    if summary.measured:
        tables.append(_ranking_table(summary, summary.measured, summary.source))
    if summary.extrapolated:
        tables.append(_ranking_table(summary, summary.extrapolated, Source.EXTRAPOLATED))
    if summary.others:
        tables.append(_others_table(summary))
    return Group(*tables)


def _ranking_table(summary: Summary, ranking: tuple[MeasuredTrial, ...], source: Source) -> Table:
    """Of one source: measured and extrapolated numbers do not share a column."""
    title = f"Plans that trained{source_mark(source)}"
    if source is Source.EXTRAPOLATED:
        title += ": full steps as told by steps of few micro-batches"
    table = Table(title=title, title_justify="left")
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("plan")
    for name in ("step time", "tokens/s", "peak", "vs best"):
        table.add_column(name, justify="right", no_wrap=True)
    fastest_s = summary.ranking[0].measured.step_time_s
    for ranked in ranking:
        measured = ranked.measured
        table.add_row(
            str(ranked.number),
            Text(ranked.plan.label()),
            time_text(measured.step_time_s),
            f"{measured.tokens_per_s:,.0f}",
            size_text(measured.peak_memory_bytes) + (" full" if measured.is_nearly_full else ""),
            f"{measured.step_time_s / fastest_s:.2f}x",
            style="bold green" if ranked == summary.best else None,
        )
    return table


def _others_table(summary: Summary) -> Table:
    table = Table(title="Plans that did not", title_justify="left", expand=True)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("plan", ratio=2)
    table.add_column("why", overflow="ellipsis", no_wrap=True, ratio=3)
    for trial in summary.others:
        table.add_row(
            str(trial.number), Text(trial.plan.label()), Text(outcome_words(trial.outcome))
        )
    return table


def answer_panel(summary: Summary, folder: StudyFolder) -> RenderableType:
    """The fastest plan that fits, how sure that is, and how to launch it.

    Raises:
        UserError: a file of the study folder cannot be read.
    """
    best = summary.best
    yours = baseline_line(summary)
    if best is None:
        counts = ", ".join(f"{number} {KIND_NAMES[kind]}" for kind, number in summary.counts)
        said = f"No plan has trained so far ({counts or 'no trials'})."
        return Panel(Text(said if yours is None else f"{said} {yours}."))
    facts = StudyFacts.read(folder)
    panel = Panel(
        _answer_grid(summary, best, folder, facts),
        title=f"The fastest plan that fits{source_mark(summary.source)}",
        title_align="left",
    )
    return Group(panel, Text(f"Launch it:\n{_launch_text(best, folder, facts)}"))


def _answer_grid(
    summary: Summary, best: MeasuredTrial, folder: StudyFolder, facts: StudyFacts
) -> Table:
    lines = answer_lines(summary, facts)
    rows = [("plan", plan_words(best.plan, summary.num_gpus))]
    rows += [(line.name.lower(), "\n".join(line.sentences)) for line in lines]
    rows.append(("launch files", f"{folder.best_folder}, README.md there says how to use them"))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for name, words in rows:
        grid.add_row(name, Text(words))
    return grid


def _launch_text(best: MeasuredTrial, folder: StudyFolder, facts: StudyFacts) -> str:
    words = torchrun_command(
        str(folder.best_folder),
        num_nodes=facts.num_nodes,
        gpus_per_node=facts.gpus_per_node,
        env=launch_environment(folder, folder.winner_launch_folder(best.number, best.run)),
    )
    return folded(words, _COMMAND_WIDTH)
