"""What we call legal torch accepts, and what runs is what was asked."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from runners.bench.pytorch_effective import tensor_placements
from search_spaces.enumeration import search_space
from tests.frameworks.fake_torch_ranks import built, fake_ranks, launch_folder, small_workload
from tests.tiny_job import cpu_cluster, setting
from tuner.launch import PYTORCH_FILE
from tuner.plan import Backend, ParallelPlan, Precision
from tuner.plan_arrays import PlanArrays
from tuner.workload import FactoryModel, Workload

MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
WORKLOADS = {
    "llama": small_workload("llama"),
    "seven layers": small_workload("llama", num_hidden_layers=7, batch=48),
    "tied with biases": small_workload(
        "llama", tie_word_embeddings=True, attention_bias=True, mlp_bias=True
    ),
    "query norms": small_workload("qwen3", head_dim=8, num_hidden_layers=8),
    "short window": small_workload("mistral", sliding_window=8),
    "experts": small_workload("qwen3_moe", head_dim=8, **MOE),
    "gpt2": small_workload(
        "gpt2", n_embd=32, n_layer=4, n_head=8, n_positions=64, tie_word_embeddings=True
    ),
    "own module": Workload(
        model=FactoryModel(factory="tests.runners.own_model:make", vocab=64),
        seq_len=16,
        global_batch_sequences=64,
    ),
}
WORLDS = ((1, 1), (1, 2), (1, 4), (1, 6), (1, 8), (2, 4), (2, 8), (4, 8), (8, 8))
PYTORCH: dict[str, Any] = {"backend": ("pytorch",), "precision": ("fp32", "bf16", "fp16")}


@cache
def legal_plans(workload: str, num_nodes: int, gpus_per_node: int) -> PlanArrays:
    cluster = dataclasses.replace(cpu_cluster(gpus_per_node), num_nodes=num_nodes)
    return search_space(setting(WORKLOADS[workload], cluster), PYTORCH).plans


@st.composite
def a_rank_of_a_legal_plan(draw: st.DrawFn) -> tuple[str, tuple[int, int], ParallelPlan, int]:
    workload, world = draw(st.sampled_from(sorted(WORKLOADS))), draw(st.sampled_from(WORLDS))
    plans = legal_plans(workload, *world)
    assume(len(plans) > 0)
    plan = plans[draw(st.integers(0, len(plans) - 1))]
    return workload, world, plan, draw(st.integers(0, world[0] * world[1] - 1))


def accepted(
    plan: ParallelPlan, workload: Workload, world: tuple[int, int], rank: int, *, steps: int = 0
) -> None:
    """Builds this rank, and compares what runs with what was asked."""
    cluster = dataclasses.replace(cpu_cluster(world[1]), num_nodes=world[0])
    with TemporaryDirectory() as folder, fake_ranks(cluster.num_gpus, rank):
        training = built(launch_folder(plan, workload, cluster, Path(folder)))
        effective = training.effective()
        training._num_microbatches = 1  # one shows what torch accepts; the rest takes time
        for step in range(steps):
            training.step(step)
    assert {name: effective[name] for name in plan.to_dict()} == plan.to_dict()
    assert effective["data_parallel"] == plan.data_parallel(cluster.num_gpus)
    sharded = effective["data_parallel"] // plan.dp_replicate if plan.zero_stage >= 2 else 1
    assert effective["data_parallel_shard"] == sharded
    assert effective["num_microbatches"] == plan.num_microbatches(
        cluster.num_gpus, workload.global_batch_sequences
    )
    assert effective["master_dtype"] == effective["reduce_dtype"] == "torch.float32"
    if plan.pp > 1:
        interleaved = "ScheduleInterleaved1F1B" if plan.vpp > 1 else "Schedule1F1B"
        assert effective["schedule"] == interleaved


FEW = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
MANY = settings(FEW, max_examples=100)


@MANY
@given(case=a_rank_of_a_legal_plan())
def test_every_legal_plan_is_accepted_and_runs_as_asked(
    case: tuple[str, tuple[int, int], ParallelPlan, int],
) -> None:
    workload, world, plan, rank = case
    accepted(plan, WORKLOADS[workload], world, rank)


@FEW
@given(case=a_rank_of_a_legal_plan())
def test_every_legal_plan_without_stages_takes_two_steps(
    case: tuple[str, tuple[int, int], ParallelPlan, int],
) -> None:
    workload, world, plan, rank = case
    # Stages first tell each other their shapes, and the others are not there.
    assume(plan.pp == 1)
    accepted(plan, WORKLOADS[workload], world, rank, steps=2)


@pytest.mark.parametrize("zero_stage", [0, 2, 3])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tensor_parallel_ranks_hold_the_slices_of_the_models_own_plan(
    zero_stage: int, sequence_parallel: bool, tmp_path: Path
) -> None:
    plan = ParallelPlan(
        backend=Backend.PYTORCH, tp=4, zero_stage=zero_stage, sequence_parallel=sequence_parallel
    )
    with fake_ranks(8):
        training = built(launch_folder(plan, WORKLOADS["llama"], cpu_cluster(8), tmp_path))
        placements = tensor_placements(training._models[0])
    expected = {"embed_tokens": "S(0)", "lm_head": "S(0)"}
    expected |= dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), "S(0)")
    expected |= dict.fromkeys(("o_proj", "down_proj"), "S(1)")
    if sequence_parallel:
        expected |= dict.fromkeys(("input_layernorm", "post_attention_layernorm", "norm"), "R")
    assert {name.split(".")[-2]: where for name, where in placements.items()} == expected


def test_another_layout_than_asked_is_read_back(tmp_path: Path) -> None:
    """The read-back asks torch: a file changed behind the plan's back shows."""
    plan = ParallelPlan(backend=Backend.PYTORCH, zero_stage=3, tp=2, precision=Precision.FP32)
    with fake_ranks(8):
        launch = launch_folder(plan, WORKLOADS["llama"], cpu_cluster(8), tmp_path)
        text = (tmp_path / PYTORCH_FILE).read_text()
        for old, new in (
            ('fsdp_reshard_after_forward = "always"', 'fsdp_reshard_after_forward = "never"'),
            ("tensor_parallel_degree = 2", "tensor_parallel_degree = 4"),
            ("data_parallel_shard_degree = 4", "data_parallel_shard_degree = 2"),
            ("enable_sequence_parallel = false", "enable_sequence_parallel = true"),
            ('mixed_precision_param = "float32"', 'mixed_precision_param = "bfloat16"'),
            ('mode = "none"', 'mode = "full"'),
        ):
            assert old in text
            text = text.replace(old, new)
        (tmp_path / PYTORCH_FILE).write_text(text)
        effective = built(launch).effective()
    changed = {"zero_stage": 2, "tp": 4, "sequence_parallel": True, "precision": "bf16"}
    assert {name: effective[name] for name in plan.to_dict()} == plan.to_dict() | changed | {
        "recompute": "full"
    }
    assert (effective["data_parallel"], effective["data_parallel_shard"]) == (2, 2)
