"""Framework settings on real ranks: followed, read back as asked, and the same losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.runners.bench_ranks import trained
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.framework_settings.setting import SettingCase
from tuner.framework_settings.table import applying, settled
from tuner.plan import ParallelPlan

pytestmark = pytest.mark.ranks

Asked = dict[str, bool | int]
CASES: tuple[tuple[dict[str, Any], int, Asked], ...] = (
    (
        {"backend": "pytorch", "micro_batch": 4},
        2,
        {
            "ddp_bucket_cap_mb": 1,
            "ddp_gradient_as_bucket_view": False,
            "ddp_static_graph": True,
        },
    ),
    (
        {"backend": "pytorch", "zero_stage": 3, "micro_batch": 2, "recompute": "full"},
        2,
        {
            "fsdp_forward_prefetch": 2,
            "fsdp_backward_prefetch": 2,
            "fsdp_reshard_last_layer": False,
        },
    ),
    (
        {"backend": "pytorch", "zero_stage": 2, "pp": 2, "micro_batch": 2},
        4,
        {"fsdp_forward_prefetch": 1},
    ),
    (
        {"backend": "deepspeed", "zero_stage": 2, "micro_batch": 2},
        2,
        {
            "reduce_bucket_size": 4096,
            "allgather_bucket_size": 8192,
            "contiguous_gradients": False,
            "round_robin_gradients": True,
        },
    ),
    (
        {"backend": "deepspeed", "zero_stage": 3, "micro_batch": 2},
        2,
        {
            "reduce_bucket_size": 65536,
            "contiguous_gradients": False,
            "stage3_prefetch_bucket_size": 0,
            "stage3_param_persistence_threshold": 10,
            "stage3_max_live_parameters": 100_000,
            "stage3_max_reuse_distance": 1000,
        },
    ),
    (
        {"backend": "megatron", "zero_stage": 1, "micro_batch": 2},
        2,
        {
            "overlap_grad_reduce": True,
            "overlap_param_gather": False,
            "ddp_bucket_size": 50_000,
        },
    ),
    (
        {"backend": "megatron", "zero_stage": 1, "micro_batch": 1, "pp": 2, "vpp": 2},
        4,
        {"align_param_gather": False, "microbatch_group_size": 4},
    ),
    (
        {"backend": "megatron", "micro_batch": 2},
        2,
        {"overlap_grad_reduce": False},
    ),
)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """Losses without any setting, on one rank, by framework: Megatron fills its own model."""
    found = {}
    for backend in ("pytorch", "megatron"):
        plan = ParallelPlan.from_dict({"backend": backend, "precision": "fp32", "micro_batch": 8})
        found[backend] = trained(plan, tmp_path_factory.mktemp(backend), num_ranks=1)[0]["losses"]
    return found


@pytest.mark.parametrize(("knobs", "num_ranks", "asked"), CASES)
def test_what_is_asked_is_what_the_framework_runs_and_the_losses_stay(
    knobs: dict[str, Any],
    num_ranks: int,
    asked: Asked,
    reference: dict[str, list[float]],
    tmp_path: Path,
) -> None:
    plan = ParallelPlan.from_dict({"precision": "fp32", **knobs})
    case = SettingCase(plan=plan, workload=tiny_workload(), cluster=cpu_cluster(num_ranks))
    settings = tuple(asked.items())
    reports = trained(plan, tmp_path, num_ranks=num_ranks, settings=settings)
    own = "megatron" if knobs["backend"] == "megatron" else "pytorch"
    assert reports[0]["losses"] == pytest.approx(reference[own], rel=2e-4)
    for report in reports:
        assert report["unfollowed"] == []
        running = report["settings"]
        known = {name: value for name, value in settled(case, settings).items() if name in running}
        assert {name: running[name] for name in known} == known
        assert set(asked) <= set(running)


def test_every_setting_that_cpu_ranks_have_is_tried_here() -> None:
    tried = {name for _, _, asked in CASES for name in asked}
    known = set()
    for knobs, num_ranks, _ in CASES:
        plan = ParallelPlan.from_dict({"precision": "fp32", **knobs})
        case = SettingCase(plan=plan, workload=tiny_workload(), cluster=cpu_cluster(num_ranks))
        known |= {setting.name for setting in applying(case)}
    assert tried == known
