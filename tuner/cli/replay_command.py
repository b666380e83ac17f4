"""Tunes over a recorded sweep, to judge a search: a row is looked at only when it is tried."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from tuner.cli.option_types import positive, seed
from tuner.cli.replay_rows import chosen_groups
from tuner.cli.wide_console import wide_console
from tuner.cost_model.coefficients import DEFAULT
from tuner.cost_model.fit import usable_bytes
from tuner.cost_model.prediction import peak_memory, rows_of_subjects
from tuner.errors import UserError
from tuner.samplers.candidates import Candidates
from tuner.samplers.plan_belief import PlanBelief, physical_belief
from tuner.samplers.registry import SAMPLERS, sampler_named
from tuner.samplers.search_loop import Answer, Try, searched
from tuner.sweep_table import SweepGroup, SweepTable, read_sweep
from tuner.units import size_text, time_text

_TRIALS = 30

EXAMPLE = "paratune replay examples/sweeps/gpt-3.6b-64xa100.csv --trials 10"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``paratune replay``."""
    parser.add_argument("table", type=Path, metavar="TABLE.csv", help="a recorded sweep")
    parser.add_argument(
        "--where", default="", metavar="K=V,...", help="only the rows with these cells"
    )
    parser.add_argument("--sampler", choices=SAMPLERS, default="plan", help="default: plan")
    parser.add_argument(
        "--trials",
        type=positive,
        default=_TRIALS,
        metavar="N",
        help="rows of each workload; default 30",
    )
    parser.add_argument(
        "--seed", type=seed, default=0, metavar="S", help="of the sampler; default 0"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document a workload")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Replay:
    """The rows of a workload in the order in which they were tried."""

    group: SweepGroup
    tries: tuple[Try, ...]

    @property
    def best_s(self) -> float | None:
        """Step time of the fastest row that was tried."""
        return min((t.answer.seconds for t in self.tries if t.answer.seconds), default=None)


def run(options: argparse.Namespace) -> int:
    """0 when a row of the table ran, 1 when none that was tried did."""
    sweep = read_sweep(options.table)
    if not any("step_time_s" in cells for cells in sweep.measured_cells[:1]):
        raise UserError(
            f"{options.table} must have the column step_time_s, of which a search finds the least; "
            "it has none: for memory alone there is paratune predict"
        )
    for reason, rows in sweep.skipped.items():
        print(f"paratune: {len(rows)} rows skipped: {reason}", file=sys.stderr)
    replays = []
    for group in chosen_groups(sweep, options.where):
        replays.append(
            replayed(sweep, group, options.sampler, trials=options.trials, seed=options.seed)
        )
        if options.json:
            print(json.dumps(document(replays[-1])), flush=True)
    if not options.json:
        _show(sweep, replays)
    if all(replay.best_s is None for replay in replays):
        print(f"paratune: {options.table}: {_nothing_ran(replays)}", file=sys.stderr)
        return 1
    return 0


def replayed(
    sweep: SweepTable, group: SweepGroup, sampler: str, *, trials: int, seed: int
) -> Replay:
    """A search over the rows of one workload; other workloads tell it nothing."""
    candidates = Candidates.of_plans(group.plans, extra=group.knobs)

    def answer_of(position: int) -> Answer:
        found = sweep.measurement(group.rows[position])
        seconds = found.step_time_s if found.outcome == "measured" else None
        outcome = "failed" if found.outcome == "measured" and seconds is None else found.outcome
        return Answer(outcome=outcome, seconds=seconds)

    chosen = sampler_named(sampler, candidates, lambda: _belief(candidates, group), seed=seed)
    tries = searched(candidates, chosen, answer_of, trials=trials, seed=seed)
    return Replay(group=group, tries=tuple(tries))


def _belief(candidates: Candidates, group: SweepGroup) -> PlanBelief:
    subjects = group.subjects
    alike = len(set(subjects)) == 1
    return physical_belief(
        candidates,
        subjects[:1] if alike else subjects,
        group.plans,
        usable_bytes(subjects[0].cluster.gpu),
        size_known=all(group.memory_known),
    )


def document(replay: Replay) -> Mapping[str, Any]:
    """The contract's line of a workload."""
    return {
        "workload": dict(replay.group.key),
        "num_candidates": len(replay.group.rows),
        "trials": [
            {
                "row": replay.group.rows[one.row],
                "outcome": one.answer.outcome,
                "step_time_s": one.answer.seconds,
            }
            for one in replay.tries
        ],
    }


def _show(sweep: SweepTable, replays: Sequence[Replay]) -> None:
    table = Table(title="Searches over a recorded sweep", title_justify="left")
    table.add_column("workload")
    for name in ("rows", "tried", "did not run", "best at trial", "best", "would stop after"):
        table.add_column(name, justify="right")
    table.add_column("best plan", overflow="fold")
    for replay in replays:
        lost = sum(one.answer.seconds is None for one in replay.tries)
        stop = next((n for n, one in enumerate(replay.tries) if one.enough), None)
        best = replay.best_s
        at = next((n for n, t in enumerate(replay.tries, 1) if t.answer.seconds == best), 0)
        plan = replay.group.plans[replay.tries[at - 1].row].label() if best and at else "none ran"
        table.add_row(
            " ".join(cell for cell in replay.group.key.values() if cell),
            str(len(replay.group.rows)),
            str(len(replay.tries)),
            str(lost),
            str(at) if best else "-",
            time_text(best) if best else "-",
            str(stop) if stop is not None else "-",
            plan,
        )
    console = wide_console()
    console.print(table)
    for replay in replays:
        console.print(against_table(sweep, replay), soft_wrap=True, markup=False)


def against_table(sweep: SweepTable, replay: Replay) -> str:
    """The fastest row of the whole table, read after the search, and how much slower was found."""
    group = replay.group
    read = [sweep.measurement(row) for row in group.rows]
    seconds = [(m.step_time_s or np.inf) if m.outcome == "measured" else np.inf for m in read]
    at = int(np.argmin(seconds))
    workload = " ".join(cell for cell in group.key.values() if cell)
    if np.isinf(seconds[at]):
        return f"{workload}: no row of the table ran"
    best = f"the table's best is {time_text(seconds[at])} (row {group.rows[at]}: "
    best += f"{group.plans[at].label()})"
    if replay.best_s is None:
        return f"{workload}: {best}; none that was tried ran"
    regret = replay.best_s / seconds[at] - 1
    found = f"what was found is {regret:.1%} slower" if regret else "it was found"
    return f"{workload}: {best}; {found}"


def _nothing_ran(replays: Sequence[Replay]) -> str:
    """What to do: the memory that the least demanding plan should need."""
    tried = sum(len(replay.tries) for replay in replays)
    needs = []
    for replay in replays:
        for subject, rows in rows_of_subjects(replay.group.subjects):
            plans = replay.group.plans.kept(rows)
            peaks = peak_memory(subject, plans, DEFAULT.memory)
            least = int(np.argmin(peaks))
            usable = usable_bytes(subject.cluster.gpu)
            needs.append((float(peaks[least]), plans[least].label(), usable))
    need, label, usable = min(needs)
    return (
        f"none of the {tried} rows that were tried ran; the least that any plan of the table is "
        f"predicted to need is {size_text(int(need))} a GPU ({label}), of which "
        f"{size_text(int(usable))} can be used: try more rows with --trials, or another table"
    )
