"""Seconds by term, against arithmetic and the directions that physics gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.tuner.cost_model.a_model import llama_7b, megatron, subject
from tuner.cost_model.coefficients import DEFAULT
from tuner.cost_model.prediction import breakdown, predictions
from tuner.plan import Backend, Offload, ParallelPlan, Recompute
from tuner.plan_arrays import PlanArrays


def terms_of(plan: ParallelPlan, *, num_nodes: int = 1, batch: int = 64) -> Mapping[str, float]:
    return breakdown(subject(num_nodes=num_nodes, batch=batch), plan).time_s


def test_matrix_products_take_six_flops_a_parameter_and_token_at_the_share_of_the_peak() -> None:
    seconds = terms_of(megatron(micro_batch=8))
    flops = 6 * sum(llama_7b().params.layers) * 64 * 4096 / 8
    ideal = flops / (989e12 * DEFAULT.time.matrix)
    assert ideal < seconds["matrix_products"] < 1.2 * ideal


def test_full_recomputation_adds_a_third_to_the_products() -> None:
    plain, again = terms_of(megatron()), terms_of(replace(megatron(), recompute=Recompute.FULL))
    assert again["matrix_products"] == pytest.approx(4 / 3 * plain["matrix_products"], rel=1e-6)


def test_the_bubble_grows_with_the_depth_and_interleaving_shrinks_it() -> None:
    two, four = terms_of(megatron(pp=2)), terms_of(megatron(pp=4))
    interleaved = terms_of(megatron(pp=4, vpp=4))
    assert four["pipeline_bubble"] > two["pipeline_bubble"] > 0
    assert interleaved["pipeline_bubble"] == pytest.approx(four["pipeline_bubble"] / 4)


def test_tensor_parallelism_across_nodes_costs_more_than_inside_one() -> None:
    inside = terms_of(megatron(tp=8), num_nodes=2)["tensor_parallel"]
    across = terms_of(megatron(tp=16), num_nodes=2)["tensor_parallel"]
    assert across > 3 * inside


def test_one_rank_sends_nothing() -> None:
    seconds = terms_of(megatron(tp=1, pp=8))
    assert seconds["tensor_parallel"] == seconds["data_parallel"] == 0


def test_small_layers_wait_for_the_host() -> None:
    seconds = breakdown(subject(seq_len=512), megatron(tp=8)).time_s
    assert seconds["waiting_for_host_or_weights"] > seconds["matrix_products"]


def test_offload_pays_for_the_bus_and_the_host_s_memory() -> None:
    on_device = ParallelPlan(backend=Backend.DEEPSPEED, zero_stage=2)
    on_host = replace(on_device, offload=Offload.OPTIMIZER)
    assert terms_of(on_host)["optimizer"] > 10 * terms_of(on_device)["optimizer"]


def test_the_terms_add_up_to_the_step_time() -> None:
    plan = megatron(tp=2, pp=2, micro_batch=2, zero_stage=1)
    found = predictions(subject(num_nodes=2), PlanArrays.of_plans([plan]))
    assert found.step_time_s[0] == pytest.approx(sum(terms_of(plan, num_nodes=2).values()))


def test_many_plans_are_predicted_as_each_alone() -> None:
    plans = [
        megatron(tp=tp, pp=pp, micro_batch=mb) for tp in (1, 2, 8) for pp in (1, 4) for mb in (1, 4)
    ]
    together = predictions(subject(num_nodes=4), PlanArrays.of_plans(plans))
    alone = [predictions(subject(num_nodes=4), PlanArrays.of_plans([plan])) for plan in plans]
    assert np.allclose(together.step_time_s, [one.step_time_s[0] for one in alone])
    assert np.allclose(together.peak_memory_bytes, [one.peak_memory_bytes[0] for one in alone])
