"""The section of ``report.md`` about the winner's framework settings; pure."""

from __future__ import annotations

from reports.markdown_table import markdown_table
from reports.second_pass_wording import HEADER, second_pass_line, second_pass_rows
from reports.summary import Summary


def second_pass_section(summary: Summary) -> list[str]:
    """What was tried and kept; no lines without a second pass."""
    found = summary.second_pass
    if found is None:
        return []
    lines = [
        "## Framework settings of the winner",
        "",
        f"Trial {found.trial}, `{found.plan.label()}`: {second_pass_line(summary)}.",
    ]
    if not found.decisions:
        return lines
    return [
        *lines,
        "",
        "Each option was run by itself; one that looked faster then ran in turns against what "
        "there was, and was kept only where the 95 % interval of the difference leaves out zero. "
        "The launch files and logs of each run are under `second_pass/`.",
        "",
        *markdown_table(HEADER, second_pass_rows(found)),
    ]
