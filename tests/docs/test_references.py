"""The generated pages are as the schema and the parsers would write them now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from tuner.cli.main import parser
from tuner.cli.references import PAGES
from tuner.job import JobFile
from tuner.job_cluster import GpuSection

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_not_stale(name: str) -> None:
    kept = (DOCS / name).read_text()
    assert kept == PAGES[name](), "python -m tuner.cli.references docs"


def test_every_key_of_a_job_has_a_meaning_and_a_row() -> None:
    page = PAGES["job-file.md"]()
    keys = dict(_keys(JobFile))
    assert {"workload", "micro_batch", "first_step", "memory_bandwidth"} <= keys.keys()
    assert [key for key, meaning in keys.items() if not meaning] == []
    assert [key for key in keys if f"| `{key}` |" not in page] == []


def test_every_command_and_option_has_a_row() -> None:
    page = PAGES["commands.md"]()
    for name, command in parser().commands.items():
        assert f"## `paratune {name}`" in page
        for action in command._actions:
            shown = [option for option in action.option_strings if option.startswith("--")]
            assert all(f"`{option}" in page for option in shown if option != "--help")


def _keys(section: type[BaseModel]) -> Iterator[tuple[str, str | None]]:
    for name, field in section.model_fields.items():
        yield name, field.description
        nested = field.default
        if isinstance(nested, BaseModel):
            yield from _keys(type(nested))
    if section is JobFile:
        yield from _keys(GpuSection)
