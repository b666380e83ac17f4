"""Plans, outcomes and comparisons in words, the same in every report; pure."""

from __future__ import annotations

import re
from typing import assert_never

from reports.summary import DefaultPlan, MeasuredTrial, Summary
from tuner.launch import Routing
from tuner.outcome import (
    Failed,
    Measured,
    Outcome,
    OutOfMemory,
    Rejected,
    Source,
    StepsEnd,
    TimedOut,
)
from tuner.plan import Backend, Offload, ParallelPlan, Recompute
from tuner.units import size_text, time_text
from tuner.verification import Verdict

BACKEND_NAMES = {
    Backend.PYTORCH: "PyTorch",
    Backend.DEEPSPEED: "DeepSpeed",
    Backend.MEGATRON: "Megatron-Core",
}
KIND_NAMES = {
    "measured": "trained",
    "out_of_memory": "out of memory",
    "timed_out": "timed out",
    "failed": "failed",
    "rejected": "rejected",
}
BENCH_VALUES = (
    "Set before you train, these are the bench's and not yours: gradient clipping (off), learning "
    "rate (the job's workload.learning_rate, 1e-4 unless given), its schedule (constant), weight "
    "decay (0.01). A --baseline's are not carried over."
)
"""What every launch file says that no plan depends on, and that training does."""
_TORCH_CHECK = re.compile(r"^\[enforce fail at [^\]]*\] (err == 0\. )?")
"""Where in torch's source the CPU allocator gave up: it hides what it could not allocate."""
_SHARDED = {
    0: "nothing sharded",
    1: "optimizer states sharded (ZeRO-1)",
    2: "optimizer states and gradients sharded (ZeRO-2)",
    3: "optimizer states, gradients and parameters sharded (ZeRO-3)",
}
_GROWTH_WORTH_SAYING = 0.02
_WIDEST_TELLING = 0.5
"""An interval wider than this part of its median does not tell plans apart."""
_MOST_TIES = 5
"""Named in one line; the others are counted."""
WITHIN_NOISE = "within the noise of the measurements"
_OFFLOADED = {
    Offload.OPTIMIZER: "optimizer states in host memory",
    Offload.PARAMS: "optimizer states and parameters in host memory",
}


def plan_words(plan: ParallelPlan, num_gpus: int) -> str:
    """A plan as a sentence without a verb, for one who does not know our spellings."""
    degrees = [
        ("data parallel", plan.data_parallel(num_gpus)),
        ("tensor parallel", plan.tp),
        ("pipeline parallel", plan.pp),
        ("context parallel", plan.cp),
        ("expert parallel", plan.ep),
    ]
    layout = " x ".join(f"{name} {degree}" for name, degree in degrees if degree > 1)
    parts = [layout or "no parallelism"]
    if plan.vpp > 1:
        parts.append(f"{plan.vpp} model chunks a stage")
    if plan.sequence_parallel:
        parts.append("sequence parallel")
    parts.append(_SHARDED[plan.zero_stage])
    if plan.dp_replicate > 1:
        parts.append(f"shards replicated {plan.dp_replicate} times")
    parts += [f"micro-batch {plan.micro_batch}", str(plan.precision)]
    if plan.recompute is not Recompute.NONE:
        parts.append(f"{plan.recompute} recompute")
    if plan.offload is not Offload.NONE:
        parts.append(_OFFLOADED[plan.offload])
    return f"{BACKEND_NAMES[plan.backend]} on {num_gpus} ranks: {', '.join(parts)}"


def outcome_words(outcome: Outcome) -> str:
    """What came of a trial, in one line."""
    match outcome:
        case Measured(step_time_s=seconds):
            return f"{time_text(seconds)} a step"
        case OutOfMemory(rank=rank, phase=phase, message=message):
            return f"out of memory (rank {rank}, {phase}): {one_line(message)}"
        case TimedOut(ranks=ranks, phase=phase, limit_s=limit_s):
            names = ", ".join(str(rank) for rank in ranks)
            return f"timed out (ranks {names}, {phase}) after {time_text(limit_s)}"
        case Failed(rank=rank, phase=phase, error=error, message=message):
            return f"failed (rank {rank}, {phase}): {error}: {one_line(message)}"
        case Rejected(reasons=reasons):
            return f"rejected: {one_line('; '.join(reasons))}"
    assert_never(outcome)


def one_line(text: str) -> str:
    """The first line that says something, blanks run together."""
    for line in text.splitlines():
        if words := line.split():
            return _TORCH_CHECK.sub("", " ".join(words))
    return "no message"


