"""One rank from its start to its report, phase by phase."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, assert_never

import torch
import torch.distributed as dist

from runners.bench.allocator import allocator_settings
from runners.bench.frameworks import import_framework
from runners.bench.launch_folder import LaunchFolder
from runners.bench.measure import Steps, measured_steps
from runners.bench.memory import MemoryMeter, memory_meter
from runners.bench.rank_report import RankReport
from runners.bench.ranks import RankPlace, rank_device, start_process_group
from runners.bench.training import Training
from tuner.framework_settings.table import unfollowed
from tuner.outcome import Phase
from tuner.plan import Backend
from tuner.step_statistics import step_statistics


def run_rank(launch_path: Path, results: Path | None) -> int:
    """Runs this rank whole; 0 when it trained to the end, 1 when it raised."""
    place = RankPlace.from_environment()
    path = None if results is None else results / f"rank-{place.rank}.json"
    report = RankReport(rank=place.rank, path=path)
    report.write()
    meters: list[MemoryMeter] = []
    try:
        result = _trained(LaunchFolder.read(launch_path), place, report, meters)
        report.succeed(result)
    except Exception as error:  # the one place: where a rank dies, its report is what remains
        for meter in meters:
            meter.lift_limit()
        report.fail(error, _memory_at_the_end(meters))
        traceback.print_exc()
        return 1
    if place.rank == 0:
        _print_summary(result)
    return 0


def _memory_at_the_end(meters: list[MemoryMeter]) -> dict[str, Any] | None:
    """None too where the device no longer answers, as after most of CUDA's errors."""
    try:
        return {"peak_bytes": meters[0].peak_bytes(), **meters[0].details()} if meters else None
    except (RuntimeError, OSError, MemoryError):
        return None


def _trained(
    launch: LaunchFolder, place: RankPlace, report: RankReport, meters: list[MemoryMeter]
) -> dict[str, Any]:
    expected = launch.training.num_ranks
    if place.num_ranks != expected:
        raise ValueError(
            f"these launch files are for {expected} ranks, but {place.num_ranks} were started; "
            f"start {expected} (torchrun --nproc-per-node, --nnodes)"
        )
    import_framework(launch.training.backend)
    report.enter(Phase.PROCESS_GROUP)
    device = rank_device(place)
    start_process_group(place, device)
    build = _joined(launch, device)
    dist.barrier()
    report.enter(Phase.MODEL)
    if launch.training.backend is not Backend.MEGATRON:
        from runners.bench.hf_model import import_model

        import_model(launch)
    meters.append(memory_meter(device, launch.training.memory_limit_bytes))
    report.memory = meters[0].details()
    report.write()
    torch.manual_seed(launch.training.seed)
    training = build()
    report.enter(Phase.FIRST_STEP)
    return _measured(launch, training, device, report, meters[0])


def _joined(launch: LaunchFolder, device: torch.device) -> Callable[[], Training]:
    """What builds the model, once the framework's groups are joined. Collective.

    They are joined before memory is limited, for they are not the plan's. The threads of each
    gloo group have stacks of 8 MiB, which RLIMIT_DATA counts although they are never touched; a
    thread that cannot start there ends the process without an exception, or lets it wait.
    """
    backend = launch.training.backend
    if backend is Backend.MEGATRON:
        from runners.bench.megatron_groups import start_megatron_groups

        start_megatron_groups(launch, device)
    if launch.training.reference is not None:
        return partial(_reference, launch, device)
    match backend:
        case Backend.PYTORCH:
            from runners.bench.pytorch_training import pytorch_layout, pytorch_training

            return partial(pytorch_training, launch, pytorch_layout(launch, device))
        case Backend.DEEPSPEED:
            from runners.bench.deepspeed_training import deepspeed_training, join_deepspeed

            join_deepspeed(device)
            return partial(deepspeed_training, launch, device)
        case Backend.MEGATRON:
            from runners.bench.megatron_training import megatron_training

            return partial(megatron_training, launch, device)
        case _:
            assert_never(backend)


def _reference(launch: LaunchFolder, device: torch.device) -> Training:
    """One rank that a plan is held against; its backend says whose model it trains."""
    from runners.bench.reference import PlainTorchModel, ReferenceTraining

    if launch.training.backend is Backend.MEGATRON:
        from runners.bench.megatron_reference import PlainMegatronModel

        return ReferenceTraining(launch, PlainMegatronModel(launch, device), device)
    return ReferenceTraining(launch, PlainTorchModel(launch, device), device)


def _measured(
    launch: LaunchFolder,
    training: Training,
    device: torch.device,
    report: RankReport,
    meter: MemoryMeter,
) -> dict[str, Any]:
    begin = time.perf_counter()
    steps = measured_steps(
        training, launch.training, device, meter, lambda: report.enter(Phase.STEPS)
    )
    effective = training.effective()
    running = effective.get("settings", {}) | allocator_settings(device)
    return {
        "warmup_times_s": steps.times_s[: steps.num_warmup],
        "step_times_s": steps.times_s[steps.num_warmup :],
        "steps_end": steps.end,
        "steps_wall_s": time.perf_counter() - begin,
        "losses": steps.losses,
        "short_steps": _short_record(launch, steps),
        "peak_memory_bytes": meter.peak_bytes() + _unseen_bytes(launch, training),
        "memory_growth_bytes": steps.memory_growth_bytes,
        "memory": meter.details(),
        "load": steps.load,
        "effective": effective,
        "settings": running,
        "unfollowed": unfollowed(launch.training.settings, running),
        "tokens_per_step": launch.training.seq_len * launch.training.global_batch_sequences,
        "torch_version": torch.__version__,
    }


def _short_record(launch: LaunchFolder, steps: Steps) -> dict[str, Any] | None:
    """What full steps were extrapolated from; None = they ran."""
    short = launch.training.short_steps
    return None if short is None else {**asdict(short), "times_s": steps.pairs}


def _unseen_bytes(launch: LaunchFolder, training: Training) -> int:
    """Of micro-batches that short steps left out."""
    short = launch.training.short_steps
    return 0 if short is None else (short.full - short.high) * training.bytes_of_microbatch()


def _print_summary(result: dict[str, Any]) -> None:
    """One line for a launch by hand; the report file holds everything."""
    times = result["step_times_s"]
    step_time_s = step_statistics(times).level_s
    tokens_per_s = result["tokens_per_step"] / step_time_s
    print(  # noqa: T201  # what torchrun shows to a person
        f"paratune bench: step_time_s={step_time_s:.4f} (mean of {len(times)}) "
        f"tokens_per_s={tokens_per_s:.1f} peak_memory_bytes={result['peak_memory_bytes']} "
        f"loss={result['losses'][0]:.4f}->{result['losses'][-1]:.4f}",
        flush=True,
    )
