"""What the rules refuse, torch or the bench refuses, too, or silently runs something else."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from search_spaces.enumeration import rejections
from search_spaces.pytorch_native import PYTORCH_RULES
from tests.frameworks.fake_torch_ranks import built, fake_ranks, launch_folder, small_workload
from tests.tiny_job import setting
from tuner.cluster import Cluster
from tuner.plan import Backend, Offload, ParallelPlan, Precision
from tuner.presets import gpu_named
from tuner.workload import Workload

LLAMA = small_workload("llama")
MIXTRAL = small_workload("mixtral", num_local_experts=4, num_experts_per_tok=2)
GPT2 = small_workload("gpt2", n_embd=32, n_layer=4, n_head=8, n_positions=64)
NOT_EXECUTED = {"PT-09": "another torch cannot be installed beside this one within a test"}


def plan(**knobs: Any) -> ParallelPlan:
    return ParallelPlan(**{"backend": Backend.PYTORCH, "precision": Precision.FP32, **knobs})


def gpus(num_gpus: int) -> Cluster:
    gpu = gpu_named("h100-sxm-80gb")
    assert gpu is not None
    rates = {"fp32": 1e12, **gpu.flops_per_s}
    return Cluster(gpu=dataclasses.replace(gpu, flops_per_s=rates), gpus_per_node=num_gpus)


REFUSED: list[tuple[str, Workload, int, dict[str, Any], type[Exception], str]] = [
    ("PT-01", LLAMA, 4, {"pp": 4, "micro_batch": 16}, ValueError, "Number of microbatches"),
    (
        "PT-02",
        small_workload("llama", batch=5),
        2,
        {"pp": 2, "vpp": 2},
        ValueError,
        "multiple of the number of rounds",
    ),
    ("PT-10", LLAMA, 4, {"cp": 2}, ValueError, "context_parallel_degree"),
    ("PT-11", LLAMA, 2, {"precision": Precision.FP8}, KeyError, "fp8"),
    ("PT-12", MIXTRAL, 2, {"tp": 2}, ValueError, "base_model_tp_plan"),
    ("PT-16", MIXTRAL, 2, {"ep": 2}, ValueError, "expert_parallel_degree"),
    ("PT-17", GPT2, 2, {"pp": 2}, AttributeError, "no attribute 'model'"),
    (
        "PT-18",
        small_workload("mistral", sliding_window=8),
        2,
        {"tp": 2},
        ValueError,
        "sliding_window",
    ),
    (
        "PT-19",
        small_workload("llama", num_hidden_layers=2),
        8,
        {"pp": 8},
        ValueError,
        "empty parameter list",
    ),
]
REWRITTEN: list[tuple[str, dict[str, Any], str]] = [
    ("PT-14", {"offload": Offload.OPTIMIZER, "zero_stage": 2}, "offload"),
    ("PT-14", {"offload": Offload.PARAMS, "zero_stage": 1}, "offload"),
]


@pytest.mark.parametrize(
    ("rule", "workload", "num_ranks", "knobs", "error", "words"),
    REFUSED,
    ids=[row[0] for row in REFUSED],
)
def test_what_only_this_rule_refuses_cannot_be_built(
    rule: str,
    workload: Workload,
    num_ranks: int,
    knobs: dict[str, Any],
    error: type[Exception],
    words: str,
    tmp_path: Path,
) -> None:
    refused, cluster = plan(**knobs), gpus(num_ranks)
    broken = {name for name, _ in rejections(refused, setting(workload, cluster))}
    assert broken == {rule}
    with fake_ranks(num_ranks, rank=num_ranks // 2), pytest.raises(error, match=words):
        built(launch_folder(refused, workload, cluster, tmp_path))


@pytest.mark.parametrize(("rule", "knobs", "name"), REWRITTEN, ids=lambda value: str(value))
def test_what_only_this_rule_refuses_runs_otherwise_than_asked(
    rule: str, knobs: dict[str, Any], name: str, tmp_path: Path
) -> None:
    refused, cluster = plan(**knobs), gpus(4)
    assert [broken for broken, _ in rejections(refused, setting(LLAMA, cluster))] == [rule]
    with fake_ranks(4):
        effective = built(launch_folder(refused, LLAMA, cluster, tmp_path)).effective()
    assert effective[name] != str(getattr(refused, name))


def test_zero_stage_1_of_split_parameters_ends_the_first_step(tmp_path: Path) -> None:
    refused = plan(zero_stage=1, tp=2)
    assert [rule for rule, _ in rejections(refused, setting(LLAMA, gpus(4)))] == ["PT-15"]
    with fake_ranks(4):
        training = built(launch_folder(refused, LLAMA, gpus(4), tmp_path))
        training._num_microbatches = 1
        with pytest.raises(NotImplementedError, match=r"broadcast.* sharding strategy"):
            training.step(0)


def test_stages_of_tied_embeddings_would_each_train_their_own(tmp_path: Path) -> None:
    tied = small_workload("llama", tie_word_embeddings=True)
    assert [rule for rule, _ in rejections(plan(pp=2), setting(tied, gpus(2)))] == ["PT-13"]

    def num_params(num_ranks: int, **knobs: Any) -> int:
        total = 0
        for rank in range(num_ranks):
            folder = tmp_path / f"{num_ranks}-{rank}"
            with fake_ranks(num_ranks, rank):
                training = built(launch_folder(plan(**knobs), tied, gpus(num_ranks), folder))
                total += sum(p.numel() for m in training._models for p in m.parameters())
        return total

    assert num_params(2, pp=2) == num_params(1) + 61 * 32


def test_heads_that_tp_does_not_divide_end_the_first_step(tmp_path: Path) -> None:
    refused = plan(tp=8)
    assert [rule for rule, _ in rejections(refused, setting(LLAMA, gpus(8)))] == ["S-02"]
    with fake_ranks(8):
        training = built(launch_folder(refused, LLAMA, gpus(8), tmp_path))
        with pytest.raises(RuntimeError, match="shape"):
            training.step(0)


def test_every_rule_is_executed_or_says_why_not() -> None:
    executed = {row[0] for row in REFUSED} | {row[0] for row in REWRITTEN} | {"PT-13", "PT-15"}
    assert executed | set(NOT_EXECUTED) == {rule.id for rule in PYTORCH_RULES}
    assert not executed & set(NOT_EXECUTED)
