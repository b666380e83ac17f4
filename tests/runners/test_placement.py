"""What is kept of where ranks ran, and which GPUs trials side by side get."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from runners import local_runner
from runners.local_runner import LocalRunner
from runners.nvidia_devices import NvidiaDevice, NvidiaDriver
from runners.placement import PLACEMENT_FILE, PlacedGpu, PlacedNode, write_placement
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.cluster import Cluster, Device
from tuner.errors import UserError
from tuner.launch import Measurement
from tuner.outcome import Phase
from tuner.runner import Slots


def node(name: str, *, num_gpus: int = 2) -> PlacedNode:
    gpus = tuple(PlacedGpu(index=index, uuid=f"GPU-{name}-{index}") for index in range(num_gpus))
    return PlacedNode(hostname=name, address=f"{name}.local", ray_node_id=f"id-{name}", gpus=gpus)


def test_ranks_are_consecutive_on_each_node(tmp_path: Path) -> None:
    write_placement(tmp_path, [node("a"), node("b")], 2)
    ranks = json.loads((tmp_path / PLACEMENT_FILE).read_text())["ranks"]
    assert [(entry["rank"], entry["hostname"], entry["gpu"]["uuid"]) for entry in ranks] == [
        (0, "a", "GPU-a-0"),
        (1, "a", "GPU-a-1"),
        (2, "b", "GPU-b-0"),
        (3, "b", "GPU-b-1"),
    ]


def test_ranks_without_a_gpu_have_none(tmp_path: Path) -> None:
    write_placement(tmp_path, [node("a", num_gpus=0)], 1)
    (rank,) = json.loads((tmp_path / PLACEMENT_FILE).read_text())["ranks"]
    assert rank["gpu"] is None


def gpu_cluster(num_gpus: int) -> Cluster:
    cluster = cpu_cluster(num_gpus)
    return replace(cluster, gpu=replace(cluster.gpu, device=Device.CUDA))


def four_gpus() -> NvidiaDriver:
    devices = tuple(
        NvidiaDevice(
            index=index,
            uuid=f"GPU-{index}",
            product="H100",
            memory_bytes=2**36,
            free_bytes=2**36,
            split=False,
            processes=(),
        )
        for index in range(4)
    )
    return NvidiaDriver(version="570", cuda="12.8", devices=devices)


def runner(slots: Slots) -> LocalRunner:
    limits_s = dict.fromkeys(Phase, 1.0)
    return LocalRunner(tiny_workload(), gpu_cluster(2), Measurement(), limits_s, slots=slots)


def test_more_trials_at_a_time_than_there_are_gpus_for_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(local_runner, "nvidia_driver", four_gpus)
    with pytest.raises(UserError, match=r"--parallel 3 needs 3 x 2 GPUs, got 4 .* at most 2"):
        runner(Slots(count=3))


def test_trials_side_by_side_have_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(local_runner, "nvidia_driver", four_gpus)
    environments = local_runner.slot_environments(gpu_cluster(2), 2)
    assert [env["CUDA_VISIBLE_DEVICES"] for env in environments] == ["GPU-0,GPU-1", "GPU-2,GPU-3"]
