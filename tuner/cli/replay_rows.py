"""Which rows of a recorded sweep are searched, and which of its columns may be knobs."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tuner.errors import UserError
from tuner.sweep_table import SweepGroup, SweepTable, is_measured

_RESULT_WORDS = frozenset(
    {"time", "duration", "latency", "throughput", "speedup", "tflops", "flops", "mfu", "hfu"}
    | {"oom", "outcome", "status", "error", "loss", "peak", "reserved", "allocated"}
)
"""A column with one of these words in its name is a result, never a knob."""
_MAX_OPTIONS = 64
"""A column with more different cells is an identifier or a measurement, never a knob."""


def chosen_groups(sweep: SweepTable, where: str) -> list[SweepGroup]:
    """The workloads with the rows that ``where`` leaves, and the knobs that vary among them.

    Raises:
        UserError: ``where`` is not k=v,...; a column is unknown or measured; no row is left.
    """
    wanted = _clauses(where)
    cells = _described_cells(sweep) if wanted else []
    for name, value in wanted.items():
        known = [column for column in cells[0] if column] if cells else []
        if name not in known:
            raise UserError(
                f"--where must name columns of {sweep.path}, got {name!r}; {_or(known)}"
            )
        if not any(_same(row[name], value) for row in cells):
            found = sorted({row[name] for row in cells})[:8]
            raise UserError(f"--where {name}={value} leaves no row; {name} is {', '.join(found)}")
    groups = []
    for group in sweep.groups:
        keep = [
            position
            for position, row in enumerate(group.rows)
            if all(_same(cells[row][name], value) for name, value in wanted.items())
        ]
        if keep:
            groups.append(_kept(group, keep))
    if not groups:
        raise UserError(f"--where {where} leaves no row of {sweep.path} that can be answered")
    return groups


def _clauses(where: str) -> dict[str, str]:
    wanted = {}
    for clause in filter(None, (part.strip() for part in where.split(","))):
        name, equals, value = clause.partition("=")
        if not equals or not name.strip():
            raise UserError(f"--where must be k=v,k=v, got {clause!r}")
        if name.strip() in wanted:
            raise UserError(f"--where must name a column once, got {name.strip()!r} twice")
        wanted[name.strip()] = value.strip()
    return wanted


def _described_cells(sweep: SweepTable) -> list[Mapping[str, str]]:
    """All cells but the measured ones."""
    with sweep.path.open(newline="", encoding="utf-8-sig") as file:
        return [
            {n: c or "" for n, c in row.items() if isinstance(n, str) and not _is_result(n)}
            for row in csv.DictReader(file, restval="")
        ]


def _kept(group: SweepGroup, keep: Sequence[int]) -> SweepGroup:
    knobs = {name: tuple(cells[at] for at in keep) for name, cells in group.knobs.items()}
    return replace(
        group,
        rows=tuple(group.rows[at] for at in keep),
        plans=group.plans.kept(np.asarray(keep, dtype=np.int64)),
        subjects=tuple(group.subjects[at] for at in keep),
        memory_known=tuple(group.memory_known[at] for at in keep),
        knobs={
            name: cells
            for name, cells in knobs.items()
            if not _is_result(name) and 1 < len(set(cells)) <= min(_MAX_OPTIONS, len(cells) - 1)
        },
    )


def _is_result(column: str) -> bool:
    words = set(re.split(r"[^a-z0-9]+", column.lower()))
    return is_measured(column) or bool(words & _RESULT_WORDS) or "_per_s" in column.lower()


def _same(cell: str, value: str) -> bool:
    if cell.strip() == value:
        return True
    try:
        return float(cell) == float(value)
    except ValueError:
        return False


def _or(known: Sequence[str]) -> str:
    return f"its columns are {', '.join(known[:40])}"
