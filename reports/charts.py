"""The report's charts as plotly figures: numbers in, figures out; pure."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from reports.chart_parts import (
    SYMBOLS,
    Figure,
    empty_figure,
    groups,
    marked,
    other_text,
    points,
    ranked_text,
    size_unit,
    time_unit,
)
from reports.report_facts import (
    KnobEffect,
    PlanTerms,
    PredictedTrial,
    best_so_far,
    pareto_front,
    shown_terms,
)
from reports.summary import MeasuredTrial, Summary
from reports.wording import KIND_NAMES
from tuner.outcome import Source
from tuner.plan import Backend
from tuner.units import size_text, time_text

_ACCENT = "#868e96"
_TERM_COLORS = (
    "#1c7ed6",
    "#e8590c",
    "#2b8a3e",
    "#ae3ec9",
    "#c98a00",
    "#0c8599",
    "#e03131",
    "#868e96",
    "#5c940d",
    "#5f3dc4",
    "#c2255c",
    "#74b816",
    "#99e9f2",
    "#ffc078",
)
_LANE = "did not train"
_WIDE_RATIO = 20
"""Values further apart than this are shown on a logarithmic axis."""


def memory_chart(summary: Summary, limit_bytes: int) -> Figure:
    """Throughput against memory with the Pareto front; what did not train in a lane below."""
    size, unit = size_unit([r.measured.peak_memory_bytes for r in summary.ranking])
    figure = empty_figure(460)
    for backend, source, ranked in groups(summary):
        trace = points(
            backend,
            x=[r.measured.peak_memory_bytes / size for r in ranked],
            y=[summary.tokens_per_s_per_gpu(r) for r in ranked],
            text=[ranked_text(r) for r in ranked],
        )
        figure.add_trace(marked(trace, backend, source))
    front = pareto_front(summary.ranking)
    figure.add_scatter(
        x=[r.measured.peak_memory_bytes / size for r in front],
        y=[summary.tokens_per_s_per_gpu(r) for r in front],
        mode="lines",
        name="Pareto front",
        line={"color": _ACCENT, "dash": "dot", "width": 2, "shape": "hv"},
        hoverinfo="skip",
    )
    figure.add_vline(x=limit_bytes / size, line={"color": "#e03131", "dash": "dash", "width": 1})
    figure.add_annotation(
        x=limit_bytes / size,
        y=1,
        yref="y domain",
        text="limit",
        showarrow=False,
        xanchor="right",
        yanchor="top",
        xshift=-4,
    )
    figure.update_xaxes(title_text=f"peak memory, {unit}", rangemode="tozero")
    figure.update_yaxes(title_text="tokens/s of a rank", rangemode="tozero")
    _add_lanes(figure, summary)
    return figure if summary.ranking else _lanes_alone(figure, summary)


def _add_lanes(figure: Figure, summary: Summary) -> None:
    """What did not train has no place in the plane: a lane for each kind, by trial number."""
    if not summary.others:
        return
    kinds = list(dict.fromkeys(trial.outcome.kind for trial in summary.others))
    share = 0.05 + 0.06 * len(kinds)
    figure.update_yaxes(domain=[share + 0.2, 1])
    for backend in Backend:
        others = [trial for trial in summary.others if trial.plan.backend is backend]
        trace = points(
            backend,
            x=[trial.number for trial in others],
            y=[KIND_NAMES[trial.outcome.kind] for trial in others],
            text=[other_text(trial) for trial in others],
        )
        figure.add_trace(
            trace.update(
                xaxis="x2", yaxis="y2", showlegend=False, marker_symbol=f"{SYMBOLS[backend]}-open"
            )
        )
    last = summary.trials[-1].number
    figure.update_layout(
        xaxis={"anchor": "y"},
        xaxis2={
            "anchor": "y2",
            "automargin": True,
            "fixedrange": True,
            "title": {"text": "trial that did not train", "font": {"size": 13}},
            "range": [-0.5, last + 0.5],
            "zeroline": False,
            **({"dtick": 1} if last < 12 else {}),
        },
        yaxis2={
            "domain": [0, share],
            "type": "category",
            "automargin": True,
            "fixedrange": True,
            "range": [-0.6, len(kinds) - 0.4],
        },
        height=500 + 24 * len(kinds),
    )


def _lanes_alone(figure: Figure, summary: Summary) -> Figure:
    """Nothing trained: an empty plane would say nothing."""
    figure.layout.shapes, figure.layout.annotations = (), ()
    figure.update_layout(
        xaxis={"visible": False},
        yaxis={"visible": False, "domain": [0.99, 1]},
        yaxis2={"domain": [0, 0.95]},
        height=110 + 34 * len(summary.counts),
    )
    figure.data = [trace for trace in figure.data if trace.yaxis == "y2"]
    shown: set[str] = set()
    for trace in figure.data:
        if trace.x:
            trace.showlegend = trace.name not in shown
            shown.add(trace.name)
    return figure


def order_chart(summary: Summary) -> Figure:
    """The step time of every trial in order, with the best so far."""
    figure = empty_figure(360)
    scale, unit = time_unit([r.measured.step_time_s for r in summary.ranking])
    for backend, source, ranked in groups(summary):
        trace = points(
            backend,
            x=[r.number for r in ranked],
            y=[r.measured.step_time_s * scale for r in ranked],
            text=[ranked_text(r) for r in ranked],
        )
        figure.add_trace(marked(trace, backend, source))
    steps = best_so_far(summary.trials)
    figure.add_scatter(
        x=[number for number, _ in steps],
        y=[seconds * scale for _, seconds in steps],
        mode="lines",
        name="best so far",
        line={"color": _ACCENT, "width": 2, "shape": "hv"},
        hoverinfo="skip",
    )
    if summary.others:
        figure.add_scatter(
            x=[trial.number for trial in summary.others],
            y=[0.02] * len(summary.others),
            yaxis="y2",
            mode="markers",
            name=_LANE,
            marker={"symbol": "x-thin", "size": 8, "line": {"width": 2, "color": "#e03131"}},
            text=[other_text(trial) for trial in summary.others],
            hovertemplate="%{text}<extra></extra>",
        )
    figure.update_layout(
        yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    )
    last = summary.trials[-1].number if summary.trials else 0
    figure.update_xaxes(title_text="trial", **({"dtick": 1} if last < 12 else {}))
    figure.update_yaxes(title_text=f"step time, {unit}", selector={"overlaying": None})
    times = [r.measured.step_time_s for r in summary.ranking]
    if times and max(times) > _WIDE_RATIO * min(times):
        figure.update_layout(yaxis_type="log")
    else:
        figure.update_layout(yaxis_rangemode="tozero")
    return figure


def knob_chart(effects: Sequence[KnobEffect]) -> Figure:
    """Median step time of every option, with quartiles and the fastest plan."""
    scale, unit = time_unit([o.median_s for effect in effects for o in effect.options])
    rows = [
        (f"{effect.knob} {_option_text(option.option)}", option)
        for effect in effects
        for option in effect.options
    ]
    figure = empty_figure(110 + 22 * len(rows))
    medians = [option.median_s * scale for _, option in rows]
    figure.add_scatter(
        x=medians,
        y=[name for name, _ in rows],
        mode="markers",
        name="median, with quartiles",
        marker={"color": "#1c7ed6", "size": 9},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [max(0, o.quartiles_s[1] - o.median_s) * scale for _, o in rows],
            "arrayminus": [max(0, o.median_s - o.quartiles_s[0]) * scale for _, o in rows],
            "color": "#1c7ed6",
            "thickness": 2,
            "width": 0,
        },
        text=[f"{o.num_plans} plans, median {time_text(o.median_s)}" for _, o in rows],
        hovertemplate="%{y}: %{text}<extra></extra>",
    )
    figure.add_scatter(
        x=[option.fastest_s * scale for _, option in rows],
        y=[name for name, _ in rows],
        mode="markers",
        name="fastest plan",
        marker={"symbol": "line-ns", "size": 12, "line": {"width": 2, "color": "#e8590c"}},
        text=[time_text(o.fastest_s) for _, o in rows],
        hovertemplate="%{y}: fastest %{text}<extra></extra>",
    )
    figure.update_yaxes(autorange="reversed", automargin=True, type="category", dtick=1)
    figure.update_xaxes(title_text=f"step time, {unit}", rangemode="tozero")
    return figure


def prediction_chart(
    measured: Sequence[MeasuredTrial], predictions: Mapping[int, PredictedTrial]
) -> Figure:
    """Predicted against measured step times, all of one source, with the line of equality."""
    both = [(r, predictions[r.number]) for r in measured if r.number in predictions]
    values = [s for r, p in both for s in (r.measured.step_time_s, p.step_time_s)]
    scale, unit = time_unit(values)
    figure = empty_figure(400)
    for backend in Backend:
        own = [(r, p) for r, p in both if r.plan.backend is backend]
        figure.add_trace(
            points(
                backend,
                x=[p.step_time_s * scale for _, p in own],
                y=[r.measured.step_time_s * scale for r, _ in own],
                text=[f"{ranked_text(r)}<br>predicted {time_text(p.step_time_s)}" for r, p in own],
            )
        )
    ends = [min(values) * scale, max(values) * scale] if values else []
    figure.add_scatter(
        x=ends,
        y=ends,
        mode="lines",
        name="equal",
        line={"color": _ACCENT, "dash": "dot"},
        hoverinfo="skip",
    )
    axes = {"type": "log"} if values and max(values) > _WIDE_RATIO * min(values) else {}
    figure.update_xaxes(title_text=f"predicted step time, {unit}", **axes)
    source = both[0][0].measured.source if both else Source.MEASURED
    figure.update_yaxes(title_text=f"{source} step time, {unit}", **axes)
    return figure


def time_terms_chart(plans: Sequence[MeasuredTrial], terms: Mapping[int, PlanTerms]) -> Figure:
    """Predicted seconds of a step by term, a bar a plan."""
    rows = [(_bar_name(r), dict(terms[r.number].time_s)) for r in plans]
    scale, unit = time_unit([sum(values.values()) for _, values in rows])
    return _stacked(rows, scale, f"predicted step time, {unit}", time_text)


def memory_terms_chart(plans: Sequence[MeasuredTrial], terms: Mapping[int, PlanTerms]) -> Figure:
    """Predicted bytes of the fullest rank by term, a bar a plan."""
    rows = [(_bar_name(r), dict(terms[r.number].memory_bytes)) for r in plans]
    size, unit = size_unit([sum(values.values()) for _, values in rows])
    return _stacked(rows, 1 / size, f"predicted peak memory, {unit}", size_text)


def _stacked(
    rows: Sequence[tuple[str, Mapping[str, float]]], scale: float, title: str, words: Any
) -> Figure:
    names = shown_terms([values for _, values in rows])
    figure = empty_figure(110 + 38 * len(rows) + 12 * len(names))  # its legend has two columns
    for index, name in enumerate(names):
        shares = [max(0.0, values.get(name, 0.0)) for _, values in rows]
        figure.add_bar(
            x=[share * scale for share in shares],
            y=[plan for plan, _ in rows],
            orientation="h",
            name=html.escape(name.replace("_", " ")),
            marker={"color": _TERM_COLORS[index % len(_TERM_COLORS)]},
            text=[f"{html.escape(name.replace('_', ' '))}: {words(share)}" for share in shares],
            textposition="none",
            hovertemplate="%{text}<extra></extra>",
        )
    figure.update_layout(barmode="stack", bargap=0.35, legend_traceorder="normal")
    figure.update_yaxes(autorange="reversed", automargin=True, type="category")
    figure.update_xaxes(title_text=title)
    return figure


def _bar_name(ranked: MeasuredTrial) -> str:
    return f"trial {ranked.number}"


def _option_text(option: object) -> str:
    return str(option).lower() if isinstance(option, bool) else html.escape(str(option))
