"""Seconds of CPU ranks: cores that are shared, chains of stages, exchanges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.tuner.cost_model.a_cpu_model import cpu_subject, plan
from tuner.cost_model.calibration import MeasuredPlans, calibrated
from tuner.cost_model.coefficients import DEFAULT
from tuner.cost_model.prediction import breakdown, predictions
from tuner.plan import Backend, ParallelPlan
from tuner.plan_arrays import PlanArrays

PYTORCH, DEEPSPEED, MEGATRON = Backend.PYTORCH, Backend.DEEPSPEED, Backend.MEGATRON


def seconds(tried: ParallelPlan, *, cores: float = 0.5) -> float:
    return sum(breakdown(cpu_subject(cores=cores), tried).time_s.values())


@pytest.mark.parametrize(
    ("tried", "core_seconds"),
    [
        (plan(DEEPSPEED), 3.9),
        (plan(DEEPSPEED, zero=2, mb=4, half=True), 5.0),
        (plan(PYTORCH, zero=1, mb=2), 2.9),
        (plan(PYTORCH, mb=4, half=True), 4.4),
        (plan(MEGATRON, zero=1, mb=8, half=True), 2.9),
        (plan(MEGATRON, mb=8, tp=2), 3.7),
    ],
    ids=lambda value: value.label() if isinstance(value, ParallelPlan) else str(value),
)
def test_processor_time_of_four_ranks_is_within_25_percent_of_what_they_used(
    tried: ParallelPlan, core_seconds: float
) -> None:
    assert 2 * seconds(tried) == pytest.approx(core_seconds, rel=0.25)


def test_ranks_of_equal_work_take_twice_as_long_on_half_the_cores() -> None:
    alone, shared = seconds(plan(PYTORCH), cores=1.0), seconds(plan(PYTORCH), cores=0.5)
    assert shared == pytest.approx(2 * alone, rel=0.1)


def test_a_pipeline_whose_last_stage_works_most_gains_little_from_more_cores() -> None:
    chained = plan(MEGATRON, mb=8, pp=4)
    assert seconds(chained, cores=0.5) < 1.3 * seconds(chained, cores=1.0)


def test_attention_in_16_bits_is_slow_in_torch_and_not_in_megatron() -> None:
    fp32, bf16 = (plan(PYTORCH, mb=4, half=half) for half in (False, True))
    slower = breakdown(cpu_subject(), bf16).time_s["attention"]
    assert slower > 4 * breakdown(cpu_subject(), fp32).time_s["attention"]
    megatrons = [plan(MEGATRON, mb=4, half=half) for half in (False, True)]
    taken = [breakdown(cpu_subject(), one).time_s["attention"] for one in megatrons]
    assert taken[0] == pytest.approx(taken[1])


def test_sharded_weights_are_gathered_every_micro_batch() -> None:
    few, many = plan(PYTORCH, zero=3, mb=8), plan(PYTORCH, zero=3, mb=1)
    once, often = (breakdown(cpu_subject(), one).time_s["data_parallel"] for one in (few, many))
    assert often == pytest.approx(8 * once, rel=0.01)


def test_tensor_parallelism_pays_for_every_collective_however_small() -> None:
    small, large = (
        breakdown(cpu_subject(), plan(MEGATRON, mb=mb, tp=4)).time_s["tensor_parallel"]
        for mb in (1, 8)
    )
    assert small > 5 * large


def test_one_rank_sends_nothing() -> None:
    alone = breakdown(cpu_subject(ranks=1), plan(PYTORCH, mb=8)).time_s
    assert alone["tensor_parallel"] == alone["data_parallel"] == alone["hand_over"] == 0


def test_measured_trials_reveal_a_machine_with_slow_collectives() -> None:
    tried = PlanArrays.of_plans([plan(MEGATRON, mb=mb, tp=tp) for mb in (1, 4) for tp in (1, 2, 4)])
    slow = replace(DEFAULT, time=replace(DEFAULT.time, hop_s=3 * DEFAULT.time.hop_s))
    truth = predictions(cpu_subject(), tried, slow)
    known = MeasuredPlans(
        subject=cpu_subject(),
        plans=tried,
        step_time_s=truth.step_time_s,
        peak_memory_bytes=truth.peak_memory_bytes,
        out_of_memory=np.zeros(len(tried), dtype=np.bool_),
    )
    found = calibrated([known]).coefficients
    left = predictions(cpu_subject(), tried, found).step_time_s / truth.step_time_s - 1
    assert np.abs(left).max() < 0.1
