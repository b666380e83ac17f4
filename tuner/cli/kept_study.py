"""What a study folder keeps of how its trials were run, so that a plan of it can be run again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from runners.environment import environment_facts
from tuner.cli.setting import Planned, default_plans
from tuner.cluster import Cluster
from tuner.errors import UserError
from tuner.hf_apart import remember
from tuner.hf_file import hf_model_of
from tuner.job import Job
from tuner.launch import MODEL_FILE, TRAINING_FILE, Measurement, Routing, Settings
from tuner.model_shape import ModelShape
from tuner.outcome import Phase
from tuner.runner import ConfigurableRunner, Runner, Slots
from tuner.study_folder import StudyFolder
from tuner.workload import FactoryModel, HfModel, Model, Workload

_CLUSTER = TypeAdapter(Cluster)
_SHAPE: TypeAdapter[ModelShape | None] = TypeAdapter(ModelShape | None)
RUNNERS = ("ray", "local", "simulated")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerChoice:
    """Which runner carries plans out, and how."""

    name: str
    ray_address: str | None = None
    """Of a running Ray; None = one of our own."""
    slots: Slots = field(default_factory=Slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptStudy:
    """How the trials of a study were run."""

    folder: StudyFolder
    cluster: Cluster
    runner: str
    ray_address: str | None
    limits_s: Mapping[Phase, float]
    memory_limit_bytes: int
    shape: ModelShape | None
    """Of the model; None for a user's own module, and in a folder of an older paratune."""

    @classmethod
    def read(cls, folder: StudyFolder) -> KeptStudy:
        """Reads it.

        Raises:
            UserError: it is no study folder, or one of an older paratune.
        """
        job = folder.read_json(folder.job_file)
        try:
            return cls(
                folder=folder,
                cluster=_CLUSTER.validate_python(job["run"]["cluster"]),
                runner=job["run"]["runner"],
                ray_address=job["run"]["ray_address"],
                limits_s={Phase(k): float(v) for k, v in job["run"]["limits_s"].items()},
                memory_limit_bytes=job["memory_limit_bytes"],
                shape=_SHAPE.validate_python(job.get("shape")),
            )
        except (KeyError, TypeError, ValidationError) as error:
            raise UserError(
                f"{folder.job_file} must say how the study's trials were run, as paratune tune "
                "writes it; run the study once more with this version"
            ) from error

    def refuse_simulated(self, what: str) -> None:
        """For commands that run the winner again; ``what`` is done to it, as in ``verified``.

        Raises:
            UserError: the study has run nothing.
        """
        if self.runner == "simulated":
            raise UserError(
                f"{self.folder.path} must be a study of real trials to be {what}, but it is "
                "simulated; run it with --runner ray or local"
            )

    @property
    def choice(self) -> RunnerChoice:
        """The runner that carried its trials out."""
        return RunnerChoice(name=self.runner, ray_address=self.ray_address)

    def routing(self, launch: Path) -> Routing:
        """Where the tokens of a model with experts went, from the launch files."""
        routing: Routing = self.folder.read_json(launch / TRAINING_FILE).get("routing", "learned")
        return routing

    def workload(self, launch: Path) -> Workload:
        """What was trained, from the launch files.

        Raises:
            UserError: they are missing.
        """
        training = self.folder.read_json(launch / TRAINING_FILE)
        return Workload(
            model=_model(launch, training),
            seq_len=training["seq_len"],
            global_batch_sequences=training["global_batch_sequences"],
            optimizer=training["optimizer"],
            learning_rate=training["learning_rate"],
            seed=training["seed"],
        )


def remember_model(folder: StudyFolder) -> None:
    """Has this process take a study's model as the study has kept it: to read it takes seconds."""
    try:
        kept = KeptStudy.read(folder)
        values = json.loads((folder.launch_folder(0) / MODEL_FILE).read_text())
    except (UserError, OSError, ValueError, RecursionError):
        return  # there is no such study yet, or it is damaged, which is said where it is read
    if kept.shape is not None and isinstance(values, dict):
        remember(values, kept.shape)


