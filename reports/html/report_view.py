"""All that ``report.html`` says, as text and figures in the order of the page; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reports.charts import (
    knob_chart,
    memory_chart,
    memory_terms_chart,
    order_chart,
    prediction_chart,
    time_terms_chart,
)
from reports.html.answer_view import Answer, answer_view
from reports.html.baseline_view import BaselineView, baseline_view
from reports.html.framework_view import FrameworkCard, framework_cards
from reports.html.second_pass_view import second_pass_table
from reports.html.table_view import Column, Table
from reports.html.trial_view import TrialRow, trial_rows
from reports.report_facts import (
    KnobEffect,
    ReportExtras,
    flattened,
    knob_effects,
    pareto_front,
    shown_terms,
)
from reports.study_facts import StudyFacts, ranks_words, refused_words
from reports.study_files import StudyFiles
from reports.summary import MeasuredTrial, Summary
from reports.wording import KIND_NAMES, source_mark
from tuner.outcome import Source
from tuner.plan import Backend, ParallelPlan
from tuner.units import size_text, time_text

_BARS = 5
"""Plans whose terms are shown, beside the best of each framework."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure with the words for those who do not see it."""

    id: str
    figure: Any
    description: str
    caption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportView:
    """The page's content; a section without content is None or empty, and is left out."""

    title: str
    source: Source
    mark: str
    """Beside every number that is not measured."""
    answer: Answer
    baseline: BaselineView | None
    second_pass: Table | None
    memory: Chart | None
    frameworks: tuple[FrameworkCard, ...]
    knobs: Chart | None
    knob_table: Table | None
    predicted_knobs: Table | None
    predicted: Chart | None
    terms: tuple[Chart, ...]
    terms_tables: tuple[Table, ...]
    order: Chart | None
    has_extrapolated: bool
    """Whether the table of trials has columns for extrapolated numbers."""
    trials: tuple[TrialRow, ...]
    kinds: tuple[tuple[str, str], ...]
    """Outcomes that occur: kind and words, for the filter."""
    backends: tuple[str, ...]
    """Names of the frameworks that were tried."""
    waterfall_words: str
    waterfall: Table
    environment_words: str
    environment: Table

    @property
    def charts(self) -> tuple[Chart, ...]:
        """All, for the script that draws them."""
        single = (self.memory, self.knobs, self.predicted, self.order)
        return (*(chart for chart in single if chart is not None), *self.terms)


def report_view(
    summary: Summary, facts: StudyFacts, study: StudyFiles, extras: ReportExtras
) -> ReportView:
    """The content of the report of one study."""
    mark = source_mark(summary.source)
    known, source = _knob_sample(summary)
    measured = knob_effects([(r.plan, r.measured.step_time_s) for r in known])
    terms, terms_tables = _terms(summary, extras)
    return ReportView(
        title=f"The fastest plan of {facts.path.absolute().name}",
        source=summary.source,
        mark=mark,
        answer=answer_view(summary, facts, study),
        baseline=baseline_view(summary),
        second_pass=second_pass_table(summary),
        memory=_memory(summary, facts),
        frameworks=framework_cards(summary, facts, study),
        knobs=_knobs(measured),
        knob_table=_knob_table(measured, str(source)),
        predicted_knobs=_predicted_knobs(summary, extras),
        predicted=_predicted(summary, extras),
        terms=terms,
        terms_tables=terms_tables,
        order=_order(summary),
        has_extrapolated=bool(summary.extrapolated),
        trials=trial_rows(summary, study),
        kinds=tuple((kind, KIND_NAMES[kind]) for kind, _ in summary.counts),
        backends=tuple(dict.fromkeys(str(t.plan.backend) for t in summary.trials)),
        waterfall_words=refused_words(facts),
        waterfall=_waterfall(facts),
        environment_words=ranks_words(facts),
        environment=_environment(facts),
    )


def _knob_sample(summary: Summary) -> tuple[tuple[MeasuredTrial, ...], Source]:
    """The trials of one source, the one that has more: ratios across sources would mislead."""
    if len(summary.extrapolated) > len(summary.measured):
        return summary.extrapolated, Source.EXTRAPOLATED
    return summary.measured, summary.source


def _memory(summary: Summary, facts: StudyFacts) -> Chart | None:
    if not summary.trials:
        return None
    front = pareto_front(summary.ranking)
    description = (
        f"{len(summary.ranking)} plans that trained, by throughput and peak memory; "
        f"{len(front)} of them are on the Pareto front, from "
        f"{size_text(front[0].measured.peak_memory_bytes)} to "
        f"{size_text(front[-1].measured.peak_memory_bytes)}; {len(summary.others)} did not train."
        if front
        else f"No plan trained; {len(summary.others)} trials did not."
    )
    if not front:
        caption = "No plan trained: each trial stands in the lane of what came of it."
    else:
        caption = (
            "Up and to the left is better. No other plan is both faster and smaller than one on "
            "the Pareto front. What did not train has no place here: it stands below, by the "
            "number of its trial. Memory is that of the fullest rank."
        )
    return Chart(
        id="chart-memory",
        figure=memory_chart(summary, facts.memory_limit_bytes),
        description=description,
        caption=caption,
    )


def _order(summary: Summary) -> Chart | None:
    if not summary.ranking:
        return None
    best = summary.ranking[0]
    return Chart(
        id="chart-order",
        figure=order_chart(summary),
        description=f"Step times of {len(summary.trials)} trials in order; the best, "
        f"{time_text(best.measured.step_time_s)}, was found in trial {best.number}.",
        caption=f"The best plan was found in trial {best.number} of {len(summary.trials)}.",
    )


