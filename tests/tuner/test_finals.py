"""Who is in the finals, how long they last, and what may be said then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tuner.finals import (
    MAX_CONFIRMED,
    MAX_ROUNDS,
    FinalRun,
    Finals,
    confirmed,
    failed_finalists,
    finalists,
    finals_measurement,
    full_measurement,
    leader_to_confirm,
    next_runs,
    standings,
)
from tuner.launch import AdaptiveSteps, Measurement
from tuner.outcome import Measured, Outcome, OutOfMemory, Phase, Source
from tuner.plan import Backend, ParallelPlan, Recompute
from tuner.trial import Trial

PLANS = {
    0: ParallelPlan(backend=Backend.PYTORCH, tp=2, recompute=Recompute.FULL),
    1: ParallelPlan(backend=Backend.PYTORCH, tp=2),
    2: ParallelPlan(backend=Backend.PYTORCH),
}


def measured(seconds: float, *, half: float = 0.02, peak: int = 100) -> Measured:
    return Measured(
        step_times_s=(seconds,),
        step_time_s=seconds,
        step_time_ci_s=(seconds * (1 - half), seconds * (1 + half)),
        tokens_per_s=1 / seconds,
        peak_memory_bytes=peak,
        peak_memory_bytes_by_rank=(peak,),
    )


def trial(number: int, outcome: Outcome) -> Trial:
    return Trial(number=number, plan=PLANS[number % 3], outcome=outcome, started_at=0.0, wall_s=1.0)


def played(
    outcome_of: Callable[[int, int], Outcome], trials: tuple[int, ...] = (0, 1, 2), most: int = 3
) -> Finals:
    """Finals to their end, with outcomes by trial and round."""
    finals = Finals(trials=trials, most=most)
    while numbers := next_runs(finals, PLANS):
        for number in numbers:
            done = sum(run.trial == number for run in finals.runs)
            run = FinalRun(round=done, trial=number, outcome=outcome_of(number, done))
            finals = replace(finals, runs=(*finals.runs, run))
    return finals


def test_plans_within_the_noise_of_the_best_are_finalists() -> None:
    trials = [trial(0, measured(1.03)), trial(1, measured(1.0)), trial(2, measured(1.5))]
    assert [t.number for t in finalists(trials, 3)] == [1, 0]


def test_a_clear_winner_needs_no_finals() -> None:
    assert finalists([trial(0, measured(1.0)), trial(1, measured(1.5))], 3) == ()


@pytest.mark.parametrize("most", [0, 1])
def test_fewer_than_two_are_no_finals(most: int) -> None:
    assert finalists([trial(0, measured(1.0)), trial(1, measured(1.0))], most) == ()


def test_simulated_trials_have_no_finals() -> None:
    same = replace(measured(1.0), source=Source.SIMULATED)
    assert finalists([trial(0, same), trial(1, same)], 3) == ()


def test_rounds_run_in_turns_and_every_other_backwards() -> None:
    finals = played(lambda number, _: measured(1.0, peak=100 + number))
    assert [run.trial for run in finals.runs[:6]] == [0, 1, 2, 2, 1, 0]
    assert len(finals.runs) == 3 * MAX_ROUNDS


def test_the_first_two_rounds_qualify() -> None:
    finals = played(lambda number, _: measured(1.0 + 0.01 * number), (0, 1, 2), most=1)
    of_round = [[run.trial for run in finals.runs if run.round == n] for n in range(3)]
    assert of_round == [[0, 1, 2], [1, 0], []]
    assert standings(finals, PLANS)[-1].trial == 2


def test_who_is_slower_for_certain_runs_no_more() -> None:
    finals = played(lambda number, _: measured(2.0 if number == 2 else 1.0, half=0.01))
    assert sum(run.trial == 2 for run in finals.runs) == 2


def test_a_round_that_was_broken_off_is_finished_first() -> None:
    whole = played(lambda number, _: measured(1.0))
    broken = replace(whole, runs=whole.runs[:4])
    assert next_runs(broken, PLANS) == (0, 1)


def test_the_winner_is_certain_where_the_difference_is() -> None:
    rng = np.random.default_rng(0)
    finals = played(
        lambda number, _: measured(
            (1.0 + 0.1 * number) * float(np.exp(0.005 * rng.normal())), half=0.01
        )
    )
    first, second, _ = standings(finals, PLANS)
    assert (first.trial, second.trial) == (0, 1)
    assert not second.may_be_fastest
    assert second.behind is not None
    assert second.behind[0] < 0.1 < second.behind[1]


def test_what_slows_a_whole_round_is_held_against_nobody() -> None:
    finals = played(lambda number, done: measured((1 + 0.05 * number) * (1 + done)), (0, 1))
    assert [finalist.trial for finalist in standings(finals, PLANS)] == [0, 1]


def test_of_equals_the_one_that_needs_less_memory_wins() -> None:
    finals = played(lambda number, _: measured(1.0 + 0.001 * number, peak=100 - number))
    standing = standings(finals, PLANS)
    assert [finalist.trial for finalist in standing] == [2, 1, 0]
    assert all(finalist.may_be_fastest for finalist in standing)


def test_of_equals_in_memory_too_the_simpler_wins() -> None:
    finals = played(lambda number, _: measured(1.0))
    assert standings(finals, PLANS)[0].trial == 2


def test_less_memory_does_not_win_against_two_per_cent() -> None:
    finals = played(lambda number, _: measured(1.0 + 0.02 * number, half=0.1, peak=100 - number))
    assert standings(finals, PLANS)[0].trial == 0


def test_a_finalist_that_fails_is_out() -> None:
    full = OutOfMemory(rank=0, phase=Phase.STEPS, message="full")
    finals = played(lambda number, done: full if number == 0 else measured(1.0))
    assert failed_finalists(finals) == (0,)
    assert {finalist.trial for finalist in standings(finals, PLANS)} == {1, 2}
    assert sum(run.trial == 0 for run in finals.runs) == 1


def test_finals_are_measured_longer_and_to_the_end() -> None:
    adaptive = AdaptiveSteps(max_steps=10, relative_half_width=0.02, incumbent_step_time_s=1.0)
    longer = finals_measurement(Measurement(adaptive=adaptive)).adaptive
    assert longer == AdaptiveSteps(max_steps=40, relative_half_width=0.01)
    assert finals_measurement(Measurement()) == Measurement()


def extrapolated(seconds: float) -> Measured:
    return replace(measured(seconds), source=Source.EXTRAPOLATED)


def confirmations(trials: list[Trial], *full_step_s: Outcome) -> Finals:
    """Leaders run full steps one after the other, with these outcomes."""
    finals, left = Finals(trials=(), most=1), list(full_step_s)
    while (leader := leader_to_confirm(trials, finals)) is not None:
        run = FinalRun(round=0, trial=leader.number, outcome=left.pop(0))
        finals = replace(finals, trials=(*finals.trials, leader.number), runs=(*finals.runs, run))
    assert not left
    return finals


def test_who_leads_by_an_extrapolation_runs_full_steps() -> None:
    trials = [trial(0, extrapolated(1.0)), trial(1, extrapolated(1.2))]
    finals = confirmations(trials, measured(1.1))
    assert confirmed(finals) == {0: measured(1.1)}


def test_a_leader_that_falls_back_makes_room_for_the_next() -> None:
    trials = [trial(0, extrapolated(1.0)), trial(1, extrapolated(1.02)), trial(2, measured(1.3))]
    finals = confirmations(trials, measured(1.2), measured(1.1))
    assert [run.trial for run in finals.runs] == [0, 1]


def test_a_leader_that_ran_full_steps_needs_no_more() -> None:
    trials = [trial(0, measured(1.0)), trial(1, extrapolated(1.2))]
    assert leader_to_confirm(trials, Finals(trials=(), most=1)) is None


def test_a_leader_that_fails_with_full_steps_leads_no_more() -> None:
    full = OutOfMemory(rank=0, phase=Phase.STEPS, message="full")
    trials = [trial(0, extrapolated(1.0)), trial(1, extrapolated(1.2))]
    assert confirmed(confirmations(trials, full, measured(1.2))) == {1: measured(1.2)}


def test_confirmations_end() -> None:
    trials = [trial(number, extrapolated(1.0 + number / 1000)) for number in range(9)]
    finals = confirmations(trials, *[measured(2.0)] * MAX_CONFIRMED)
    assert len(finals.runs) == MAX_CONFIRMED


def test_leaders_and_finalists_are_measured_with_full_steps() -> None:
    short = Measurement(adaptive=AdaptiveSteps(incumbent_step_time_s=1.0), short_steps=True)
    assert full_measurement(short) == Measurement(adaptive=AdaptiveSteps())
    assert not finals_measurement(short).short_steps


def test_of_trials_side_by_side_the_first_are_finalists_whatever_their_intervals_say() -> None:
    apart = [trial(0, measured(1.0)), trial(1, measured(1.5)), trial(2, measured(2.0))]
    assert finalists(apart, 2) == ()
    beside = [replace(each, beside=1) for each in apart]
    assert [t.number for t in finalists(beside, 2)] == [0, 1]


def test_extrapolated_trials_may_be_finalists() -> None:
    trials = [trial(0, extrapolated(1.0)), trial(1, measured(1.01))]
    assert [t.number for t in finalists(trials, 2)] == [0, 1]
