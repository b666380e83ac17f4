"""The end of a study: its best plans run again in turns, where noise leaves open which is best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tuner.finals import FinalRun, Finals, finalists, finals_measurement, next_runs
from tuner.outcome import Outcome
from tuner.plan import ParallelPlan
from tuner.runner import AdjustableRunner, Runner
from tuner.study_folder import StudyFolder

FinalListener = Callable[[int, ParallelPlan, Outcome | None], None]
"""Round, plan, and its outcome; None when the run starts."""


def run_finals(folder: StudyFolder, runner: Runner, most: int, listener: FinalListener) -> None:
    """Runs what is left of the finals, keeping each run in the study folder.

    Finals of other finalists are no longer of use: trials that came later have changed the field.
    """
    contenders = finalists(folder.trials(), most)
    numbers = tuple(trial.number for trial in contenders)
    finals = folder.finals()
    if not numbers:
        folder.finals_file.unlink(missing_ok=True)
        return
    if finals is None or set(finals.trials) != set(numbers):
        finals = Finals(trials=numbers, most=most)
    if isinstance(runner, AdjustableRunner):
        runner.measurement = finals_measurement(runner.measurement)
    plans = {trial.number: trial.plan for trial in contenders}
    while runs := next_runs(finals, plans):
        for number in runs:
            finals = _with_run(finals, number, plans[number], folder, runner, listener)
            folder.keep_finals(finals)
    folder.keep_finals(replace(finals, is_over=True))


def _with_run(
    finals: Finals,
    number: int,
    plan: ParallelPlan,
    folder: StudyFolder,
    runner: Runner,
    listener: FinalListener,
) -> Finals:
    done = sum(run.trial == number for run in finals.runs)
    listener(done, plan, None)
    outcome = runner.run(plan, folder.final_folder(number, done), lambda _: None)
    listener(done, plan, outcome)
    return replace(finals, runs=(*finals.runs, FinalRun(round=done, trial=number, outcome=outcome)))
