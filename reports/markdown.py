"""The text of ``report.md``: the answer first, then all that it rests on; pure."""

from __future__ import annotations

from reports.answer_wording import answer_lines
from reports.baseline_markdown import baseline_section
from reports.launch_commands import torchrun_command
from reports.markdown_table import markdown_table
from reports.report_facts import flattened, root_rank
from reports.second_pass_markdown import second_pass_section
from reports.study_facts import StudyFacts, ranks_words, refused_words
from reports.summary import MeasuredTrial, Summary
from reports.wording import (
    BACKEND_NAMES,
    KIND_NAMES,
    default_words,
    doubt_words,
    interval_words,
    one_line,
    outcome_words,
    plan_words,
    source_mark,
    trained_words,
)
from tuner.launch import ENVIRONMENT_FILE
from tuner.outcome import Measured, Source
from tuner.plan import Backend
from tuner.trial import Trial
from tuner.units import size_text, time_text


def report_text(summary: Summary, facts: StudyFacts) -> str:
    """The whole report."""
    sections = (
        _answer(summary, facts),
        baseline_section(summary),
        _frameworks(summary),
        _trials(summary),
        _finals(summary),
        second_pass_section(summary),
        _doubts(summary),
        _failures(summary),
        _waterfall(facts),
        _environment(facts),
        _reproduce(facts),
        _numbers(summary),
    )
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _answer(summary: Summary, facts: StudyFacts) -> list[str]:
    title = f"# The fastest plan of {facts.path.name}{source_mark(summary.source)}"
    best = summary.best
    if best is None:
        return [title, "", f"None: no plan has trained ({_counts(summary)})."]
    lines = [
        title,
        "",
        f"**`{best.plan.label()}`** - {plan_words(best.plan, summary.num_gpus)}.",
        "",
        *(
            f"- {line.name}: {one_line(sentence)}."
            for line in answer_lines(summary, facts)
            for sentence in line.sentences
        ),
    ]
    return [*lines, "- Launch it: the files and the command are in [best/](best/README.md)."]


def _counts(summary: Summary) -> str:
    counts = (f"{number} {KIND_NAMES[kind]}" for kind, number in summary.counts)
    return ", ".join(counts) or "no trials"


def _frameworks(summary: Summary) -> list[str]:
    header = (
        "framework",
        "best plan",
        *_number_names(summary, "step time", "tokens/s of a rank"),
        f"peak memory{source_mark(summary.source)}",
        "trials",
        "the best plan of all is",
    )
    rows = [_framework_row(summary, backend) for backend in Backend]
    return ["## The frameworks side by side", "", *markdown_table(header, rows)]


def _framework_row(summary: Summary, backend: Backend) -> tuple[str, ...]:
    tried = [trial for trial in summary.trials if trial.plan.backend is backend]
    ran = sum(isinstance(trial.outcome, Measured) for trial in tried)
    last = (
        f"{len(tried)} tried, {ran} trained",
        "; ".join(default_words(d) for d in summary.defaults if d.backend is backend),
    )
    best = summary.best_of(backend)
    if best is None:
        blank = ("",) * len(_number_names(summary, "", ""))
        return (BACKEND_NAMES[backend], "none trained", *blank, "", *last)
    return (
        BACKEND_NAMES[backend],
        f"`{best.plan.label()}`",
        *_number_cells(
            summary,
            best,
            interval_words(best.measured),
            f"{summary.tokens_per_s_per_gpu(best):,.0f}",
        ),
        size_text(best.measured.peak_memory_bytes),
        *last,
    )


def _number_names(summary: Summary, *names: str) -> tuple[str, ...]:
    """Of columns; extrapolated numbers have their own, where there are any."""
    marks = [source_mark(summary.source)]
    marks += [source_mark(Source.EXTRAPOLATED)] if summary.extrapolated else []
    return tuple(f"{name}{mark}" for mark in marks for name in names)


def _number_cells(summary: Summary, ranked: MeasuredTrial, *cells: str) -> tuple[str, ...]:
    """Under ``_number_names``."""
    blank = ("",) * len(cells)
    if not summary.extrapolated:
        return cells
    is_extrapolated = ranked.measured.source is Source.EXTRAPOLATED
    return (*blank, *cells) if is_extrapolated else (*cells, *blank)


def _trials(summary: Summary) -> list[str]:
    names = _number_names(summary, "step time", "tokens/s")
    header = (
        "trial",
        "plan",
        "outcome",
        *names,
        f"peak memory{source_mark(summary.source)}",
        "took",
        "why tried",
    )
    ranked = [_ranked_row(summary, r) for r in summary.ranking]
    others = [
        (*_trial_cells(trial), *("",) * len(names), "", time_text(trial.wall_s), trial.reason)
        for trial in summary.others
    ]
    title = f"## All {len(summary.trials)} trials, the fastest first"
    return [title, "", f"{_counts(summary)}.", "", *markdown_table(header, [*ranked, *others])]


