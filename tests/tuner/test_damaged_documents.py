"""A file of a study folder that lacks what is read of it is refused by its name, exit 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tiny_job import job_file
from tuner.cli.main import main


@pytest.mark.parametrize(
    ("name", "change", "field"),
    [
        ("job.json", None, "identity"),
        ("job.json", {"num_nodes": "two"}, "num_nodes"),
        ("job.json", {"defaults": {"pytorch": {"backend": "no such"}}}, "backend must be one of"),
        ("waterfall.json", None, "num_combinations"),
        ("waterfall.json", {"removed": [{"rule": 3}]}, "removed.0"),
    ],
)
def test_it_is_refused_by_name_and_field(
    name: str,
    change: dict[str, object] | None,
    field: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = tmp_path / "study"
    arguments = ["tune", str(job_file(tmp_path)), "--study", str(study), "--quiet"]
    assert main([*arguments, "--runner", "simulated", "--trials", "1"]) == 0
    path = study / name
    path.write_text(json.dumps(json.loads(path.read_text()) | change if change else {}))
    capsys.readouterr()
    assert main(["report", str(study)]) == 2
    said = capsys.readouterr().err
    assert f"{name} must be JSON as paratune writes it" in said
    assert field in said
