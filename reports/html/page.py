"""``report.html`` and the comparison as bytes, made of what they say."""

from __future__ import annotations

from reports.html.rendering import figures_json, page_bytes, plotly_source, rendered
from reports.html.report_view import report_view
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
