"""From the counters of all ranks to what disturbed a trial, in sentences; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_FOREIGN_SHARE = 0.10
_STEAL_SHARE = 0.02
_IDLE_ENOUGH = 0.20
"""With so much of the cores idle, others' work was not in the way."""
_CLOCK_JUMP_S = 1.0
"""Clocks are slewed by less; more is somebody who sets them, or a machine that slept."""
_LONG_ENOUGH_S = 0.3
"""The kernel counts in hundredths of a second: shorter steps than this tell nothing."""


def disturbances(records: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """What disturbed the steps of a trial.

    Args:
        records: of the ranks' load meters; ranks of older reports have none.
    """
    nodes: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        nodes.setdefault(str(record["node"]), []).append(record)
    found: list[str] = []
    for name, ranks in nodes.items():
        found += _of_processors(name, ranks)
        found += _of_gpus(name, ranks)
        found += _of_clock(name, ranks)
    return tuple(found)


def _of_processors(node: str, ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    longest = max(ranks, key=lambda rank: float(rank["wall_s"]))
    available_s = float(longest["wall_s"]) * int(longest["cores"])
    if float(longest["wall_s"]) < _LONG_ENOUGH_S:
        return []
    idle = float(longest["node_idle_s"]) / available_s
    steal = float(longest["node_steal_s"]) / available_s
    own = sum(float(rank["own_cpu_s"]) for rank in ranks) / available_s
    foreign = 1 - idle - steal - own
    found = []
    if foreign >= _FOREIGN_SHARE and idle <= _IDLE_ENOUGH:
        found.append(
            f"other processes took {foreign:.0%} of the processors of {node} during its steps"
        )
    if steal >= _STEAL_SHARE:
        found.append(f"the hypervisor took {steal:.0%} of the processors of {node} from it")
    return found


def _of_clock(node: str, ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Steps are timed by the clock that nobody sets; but a machine that slept did not train."""
    jump_s = max((float(rank.get("clock_jump_s", 0.0)) for rank in ranks), key=abs)
    if abs(jump_s) < _CLOCK_JUMP_S:
        return []
    return [f"the clock of {node} jumped by {jump_s:+.0f} s during its steps"]


def _of_gpus(node: str, ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    reasons = sorted({str(reason) for rank in ranks for reason in rank["gpu_slowed_by"]})
    found = (
        [f"the clocks of a GPU of {node} were held down: {', '.join(reasons)}"] if reasons else []
    )
    if any(int(rank["gpu_processes"]) > 1 for rank in ranks):
        found.append(f"another process was on a GPU of {node}")
    return found
