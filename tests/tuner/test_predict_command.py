"""``paratune predict``: one line a row, nothing measured read unless asked to calibrate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.test_sweep_table import ROW, table
from tuner.cli.main import main

PLANS = [
    {"tp": str(tp), "dp": str(8 // tp), "micro_batch": str(mb), "zero": str(zero)}
    for tp in (1, 2, 4, 8)
    for mb in (1, 2)
    for zero in (0, 1)
]


def answers(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    assert main(["predict", str(path), "--json", *options]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_row_gets_the_contract_s_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = ROW | {"tp": "1", "pp": "4", "dp": "2"}
    lines = answers(table(tmp_path, ROW, deep), capsys)
    assert [line["row"] for line in lines] == [0, 1]
    assert set(lines[0]) == {
        "row",
        "fits",
        "predicted_step_time_s",
        "predicted_peak_memory_bytes",
        "predicted_peak_memory_bytes_by_stage",
        "calibrated_on",
    }
    stages = lines[1]["predicted_peak_memory_bytes_by_stage"]
    assert len(stages) == 4
    assert lines[1]["predicted_peak_memory_bytes"] == max(stages)
    assert lines[0]["fits"] is True
    assert lines[0]["calibrated_on"] is False


def test_measured_cells_change_nothing_without_calibration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = answers(table(tmp_path, ROW), capsys)
    nonsense = {"step_time_s": "9e9", "peak_mem_gb": "1", "outcome": "out_of_memory"}
    assert answers(table(tmp_path, ROW | nonsense), capsys) == known


def test_calibration_reads_only_the_rows_that_it_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [ROW | plan | {"step_time_s": "30"} for plan in PLANS]
    lines = answers(table(tmp_path, *rows), capsys, "--calibrate", "3")
    chosen = {line["row"] for line in lines if line["calibrated_on"]}
    assert len(chosen) == 3
    changed = [
        row if index in chosen else row | {"step_time_s": "1"} for index, row in enumerate(rows)
    ]
    assert answers(table(tmp_path, *changed), capsys, "--calibrate", "3") == lines


def test_calibration_follows_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = answers(table(tmp_path, *(ROW | plan for plan in PLANS)), capsys)
    slow = [
        ROW | plan | {"step_time_s": str(2 * line["predicted_step_time_s"])}
        for plan, line in zip(PLANS, before, strict=True)
    ]
    after = answers(table(tmp_path, *slow), capsys, "--calibrate", "4")
    for old, new in zip(before, after, strict=True):
        assert new["predicted_step_time_s"] > 1.4 * old["predicted_step_time_s"]


def test_a_plan_that_needs_more_than_the_gpu_has_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = answers(table(tmp_path, ROW | {"micro_batch": "64", "tp": "1", "dp": "8"}), capsys)
    assert line["fits"] is False


def test_unknown_memory_leaves_the_fit_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = answers(table(tmp_path, ROW | {"gpu": "A100"}), capsys)
    assert line["fits"] is None


def test_skipped_rows_are_counted_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path, ROW, ROW | {"hidden": ""}, ROW | {"hidden": ""})
    assert main(["predict", str(path), "--json"]) == 0
    assert "2 rows skipped: hidden is missing" in capsys.readouterr().err


def test_a_table_without_a_usable_row_is_wrong_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(table(tmp_path, ROW | {"gpu": ""}))]) == 2
    assert "gpu is missing" in capsys.readouterr().err


def test_a_negative_number_of_rows_is_wrong_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(table(tmp_path, ROW)), "--calibrate", "-1"]) == 2
    assert "--calibrate must be" in capsys.readouterr().err


def test_people_get_a_table_of_predicted_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(table(tmp_path, ROW))]) == 0
    shown = capsys.readouterr().out
    assert "predicted, not measured" in shown
    assert "peak memory" in shown


def test_the_table_for_people_shows_the_plans_and_why_fits_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(table(tmp_path, ROW))]) == 0
    out = capsys.readouterr().out
    assert "zero1 mb2 tp2 bf16" in out
    assert "fits is ?" not in out
    assert main(["predict", str(table(tmp_path, ROW | {"gpu": "A100"}))]) == 0
    assert "fits is ? where the memory of the GPU is not known" in capsys.readouterr().out
