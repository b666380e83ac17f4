"""The launch files that all frameworks share: ``training.json`` and the model's configuration."""

from __future__ import annotations

import json
from dataclasses import asdict

from tuner.cluster import Cluster
from tuner.launch import MODEL_FILE, TRAINING_FILE, LaunchFile, Measurement, Settings
from tuner.plan import ParallelPlan, Recompute
from tuner.short_steps import short_steps_for
from tuner.workload import FactoryModel, HfModel, Workload

PARATUNE_VERSION = "0.1.0"
"""Of the launch files' format; a test holds it to the distribution's version."""


def shared_files(
    plan: ParallelPlan,
    workload: Workload,
    cluster: Cluster,
    measurement: Measurement,
    settings: Settings = (),
    *,
    recompute: Recompute = Recompute.NONE,
) -> tuple[LaunchFile, ...]:
    """``training.json``, and ``config.json`` as the user gave it, byte for byte.

    The framework's own file says its settings; here they stand for a rank to hold the framework to.
    ``recompute`` is for a framework whose own file leaves it to the training script.
    """
    model = workload.model
    factory = model.factory if isinstance(model, FactoryModel) else None
    vocab = model.vocab if isinstance(model, FactoryModel) else model.shape.vocab
    training = {
        "paratune_version": PARATUNE_VERSION,
        "backend": str(plan.backend),
        "num_ranks": cluster.num_gpus,
        "factory": factory,
        "vocab": vocab,
        "seq_len": workload.seq_len,
        "global_batch_sequences": workload.global_batch_sequences,
        "optimizer": workload.optimizer,
        "learning_rate": workload.learning_rate,
        "seed": workload.seed,
        "warmup_steps": measurement.warmup_steps,
        "steps": measurement.steps,
        "measurement": None if measurement.adaptive is None else asdict(measurement.adaptive),
        "short_steps": _short_steps(plan, workload, cluster, measurement),
        "routing": measurement.routing,
        "reference": None if measurement.reference is None else asdict(measurement.reference),
        "memory_limit_bytes": measurement.memory_limit_bytes,
        "recompute": str(recompute),
        "settings": dict(settings),
    }
    files = [LaunchFile(name=TRAINING_FILE, text=json.dumps(training, indent=2) + "\n")]
    if isinstance(model, HfModel):
        files.append(LaunchFile(name=MODEL_FILE, text=model.config_text))
    return tuple(files)


def _short_steps(
    plan: ParallelPlan, workload: Workload, cluster: Cluster, measurement: Measurement
) -> dict[str, int] | None:
    """How many micro-batches the steps have; None = all, as the framework's own file says."""
    if not measurement.short_steps or measurement.adaptive is None:
        return None
    full = plan.num_microbatches(cluster.num_gpus, workload.global_batch_sequences)
    short = short_steps_for(plan, full)
    return None if short is None else asdict(short)
