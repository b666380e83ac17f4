"""Coefficients found again from plans that were made with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.tuner.cost_model.a_model import megatron, subject
from tuner.cost_model.calibration import (
    MeasuredPlans,
    MeasuredStage,
    calibrated,
    informative_rows,
    measured_stage,
)
from tuner.cost_model.coefficients import DEFAULT, Coefficients
from tuner.cost_model.prediction import memory_of_stage, predictions
from tuner.plan_arrays import PlanArrays

PLANS = PlanArrays.of_plans(
    [
        megatron(tp=tp, pp=pp, micro_batch=mb, zero_stage=1)
        for tp in (1, 2, 4, 8)
        for pp in (1, 2, 4)
        for mb in (1, 2, 4)
    ]
)
SLOW_HOST = replace(DEFAULT, time=replace(DEFAULT.time, host_layer_s=8e-3, matrix=0.5))


def measured(truth: Coefficients, *, first_stage: bool = False) -> MeasuredPlans:
    found = predictions(subject(num_nodes=4), PLANS, truth)
    first = memory_of_stage(subject(num_nodes=4), PLANS, 0, truth.memory)
    return MeasuredPlans(
        subject=subject(num_nodes=4),
        plans=PLANS,
        step_time_s=found.step_time_s,
        peak_memory_bytes=first if first_stage else found.peak_memory_bytes,
        out_of_memory=np.zeros(len(PLANS), dtype=np.bool_),
    )


def test_nothing_measured_leaves_the_defaults() -> None:
    assert calibrated(()).coefficients.time.matrix == pytest.approx(DEFAULT.time.matrix)


def test_measured_plans_reveal_a_slow_host() -> None:
    found = calibrated([measured(SLOW_HOST)]).coefficients.time
    assert found.host_layer_s == pytest.approx(8e-3, rel=0.05)
    assert found.matrix - 0.5 < 0.5 * (DEFAULT.time.matrix - 0.5)


def test_one_wild_measurement_moves_little() -> None:
    wild = measured(SLOW_HOST)
    wild.step_time_s[5] *= 30
    found = calibrated([wild]).coefficients.time
    assert found.host_layer_s == pytest.approx(8e-3, rel=0.1)


def test_the_stage_that_was_measured_is_recognised() -> None:
    assert measured_stage([measured(DEFAULT)], of_all_ranks=True) is MeasuredStage.FULLEST
    of_first = [measured(DEFAULT, first_stage=True)]
    assert measured_stage(of_first, of_all_ranks=False) is MeasuredStage.FIRST


def test_an_out_of_memory_raises_the_prediction_of_what_seemed_to_fit() -> None:
    plans = PlanArrays.of_plans([megatron(tp=8, micro_batch=8, zero_stage=1)])
    told = MeasuredPlans(
        subject=subject(num_nodes=4),
        plans=plans,
        step_time_s=np.array([np.nan]),
        peak_memory_bytes=np.array([np.nan]),
        out_of_memory=np.array([True]),
    )
    before = predictions(subject(num_nodes=4), plans).peak_memory_bytes[0]
    fitted = calibrated([told]).coefficients
    assert predictions(subject(num_nodes=4), plans, fitted).peak_memory_bytes[0] > before


def test_rows_that_teach_most_differ_and_are_among_the_allowed() -> None:
    allowed = np.arange(len(PLANS)) % 2 == 0
    chosen = informative_rows([(subject(num_nodes=4), PLANS)], 4, allowed)
    assert len(set(chosen.tolist())) == 4
    assert allowed[chosen].all()