def interval_words(measured: Measured) -> str:
    """The step time with its interval."""
    low, high = (time_text(seconds) for seconds in measured.step_time_ci_s)
    return f"{time_text(measured.step_time_s)} (95 % interval {low} to {high})"


def run_words(ranked: MeasuredTrial) -> str:
    """Where the launch files come from: a trial, or the second pass over its settings."""
    if ranked.run is None:
        return f"trial {ranked.number}"
    return f"the second pass of trial {ranked.number} (its run {ranked.run})"


def headroom_words(measured: Measured, limit_bytes: int) -> str:
    """The peak against what a rank may allocate."""
    left = limit_bytes - measured.peak_memory_bytes
    side = "below" if left >= 0 else "above"
    retries = measured.allocator_retries
    unused = measured.reserved_unused_bytes
    return (
        f"{size_text(measured.peak_memory_bytes)} at the peak of the fullest rank, "
        f"{size_text(abs(left))} ({abs(left) / limit_bytes:.0%}) {side} the limit of "
        f"{size_text(limit_bytes)}"
        + (
            f"; at that peak the allocator held up to {size_text(unused)} that no tensor used"
            if unused
            else ""
        )
        + (f"; the allocator freed its cache {retries} times to go on" if retries else "")
    )


def routing_words(routing: Routing | None) -> str | None:
    """Where the tokens of a model with experts went in its trials; None of any other."""
    match routing:
        case None:
            return None
        case "learned":
            return "tokens went where the router sent them (measure.routing: learned)"
        case "worst":
            return (
                "in Megatron-Core's trials all tokens went to the same experts of each layer, the "
                "worst that a router can do (measure.routing: worst)"
            )
    assert_never(routing)


def default_words(default: DefaultPlan) -> str:
    """The best plan against one framework's default."""
    name = f"{BACKEND_NAMES[default.backend]}'s default ({default.plan.label()})"
    if default.speedup is not None:
        mark = " (extrapolated)" if default.source is Source.EXTRAPOLATED else ""
        noise = f", which is {WITHIN_NOISE}" if default.is_tie else ""
        return f"{default.speedup:.2f}x as fast as {name}{mark}{noise}"
    if default.trial is None:
        return f"{name} has not been tried"
    match default.trial.outcome:
        case OutOfMemory():
            return f"{name} ran out of memory"
        case TimedOut():
            return f"{name} timed out"
        case outcome:
            return f"{name} did not run: {outcome_words(outcome)}"


def comparison_words(summary: Summary) -> tuple[str, ...]:
    """The best plan against the median and against each default, a line each."""
    lines = [default_words(default) for default in summary.defaults]
    if summary.speedup_over_median is not None and len(summary.ranking) > 1:
        lines.insert(
            0,
            f"{summary.speedup_over_median:.2f}x as fast as the median of the "
            f"{len(summary.ranking)} plans that trained"
            + (f" ({len(summary.extrapolated)} extrapolated)" if summary.extrapolated else "")
            + (f", which is {WITHIN_NOISE}" if _median_is_near(summary) else ""),
        )
    return tuple(lines)


def throughput_words(summary: Summary, ranked: MeasuredTrial) -> str:
    """Tokens a second, of all and of one rank."""
    return (
        f"{ranked.measured.tokens_per_s:,.0f} tokens/s, "
        f"{summary.tokens_per_s_per_gpu(ranked):,.0f} of each rank"
    )


def _median_is_near(summary: Summary) -> bool:
    best, median_s = summary.best, summary.median_step_time_s
    if best is None or median_s is None or not summary.is_tie:
        return False
    return median_s <= best.measured.step_time_ci_s[1]


def is_too_wide(measured: Measured) -> bool:
    """Whether the interval is too wide to tell the plan from others."""
    low, high = measured.step_time_ci_s
    return high - low > _WIDEST_TELLING * measured.step_time_s


def tie_words(summary: Summary) -> tuple[str, ...]:
    """Why the winner is not certain, where it is not: by the finals, and by the intervals."""
    finalists = {f.trial for f in summary.finals} if not _is_tuned(summary) else set()
    undecided = tuple(r for r in summary.ties if r.number in finalists)
    overlapping = tuple(r for r in summary.ties if r.number not in finalists)
    sentences = []
    if undecided:
        sentences.append(
            f"{_tied_names(undecided)} may be as fast: the finals do not tell them apart; of plans "
            "within 0.5 % the one that needs less memory wins, then the one with fewer knobs turned"
        )
    if overlapping:
        which = "the two intervals overlap" if len(overlapping) == 1 else "the intervals overlap"
        sentences.append(f"{_tied_names(overlapping)} may be as fast: {which}")
    return tuple(sentences)


