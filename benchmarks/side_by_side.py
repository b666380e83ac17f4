"""A rank that runs full steps and pairs of short ones in turns; apart, so that it forks fast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SHORT_SHARE = 0.2
"""Of the seconds of full steps, so many go into short ones: all through, whatever a pair takes, for
the machine's pace changes over minutes and must meet both kinds."""


def run_both(launch: Path, folder: Path, rank: int, env: dict[str, str], mistake: str = "") -> None:
    """As the product's rank runs, but for which steps it runs."""
    import runners.bench.rank as bench_rank
    from tests.runners.forked_rank import run_forked_rank

    bench_rank.measured_steps = both_kinds_of_steps  # type: ignore[attr-defined]  # imported there
    run_forked_rank(launch, folder, rank, env, mistake)


def both_kinds_of_steps(
    training: Any, file: Any, device: Any, meter: Any, on_first_step: Any
) -> Any:
    """Full steps as long as they may run, in ``times_s``, and pairs between them."""
    from runners.bench.measure import Steps, _next_step_s, _run_step

    steps = Steps()
    for number in range(1 + file.measurement.max_steps):
        training.run_microbatches(file.short_steps.full)
        steps.times_s.append(_run_step(training, steps, device, meter))
        if number == 0:
            on_first_step()
        while sum(map(sum, steps.pairs)) < SHORT_SHARE * sum(steps.times_s):
            _next_step_s(training, steps, file.short_steps, device, meter)
        if sum(steps.times_s) >= file.measurement.time_s:
            break
    training.run_microbatches(file.short_steps.full)
    return steps
