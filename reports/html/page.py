"""``report.html`` and the comparison as bytes, made of what they say."""

from __future__ import annotations

from reports.compare import Comparison, shared_rows, verdict, winner_rows
from reports.html.rendering import figures_json, page_bytes, plotly_source, rendered
from reports.html.report_view import report_view
from reports.html.table_view import Column, Table
from reports.report_facts import ReportExtras
from reports.study_facts import StudyFacts
from reports.study_files import StudyFiles
from reports.summary import Summary


def report_page(
    summary: Summary, facts: StudyFacts, study: StudyFiles, extras: ReportExtras
) -> bytes:
    """The report of a study as one file that opens offline."""
    view = report_view(summary, facts, study, extras)
    page = rendered(
        "report.html.j2",
        view=view,
        figures=figures_json({chart.id: chart.figure for chart in view.charts}),
        plotly=plotly_source(),
    )
    return page_bytes(page)


def comparison_page(compared: Comparison) -> bytes:
    """The comparison of two studies as one file."""
    first, second = compared.first.name, compared.second.name
    source = compared.first.summary.source
    both = (Column(title=first), Column(title=second))
    tables = [
        Table(caption="The winners", columns=(Column(title=""), *both), rows=winner_rows(compared)),
        Table(
            caption="What differs",
            columns=(Column(title="what"), *both),
            rows=(*compared.workload_differences, *compared.other_differences),
        ),
        Table(
            caption=f"Plans in both, step times ({source})",
            columns=(
                Column(title="plan", code=True),
                Column(title=first, numeric=True),
                Column(title=second, numeric=True),
                Column(title=f"{second} is as fast", numeric=True),
            ),
            rows=shared_rows(compared),
        ),
    ]
    page = rendered(
        "comparison.html.j2",
        title=f"{first} and {second}",
        verdict=verdict(compared),
        tables=[table for table in tables if table.rows],
    )
    return page_bytes(page)
