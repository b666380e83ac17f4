"""Every Megatron-Core layout trains the same model: real ranks, real steps, equal losses."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from runners.bench.data import microbatch
from tests.runners.bench_ranks import trained
from tests.runners.context_parallel_rank import run_context_parallel_rank
from tests.runners.megatron_hf_weights import fill_from_megatron
from tests.runners.megatron_models import CONFIGS, family_workload
from tests.tiny_job import tiny_workload
from tuner.launch import Measurement
from tuner.plan import ParallelPlan
from tuner.units import MIB
from tuner.workload import HfModel, Workload

pytestmark = pytest.mark.ranks


def _plan(**knobs: Any) -> ParallelPlan:
    return ParallelPlan.from_dict({"backend": "megatron", "precision": "fp32", **knobs})


def _losses(reports: list[dict[str, Any]]) -> list[float]:
    losses: list[float] = reports[0]["losses"]
    assert all(report["losses"] == losses for report in reports)
    return losses


@cache
def _alone(workload: Workload) -> list[float]:
    """Losses of three steps on one rank, in fp32, all sequences in one micro-batch."""
    with TemporaryDirectory() as folder:
        return _losses(trained(_plan(micro_batch=8), Path(folder), num_ranks=1, workload=workload))


@pytest.fixture
def reference() -> list[float]:
    """Those of the tiny Llama."""
    return _alone(tiny_workload())


LAYOUTS: tuple[tuple[int, dict[str, Any]], ...] = (
    (1, {"micro_batch": 2}),
    (1, {"recompute": "selective", "micro_batch": 4}),
    (1, {"recompute": "full", "micro_batch": 4}),
    (2, {}),
    (2, {"zero_stage": 1, "micro_batch": 2}),
    (2, {"tp": 2, "micro_batch": 4}),
    (2, {"tp": 2, "sequence_parallel": True, "micro_batch": 4}),
    (2, {"tp": 2, "sequence_parallel": True, "recompute": "selective", "micro_batch": 4}),
    (2, {"tp": 2, "recompute": "full", "micro_batch": 8}),
    (2, {"pp": 2}),
    (2, {"pp": 2, "micro_batch": 4}),
    (2, {"pp": 2, "vpp": 2}),
    (2, {"pp": 2, "vpp": 2, "recompute": "full", "micro_batch": 2}),
    (4, {"pp": 4, "micro_batch": 2}),
    (4, {"tp": 4, "micro_batch": 8}),  # more ranks than key-value heads
    (4, {"tp": 2, "pp": 2, "micro_batch": 4}),
    (4, {"tp": 2, "pp": 2, "vpp": 2, "sequence_parallel": True, "micro_batch": 4}),
    (4, {"tp": 2, "zero_stage": 1, "micro_batch": 4}),
    (4, {"pp": 2, "vpp": 2, "zero_stage": 1}),
    (4, {"pp": 2, "micro_batch": 2}),
    (4, {"zero_stage": 1, "dp_replicate": 2}),
)


@pytest.mark.parametrize(
    ("num_ranks", "knobs"), LAYOUTS, ids=[f"{n}-{_plan(**k).label()}" for n, k in LAYOUTS]
)
def test_losses_are_those_of_one_rank_and_fall(
    num_ranks: int, knobs: dict[str, Any], reference: list[float], tmp_path: Path
) -> None:
    plan = _plan(**knobs)
    reports = trained(plan, tmp_path, num_ranks=num_ranks)
    losses = _losses(reports)
    # Seen to differ by 1e-7; norms whose gradients are not summed over tp, by 8e-6.
    assert losses == pytest.approx(reference, rel=3e-6)
    assert losses[2] < losses[0] - 0.05
    for report in reports:
        assert {name: report["effective"][name] for name in plan.to_dict()} == plan.to_dict()


@pytest.mark.parametrize(
    ("num_ranks", "knobs"),
    [
        (1, {"precision": "bf16"}),
        (2, {"precision": "bf16", "zero_stage": 1}),
        (2, {"precision": "bf16", "pp": 2, "vpp": 2}),
        (2, {"precision": "bf16", "tp": 2, "sequence_parallel": True, "micro_batch": 8}),
        (1, {"precision": "fp16"}),
        (2, {"precision": "fp16", "zero_stage": 1}),
        (2, {"precision": "fp16", "pp": 2, "recompute": "full"}),
    ],
)
def test_half_precision_trains_nearly_as_fp32(
    num_ranks: int, knobs: dict[str, Any], reference: list[float], tmp_path: Path
) -> None:
    reports = trained(_plan(**knobs), tmp_path, num_ranks=num_ranks)
    losses = _losses(reports)
    assert losses == pytest.approx(reference, rel=2e-2)
    assert losses[2] < losses[0] - 0.05
    assert reports[0]["effective"]["precision"] == knobs["precision"]


def test_the_threads_of_process_groups_are_not_counted_as_memory(tmp_path: Path) -> None:
    limit = Measurement(warmup_steps=1, steps=1, memory_limit_bytes=100 * MIB)
    plan = _plan(tp=2, pp=2, micro_batch=4)
    reports = trained(plan, tmp_path, num_ranks=4, measurement=limit)
    assert all(report["peak_memory_bytes"] < 100 * MIB for report in reports)


@pytest.mark.parametrize("family", CONFIGS)
def test_the_model_is_that_of_its_config(family: str, tmp_path: Path) -> None:
    workload = family_workload(family)
    assert _alone(workload)[0] == pytest.approx(_hugging_face_loss(workload, tmp_path), rel=1e-5)


@pytest.mark.parametrize(
    ("family", "num_ranks", "knobs"),
    [
        ("gpt2", 2, {"tp": 2, "sequence_parallel": True, "micro_batch": 4}),
        ("gpt2", 2, {"pp": 2}),
        ("qwen2", 4, {"pp": 2, "tp": 2, "zero_stage": 1, "micro_batch": 4}),
        ("qwen2", 4, {"pp": 2, "vpp": 2, "zero_stage": 1}),
    ],
)
def test_tied_embeddings_and_biases_train_alike_in_every_layout(
    family: str, num_ranks: int, knobs: dict[str, Any], tmp_path: Path
) -> None:
    workload = family_workload(family)
    split = trained(_plan(**knobs), tmp_path, num_ranks=num_ranks, workload=workload)
    assert _losses(split) == pytest.approx(_alone(workload), rel=1e-5)


@pytest.mark.parametrize(
    ("family", "num_ranks", "knobs"),
    [
        ("mixtral", 2, {"ep": 2, "micro_batch": 4}),
        ("mixtral", 2, {"tp": 2, "sequence_parallel": True, "micro_batch": 8}),
        ("qwen3_moe", 4, {"tp": 2, "ep": 4, "sequence_parallel": True, "zero_stage": 1}),
        ("qwen2_moe", 4, {"pp": 2, "vpp": 2, "ep": 2, "zero_stage": 1, "recompute": "full"}),
        ("qwen2_moe", 4, {"ep": 2, "zero_stage": 1, "dp_replicate": 2}),
    ],
)
def test_experts_train_alike_in_every_layout(
    family: str, num_ranks: int, knobs: dict[str, Any], tmp_path: Path
) -> None:
    workload, plan = family_workload(family), _plan(**knobs)
    split = trained(plan, tmp_path, num_ranks=num_ranks, workload=workload)
    assert _losses(split) == pytest.approx(_alone(workload), rel=1e-6)
    assert _losses(split)[2] < _losses(split)[0] - 0.05
    for report in split:
        assert {name: report["effective"][name] for name in plan.to_dict()} == plan.to_dict()


@pytest.mark.parametrize(
    ("num_layers", "knobs", "layers_of_ranks"),
    [
        (6, {"pp": 4, "micro_batch": 2}, [[1], [2], [2], [1]]),
        (6, {"pp": 2, "vpp": 4}, [[0, 1, 1, 1], [1, 1, 1, 0]]),
        (2, {"pp": 4, "micro_batch": 2}, [[0], [1], [1], [0]]),
    ],
)
def test_uneven_stages_train_alike(
    num_layers: int, knobs: dict[str, Any], layers_of_ranks: list[list[int]], tmp_path: Path
) -> None:
    workload, plan = tiny_workload(num_hidden_layers=num_layers), _plan(**knobs)
    split = trained(plan, tmp_path, num_ranks=plan.pp, workload=workload)
    assert _losses(split) == pytest.approx(_alone(workload), rel=1e-6)
    assert [report["effective"]["num_layers"] for report in split] == layers_of_ranks


@pytest.mark.parametrize(
    ("family", "num_ranks", "knobs"),
    [
        ("llama", 2, {"cp": 2, "micro_batch": 4}),
        ("llama", 4, {"cp": 2, "micro_batch": 2, "zero_stage": 1}),
        ("llama", 4, {"cp": 2, "tp": 2, "sequence_parallel": True, "recompute": "full"}),
        ("gpt2", 4, {"cp": 2, "pp": 2, "vpp": 2, "micro_batch": 2}),
        ("mixtral", 4, {"cp": 2, "ep": 4, "zero_stage": 1}),
    ],
)
def test_a_sequence_split_over_ranks_trains_alike(
    family: str, num_ranks: int, knobs: dict[str, Any], tmp_path: Path
) -> None:
    """All but the attention, which is Transformer Engine's, needs a GPU and has a stand-in here."""
    workload, plan = family_workload(family), _plan(**knobs)
    split = trained(
        plan,
        tmp_path,
        num_ranks=num_ranks,
        workload=workload,
        rank_program=run_context_parallel_rank,
    )
    assert _losses(split) == pytest.approx(_alone(workload), rel=3e-6)
    for report in split:
        assert {name: report["effective"][name] for name in plan.to_dict()} == plan.to_dict()