def _knobs(effects: Sequence[KnobEffect]) -> Chart | None:
    if not effects:
        return None
    return Chart(
        id="chart-knobs",
        figure=knob_chart(effects),
        description=f"Step times by option of {len(effects)} knobs; the same numbers are in the "
        "table below.",
        caption="The median of all plans with an option, with their quartiles, and the fastest "
        "of them. Other knobs differ too: where pairs of plans differ in one knob alone, the "
        "table says what it does.",
    )


def _knob_table(effects: Sequence[KnobEffect], source: str) -> Table | None:
    if not effects:
        return None
    return Table(
        caption=f"Step times by option ({source})",
        columns=(
            Column(title="knob"),
            Column(title="option"),
            Column(title="plans", numeric=True),
            Column(title="median step time", numeric=True),
            Column(title="fastest", numeric=True),
            Column(title="all else equal"),
        ),
        rows=tuple(row for effect in effects for row in _knob_rows(effect)),
    )


def _knob_rows(effect: KnobEffect) -> tuple[tuple[str, ...], ...]:
    first = _option(effect.options[0].option)
    return tuple(
        (
            effect.knob,
            _option(option.option),
            str(option.num_plans),
            time_text(option.median_s),
            time_text(option.fastest_s),
            "" if place == 0 else _pairs(option.num_pairs, option.pair_speedup, first),
        )
        for place, option in enumerate(effect.options)
    )


def _pairs(num_pairs: int, speedup: float | None, first: str) -> str:
    if speedup is None:
        return f"not tried against {first}"
    plural = "pair" if num_pairs == 1 else "pairs"
    return f"{speedup:.2f}x as fast as {first} ({num_pairs} {plural})"


def _option(option: object) -> str:
    return str(option).lower() if isinstance(option, bool) else str(option)


def _predicted_knobs(summary: Summary, extras: ReportExtras) -> Table | None:
    timed: list[tuple[ParallelPlan, float]] = [
        (trial.plan, extras.predictions[trial.number].step_time_s)
        for trial in summary.trials
        if trial.number in extras.predictions
    ]
    return _knob_table(knob_effects(timed), "predicted")


def _predicted(summary: Summary, extras: ReportExtras) -> Chart | None:
    if summary.source is Source.SIMULATED:
        return None  # a simulated number is a prediction: there is nothing to compare
    known, source = _knob_sample(summary)
    both = [r for r in known if r.number in extras.predictions]
    if not both:
        return None
    errors = sorted(
        abs(extras.predictions[r.number].step_time_s / r.measured.step_time_s - 1) for r in both
    )
    middle = errors[len(errors) // 2]
    words = (
        f"The prediction of {len(both)} of {len(summary.ranking)} plans that trained was kept; "
        f"its median error is {middle:.0%} of the {source} step time."
    )
    return Chart(
        id="chart-predicted",
        figure=prediction_chart(both, extras.predictions),
        description=words,
        caption=f"{words} Above the line a plan was slower than predicted.",
    )


def _terms(summary: Summary, extras: ReportExtras) -> tuple[tuple[Chart, ...], tuple[Table, ...]]:
    best = [r for b in Backend if (r := summary.best_of(b)) is not None]
    numbers = {r.number for r in (*summary.ranking[:_BARS], *best)} & set(extras.terms)
    plans = [r for r in summary.ranking if r.number in numbers]
    if not plans:
        return (), ()
    time = Chart(
        id="chart-time-terms",
        figure=time_terms_chart(plans, extras.terms),
        description="Predicted seconds of a step by term; the same numbers are in a table below.",
        caption="Where the time of a step should go: predicted, not measured.",
    )
    memory = Chart(
        id="chart-memory-terms",
        figure=memory_terms_chart(plans, extras.terms),
        description="Predicted bytes of the fullest rank by term; the same numbers are in a table "
        "below.",
        caption="Where the memory of the fullest rank should go: predicted, not measured.",
    )
    times = {r.number: extras.terms[r.number].time_s for r in plans}
    sizes = {r.number: extras.terms[r.number].memory_bytes for r in plans}
    return (time, memory), (
        _terms_table("Time of a step by term, predicted", plans, times, time_text),
        _terms_table("Memory of the fullest rank by term, predicted", plans, sizes, size_text),
    )


def _terms_table(
    caption: str,
    plans: Sequence[MeasuredTrial],
    values: Mapping[int, Mapping[str, float]],
    words: Any,
) -> Table:
    rows = [
        (name.replace("_", " "), *(words(max(0.0, values[r.number].get(name, 0.0))) for r in plans))
        for name in shown_terms([values[r.number] for r in plans])
    ]
    totals = ("in all", *(words(sum(values[r.number].values())) for r in plans))
    return Table(
        caption=caption,
        columns=(
            Column(title="term"),
            *(Column(title=f"trial {r.number}: {r.plan.label()}", numeric=True) for r in plans),
        ),
        rows=(*rows, totals),
    )


def _waterfall(facts: StudyFacts) -> Table:
    return Table(
        caption="Combinations that each rule removed",
        columns=(
            Column(title="rule", code=True),
            Column(title="removed", numeric=True),
            Column(title="what must hold"),
        ),
        rows=tuple(
            (str(r["rule"]), f"{r['removed']:,}", str(r["sentence"]))
            for r in facts.waterfall["removed"]
        ),
    )


def _environment(facts: StudyFacts) -> Table:
    return Table(
        caption="Versions and devices",
        columns=(Column(title="what"), Column(title="value")),
        rows=tuple(flattened(facts.environment)),
    )
