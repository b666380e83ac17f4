from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.summary import AfterTrials, summarize
from tests.reports.a_study import NUM_GPUS, measured, summary_of, trial, trials
from tuner.finals import FinalRun, Finals
from tuner.outcome import OutOfMemory, Phase, Source
from tuner.plan import Backend, ParallelPlan
from tuner.verification import Verdict, Verification


def _plan(micro_batch: int) -> ParallelPlan:
    return ParallelPlan(backend=Backend.MEGATRON, micro_batch=micro_batch)


def test_the_best_is_the_smallest_step_time_whatever_the_order_of_trials() -> None:
    summary = summary_of(*reversed(trials()))
    assert summary.best is not None
    assert summary.best.number == 3
    assert [ranked.number for ranked in summary.ranking] == [3, 4, 0]
    assert [t.number for t in summary.others] == [1, 2, 5]


def test_of_equal_times_the_plan_with_less_memory_is_first() -> None:
    large = trial(0, _plan(1), measured(1.0, peak_memory_bytes=200))
    small = trial(1, _plan(2), measured(1.0, peak_memory_bytes=100))
    best = summary_of(large, small).best
    assert best is not None
    assert best.number == 1


def test_speedups_are_over_the_median_and_over_each_default() -> None:
    summary = summary_of(*trials())
    assert summary.median_step_time_s == 1.5
    assert summary.speedup_over_median == 1.5
    speedups = {default.backend: default.speedup for default in summary.defaults}
    assert speedups == {Backend.PYTORCH: 2.0, Backend.DEEPSPEED: None, Backend.MEGATRON: None}


def test_a_default_out_of_memory_keeps_its_trial_and_one_not_tried_has_none() -> None:
    tried = {default.backend: default.trial for default in summary_of(*trials()).defaults}
    deepspeed = tried[Backend.DEEPSPEED]
    assert deepspeed is not None
    assert isinstance(deepspeed.outcome, OutOfMemory)
    assert tried[Backend.MEGATRON] is None


def test_each_framework_has_its_own_best() -> None:
    summary = summary_of(*trials())
    numbers = [ranked and ranked.number for ranked in map(summary.best_of, Backend)]
    assert numbers == [3, 4, None]


@pytest.mark.parametrize(("second_s", "tie"), [(1.019, True), (1.03, False)])
def test_it_is_a_tie_when_the_intervals_of_the_first_two_overlap(
    second_s: float, tie: bool
) -> None:
    first, second = trial(0, _plan(1), measured(1.0)), trial(1, _plan(2), measured(second_s))
    assert summary_of(first, second).is_tie is tie


def test_nothing_measured_has_no_best_no_median_and_no_tie() -> None:
    summary = summary_of(*(t for t in trials() if t.number in (1, 2, 5)))
    assert summary.best is None
    assert summary.runner_up is None
    assert summary.speedup_over_median is None
    assert not summary.is_tie
    assert dict(summary.counts) == {"out_of_memory": 1, "failed": 1, "timed_out": 1}


def test_a_study_of_one_trial_is_no_tie() -> None:
    summary = summary_of(trial(0, _plan(1), measured(1.0)))
    assert not summary.is_tie
    assert summary.speedup_over_median == 1.0


def test_measured_and_simulated_trials_are_not_mixed() -> None:
    foreseen = OutOfMemory(rank=0, phase=Phase.MODEL, message="", source=Source.SIMULATED)
    with pytest.raises(ValueError, match="measured or simulated"):
        summary_of(trial(0, _plan(1), measured(1.0)), trial(1, _plan(2), foreseen))


def test_throughput_of_a_rank_is_a_fourth_of_all() -> None:
    summary = summary_of(*trials())
    assert summary.best is not None
    assert summary.tokens_per_s_per_gpu(summary.best) == 1024


@given(st.lists(st.floats(min_value=1e-3, max_value=1e3), min_size=1, max_size=12))
def test_no_trial_is_faster_than_the_best_whatever_the_times(times_s: list[float]) -> None:
    summary = summary_of(*(trial(i, _plan(i + 1), measured(t)) for i, t in enumerate(times_s)))
    best = summary.best
    assert best is not None
    assert best.measured.step_time_s == min(times_s)
    assert summary.median_step_time_s is not None
    assert min(times_s) <= summary.median_step_time_s <= max(times_s)
    default = next(d for d in summary.defaults if d.backend is Backend.MEGATRON)
    assert default.speedup == times_s[0] / min(times_s)


def _finals(*step_times_s: float) -> Finals:
    """Three rounds of trials 0, 1, ... with these step times."""
    runs = tuple(
        FinalRun(round=number, trial=index, outcome=measured(seconds))
        for number in range(3)
        for index, seconds in enumerate(step_times_s)
    )
    return Finals(trials=tuple(range(len(step_times_s))), runs=runs, is_over=True)


def test_the_finals_decide_what_the_trials_left_open() -> None:
    first, second = trial(0, _plan(1), measured(1.0)), trial(1, _plan(2), measured(1.01))
    summary = summarize(
        (first, second), num_gpus=NUM_GPUS, defaults={}, after=AfterTrials(finals=_finals(1.2, 1.0))
    )
    assert summary.best is not None
    assert summary.best.number == 1
    assert not summary.is_tie
    assert summary.margin is not None
    much, low, high = summary.margin
    assert low < 0.2 < high
    assert abs(much - 0.2) < 1e-6


def test_a_plan_outside_the_finals_is_a_tie_where_its_interval_overlaps() -> None:
    tried = (
        trial(0, _plan(1), measured(1.0)),
        trial(1, _plan(2), measured(1.01)),
        trial(2, _plan(3), measured(1.3, spread=0.5)),
        trial(3, _plan(4), measured(1.4)),
    )
    summary = summarize(
        tried, num_gpus=NUM_GPUS, defaults={}, after=AfterTrials(finals=_finals(1.2, 1.0))
    )
    assert [ranked.number for ranked in summary.ties] == [2], "the finals told trial 0 apart"
    assert summary.is_tie


def test_a_verdict_on_another_plan_is_not_shown() -> None:
    first = trial(0, _plan(1), measured(1.0))
    found = Verification(plan=_plan(2), verdict=Verdict.RIGHT, sentence="right")
    kept = summarize(
        (first,), num_gpus=NUM_GPUS, defaults={}, after=AfterTrials(verification=found)
    )
    assert kept.verification is None


def test_an_interval_from_zero_on_leaves_the_margin_open_and_ends_no_report() -> None:
    unsure = replace(measured(1.0), step_time_ci_s=(0.0, 5.0))
    summary = summary_of(trial(0, _plan(1), unsure), trial(1, _plan(2), measured(2.0)))
    assert summary.margin is not None
    much, low, high = summary.margin
    assert low < much < high
