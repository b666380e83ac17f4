"""What trials teach: step times, memory, crashes; and what they must not teach."""

from __future__ import annotations

import numpy as np

from tests.tuner.samplers.grid import CANDIDATES, PLANS, belief, seconds
from tuner.plan import ParallelPlan
from tuner.plan_arrays import PlanArrays
from tuner.samplers.candidates import Candidates
from tuner.samplers.evidence import MAX_MEASURED, Evidence, IntArray
from tuner.samplers.plan_belief import plain_belief

ALL = np.ones(len(PLANS), dtype=np.bool_)
EVERY = np.arange(len(PLANS))


def position(**knobs: object) -> int:
    plan = ParallelPlan.from_dict({**CANDIDATES.values(0), **knobs})
    row = CANDIDATES.find(plan.to_dict())
    assert row is not None
    return row


def rows(*positions: int) -> IntArray:
    return np.array(positions, dtype=np.int64)


def measured(positions: IntArray) -> Evidence:
    return Evidence(
        measured=positions, seconds=np.array([seconds(PLANS[int(row)]) for row in positions])
    )


def test_what_was_measured_is_believed() -> None:
    some = EVERY[::7]
    outlook = belief().outlook(measured(some), ALL)
    told = np.log([seconds(PLANS[int(row)]) for row in some])
    assert np.abs(outlook.mean[some] - told).max() < 0.05


def test_each_trial_brings_the_others_nearer_to_the_truth() -> None:
    truth = np.log([seconds(plan) for plan in PLANS])
    errors = []
    for step in (40, 10, 4):
        outlook = belief().outlook(measured(EVERY[::step]), ALL)
        errors.append(float(np.std(outlook.mean - truth)))
    assert errors[0] > errors[1] > errors[2]


def test_what_was_measured_is_less_uncertain_than_what_was_not() -> None:
    some = EVERY[::7]
    outlook = belief().outlook(measured(some), ALL)
    others = np.setdiff1d(EVERY, some)
    assert outlook.std[some].max() < outlook.std[others].min()


def test_a_hiccup_does_not_slow_the_neighbours() -> None:
    some = EVERY[::7]
    honest = measured(some)
    slow = honest.seconds.copy()
    slow[3] *= 15
    disturbed = Evidence(measured=some, seconds=slow)
    calm, upset = (belief().outlook(e, ALL).mean for e in (honest, disturbed))
    others = np.setdiff1d(EVERY, some)
    assert np.abs(upset[others] - calm[others]).max() < 0.3


def test_a_plan_that_needs_as_much_as_one_out_of_memory_is_not_expected_to_fit() -> None:
    known = belief()
    chance = known.chance_to_run(Evidence(), EVERY)
    # As likely to fit as not, and four times the micro-batch is legal.
    lost = min(
        (row for row in range(len(PLANS)) if PLANS[row].micro_batch <= 2),
        key=lambda row: abs(chance[row] - 0.5),
    )
    knobs = CANDIDATES.values(lost)
    larger = rows(*(position(**{**knobs, "micro_batch": size}) for size in (4, 8)))
    after = known.chance_to_run(Evidence(too_large=rows(lost)), larger)
    assert (after < 0.1).all()


def test_a_plan_that_needs_no_more_than_one_that_ran_is_expected_to_fit() -> None:
    ran = position(tp=1, pp=2, micro_batch=4, recompute="none", zero_stage=0)
    smaller = rows(position(tp=1, pp=2, micro_batch=2, recompute="full", zero_stage=1))
    known = belief()
    evidence = Evidence(measured=rows(ran), seconds=np.array([5.0]))
    assert known.chance_to_run(evidence, smaller)[0] > 0.9


def test_a_false_alarm_far_below_the_limit_is_taken_for_a_crash() -> None:
    small = position(tp=8, pp=2, micro_batch=1, recompute="full", zero_stage=1)
    other = rows(position(tp=4, pp=1, micro_batch=1, recompute="full", zero_stage=1))
    assert belief().chance_to_run(Evidence(too_large=rows(small)), other)[0] > 0.6


def test_peaks_below_the_prediction_make_larger_plans_likely() -> None:
    plans = rows(position(tp=2, pp=1, micro_batch=2, recompute="none", zero_stage=1))
    seen = rows(
        position(tp=4, pp=1, micro_batch=2, recompute="none", zero_stage=1),
        position(tp=2, pp=2, micro_batch=2, recompute="none", zero_stage=1),
    )
    known = belief()
    chance = []
    for peak in (10e9, 60e9):
        evidence = Evidence(
            measured=seen, seconds=np.array([5.0, 5.0]), peaks={int(row): peak for row in seen}
        )
        chance.append(float(known.chance_to_run(evidence, plans)[0]))
    assert chance[0] > chance[1]


def test_knobs_that_the_cost_model_does_not_know_are_learnt() -> None:
    plans = PlanArrays.of_plans([PLANS[0]] * 6)
    colours = ["red", "blue", "green", "red", "blue", "green"]
    sizes = ["1", "1", "1", "2", "2", "2"]
    candidates = Candidates.of_plans(plans, extra={"colour": colours, "size": sizes})
    evidence = Evidence(measured=rows(0, 1, 2), seconds=np.array([1.0, 2.0, 4.0]))
    outlook = belief(candidates, plans).outlook(evidence, np.ones(6, dtype=np.bool_))
    assert list(np.argsort(outlook.mean[3:])) == [0, 1, 2]


def test_equal_rows_are_told_apart_and_expected_to_cost_the_same() -> None:
    plans = PlanArrays.of_plans([PLANS[0], PLANS[0], PLANS[1]])
    candidates = Candidates.of_plans(plans)
    assert len({tuple(candidates.values(row).items()) for row in range(3)}) == 3
    evidence = Evidence(measured=rows(0), seconds=np.array([7.0]))
    outlook = belief(candidates, plans).outlook(evidence, np.ones(3, dtype=np.bool_))
    assert outlook.mean[0] == outlook.mean[1]


def test_columns_that_always_change_together_count_once() -> None:
    plans = PlanArrays.of_plans([PLANS[0]] * 4)
    twins = {f"column_{number}": ["a", "b", "c", "a"] for number in range(50)}
    assert Candidates.of_plans(plans, extra=twins).telling() == ["column_0"]


def test_without_physics_the_options_tried_are_told_apart() -> None:
    known = plain_belief(CANDIDATES)
    some = EVERY[::5]
    outlook = known.outlook(measured(some), ALL)
    truth = np.log([seconds(plan) for plan in PLANS])
    assert np.corrcoef(outlook.mean, truth)[0, 1] > 0.8


def test_old_slow_trials_are_left_out_of_a_fit_of_very_many() -> None:
    many = Evidence(measured=np.arange(10_000), seconds=np.linspace(9, 1, 10_000))
    short = many.shortened()
    assert len(short.measured) <= MAX_MEASURED
    assert short.seconds.min() == 1.0
