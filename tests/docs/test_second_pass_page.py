"""The page of the second pass names every setting."""

from __future__ import annotations

from pathlib import Path

from tuner.framework_settings.table import SETTINGS

PAGE = Path(__file__).parents[2] / "docs" / "second-pass.md"


def test_every_setting_has_its_row() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    named = {word.strip("`,") for row in rows for word in row.split("|")[1].split()}
    assert named == {setting.name for setting in SETTINGS}
