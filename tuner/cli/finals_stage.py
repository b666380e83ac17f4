"""The end of a study: its best plans run again, where noise or an extrapolation leaves a doubt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tuner.finals import (
    FinalRun,
    Finals,
    finalists,
    finals_measurement,
    full_measurement,
    leader_to_confirm,
    next_runs,
)
from tuner.launch import Measurement
from tuner.outcome import Outcome
from tuner.plan import ParallelPlan
from tuner.runner import AdjustableRunner, Runner
from tuner.study_folder import StudyFolder

FinalListener = Callable[[int, ParallelPlan, Outcome | None], None]
"""Round, plan, and its outcome; None when the run starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalStage:
    """Runs what is left of the finals, keeping each run in the study folder."""

    folder: StudyFolder
    runner: Runner
    listener: FinalListener
    time_left: Callable[[], bool]
    """Whether the study's own time lasts; once it does not, no further run starts."""

    def run(self, most: int) -> None:
        """A contest of the ``most`` best where noise leaves it open, else the leader alone.

        Finals of other finalists are no longer of use: later trials have changed the field.
        """
        contenders = finalists(self.folder.trials(), most)
        finals = self.folder.finals()
        numbers = tuple(trial.number for trial in contenders)
        goes_on = finals is not None and finals.is_contest and set(finals.trials) == set(numbers)
        if numbers and (goes_on or self.time_left()):
            contest = (
                finals if finals is not None and goes_on else Finals(trials=numbers, most=most)
            )
            self._contest(contest, {trial.number: trial.plan for trial in contenders})
        else:
            self._confirm(None if finals is None or finals.is_contest else finals)

    def _contest(self, finals: Finals, plans: dict[int, ParallelPlan]) -> None:
        self._measure_by(finals_measurement)
        while runs := next_runs(finals, plans):
            for number in runs:
                if finals.runs and not self.time_left():
                    return
                finals = self._with_run(finals, number, plans[number])
                self.folder.keep_finals(finals)
        self.folder.keep_finals(replace(finals, is_over=True))

    def _confirm(self, finals: Finals | None) -> None:
        """Until the fastest has run full steps; at least once, for that decides who wins."""
        if finals is None:
            self.folder.finals_file.unlink(missing_ok=True)
            finals = Finals(trials=(), most=1)
        self._measure_by(full_measurement)
        trials = self.folder.trials()
        while (leader := leader_to_confirm(trials, finals)) is not None:
            if finals.runs and not self.time_left():
                return
            finals = replace(finals, trials=(*finals.trials, leader.number))
            finals = self._with_run(finals, leader.number, leader.plan)
            self.folder.keep_finals(finals)
        if finals.runs:
            self.folder.keep_finals(replace(finals, is_over=True))

    def _measure_by(self, changed: Callable[[Measurement], Measurement]) -> None:
        if isinstance(self.runner, AdjustableRunner):
            self.runner.measurement = changed(self.runner.measurement)

    def _with_run(self, finals: Finals, number: int, plan: ParallelPlan) -> Finals:
        done = sum(run.trial == number for run in finals.runs)
        self.listener(done, plan, None)
        outcome = self.runner.run(plan, self.folder.final_folder(number, done), lambda _: None)
        self.listener(done, plan, outcome)
        run = FinalRun(round=done, trial=number, outcome=outcome)
        return replace(finals, runs=(*finals.runs, run))
