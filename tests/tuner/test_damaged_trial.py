"""A trial's file with numbers that no trial can have is refused, and the field named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.reports.a_study import study_folder, trials
from tuner.errors import UserError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step_time_s", float("nan")),
        ("step_time_s", 0),
        ("step_time_ci_s", [-1, 1]),
        ("tokens_per_s", float("inf")),
        ("peak_memory_bytes", -1),
        ("step_times_s", [float("nan")]),
        ("attempts", 0),
        ("losses", [float("nan")]),
        ("losses", [1.0, float("-inf")]),
        ("warmup_times_s", [-1.0]),
        ("warmup_times_s", [float("inf")]),
        ("allocator_retries", -1),
        ("memory_limit_bytes", -1),
    ],
)
def test_a_number_that_no_trial_has_is_refused_by_its_field(
    field: str, value: object, tmp_path: Path
) -> None:
    folder = study_folder(tmp_path, trials())
    path = folder.trial_folder(trials()[0].number) / "trial.json"
    trial = json.loads(path.read_text())
    trial["outcome"][field] = value
    path.write_text(json.dumps(trial))
    with pytest.raises(UserError, match=rf"must be a trial as paratune writes it.*\.{field}"):
        folder.trials()


@pytest.mark.parametrize(("field", "value"), [("wall_s", -1), ("beside", -1), ("started_at", -5)])
def test_so_is_one_beside_the_outcome(field: str, value: object, tmp_path: Path) -> None:
    folder = study_folder(tmp_path, trials())
    path = folder.trial_folder(trials()[0].number) / "trial.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(UserError, match=f"as paratune writes it.*{field}"):
        folder.trials()