def keep_job(
    folder: StudyFolder, job: Planned, choice: RunnerChoice, baseline: Mapping[str, Any] | None
) -> None:
    """Keeps job, environment and waterfall in the folder.

    Raises:
        UserError: the folder is of another job.
    """
    identity = _identity(job.job, choice)
    _check_identity(folder, identity)
    defaults = {str(b): plan.to_dict() for b, plan in default_plans(job.space).items()}
    run = run_record(job.job.cluster, choice.name, choice.ray_address, job.job.phase_limits_s)
    folder.write_json(
        folder.job_file,
        {
            "identity": identity,
            "num_nodes": job.job.cluster.num_nodes,
            "gpus_per_node": job.job.cluster.gpus_per_node,
            "memory_limit_bytes": job.job.memory_limit_bytes,
            "defaults": defaults,
            "shape": _SHAPE.dump_python(job.job.workload.shape, mode="json"),
            "run": run,
            "baseline": baseline,
            "job": dict(job.job.resolved),
        },
    )
    folder.write_json(folder.environment_file, environment_facts())
    folder.write_json(
        folder.waterfall_file,
        {
            "num_combinations": job.space.num_combinations,
            "num_legal": len(job.space.plans),
            "removed": [asdict(removal) for removal in job.space.waterfall],
        },
    )


def _identity(job: Job, choice: RunnerChoice) -> dict[str, Any]:
    """What must stay the same for trials of one folder to be compared."""
    return {
        "workload": job.resolved["workload"],
        "cluster": cluster_identity(job.cluster),
        "memory_limit_bytes": job.memory_limit_bytes,
        "measure": job.resolved["measure"],
        "simulated": choice.name == "simulated",
    }


def cluster_identity(cluster: Cluster) -> dict[str, Any]:
    """What makes two clusters the same for a study, as JSON."""
    return {
        "gpu": cluster.gpu.name,
        "num_nodes": cluster.num_nodes,
        "gpus_per_node": cluster.gpus_per_node,
    }


def _check_identity(folder: StudyFolder, identity: Mapping[str, Any]) -> None:
    if not folder.job_file.exists():
        return
    kept = folder.read_json(folder.job_file).get("identity", {})
    differing = [key for key, value in identity.items() if kept.get(key) != value]
    if differing:
        key = differing[0]
        raise UserError(
            f"the study folder {folder.path} must be of the same job, but its {key} was "
            f"{kept.get(key)} and is now {identity[key]}; give another folder with --study"
        )


def run_record(
    cluster: Cluster, runner: str, ray_address: str | None, limits_s: Mapping[Phase, float]
) -> dict[str, Any]:
    """What ``KeptStudy`` reads back, as JSON."""
    return {
        "cluster": _CLUSTER.dump_python(cluster, mode="json"),
        "runner": runner,
        "ray_address": ray_address,
        "limits_s": {str(phase): limit for phase, limit in limits_s.items()},
    }


def runner_named(
    choice: RunnerChoice,
    workload: Workload,
    cluster: Cluster,
    measurement: Measurement,
    limits_s: Mapping[Phase, float],
) -> Runner:
    """A runner. Ray is imported only where it is asked for: it takes a second and a half."""
    slots = choice.slots
    if choice.name == "local":
        from runners.local_runner import LocalRunner

        return LocalRunner(workload, cluster, measurement, limits_s, slots=slots)
    if choice.name == "simulated":
        from runners.simulated_runner import SimulatedRunner

        return SimulatedRunner(workload, cluster, measurement)
    from runners.ray_runner import RayRunner

    address = choice.ray_address
    return RayRunner(workload, cluster, measurement, limits_s, address=address, slots=slots)


def set_settings(runner: Runner, settings: Settings) -> None:
    """Has the runner's next trials take these framework settings where they apply."""
    if isinstance(runner, ConfigurableRunner):
        runner.settings = settings


def _model(launch: Path, training: Mapping[str, Any]) -> Model:
    if training["factory"] is not None:
        return FactoryModel(factory=training["factory"], vocab=training["vocab"])
    path = launch / MODEL_FILE
    try:
        text = path.read_text()
    except OSError as error:
        raise UserError(
            f"{path} must be the model of the trial, but it cannot be read ({error.strerror}); "
            "is the study folder whole?"
        ) from error
    model: HfModel = hf_model_of(json.loads(text), name=launch.parent.name, named=str(path))
    return model