def test_the_gradients_of_a_split_sequence_are_those_of_the_whole(tmp_path: Path) -> None:
    norms = [
        report["effective"]["gradient_norm"]
        for num_ranks, knobs in ((1, {"micro_batch": 8}), (2, {"cp": 2}), (4, {"cp": 2}))
        for report in trained(
            _plan(**knobs),
            tmp_path / str(num_ranks),
            num_ranks=num_ranks,
            rank_program=run_context_parallel_rank,
        )
    ]
    assert norms == pytest.approx([norms[0]] * 7, rel=1e-4)


def test_what_megatron_rewrites_in_silence_is_read_back_as_it_was_asked(tmp_path: Path) -> None:
    """Of RULES 6.6: batch (MC-06), vocabulary (15), sequence parallel (16), vpp (25), fp32 (69)."""
    plan = _plan(
        tp=2, pp=2, vpp=2, sequence_parallel=True, micro_batch=2, zero_stage=0, precision="bf16"
    )
    workload = tiny_workload(vocab_size=509)
    reports = trained(plan, tmp_path, num_ranks=4, workload=workload)
    for report in reports:
        effective = report["effective"]
        asked = {
            **plan.to_dict(),
            "num_microbatches": 4,
            "global_batch_sequences": 8,
            "padded_vocab": 512,
            "num_layers": [1, 1],
            "grad_reduce_in_fp32": True,
            "overlap_p2p_comm": True,
        }
        assert {name: effective[name] for name in asked} == asked


def test_a_vocabulary_that_is_padded_trains_alike_in_every_layout(tmp_path: Path) -> None:
    workload = tiny_workload(vocab_size=509)
    knobs = {"tp": 2, "micro_batch": 8}
    split = trained(_plan(**knobs), tmp_path, num_ranks=2, workload=workload)
    assert _losses(split) == pytest.approx(_alone(workload), rel=1e-5)


def _hugging_face_loss(workload: Workload, folder: Path) -> float:
    """Of the first global batch, by transformers' own module with the same initial weights."""
    assert isinstance(workload.model, HfModel)
    (folder / "config.json").write_text(workload.model.config_text)
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    assert workload.shape is not None
    fill_from_megatron(model, workload.shape)
    tokens, targets = microbatch(
        seed=0, step=0, first_sample=0, num_samples=8, seq_len=32, vocab=512
    )
    with torch.no_grad():
        logits = model(tokens).logits
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))
