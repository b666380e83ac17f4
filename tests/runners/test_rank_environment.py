"""What ranks find in their environment: a share of the cores, and only the devices asked for."""

from __future__ import annotations

import pytest

from runners.local_runner import rank_environment
from tuner.cluster import Device
from tuner.launch import LaunchSpec
from tuner.plan import Backend, ParallelPlan, Precision

SPEC = LaunchSpec(
    plan=ParallelPlan(backend=Backend.PYTORCH, precision=Precision.FP32),
    num_nodes=1,
    ranks_per_node=4,
    files=(),
    env=(("NAMED", "by the framework"),),
)


def test_cpu_ranks_do_not_see_the_gpus_of_their_machine() -> None:
    assert rank_environment(SPEC, Device.CPU, cores=8)["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in rank_environment(SPEC, Device.CUDA, cores=8)


@pytest.mark.parametrize(("cores", "threads"), [(8, "2"), (2, "1")])
def test_ranks_share_the_cores_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    env = rank_environment(SPEC, Device.CUDA, cores=cores)
    assert (env["OMP_NUM_THREADS"], env["NAMED"]) == (threads, "by the framework")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert rank_environment(SPEC, Device.CUDA, cores=cores)["OMP_NUM_THREADS"] == "7"
