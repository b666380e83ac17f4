"""Optimizer steps, timed between barriers; the slowest rank counts, and one rank decides."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from runners.bench.interference import LoadMeter
from runners.bench.launch_folder import TrainingFile
from runners.bench.memory import MemoryMeter
from runners.bench.training import Training
from tuner.outcome import StepsEnd
from tuner.short_steps import ShortSteps, short_steps_end
from tuner.step_statistics import StepsRule, steps_end

_GOES_ON = -1
_ENDS = list(StepsEnd)
_SHORTEST_S = 1e-6
"""No optimizer step is shorter; a barrier alone takes longer."""


@dataclass(slots=True)
class Steps:
    """All steps of a trial, the warm-up included; the same on every rank."""

    times_s: list[float] = field(default_factory=list)
    """Of full steps; where ``pairs`` are there, each follows from one of them."""
    pairs: list[tuple[float, float]] = field(default_factory=list)
    """Seconds of short steps, the shorter and the longer of each pair."""
    losses: list[float] = field(default_factory=list)
    peaks_bytes: list[int] = field(default_factory=list)
    """Of this rank, after each step."""
    load: dict[str, Any] = field(default_factory=dict)
    """What this rank can tell of other load during the steps."""
    num_warmup: int = 0
    end: StepsEnd = StepsEnd.FIXED

    @property
    def memory_growth_bytes(self) -> int:
        """Of the peak since the second step, when all optimizer states are there."""
        second = 3 if self.pairs else 1  # of pairs, the end of the second
        return self.peaks_bytes[-1] - self.peaks_bytes[min(second, len(self.peaks_bytes) - 1)]


def measured_steps(
    training: Training,
    file: TrainingFile,
    device: torch.device,
    meter: MemoryMeter,
    on_first_step: Callable[[], None],
) -> Steps:
    """Steps until the step time is known well enough. Collective.

    Raises:
        FloatingPointError: the loss is not a finite number.
        ValueError: a step took no time, or less.
    """
    steps = Steps()
    load: LoadMeter | None = None
    while True:
        steps.times_s.append(_next_step_s(training, steps, file.short_steps, device, meter))
        if load is None:
            on_first_step()
            load = LoadMeter(device)
        load.look()
        if (end := _agreed_end(steps, file, device)) is not None:
            steps.end, steps.num_warmup = end
            steps.load = load.record()
            if file.short_steps is not None:
                training.run_microbatches(file.short_steps.full)
            return steps


def _next_step_s(
    training: Training,
    steps: Steps,
    short: ShortSteps | None,
    device: torch.device,
    meter: MemoryMeter,
) -> float:
    """Seconds of the next full step: of one that runs, or by a pair of short ones."""
    if short is None:
        return _run_step(training, steps, device, meter)
    # Every other pair backwards, so that a machine that grows slower favours neither.
    counts = [short.low, short.high][:: -1 if len(steps.pairs) % 2 else 1]
    seconds = {}
    for count in counts:
        training.run_microbatches(count)
        seconds[count] = _run_step(training, steps, device, meter)
    steps.pairs.append((seconds[short.low], seconds[short.high]))
    return short.full_step_s(*steps.pairs[-1])


def _run_step(training: Training, steps: Steps, device: torch.device, meter: MemoryMeter) -> float:
    index = len(steps.losses)
    seconds = timed_step(training, index, device)
    steps.losses.append(_finite(training.loss(), index))
    steps.peaks_bytes.append(meter.peak_bytes())
    return _positive(slowest([seconds], device)[0], index)


def timed_step(training: Training, index: int, device: torch.device) -> float:
    """Seconds of this step on this rank, from a barrier to the end of its own work."""
    _synchronize(device)
    dist.barrier()
    start = time.perf_counter()
    training.step(index)
    _synchronize(device)
    return time.perf_counter() - start


def slowest(seconds: list[float], device: torch.device) -> tuple[float, ...]:
    """The largest over all ranks, element by element."""
    times = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return tuple(times.tolist())


def _agreed_end(
    steps: Steps, file: TrainingFile, device: torch.device
) -> tuple[StepsEnd, int] | None:
    """Whether that was the last step, and how many were warm-up: rank 0 decides for all.

    Ranks that judged for themselves would part for ever at the first one that rounds differently.
    """
    if file.measurement is None:
        is_last = len(steps.times_s) == file.warmup_steps + file.steps
        return (StepsEnd.FIXED, file.warmup_steps) if is_last else None
    decided = [_GOES_ON, 0]
    if dist.get_rank() == 0 and (end := _own_end(steps, file)) is not None:
        decided = [_ENDS.index(end[0]), end[1]]
    message = torch.tensor(decided, dtype=torch.int64, device=device)
    dist.broadcast(message, src=0)
    end_index, num_warmup = (int(value) for value in message.tolist())
    return None if end_index == _GOES_ON else (_ENDS[end_index], num_warmup)


def _own_end(steps: Steps, file: TrainingFile) -> tuple[StepsEnd, int] | None:
    rule = steps_rule(file)
    if file.short_steps is None:
        return steps_end(steps.times_s, rule)
    return short_steps_end(steps.pairs, file.short_steps, rule)


def steps_rule(file: TrainingFile) -> StepsRule:
    """What ``training.json`` asks of the steps."""
    adaptive = file.measurement
    assert adaptive is not None, "only of adaptive measuring"
    return StepsRule(
        warmup_steps=file.warmup_steps,
        steps=file.steps,
        max_steps=adaptive.max_steps,
        relative_half_width=adaptive.relative_half_width,
        incumbent_step_time_s=adaptive.incumbent_step_time_s,
        time_s=adaptive.time_s,
    )


def _finite(loss: float, index: int) -> float:
    if not math.isfinite(loss):
        raise FloatingPointError(
            f"the loss must be a finite number, got {loss} in step {index} (from 0): a plan that "
            "computes this trains nothing, however fast; try another precision or a smaller "
            "workload.learning_rate"
        )
    return loss


def _positive(seconds: float, index: int) -> float:
    """Steps of no time would win every comparison."""
    if not (math.isfinite(seconds) and seconds >= _SHORTEST_S):
        raise ValueError(
            f"a step must take a positive time, got {seconds:g} s for step {index} (from 0): the "
            "clock has jumped, or the step does nothing"
        )
    return seconds


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
