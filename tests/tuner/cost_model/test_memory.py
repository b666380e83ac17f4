"""Bytes by term and stage, against arithmetic and published figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tuner.cost_model.a_model import GIB, llama_7b, megatron, subject
from tuner.cost_model.prediction import breakdown
from tuner.cost_model.software import Attention, Software
from tuner.plan import Backend, Offload, ParallelPlan, Recompute


def test_bf16_adam_without_sharding_takes_18_bytes_a_parameter() -> None:
    terms = breakdown(subject(), megatron()).memory_bytes
    states = terms["parameters"] + terms["gradients"] + terms["optimizer"]
    assert states == pytest.approx(18 * llama_7b().num_params, rel=1e-3)


def test_zero_1_divides_only_the_12_bytes_of_the_optimizer() -> None:
    terms = breakdown(subject(), megatron(zero_stage=1)).memory_bytes
    params = llama_7b().num_params
    assert terms["optimizer"] == pytest.approx(12 * params / 8, rel=1e-3)
    assert terms["gradients"] == pytest.approx(4 * params, rel=1e-3)


def test_fsdp_divides_weights_gradients_and_states_and_gathers_two_layers() -> None:
    plan = ParallelPlan(backend=Backend.PYTORCH, zero_stage=3)
    terms = breakdown(subject(), plan).memory_bytes
    states = terms["parameters"] + terms["gradients"] + terms["optimizer"]
    assert states == pytest.approx(16 * llama_7b().num_params / 8, rel=1e-3)
    assert terms["workspace"] > 2 * 2 * llama_7b().params.layers[0]


def test_offload_leaves_the_optimizer_on_the_host() -> None:
    plan = ParallelPlan(backend=Backend.DEEPSPEED, zero_stage=2, offload=Offload.OPTIMIZER)
    assert breakdown(subject(), plan).memory_bytes["optimizer"] == 0


def test_a_layer_of_gpt_keeps_34_bytes_a_token_and_hidden_unit() -> None:
    # Korthikanti et al. 2022, equation 2 less the scores, which flash attention does not keep.
    gpt = replace(llama_7b(), ffn=4 * 4096, gated_mlp=False)
    gpt_subject = replace(subject(software=Software(dropout=True, padded_vocab=1)), shape=gpt)
    kept = breakdown(gpt_subject, megatron()).memory_bytes["activations"]
    assert kept / (32 * 4096 * 4096) == pytest.approx(34, rel=0.01)


def test_stored_scores_cost_5_bytes_a_score_with_dropout() -> None:
    flash = subject(software=Software(dropout=True))
    stored = subject(software=Software(dropout=True, attention=Attention.MATERIALISED))
    more = (
        breakdown(stored, megatron()).memory_bytes["activations"]
        - breakdown(flash, megatron()).memory_bytes["activations"]
    )
    assert more == pytest.approx(32 * 5 * 32 * 4096 * 4096, rel=0.01)


def test_the_first_of_four_stages_holds_four_micro_batches_and_the_last_one() -> None:
    found = breakdown(subject(), megatron(pp=4, zero_stage=1))
    one_less = breakdown(subject(batch=2), megatron(pp=4, zero_stage=1))  # one micro-batch
    layer = 8 * 4096 * 4096 * 2 * (8 + 3 * 11008 / 4096)
    first = found.memory_bytes_by_stage[0] - one_less.memory_bytes_by_stage[0]
    assert first == pytest.approx(3 * layer, rel=0.02)
    assert found.memory_bytes_by_stage[3] == pytest.approx(one_less.memory_bytes_by_stage[3])


def test_interleaving_keeps_more_in_flight_than_plain_1f1b() -> None:
    plain = breakdown(subject(), megatron(pp=4))
    interleaved = breakdown(subject(), megatron(pp=4, vpp=4))
    assert interleaved.memory_bytes_by_stage[0] > plain.memory_bytes_by_stage[0]


def test_full_recomputation_keeps_only_the_inputs_of_layers() -> None:
    plan = replace(megatron(), recompute=Recompute.FULL)
    kept = breakdown(subject(), plan).memory_bytes["activations"]
    assert kept < 1.5 * 32 * 4096 * 4096 * 2


def test_a_published_rank_of_a_70b_llama_cut_to_12_layers_is_within_3_percent() -> None:
    # SimuMax release summary (B200, TP 1, PP 2, DP 4): 66.552 and 62.968 GiB allocated.
    hidden, ffn, vocab = 8192, 28672, 128256
    layer = 2 * hidden * hidden + 2 * hidden * 1024 + 3 * hidden * ffn + 2 * hidden
    base = llama_7b()
    shape = replace(
        base,
        num_layers=12,
        hidden=hidden,
        num_heads=64,
        num_kv_heads=8,
        ffn=ffn,
        vocab=vocab,
        params=replace(
            base.params, embedding=vocab * hidden, head=vocab * hidden, layers=(layer,) * 12
        ),
    )
    of_70b = replace(subject(batch=16), shape=shape)
    first, last = breakdown(of_70b, megatron(pp=2, zero_stage=1)).memory_bytes_by_stage
    assert first / GIB == pytest.approx(66.552, rel=0.03)
    assert last / GIB == pytest.approx(62.968, rel=0.03)