def _is_tuned(summary: Summary) -> bool:
    return summary.best is not None and bool(summary.best.settings)


def _tied_names(tied: tuple[MeasuredTrial, ...]) -> str:
    names = [_tied_name(ranked) for ranked in tied[:_MOST_TIES]]
    if more := len(tied) - len(names):
        names.append(f"{more} more")
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _tied_name(ranked: MeasuredTrial) -> str:
    known = ranked.plan.label()
    if is_too_wide(ranked.measured):
        low, high = (time_text(seconds) for seconds in ranked.measured.step_time_ci_s)
        known += f"; its interval, {low} to {high}, is too wide to tell"
    return f"trial {ranked.number} ({known}){source_mark(ranked.measured.source)}"


def margin_words(summary: Summary) -> str | None:
    """How far behind the second is; None where there is none."""
    if summary.margin is None or summary.runner_up is None:
        return None
    much, low, high = summary.margin
    how = "in the finals, run in turns" if summary.finals else "by their trials alone"
    return (
        f"trial {summary.runner_up.number} ({summary.runner_up.plan.label()}) takes {much:+.1%} "
        f"(95 % interval {low:+.1%} to {high:+.1%}), {how}"
        f"{source_mark(summary.runner_up.measured.source)}"
    )


def verification_words(summary: Summary) -> str:
    """Whether the winner computes what one rank does."""
    found = summary.verification
    if found is None:
        return "not looked at: paratune verify STUDY"
    depth = f" (on a model of {found.num_layers} layers)" if found.num_layers else ""
    head = {
        Verdict.RIGHT: "it computes what one rank does",
        Verdict.WRONG: "IT DOES NOT COMPUTE what one rank does",
        Verdict.UNKNOWN: "it could not be told",
    }[found.verdict]
    blind = f"; it would not have shown if {' or if '.join(found.blind_to)}"
    return f"{head}{depth}: {found.sentence}{blind if found.blind_to else ''}"


def doubt_words(measured: Measured) -> tuple[str, ...]:
    """What is to be known of a measurement beside its numbers, a sentence each."""
    doubts = [*measured.marks, *measured.unfollowed]
    if measured.short_microbatches:
        low, high, full = measured.short_microbatches
        doubts.append(
            f"extrapolated to a step of {full} micro-batches from steps of {low} and {high}"
        )
    if measured.attempts > 1:
        doubts.append("measured again: other load disturbed the first attempt")
    if measured.outlier_steps:
        doubts.append(
            f"{len(measured.outlier_steps)} of {len(measured.step_times_s)} steps lie far from the "
            "others: the step time leaves them out"
        )
    if measured.steps_end is StepsEnd.SLOWER:
        doubts.append("ended early: slower than the best plan at that time for certain")
    if is_too_wide(measured):
        doubts.append(
            "its 95 % interval is wider than half its step time: too wide to tell plans apart"
        )
    if measured.steps_end in (StepsEnd.MAX_STEPS, StepsEnd.TIME):
        doubts.append("the interval is wider than was asked for when the steps were spent")
    if measured.memory_growth_bytes > _GROWTH_WORTH_SAYING * measured.peak_memory_bytes:
        doubts.append(
            f"its peak memory grew by {size_text(measured.memory_growth_bytes)} after the second "
            "step: try it longer with paratune soak"
        )
    if measured.is_nearly_full:
        doubts.append(f"nearly out of memory: {nearly_full_words(measured)}")
    return tuple(doubts)


def nearly_full_words(measured: Measured) -> str:
    """Why a plan that trained may fail in a longer run."""
    if measured.allocator_retries:
        return f"the allocator had to free its cache {measured.allocator_retries} times to go on"
    left = measured.memory_limit_bytes - measured.peak_memory_bytes
    return f"{size_text(max(0, left))} were left below the limit at its peak"


def trained_words(measured: Measured) -> str:
    """The class of a trial that trained: nearly out of memory is one of its own."""
    return "trained, nearly out of memory" if measured.is_nearly_full else "trained"


def source_mark(source: Source) -> str:
    """What is put beside numbers that were not measured as they stand; nothing beside others."""
    return "" if source is Source.MEASURED else f" ({source})"
