"""DeepSpeed itself reads what we emit as we mean it, for any legal plan on any cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.backends.deepspeed_zero import deepspeed_launch
from search_spaces.enumeration import search_space
from tests.tiny_job import cpu_cluster, setting, tiny_workload
from tuner.cluster import Cluster, Device
from tuner.launch import DEEPSPEED_FILE, Measurement
from tuner.plan import Offload, ParallelPlan, Precision
from tuner.plan_arrays import BoolArray, PlanArrays
from tuner.workload import FactoryModel, HfModel, Workload

_CPU = cpu_cluster(1)
_CUDA = replace(_CPU, gpu=replace(_CPU.gpu, name="cuda", device=Device.CUDA))
_WORLDS = [
    (1, 1),
    (1, 2),
    (1, 3),
    (1, 4),
    (1, 6),
    (1, 8),
    (2, 4),
    (2, 8),
    (3, 8),
    (16, 8),
    (128, 8),
]
"""Nodes and GPUs a node."""


def _clusters() -> st.SearchStrategy[Cluster]:
    return st.builds(
        lambda on, world: replace(on, num_nodes=world[0], gpus_per_node=world[1]),
        st.sampled_from([_CPU, _CUDA]),
        st.sampled_from(_WORLDS),
    )


@st.composite
def _workloads(draw: st.DrawFn) -> Workload:
    kv_heads = draw(st.sampled_from([8, 4, 2, 3, 1]))
    heads = kv_heads * draw(st.sampled_from([1, 2, 4]))
    workload = tiny_workload(
        model_type=draw(st.sampled_from(["llama", "qwen2", "qwen3", "mistral", "gpt2"])),
        num_hidden_layers=draw(st.sampled_from([12, 32, 6, 7, 1])),
        num_key_value_heads=kv_heads,
        num_attention_heads=heads,
        hidden_size=heads * 16,
        intermediate_size=draw(st.sampled_from([384, 128, 384, 129])),
        vocab_size=draw(st.sampled_from([511, 512])),
        tie_word_embeddings=draw(st.sampled_from([False, False, False, True])),
    )
    assert isinstance(workload.model, HfModel)
    shape = workload.model.shape
    num_params = draw(st.sampled_from([1, 213_569, 8 * 10**9 + 1]))
    sized = replace(shape, params=replace(shape.params, other=num_params))
    batch = draw(st.sampled_from([3072, 1024, 96, 24, 8, 3]))
    model: HfModel | FactoryModel = replace(workload.model, shape=sized)
    if draw(st.integers(0, 9)) == 0:
        model = FactoryModel(factory="package.module:make", vocab=64)
    return replace(workload, model=model, global_batch_sequences=batch)


_KINDS: dict[str, Callable[[PlanArrays], BoolArray]] = {
    "flat": lambda plans: plans.ints("tp") * plans.ints("pp") == 1,
    "tensor-parallel": lambda plans: plans.ints("tp") > 1,
    "staged": lambda plans: plans.ints("pp") > 1,
    "hpZ": lambda plans: plans.ints("dp_replicate") > 1,
    "offloaded": lambda plans: ~plans.equals("offload", "none"),
}
"""One plan of each is drawn, so that the rare ones are tried as often."""


@cache
def _legal(workload: Workload, cluster: Cluster) -> PlanArrays:
    asked = {"backend": ("deepspeed",), "precision": ("fp32", "fp16", "bf16")}
    return search_space(setting(workload, cluster), asked).plans


def _emitted(plan: ParallelPlan, workload: Workload, cluster: Cluster) -> dict[str, Any]:
    spec = deepspeed_launch(plan, workload, cluster, Measurement())
    (text,) = [file.text for file in spec.files if file.name == DEEPSPEED_FILE]
    config: dict[str, Any] = json.loads(text)
    return config


class _Asked(dict[str, Any]):
    """A config that keeps which of its keys were looked up."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.keys_asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.keys_asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_asked.add(key)
        return super().get(key, default)


@pytest.fixture(scope="module", autouse=True)
def _deepspeed_on_cpu() -> None:
    """DeepSpeed chooses its accelerator once a process; no rank of another test sees ours."""
    with mock.patch.dict(os.environ, DS_ACCELERATOR="cpu"):
        import deepspeed

        # As the bench does: it would be compiled, which takes minutes.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        with _world(1):
            deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)


