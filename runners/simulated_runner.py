"""Carries nothing out: outcomes are what the cost model predicts, and are marked as simulated."""

from __future__ import annotations

from pathlib import Path

from runners.backends.launch import launch_for
from tuner.cluster import Cluster
from tuner.cost_model.prediction import prediction
from tuner.errors import UserError
from tuner.launch import LaunchSpec, Measurement, Settings
from tuner.launch_files import launch_folder, write_launch_files
from tuner.outcome import Measured, Outcome, OutOfMemory, Phase, Source
from tuner.plan import ParallelPlan
from tuner.runner import UNBOUNDED, PhaseListener, Stopped
from tuner.units import size_text
from tuner.workload import Workload


class SimulatedRunner:
    """Answers from the cost model; to try the search itself, or without any GPU."""

    num_slots = UNBOUNDED

    def __init__(self, workload: Workload, cluster: Cluster, measurement: Measurement) -> None:
        if workload.shape is None:
            raise UserError(
                "--runner simulated needs a model given by its config.json, got "
                f"{workload.model.name}, of which nothing can be predicted"
            )
        self._workload = workload
        self._cluster = cluster
        self.measurement = measurement
        self._stopped = False
        self.settings: Settings = ()

    def describe(self, plan: ParallelPlan) -> LaunchSpec:
        """What a real runner would start."""
        return launch_for(plan, self._workload, self._cluster, self.measurement, self.settings)

    def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        """The prediction, as an outcome; the launch files are kept all the same."""
        if self._stopped:
            raise Stopped
        write_launch_files(self.describe(plan), launch_folder(folder))
        on_phase(Phase.STEPS)
        predicted = prediction(self._workload, self._cluster, plan)
        assert predicted is not None, "the constructor refuses models without a shape"
        peak_bytes = round(predicted.peak_memory_bytes)
        limit_bytes = self.measurement.memory_limit_bytes or self._cluster.gpu.memory_bytes
        if peak_bytes > limit_bytes:
            return OutOfMemory(
                rank=0,
                phase=Phase.FIRST_STEP,
                message=f"{size_text(peak_bytes)} predicted, {size_text(limit_bytes)} allowed",
                source=Source.SIMULATED,
            )
        seconds = predicted.step_time_s
        return Measured(
            step_times_s=(seconds,),
            step_time_s=seconds,
            step_time_ci_s=(seconds, seconds),
            tokens_per_s=self._workload.tokens_per_step / seconds,
            peak_memory_bytes=peak_bytes,
            peak_memory_bytes_by_rank=(peak_bytes,) * self._cluster.num_gpus,
            source=Source.SIMULATED,
        )

    def stop(self) -> None:
        """A trial takes no time; only those to come are affected."""
        self._stopped = True

    def close(self) -> None:
        """Nothing is held."""
