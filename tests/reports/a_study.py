"""A study folder as a study leaves it: six trials on three frameworks, one out of memory."""

from __future__ import annotations

import json
from pathlib import Path

from reports.summary import Summary, summarize
from tuner.outcome import Failed, Measured, Outcome, OutOfMemory, Phase, Source, TimedOut
from tuner.plan import Backend, ParallelPlan, Precision
from tuner.study_folder import StudyFolder
from tuner.trial import Trial

NUM_GPUS = 4
LIMIT_BYTES = 300 * 2**20
BEST = 3
DEFAULTS = {backend: ParallelPlan(backend=backend) for backend in Backend}


def measured(
    step_time_s: float,
    *,
    peak_memory_bytes: int = 200 * 2**20,
    spread: float = 0.01,
    source: Source = Source.MEASURED,
) -> Measured:
    """A trial of 4096 tokens a step that trained, its interval ``spread`` on both sides."""
    return Measured(
        step_times_s=(step_time_s,) * 3,
        step_time_s=step_time_s,
        step_time_ci_s=(step_time_s * (1 - spread), step_time_s * (1 + spread)),
        tokens_per_s=4096 / step_time_s,
        peak_memory_bytes=peak_memory_bytes,
        peak_memory_bytes_by_rank=(peak_memory_bytes,) * NUM_GPUS,
        source=source,
    )


def trial(number: int, plan: ParallelPlan, outcome: Outcome, reason: str = "a reason") -> Trial:
    """A trial that took ten seconds."""
    return Trial(
        number=number, plan=plan, outcome=outcome, started_at=1e9, wall_s=10.0, reason=reason
    )


def trials() -> tuple[Trial, ...]:
    """PyTorch's default trained in 2 s, DeepSpeed's ran out of memory, Megatron's was not tried."""
    pytorch, deepspeed, megatron = Backend.PYTORCH, Backend.DEEPSPEED, Backend.MEGATRON
    out_of_memory = OutOfMemory(
        rank=2, phase=Phase.FIRST_STEP, message="can't allocate memory:\nyou tried 64 MiB"
    )
    failed = Failed(
        rank=1, phase=Phase.MODEL, error="RuntimeError", message="sizes [4] | [5] differ"
    )
    hung = TimedOut(ranks=(0, 3), phase=Phase.STEPS, limit_s=60.0)
    return (
        trial(0, ParallelPlan(backend=pytorch), measured(2.0), "pytorch's default"),
        trial(1, ParallelPlan(backend=deepspeed), out_of_memory, "deepspeed's default"),
        trial(2, ParallelPlan(backend=megatron, tp=2), failed),
        trial(3, ParallelPlan(backend=pytorch, zero_stage=2, micro_batch=4), measured(1.0)),
        trial(4, ParallelPlan(backend=deepspeed, zero_stage=3), measured(1.5)),
        trial(5, ParallelPlan(backend=megatron, pp=2, precision=Precision.FP32), hung),
    )


def summary_of(*tried: Trial) -> Summary:
    """The summary on four ranks, against the defaults."""
    return summarize(tried, num_gpus=NUM_GPUS, defaults=DEFAULTS)


def study_folder(path: Path, tried: tuple[Trial, ...], *, num_nodes: int = 1) -> StudyFolder:
    """A folder with these trials, each with launch files of its own."""
    folder = StudyFolder(path)
    folder.create()
    job = {
        "num_nodes": num_nodes,
        "gpus_per_node": NUM_GPUS // num_nodes,
        "memory_limit_bytes": LIMIT_BYTES,
        "identity": {"cluster": {"gpu": "h100-sxm-80gb"}},
        "defaults": {},
        "job": {},
    }
    folder.write_json(folder.job_file, job)
    versions = {"torch": "2.13.0", "apex": None}
    environment = {"versions": versions, "host": {"memory_bytes": 2**34}, "gpus": []}
    folder.write_json(folder.environment_file, environment)
    removal = {"rule": "TP-1", "removed": 40, "sentence": "tp must divide num_heads (16)"}
    waterfall = {"num_combinations": 1200, "num_legal": 60, "removed": [removal]}
    folder.write_json(folder.waterfall_file, waterfall)
    for one in tried:
        folder.append(one)
        launch = folder.launch_folder(one.number)
        launch.mkdir()
        (launch / "training.json").write_bytes(json.dumps({"n": one.number}).encode() + b"\r\n")
        (launch / "env.json").write_text('{"OMP_NUM_THREADS": "1", "NOTE": "a b"}')
    return folder
