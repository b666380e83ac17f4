"""What the report's charts have in common: colours, an empty figure, points, texts, units; pure.

Text and grid take their colours from the page, so that a figure is legible on light and on dark.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from reports.summary import MeasuredTrial, Summary
from reports.wording import BACKEND_NAMES, outcome_words, source_mark
from tuner.outcome import Measured, Source
from tuner.plan import Backend
from tuner.trial import Trial
from tuner.units import GIB, MIB, size_text, time_text

_COLORS = {
    Backend.PYTORCH: "#d9480f",
    Backend.DEEPSPEED: "#1c7ed6",
    Backend.MEGATRON: "#2b8a3e",
}
SYMBOLS = {Backend.PYTORCH: "circle", Backend.DEEPSPEED: "square", Backend.MEGATRON: "diamond"}
"""A framework is told by its shape as well as by its colour."""
_HOVER_CHARS = 160

Figure = Any
"""plotly's own figure: its package has no types."""


def empty_figure(height: int) -> Figure:
    """Axes and legend alike in all charts; ``height`` in pixels."""
    figure = go.Figure()
    axis = {
        "title": {"font": {"size": 13}},
        "automargin": True,
        "ticks": "outside",
        "zeroline": False,
        "fixedrange": True,
    }
    figure.update_layout(
        template=go.layout.Template(),
        height=height,
        margin={"l": 10, "r": 16, "t": 10, "b": 10},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hovermode="closest",
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        xaxis=axis,
        yaxis=axis,
        font={"family": "system-ui, sans-serif", "size": 13},
    )
    return figure


def points(
    backend: Backend, *, x: Sequence[float], y: Sequence[float | str], text: Sequence[str]
) -> Any:
    """A framework's points with the texts that they show; no line in the legend without any."""
    return go.Scatter(
        x=list(x),
        y=list(y),
        mode="markers",
        name=BACKEND_NAMES[backend],
        visible=True if x else "legendonly",
        showlegend=bool(x),
        marker={
            "color": _COLORS[backend],
            "symbol": SYMBOLS[backend],
            "size": 9,
            "opacity": 0.85,
        },
        text=list(text),
        hovertemplate="%{text}<extra></extra>",
    )


def groups(summary: Summary) -> list[tuple[Backend, Source, list[MeasuredTrial]]]:
    """Trials of one framework and one source; extrapolated ones only where there are any."""
    kinds = [(summary.source, summary.measured)]
    kinds += [(Source.EXTRAPOLATED, summary.extrapolated)] if summary.extrapolated else []
    return [
        (backend, source, [r for r in ranked if r.plan.backend is backend])
        for source, ranked in kinds
        for backend in Backend
    ]


def marked(trace: Any, backend: Backend, source: Source) -> Any:
    """Extrapolated points are hollow, and have a line of their own in the legend."""
    if source is not Source.EXTRAPOLATED:
        return trace
    return trace.update(
        name=f"{trace.name}{source_mark(source)}", marker_symbol=f"{SYMBOLS[backend]}-open"
    )


def ranked_text(ranked: MeasuredTrial) -> str:
    """What a point says of a trial that trained; escaped, for plotly reads markup."""
    measured: Measured = ranked.measured
    return (
        f"trial {ranked.number}: {html.escape(ranked.plan.label())}<br>"
        f"{time_text(measured.step_time_s)} a step{source_mark(measured.source)}, "
        f"{size_text(measured.peak_memory_bytes)}"
    )


def other_text(trial: Trial) -> str:
    """Escaped: plotly reads its texts as markup."""
    words = outcome_words(trial.outcome)
    short = words if len(words) <= _HOVER_CHARS else f"{words[:_HOVER_CHARS]}..."
    return f"trial {trial.number}: {html.escape(trial.plan.label())}<br>{html.escape(short)}"


def time_unit(seconds: Sequence[float]) -> tuple[float, str]:
    """What seconds are multiplied by, and the unit that this gives."""
    return (1e3, "ms") if seconds and max(seconds) < 1 else (1.0, "s")


def size_unit(sizes: Sequence[float]) -> tuple[int, str]:
    """What bytes are divided by, and the unit that this gives."""
    return (MIB, "MiB") if not sizes or max(sizes) < GIB else (GIB, "GiB")
