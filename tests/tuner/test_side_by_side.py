"""Trials side by side: as many as asked for, no plan twice, and in order when they are ended."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tuner.computed_study import ComputedRunner, outcome_of, study
from tuner.outcome import Failed, Outcome, Phase
from tuner.plan import ParallelPlan
from tuner.runner import PhaseListener, Stopped
from tuner.samplers.registry import SAMPLERS
from tuner.study import Budget, StudyListener
from tuner.trial import Trial

LIMIT_S = 30.0


class MeetingRunner(ComputedRunner):
    """A trial ends only once as many as the barrier wants have run at the same time."""

    def __init__(self, together: int) -> None:
        super().__init__(outcome_of)
        self.barrier = threading.Barrier(together)

    def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        self.barrier.wait(LIMIT_S)
        return super().run(plan, folder, on_phase)


class EndlessRunner(ComputedRunner):
    """Some trials go on until they are stopped."""

    def __init__(self, num_short: int) -> None:
        super().__init__(outcome_of)
        self.num_short = num_short
        self.stopped = threading.Event()
        self.all_running = threading.Semaphore(0)
        self.num_left = 0

    def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        outcome = super().run(plan, folder, on_phase)
        if len(self.plans) <= self.num_short:
            return outcome
        self.all_running.release()
        assert self.stopped.wait(LIMIT_S)
        self.num_left += 1
        raise Stopped

    def stop(self) -> None:
        self.stopped.set()


class InterruptedOnceEndless(StudyListener):
    """Ctrl-C, heard by the study's own thread once so many trials are endless."""

    def __init__(self, runner: EndlessRunner, num_endless: int) -> None:
        self.runner, self.num_left = runner, num_endless

    def phase_entered(self, number: int, phase: Phase) -> None:
        if len(self.runner.plans) > self.runner.num_short:
            self.num_left -= 1
            if self.num_left == 0:
                raise KeyboardInterrupt


class Calls(StudyListener):
    """Which thread told what."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.running: list[int] = []
        self.most = 0

    def trial_started(self, number: int, plan: ParallelPlan, reason: str) -> None:
        self.threads.add(threading.get_ident())
        self.running.append(number)
        self.most = max(self.most, len(self.running))

    def phase_entered(self, number: int, phase: Phase) -> None:
        self.threads.add(threading.get_ident())
        assert number in self.running

    def trial_ended(self, trial: Trial, trials: Sequence[Trial]) -> None:
        self.threads.add(threading.get_ident())
        self.running.remove(trial.number)


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "gp"])
def test_four_run_at_a_time_and_no_plan_twice(tmp_path: Path, sampler: str) -> None:
    runner, calls = MeetingRunner(4), Calls()
    end = study(tmp_path, runner, sampler=sampler, parallel=4).run(Budget(trials=12), calls)
    assert len(set(runner.plans)) == len(runner.plans) == 12
    assert [trial.number for trial in end.trials] == list(range(12))
    assert calls.most == 4


def test_every_call_to_the_listener_comes_from_the_study_s_own_thread(tmp_path: Path) -> None:
    calls = Calls()
    study(tmp_path, MeetingRunner(2), parallel=2).run(Budget(trials=4), calls)
    assert calls.threads == {threading.get_ident()}


def test_a_trial_keeps_how_many_ran_beside_it(tmp_path: Path) -> None:
    beside = study(tmp_path / "3", MeetingRunner(3), parallel=3).run(
        Budget(trials=3), StudyListener()
    )
    assert [trial.beside for trial in beside.trials] == [2, 2, 2]
    alone = study(tmp_path / "1", MeetingRunner(1)).run(Budget(trials=3), StudyListener())
    assert [trial.beside for trial in alone.trials] == [0, 0, 0]


def test_ctrl_c_stops_what_runs_and_loses_nothing_that_has_ended(tmp_path: Path) -> None:
    runner = EndlessRunner(num_short=3)
    listener = InterruptedOnceEndless(runner, num_endless=3)
    end = study(tmp_path, runner, parallel=3).run(Budget(trials=9), listener)
    assert end.interrupted
    assert runner.stopped.is_set()
    assert len(end.trials) == 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("trial-")]
    again = ComputedRunner(outcome_of)
    whole = study(tmp_path, again, parallel=3).run(Budget(trials=9), StudyListener())
    assert len(again.plans) == 6
    assert [trial.number for trial in whole.trials] == list(range(9))
    assert len({trial.plan for trial in whole.trials}) == 9


def test_a_broken_runner_ends_the_study_and_the_other_trials(tmp_path: Path) -> None:
    class Broken(EndlessRunner):
        def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
            if len(self.plans) == 2:
                raise RuntimeError("no Ray")
            return super().run(plan, folder, on_phase)

    runner = Broken(num_short=0)
    with pytest.raises(RuntimeError, match="no Ray"):
        study(tmp_path, runner, parallel=3).run(Budget(trials=9), StudyListener())
    assert runner.stopped.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("trial-")]


def test_failures_beside_others_are_kept_under_their_own_numbers(tmp_path: Path) -> None:
    def outcome(plan: ParallelPlan) -> Outcome:
        if plan.tp > 1:
            return Failed(rank=0, phase=Phase.MODEL, error="ValueError", message=str(plan.tp))
        return outcome_of(plan)

    end = study(tmp_path, ComputedRunner(outcome), parallel=4).run(
        Budget(trials=20), StudyListener()
    )
    for trial in end.trials:
        if isinstance(trial.outcome, Failed):
            assert trial.outcome.message == str(trial.plan.tp)


def test_ctrl_c_as_a_trial_is_about_to_start_ends_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    end = study(tmp_path, ComputedRunner(outcome_of)).run(Budget(trials=1), StudyListener())
    assert end.interrupted
