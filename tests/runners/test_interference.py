"""Which counters of the ranks mean that something else disturbed a trial."""

from __future__ import annotations

from typing import Any

import torch

from runners.bench.interference import LoadMeter
from runners.interference import disturbances


def rank(**changes: Any) -> dict[str, Any]:
    """One of two ranks on four cores for ten seconds, each busy with its two cores."""
    return {
        "node": "n1",
        "cores": 4,
        "wall_s": 10.0,
        "own_cpu_s": 19.5,
        "node_idle_s": 0.5,
        "node_steal_s": 0.0,
        "gpu_slowed_by": [],
        "gpu_processes": 1,
    } | changes


def test_ranks_that_have_the_machine_to_themselves_are_not_disturbed() -> None:
    assert disturbances([rank(), rank()]) == ()


def test_processors_that_others_took_are_said() -> None:
    (said,) = disturbances([rank(own_cpu_s=13), rank(own_cpu_s=13)])
    assert "other processes took 34%" in said


def test_others_on_cores_that_nobody_needed_do_no_harm() -> None:
    ranks = [rank(own_cpu_s=1.0, node_idle_s=28.0)] * 2
    assert disturbances(ranks) == ()


def test_what_the_hypervisor_took_is_said() -> None:
    ranks = [rank(own_cpu_s=17.5, node_steal_s=4.0)] * 2
    (said,) = disturbances(ranks)
    assert "hypervisor took 10%" in said


def test_nodes_are_judged_apart() -> None:
    busy = rank(node="n2", own_cpu_s=13)
    (said,) = disturbances([rank(), rank(), busy, busy])
    assert "n2" in said


def test_steps_too_short_to_count_tell_nothing() -> None:
    assert disturbances([rank(wall_s=0.1, own_cpu_s=0, node_idle_s=0)]) == ()


def test_a_clock_that_was_set_is_said_once() -> None:
    ranks = [rank(clock_jump_s=-3600.0), rank(clock_jump_s=-3600.0)]
    assert disturbances(ranks) == ("the clock of n1 jumped by -3600 s during its steps",)
    assert disturbances([rank(clock_jump_s=0.2), rank()]) == ()


def test_slowed_clocks_and_strangers_on_a_gpu_are_said() -> None:
    said = disturbances([rank(), rank(gpu_slowed_by=["hardware thermal limit"], gpu_processes=2)])
    assert len(said) == 2
    assert "hardware thermal limit" in said[0]


def test_the_meter_of_a_cpu_rank_counts_its_own_work() -> None:
    meter = LoadMeter(torch.device("cpu"))
    meter.look()
    sum(range(3_000_000))
    record = meter.record()
    assert 0 < record["own_cpu_s"] <= record["wall_s"] * record["cores"] + 0.1
    assert record["gpu_processes"] == 0
    assert abs(record["clock_jump_s"]) < 0.5
