"""Legal plans of a few jobs, drawn at random, as what is emitted."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from reports.emit.subject import Subject
from runners.backends.launch import launch_for
from search_spaces.enumeration import search_space
from search_spaces.rule import Setting
from tests.some_settings import some_settings
from tests.tiny_job import CPU_STACK, cpu_cluster
from tuner.cluster import Cluster, Device
from tuner.framework_settings.setting import SettingCase
from tuner.job_model import job_model
from tuner.launch import Measurement, Settings
from tuner.plan import ParallelPlan
from tuner.plan_arrays import PlanArrays
from tuner.presets import gpu_named
from tuner.stack import Stack
from tuner.workload import Workload

H100 = gpu_named("h100-sxm-80gb")
assert H100 is not None
GPU_STACK = Stack(versions={**CPU_STACK.versions, "transformer-engine": "2.8.0", "apex": "0.1"})
_CLUSTERS = {
    "one node": Cluster(gpu=H100, gpus_per_node=8),
    "four nodes": Cluster(gpu=H100, num_nodes=4, gpus_per_node=8),
    "ranks on CPUs": cpu_cluster(4),
}
_JOBS = (
    ("llama-3-8b", "one node"),
    ("llama-3-8b", "four nodes"),
    ("mixtral-8x7b", "four nodes"),
    ("llama-3-8b", "ranks on CPUs"),
    ("gpt2", "one node"),
)


@functools.cache
def _workload(model: str) -> Workload:
    return Workload(
        model=job_model(model, path=Path("job.yaml"), vocab_size=None),
        seq_len=1024,
        global_batch_sequences=64,
        learning_rate=3e-4,
        seed=7,
    )


def setting(model: str, cluster: str) -> Setting:
    """A job of those that plans are drawn for."""
    on = _CLUSTERS[cluster]
    stack = CPU_STACK if on.gpu.device is Device.CPU else GPU_STACK
    return Setting(workload=_workload(model), cluster=on, stack=stack)


@functools.cache
def _legal(model: str, cluster: str, backend: str) -> PlanArrays:
    asked = {"backend": (backend,), "precision": ("fp32", "fp16", "bf16", "fp8")}
    if cluster == "ranks on CPUs":
        asked["precision"] = ("fp32", "bf16")
    return search_space(setting(model, cluster), asked).plans


def subject_of(plan: ParallelPlan, on: Setting, settings: Settings = ()) -> Subject:
    """The plan with its launch files, as a trial would keep them."""
    spec = launch_for(plan, on.workload, on.cluster, Measurement(), settings)
    return Subject(spec=spec, on_cpu=on.cluster.gpu.device is Device.CPU, origin="a test")


def drawn(backends: tuple[str, ...], seed: int) -> Iterator[Subject]:
    """Legal plans of these frameworks without end, each job in turn, every other with settings."""
    generator, turns = np.random.default_rng(seed), random.Random(seed)
    jobs = [(*job, backend) for job in _JOBS for backend in backends]
    jobs = [job for job in jobs if len(_legal(*job))]
    while True:
        for model, cluster, backend in jobs:
            plans = _legal(model, cluster, backend)
            on = setting(model, cluster)
            plan = plans[int(generator.integers(len(plans)))]
            case = SettingCase(plan=plan, workload=on.workload, cluster=on.cluster)
            settings = some_settings(case, turns) if turns.random() < 0.5 else ()
            yield subject_of(plan, on, settings)


def changed(subject: Subject, plan: ParallelPlan) -> Subject:
    """The same with another plan's name on it."""
    return replace(subject, spec=replace(subject.spec, plan=plan))
