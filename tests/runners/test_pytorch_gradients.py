"""Gradients of every layout are those of one rank: AdamW hides a wrong factor from the losses."""

from __future__ import annotations

import json
import multiprocessing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from runners.backends.pytorch_native import pytorch_launch
from runners.rank_processes import free_port
from search_spaces.pytorch_models import PP_FAMILIES, TP_FAMILIES
from tests.runners.gradient_rank import write_gradient_norms
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.launch import Measurement
from tuner.launch_files import write_launch_files
from tuner.plan import Backend, ParallelPlan, Precision
from tuner.workload import Workload

pytestmark = pytest.mark.ranks

EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
}
OWN: dict[str, dict[str, Any]] = {
    "deepseek_v2": EXPERTS | LATENT,
    "deepseek_v3": EXPERTS | LATENT,
    "glm4": {"head_dim": 16},
    "glm4_moe": EXPERTS | {"head_dim": 16},
    "ernie4_5": {"head_dim": 16},
    "mixtral": EXPERTS,
    "olmoe": EXPERTS,
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": EXPERTS | {"head_dim": 16},
}
"""What a family's configuration has beside the sizes of a Llama."""


def gradient_norms(
    folder: Path, *, num_ranks: int, workload: Workload | None = None, **knobs: Any
) -> dict[str, float]:
    plan = ParallelPlan(backend=Backend.PYTORCH, precision=Precision.FP32, **knobs)
    spec = pytorch_launch(plan, workload or tiny_workload(), cpu_cluster(num_ranks), Measurement())
    folder.mkdir(exist_ok=True)
    write_launch_files(spec, folder / "launch")
    context = multiprocessing.get_context("forkserver")
    shared = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1"}
    port = str(free_port("127.0.0.1"))
    ranks = [
        context.Process(
            target=write_gradient_norms,
            args=(
                folder / "launch",
                folder,
                rank,
                {**shared, "MASTER_PORT": port, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            ),
            daemon=True,
        )
        for rank in range(num_ranks)
    ]
    for process in ranks:
        process.start()
    norms: dict[str, float] = {}
    for rank, process in enumerate(ranks):
        process.join(60)
        assert process.exitcode == 0, f"rank {rank} of {plan.label()} did not end well"
        norms |= json.loads((folder / f"gradients-{rank}.json").read_text())
    return norms


@cache
def one_rank_norms() -> dict[str, float]:
    with TemporaryDirectory() as folder:
        return gradient_norms(Path(folder), num_ranks=1, micro_batch=8)


@pytest.mark.parametrize(
    ("num_ranks", "knobs"),
    [
        (2, {"micro_batch": 2}),
        (4, {"tp": 2, "micro_batch": 2, "sequence_parallel": True}),
        (4, {"zero_stage": 3, "dp_replicate": 2}),
        (4, {"tp": 2, "zero_stage": 3, "micro_batch": 2}),
        (4, {"pp": 2, "vpp": 2, "zero_stage": 2}),
    ],
    ids=str,
)
def test_gradients_are_those_of_one_rank(
    num_ranks: int, knobs: dict[str, Any], tmp_path: Path
) -> None:
    norms = gradient_norms(tmp_path, num_ranks=num_ranks, **knobs)
    assert norms == pytest.approx(one_rank_norms(), rel=1e-4)


@pytest.mark.parametrize("family", PP_FAMILIES)
def test_gradients_of_every_split_family_are_those_of_one_rank(family: str, tmp_path: Path) -> None:
    own = {"hidden_act": "silu", "pad_token_id": 0, "eos_token_id": 2} | OWN.get(family, {})
    workload = tiny_workload(model_type=family, architectures=None, **own)
    one = gradient_norms(tmp_path / "one", num_ranks=1, workload=workload, micro_batch=8)
    splits = {"tp": 2, "sequence_parallel": True} if family in TP_FAMILIES else {}
    split = gradient_norms(
        tmp_path / "split", num_ranks=2 * splits.get("tp", 1), workload=workload, pp=2, **splits
    )
    assert split == pytest.approx(one, rel=1e-3)
