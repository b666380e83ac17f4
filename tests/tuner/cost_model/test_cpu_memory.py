"""Bytes of CPU ranks, against what ranks of this size measured and against arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tuner.cost_model.a_cpu_model import HIDDEN, MIB, VOCAB, cpu_subject, plan, small_llama
from tuner.cost_model.prediction import breakdown
from tuner.plan import Backend, ParallelPlan, Precision, Recompute

PYTORCH, DEEPSPEED, MEGATRON = Backend.PYTORCH, Backend.DEEPSPEED, Backend.MEGATRON
LOGIT_MIB = 128 * VOCAB / MIB


@pytest.mark.parametrize(
    ("tried", "measured_mib"),
    [
        (plan(MEGATRON), 120),
        (plan(PYTORCH), 149),
        (plan(DEEPSPEED), 149),
        (plan(DEEPSPEED, zero=2, mb=4, half=True), 282),
        (plan(DEEPSPEED, zero=2, mb=2), 190),
        (plan(PYTORCH, zero=3, mb=4, half=True), 244),
        (plan(PYTORCH, zero=1, mb=2), 190),
        (plan(PYTORCH, mb=2, pp=2), 198),
        (plan(MEGATRON, zero=1, mb=8, half=True), 325),
        (replace(plan(MEGATRON, mb=2, pp=2), vpp=4), 119),
        (plan(MEGATRON, mb=8, tp=2), 203),
    ],
    ids=lambda value: value.label() if isinstance(value, ParallelPlan) else str(value),
)
def test_measured_peaks_of_the_small_model_are_within_12_percent(
    tried: ParallelPlan, measured_mib: float
) -> None:
    predicted = max(breakdown(cpu_subject(), tried).memory_bytes_by_stage)
    assert predicted / MIB == pytest.approx(measured_mib, rel=0.12)


def test_fp32_without_sharding_takes_16_bytes_a_parameter() -> None:
    terms = breakdown(cpu_subject(), plan(PYTORCH)).memory_bytes
    states = terms["parameters"] + terms["gradients"] + terms["optimizer"]
    assert states == pytest.approx(16 * small_llama().params.total, rel=1e-2)


def test_torch_s_loss_holds_12_bytes_a_logit_and_megatron_s_4() -> None:
    torchs = breakdown(cpu_subject(), plan(PYTORCH)).memory_bytes["logits"]
    megatrons = breakdown(cpu_subject(), plan(MEGATRON)).memory_bytes["logits"]
    assert torchs / MIB == pytest.approx(12 * LOGIT_MIB)
    assert megatrons / MIB == pytest.approx(4 * LOGIT_MIB)


def test_only_megatron_splits_the_loss_over_tensor_ranks() -> None:
    split = breakdown(cpu_subject(), plan(MEGATRON, tp=4)).memory_bytes["logits"]
    whole = breakdown(cpu_subject(), plan(DEEPSPEED, tp=4)).memory_bytes["logits"]
    assert split / MIB == pytest.approx(LOGIT_MIB)
    assert whole / MIB > 16 * LOGIT_MIB


def test_fsdp_gathers_embedding_and_head_whole() -> None:
    terms = breakdown(cpu_subject(), plan(PYTORCH, zero=3, mb=2)).memory_bytes
    ends, everything = 2 * VOCAB * HIDDEN, small_llama().params.total
    assert terms["parameters"] == pytest.approx(4 * everything / 4 + 4 * ends, rel=1e-2)


def test_megatron_keeps_the_scores_that_selective_recomputation_drops() -> None:
    kept = plan(MEGATRON, mb=8)
    dropped = replace(kept, recompute=Recompute.SELECTIVE)
    more = (
        breakdown(cpu_subject(), kept).memory_bytes["activations"]
        - breakdown(cpu_subject(), dropped).memory_bytes["activations"]
    )
    assert more == pytest.approx(8 * 8 * 16 * 128 * 128 * 4, rel=0.05)


def test_nothing_of_a_gpu_s_context_is_counted() -> None:
    middle = breakdown(cpu_subject(), plan(MEGATRON, pp=4)).memory_bytes_by_stage[1]
    assert middle < 60 * MIB


def test_16_bits_halve_the_weights_that_compute() -> None:
    fp32 = breakdown(cpu_subject(), plan(MEGATRON)).memory_bytes["parameters"]
    bf16 = breakdown(cpu_subject(), plan(MEGATRON, half=True)).memory_bytes["parameters"]
    assert plan(MEGATRON, half=True).precision is Precision.BF16
    assert bf16 == pytest.approx(fp32 / 2)
