"""docs/rules.md lists the general rules as they are."""

from __future__ import annotations

from pathlib import Path

from search_spaces.general_rules import GENERAL_RULES

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


def test_the_page_lists_every_general_rule_with_its_sentence_and_source() -> None:
    expected = [
        f"| {rule.id} | {', '.join(rule.backends)} | {rule.summary} | {rule.source} |"
        for rule in GENERAL_RULES
    ]
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(("| G-", "| S-"))]
    assert rows == expected
