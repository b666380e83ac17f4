"""What is said of step times: settled, mean, interval, outliers, and when it is enough."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tuner.outcome import StepsEnd
from tuner.step_statistics import (
    StepsRule,
    settled_from,
    step_statistics,
    steps_end,
    student_quantile,
)

RULE = StepsRule(warmup_steps=1, steps=5, max_steps=20, relative_half_width=0.03)


def noisy(
    number: int, sigma: float, *, seed: int = 0, correlation: float = 0.0
) -> NDArray[np.float64]:
    """Steps of one second in the median."""
    fresh = np.random.default_rng(seed).normal(size=number)
    for index in range(1, number):
        fresh[index] = correlation * fresh[index - 1] + math.sqrt(1 - correlation**2) * fresh[index]
    return np.exp(sigma * fresh)


def stopped(times_s: NDArray[np.float64], rule: StepsRule) -> tuple[int, StepsEnd, int]:
    """Steps run, why no more, and how many of them were warm-up."""
    for number in range(1, len(times_s) + 1):
        if (end := steps_end(list(times_s[:number]), rule)) is not None:
            return number, *end
    raise AssertionError("it never ends")


def test_a_slow_start_in_two_stages_is_warm_up() -> None:
    times_s = noisy(20, 0.01)
    times_s[:1] *= 9
    times_s[1:4] *= 1.3
    assert settled_from(list(times_s)) == 4


@pytest.mark.parametrize("place", [3, 5, 8])
def test_one_slow_step_in_the_middle_is_an_outlier_and_no_change(place: int) -> None:
    times_s = noisy(12, 0.01)
    times_s[place] *= 2
    assert settled_from(list(times_s)) == 0
    known = step_statistics(list(times_s))
    assert known.outliers == (place,)
    assert known.level_s == pytest.approx(1, abs=0.01)


def test_noise_alone_is_seldom_taken_for_a_change() -> None:
    changes = sum(settled_from(list(noisy(15, 0.08, seed=seed))) > 0 for seed in range(200))
    assert changes <= 10


@pytest.mark.parametrize("number", [3, 5, 6, 12, 30])
def test_nine_in_ten_intervals_at_least_hold_the_truth(number: int) -> None:
    hits = 0
    for seed in range(200):
        low, high = step_statistics(list(noisy(number, 0.08, seed=seed))).interval_s
        hits += low <= math.exp(0.08**2 / 2) <= high
    assert 180 <= hits < 200


@pytest.mark.parametrize(
    ("degrees", "confidence", "quantile"),
    [
        (0, 0.95, 12.71),
        (4, 0.95, 2.776),
        (11, 0.95, 2.201),
        (30, 0.95, 2.042),
        (11, 0.99, 3.106),
        (math.inf, 0.95, 1.96),
        (math.inf, 0.99, 2.576),
    ],
)
def test_students_quantiles_are_those_of_the_books(
    degrees: float, confidence: float, quantile: float
) -> None:
    assert student_quantile(degrees, confidence) == pytest.approx(quantile, rel=0.005)


def test_steps_that_resemble_their_neighbours_say_less() -> None:
    alone = np.mean(
        [step_statistics(list(noisy(40, 0.05, seed=s))).effective_steps for s in range(30)]
    )
    alike = np.mean(
        [
            step_statistics(list(noisy(40, 0.05, seed=s, correlation=0.6))).effective_steps
            for s in range(30)
        ]
    )
    assert alone > 28
    assert alike < 16


def test_still_steps_need_no_more_than_the_fewest() -> None:
    times_s = noisy(30, 0.005)
    times_s[0] *= 5
    assert stopped(times_s, RULE) == (6, StepsEnd.PRECISE, 1)


def test_noisy_steps_are_measured_until_the_interval_is_narrow() -> None:
    number, end, _ = stopped(noisy(200, 0.08), replace(RULE, max_steps=100))
    assert end is StepsEnd.PRECISE
    assert number > 12


def test_steps_that_never_become_precise_end_at_the_most() -> None:
    number, end, num_warmup = stopped(noisy(200, 0.5), RULE)
    assert end is StepsEnd.MAX_STEPS
    assert number - num_warmup <= RULE.max_steps + RULE.max_warmup_steps


def test_a_plan_far_slower_than_the_incumbent_ends_after_three_steps() -> None:
    rule = replace(RULE, incumbent_step_time_s=0.5)
    assert stopped(noisy(30, 0.01), rule) == (4, StepsEnd.SLOWER, 1)


def test_a_slow_warm_up_is_never_held_against_the_incumbent() -> None:
    times_s = noisy(30, 0.01)
    times_s[:2] *= 4
    number, end, num_warmup = stopped(times_s, replace(RULE, incumbent_step_time_s=1.0))
    assert end is StepsEnd.PRECISE
    assert (number, num_warmup) == (7, 2)


def test_an_equal_of_the_incumbent_is_hardly_ever_ended_early() -> None:
    rule = replace(RULE, incumbent_step_time_s=math.exp(0.05**2 / 2))
    ends = [stopped(noisy(60, 0.05, seed=seed), rule)[1] for seed in range(300)]
    assert ends.count(StepsEnd.SLOWER) <= 8


def test_steps_whose_95_percent_interval_alone_is_narrow_go_on() -> None:
    times_s = [3.0, 1.0, 1.02, 0.98, 1.02, 0.98]
    assert step_statistics(times_s[1:]).relative_half_width < RULE.relative_half_width
    assert steps_end(times_s, RULE) is None


def test_time_that_is_up_ends_the_steps() -> None:
    assert stopped(noisy(30, 0.3), replace(RULE, time_s=3.5))[1] is StepsEnd.TIME


def test_short_steps_and_full_ones_of_skewed_noise_have_one_level() -> None:
    """One micro-batch in ten takes twice as long; a full step has many, a short one four."""
    rng = np.random.default_rng(0)
    levels = {}
    for microbatches in (4, 32):
        slow = rng.random((200, 12, microbatches)) < 0.1
        steps = 1 + slow.mean(axis=2)
        levels[microbatches] = np.mean([step_statistics(of.tolist()).level_s for of in steps])
    assert levels[4] == pytest.approx(1.1, abs=0.015)
    assert levels[32] == pytest.approx(1.1, abs=0.005)


def test_a_mean_leaves_out_a_step_far_from_all_others() -> None:
    known = step_statistics([1.0, 1.01, 0.99, 1.0, 1.02, 9.0])
    assert known.outliers == (5,)
    assert known.level_s == pytest.approx(1.004)


def test_of_three_steps_two_alike_by_luck_do_not_hide_the_scatter() -> None:
    assert step_statistics([1.0, 1.001, 1.12]).relative_half_width > 0.15


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_a_step_of_no_time_is_said_and_not_averaged(bad: float) -> None:
    with pytest.raises(ValueError, match="positive finite time"):
        step_statistics([1.0, 1.1, bad])


def test_the_interval_of_few_drifting_steps_is_wide_but_never_reaches_zero() -> None:
    drifting = [1.60, 1.76, 1.88, 1.93, 1.89, 2.14, 2.27, 2.27, 2.15]
    low, high = step_statistics(drifting).interval_s
    assert 0 < low < 1.6
    assert high > 2.27
