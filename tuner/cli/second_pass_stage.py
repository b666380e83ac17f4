"""The end of a study: framework settings of its best plan, each tried by real runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tuner.cli.folder_summary import folder_summary
from tuner.cli.kept_study import KeptStudy, set_settings
from tuner.finals import finals_measurement, full_measurement
from tuner.framework_settings.setting import SettingCase
from tuner.launch import Measurement
from tuner.outcome import Outcome
from tuner.runner import AdjustableRunner, ConfigurableRunner, Runner
from tuner.second_pass import NextRun, PassRun, SecondPass, settled_pass
from tuner.study_folder import StudyFolder

PassListener = Callable[[int, NextRun, Outcome | None], None]
"""Number of the run, what it is for, and its outcome; None when it starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondPassStage:
    """What the runs of a second pass need."""

    folder: StudyFolder
    runner: Runner
    measurement: Measurement
    """Of the study's trials."""
    listener: PassListener

    def run(self, most: int) -> None:
        """Runs what is left, keeping each run in the study folder; ``most`` are all there may be.

        A pass over another plan is no longer of use: the winner has changed.
        """
        found = self._begun()
        if most == 0 or found is None or not isinstance(self.runner, ConfigurableRunner):
            return
        case = self._case(found)
        before = self.runner.settings
        try:
            found, wanted = settled_pass(found, case)
            while wanted is not None and len(found.runs) < most:
                run = self._ran(found, wanted)
                found, wanted = settled_pass(replace(found, runs=(*found.runs, run)), case)
                self.folder.keep_second_pass(found)
        finally:
            set_settings(self.runner, before)
        self.folder.keep_second_pass(found)

    def _begun(self) -> SecondPass | None:
        """The pass of the best plan, as far as it has come; None where nothing has trained."""
        best, kept = folder_summary(self.folder).best, self.folder.second_pass()
        if best is None:
            return None
        start = self.folder.asked_settings(self.folder.launch_folder(best.number))
        if kept is not None and (kept.plan, kept.start) == (best.plan, start):
            return kept
        return SecondPass(trial=best.number, plan=best.plan, start=start)

    def _case(self, found: SecondPass) -> SettingCase:
        study = KeptStudy.read(self.folder)
        workload = study.workload(self.folder.launch_folder(found.trial))
        return SettingCase(plan=found.plan, workload=workload, cluster=study.cluster)

    def _ran(self, found: SecondPass, wanted: NextRun) -> PassRun:
        number = len(found.runs)
        if isinstance(self.runner, AdjustableRunner):
            self.runner.measurement = _measurement(self.measurement, wanted)
        set_settings(self.runner, wanted.settings)
        self.listener(number, wanted, None)
        outcome: Outcome = self.runner.run(
            found.plan, self.folder.second_pass_folder(number), lambda _: None
        )
        self.listener(number, wanted, outcome)
        return PassRun(setting=wanted.setting, settings=wanted.settings, outcome=outcome)


def _measurement(measurement: Measurement, run: NextRun) -> Measurement:
    """An option's first run may end early; runs in turns go on as the finals do."""
    if run.incumbent_step_time_s is None or measurement.adaptive is None:
        return finals_measurement(measurement)
    adaptive = replace(measurement.adaptive, incumbent_step_time_s=run.incumbent_step_time_s)
    return replace(full_measurement(measurement), adaptive=adaptive)
