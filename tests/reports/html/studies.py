"""Study folders that a page must stand: large, small, without an answer, hostile."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from reports.report_facts import PlanTerms, PredictedTrial, ReportExtras
from reports.write import write_reports
from tests.reports.a_study import measured, study_folder, summary_of, trial
from tuner.outcome import Failed, Outcome, OutOfMemory, Phase, Rejected
from tuner.plan import Backend, ParallelPlan, Precision, Recompute
from tuner.study_folder import StudyFolder
from tuner.trial import Trial

HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'&amp;{{7*7}}"
)
"""What a name or a log may hold, whoever wrote it."""
LOG_LINE = "step {n}: the ranks wait for one another at the barrier, which takes a while {n}"


def many_trials(number: int) -> tuple[Trial, ...]:
    """Plans of all frameworks; every fourth ran out of memory, the others have their own time."""
    plans = (
        ParallelPlan(
            backend=backend,
            zero_stage=zero_stage,
            micro_batch=micro_batch,
            tp=tp,
            pp=pp,
            recompute=recompute,
            precision=precision,
        )
        for precision, recompute, pp, tp, micro_batch, zero_stage, backend in product(
            (Precision.BF16, Precision.FP32, Precision.FP16),
            Recompute,
            (1, 2, 4),
            (1, 2, 4),
            (1, 2, 4, 8),
            (0, 1, 2, 3),
            Backend,
        )
    )
    return tuple(
        trial(place, plan, _outcome(place, plan))
        for place, plan in zip(range(number), plans, strict=False)
    )


def _outcome(place: int, plan: ParallelPlan) -> Outcome:
    if place % 4 == 1:
        return OutOfMemory(rank=place % 3, phase=Phase.FIRST_STEP, message="can't allocate memory")
    seconds = 0.4 + 0.15 * plan.tp + 0.2 * plan.pp + 0.5 / plan.micro_batch + (place % 7) / 20
    mebibytes = 60 + 25 * plan.micro_batch + 90 / (1 + plan.zero_stage) / plan.tp + place % 5
    return measured(seconds, peak_memory_bytes=round(mebibytes * 2**20))


def written(
    path: Path, tried: tuple[Trial, ...], extras: ReportExtras | None = None, log: str = ""
) -> Path:
    """The ``report.html`` of a folder with these trials and their logs."""
    folder = study_folder(path, tried)
    for one in tried:
        if log:
            for rank in range(3):
                (folder.trial_folder(one.number) / f"rank-{rank}.log").write_text(log)
    return remade(folder, tried, extras)


def remade(
    folder: StudyFolder, tried: tuple[Trial, ...], extras: ReportExtras | None = None
) -> Path:
    """The ``report.html`` of a folder, written again."""
    write_reports(folder, summary_of(*tried), extras or ReportExtras())
    return folder.path / "report.html"


def all_out_of_memory() -> tuple[Trial, ...]:
    """Five trials, none of which trained."""
    outcome = OutOfMemory(rank=1, phase=Phase.MODEL, message="can't allocate memory: 64 MiB")
    plans = [ParallelPlan(backend=b, zero_stage=z) for b in (*Backend,) for z in (0, 1)]
    return tuple(trial(n, plan, outcome) for n, plan in enumerate(plans[:5]))


def hostile_trials() -> tuple[Trial, ...]:
    """Whatever is free text is hostile."""
    failed = Failed(rank=0, phase=Phase.STEPS, error=HOSTILE, message=HOSTILE)
    return (
        trial(0, ParallelPlan(backend=Backend.PYTORCH), measured(2.0), HOSTILE),
        trial(1, ParallelPlan(backend=Backend.DEEPSPEED), failed, HOSTILE),
        trial(2, ParallelPlan(backend=Backend.MEGATRON), Rejected(reasons=(HOSTILE,)), HOSTILE),
    )


def extras_of(tried: tuple[Trial, ...]) -> ReportExtras:
    """Predictions that are a fifth too low, and terms, of every trial."""
    terms = PlanTerms(
        time_s={"compute": 0.7, "bubble": 0.1, "data_parallel": 0.2},
        memory_bytes={"parameters": 5e7, "activations": 1e8, "logits": 0.0},
    )
    return ReportExtras(
        predictions={
            t.number: PredictedTrial(step_time_s=0.8 + t.number / 50, peak_memory_bytes=1.5e8)
            for t in tried
        },
        terms={t.number: terms for t in tried},
    )