@contextmanager
def _world(num_ranks: int) -> Iterator[None]:
    """Rank 0 of so many, whose collectives return at once."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=num_ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


class _DataParallel:
    """What AutoTP's groups and a pipeline's grid tell DeepSpeedConfig."""

    def __init__(self, degree: int) -> None:
        self._degree = degree

    def get_data_parallel_world_size(self) -> int:
        return self._degree


def _read(config: dict[str, Any], data_parallel: int, num_ranks: int) -> Any:
    from deepspeed.runtime.config import DeepSpeedConfig

    with _world(num_ranks):
        mpu = None if data_parallel == num_ranks else _DataParallel(data_parallel)
        return DeepSpeedConfig(config, mpu)


@settings(max_examples=250, deadline=None)
@given(workload=_workloads(), cluster=_clusters(), data=st.data())
def test_every_legal_plan_is_read_as_it_is_meant(
    workload: Workload, cluster: Cluster, data: st.DataObject
) -> None:
    plans = _legal(workload, cluster)
    for kind in _KINDS.values():
        some = plans.kept(kind(plans))
        if not len(some):
            continue
        plan = some[data.draw(st.integers(0, len(some) - 1))]
        emitted = _Asked(_emitted(plan, workload, cluster))
        dp = plan.data_parallel(cluster.num_gpus)
        read = _read(emitted, dp, cluster.num_gpus)
        assert _batch(read) == {
            "micro_batch": plan.micro_batch,
            "num_microbatches": plan.num_microbatches(
                cluster.num_gpus, workload.global_batch_sequences
            ),
            "global_batch": workload.global_batch_sequences,
        }
        assert _knobs(read, dp) == {
            name: plan.to_dict()[name]
            for name in ("zero_stage", "dp_replicate", "tp", "precision", "offload")
        }
        assert read.zero_config.overlap_comm == (
            cluster.gpu.device is Device.CUDA and plan.zero_stage > 0 and plan.pp == 1
        )
        assert read.pipeline["stages"] == (plan.pp if plan.pp > 1 else "auto")
        assert set(emitted) <= emitted.keys_asked


def _batch(read: Any) -> dict[str, int]:
    return {
        "micro_batch": read.train_micro_batch_size_per_gpu,
        "num_microbatches": read.gradient_accumulation_steps,
        "global_batch": read.train_batch_size,
    }


def _knobs(read: Any, data_parallel: int) -> dict[str, Any]:
    zero, tensor_parallel = read.zero_config, read.tensor_parallel_config
    halves = {"fp16": read.float16_config.enabled, "bf16": read.bfloat16_config.enabled}
    shards = zero.zero_hpz_partition_size
    offload = Offload.OPTIMIZER if zero.offload_optimizer else Offload.NONE
    return {
        "zero_stage": int(zero.stage),
        "dp_replicate": 1 if shards == 1 else data_parallel // shards,
        "tp": max(1, tensor_parallel.autotp_size) if tensor_parallel else 1,
        "precision": next((name for name, on in halves.items() if on), str(Precision.FP32)),
        "offload": str(Offload.PARAMS if zero.offload_param else offload),
    }


@settings(max_examples=50, deadline=None)
@given(per_stage=st.integers(1, 8), pp=st.integers(1, 8))
def test_stages_hold_equally_many_layers(per_stage: int, pp: int) -> None:
    from deepspeed.runtime.utils import partition_balanced

    weights = [0, *[1] * (per_stage * pp), 0, 0]  # embedding, layers, norm, head
    bounds = partition_balanced(weights=weights, num_parts=pp)
    assert [sum(weights[a:b]) for a, b in pairwise(bounds)] == [per_stage] * pp


@pytest.mark.parametrize("block", ["zero_optimization", "bf16", "fp16", "tensor_parallel"])
def test_an_unknown_key_inside_a_block_would_be_refused(block: str) -> None:
    config = _config() | {block: {"no_such_key": 1}}
    with pytest.raises(ValueError, match="no_such_key"):
        _read(config, 2, 2)


def test_keys_of_blocks_that_deepspeed_does_not_check_are_ones_that_it_has() -> None:
    import inspect

    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
    from deepspeed.runtime.config import TORCH_ADAM_PARAM, get_pipeline_config
    from torch.optim import AdamW

    staged = _config(pp=2, zero_stage=1)
    assert set(staged["pipeline"]) <= set(get_pipeline_config({}))
    params = set(staged["optimizer"]["params"]) - {TORCH_ADAM_PARAM}
    for optimizer in (AdamW, FusedAdam, DeepSpeedCPUAdam):
        assert params <= set(inspect.signature(optimizer.__init__).parameters)


def _config(**knobs: Any) -> dict[str, Any]:
    plan = ParallelPlan.from_dict({"backend": "deepspeed", "precision": "fp32", **knobs})
    return _emitted(plan, tiny_workload(), cpu_cluster(2))


def test_an_unknown_block_or_an_auto_is_swallowed_in_silence_so_none_is_emitted() -> None:
    swallowed = _config(zero_stage=2) | {"zero_optimisation": {"stage": 3}}
    swallowed["zero_optimization"] = {"stage": "auto"}
    assert _read(swallowed, 2, 2).zero_optimization_stage == 0


def test_a_batch_that_does_not_divide_is_floored_so_it_is_never_emitted() -> None:
    config = _config(micro_batch=2) | {"train_batch_size": 10}
    del config["gradient_accumulation_steps"]
    with pytest.raises(AssertionError, match=r"10 != 2 \* 2 \* 2"):
        _read(config, 2, 2)


@pytest.mark.parametrize(("zero_stage", "overlaps"), [(1, False), (2, False), (3, True)])
def test_overlap_has_another_default_at_each_stage_so_it_is_always_emitted(
    zero_stage: int, overlaps: bool
) -> None:
    config = _config(zero_stage=zero_stage)
    assert "overlap_comm" in config["zero_optimization"]
    del config["zero_optimization"]["overlap_comm"]
    assert _read(config, 2, 2).zero_config.overlap_comm is overlaps