def _ranked_row(summary: Summary, ranked: MeasuredTrial) -> tuple[str, ...]:
    measured = ranked.measured
    return (
        *_trial_cells(ranked.trial)[:2],
        trained_words(measured),
        *_number_cells(
            summary, ranked, time_text(measured.step_time_s), f"{measured.tokens_per_s:,.0f}"
        ),
        size_text(measured.peak_memory_bytes),
        time_text(ranked.trial.wall_s),
        ranked.trial.reason,
    )


def _trial_cells(trial: Trial) -> tuple[str, str, str]:
    return (str(trial.number), f"`{trial.plan.label()}`", KIND_NAMES[trial.outcome.kind])


def _finals(summary: Summary) -> list[str]:
    """The best plans, run again in turns."""
    if not summary.finals:
        return []
    by_trial = {ranked.number: ranked for ranked in summary.ranking}
    rows = [
        (
            *_trial_cells(by_trial[finalist.trial].trial)[:2],
            interval_words(finalist.measured),
            "the fastest"
            if finalist.behind is None
            else f"{finalist.behind[0]:+.1%} to {finalist.behind[1]:+.1%}",
        )
        for finalist in summary.finals
    ]
    header = ("trial", "plan", "step time", "behind the fastest (95 % interval)")
    return ["## The finals: the best, run again in turns", "", *markdown_table(header, rows)]


def _doubts(summary: Summary) -> list[str]:
    """What is to be known of trials that trained, beside their numbers."""
    lines = [
        f"- Trial {ranked.number}, `{ranked.plan.label()}`: {'; '.join(doubts)}."
        for ranked in summary.ranking
        if (doubts := doubt_words(ranked.measured))
    ]
    return ["## What to know of these measurements", "", *lines] if lines else []


def _failures(summary: Summary) -> list[str]:
    if not summary.others:
        return []
    lines = ["## What did not train, and why", ""]
    for trial in summary.others:
        reason = outcome_words(trial.outcome)
        lines.append(f"- Trial {trial.number}, `{trial.plan.label()}`: {reason}")
        if (rank := root_rank(trial.outcome)) is not None and summary.source is Source.MEASURED:
            lines.append(f"  - log: `trials/{trial.number:04d}/rank-{rank}.log`")
    return lines


def _waterfall(facts: StudyFacts) -> list[str]:
    lines = [
        "## Which plans were refused before a trial",
        "",
        refused_words(facts),
        "",
    ]
    rows = [
        (str(r["rule"]), f"{r['removed']:,}", str(r["sentence"]))
        for r in facts.waterfall["removed"]
    ]
    return [*lines, *markdown_table(("rule", "removed", "what must hold"), rows)]


def _environment(facts: StudyFacts) -> list[str]:
    rows = list(flattened(facts.environment))
    return ["## Environment", "", ranks_words(facts), "", *markdown_table(("what", "value"), rows)]


def _reproduce(facts: StudyFacts) -> list[str]:
    command = " ".join(
        torchrun_command(
            "trials/NNNN/launch",
            num_nodes=facts.num_nodes,
            gpus_per_node=facts.gpus_per_node,
            env={},
        )
    )
    env_words = f"with the variables of its `trials/NNNN/launch/{ENVIRONMENT_FILE}` set, "
    return [
        "## Go on, or do it again",
        "",
        f"- Go on with more trials: `paratune tune JOB.yaml --study {facts.path} --trials N`, with "
        "the same job file; trials that are here are not run again.",
        "- Do it again: the same command with another folder; the job as resolved is in "
        "[job.json](job.json).",
        f"- Make this report again: `paratune report {facts.path}`.",
        f"- One trial alone: {env_words}`{command}`.",
    ]


def _numbers(summary: Summary) -> list[str]:
    lines = ["## Where the numbers come from", ""]
    if summary.source is Source.SIMULATED:
        return [
            *lines,
            "All step times, speeds and memory peaks here are simulated: predictions of the cost "
            "model. Nothing was started.",
        ]
    if summary.extrapolated:
        lines += [
            "Step times and speeds marked as extrapolated are of trials that ran steps of few "
            "micro-batches, two counts in turn: the time of a step is affine in their number. Who "
            "led by such a number ran full steps at the end, and stands among the measured.",
            "",
        ]
    what = "All other step times and speeds" if summary.extrapolated else "All step times, speeds"
    return [
        *lines,
        f"{what} and memory peaks here are measured: real optimizer steps, each "
        "from barrier to barrier and as long as on its slowest rank; the mean after the "
        "warm-up, without outliers, with its 95 % interval; memory at the peak of the fullest "
        f"rank. {_predicted_words(summary)}",
    ]


def _predicted_words(summary: Summary) -> str:
    if summary.baseline is not None and summary.baseline.bought:
        return "Only what the changes from your configuration should have bought is predicted."
    return "Nothing in this report is predicted."
