from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_templates_are_installed_with_the_package() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = declared["package-data"]["reports.html"]
    package = ROOT / "reports" / "html"

    installed = {path for pattern in patterns for path in package.glob(pattern)}

    assert installed >= set((package / "templates").iterdir())
    assert package / "templates" / "report.js" in installed
