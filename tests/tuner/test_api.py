"""paratune from Python: what the command line answers, as objects and data frames."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_job import LLAMA_CONFIG
from tuner.api import plans, predict, predict_sweep, read_study, tune
from tuner.cli.main import main
from tuner.errors import UserError
from tuner.plan import KNOB_NAMES, Backend, ParallelPlan

JOB: dict[str, Any] = {
    "workload": {
        "model": {"hidden": 64, "layers": 4, "heads": 4, "vocab": 512},
        "seq_len": 32,
        "global_batch": 8,
    },
    "cluster": {"gpu": "cpu", "gpus_per_node": 2},
    "search": {"precision": ["fp32"], "micro_batch": [1, 2], "backend": ["pytorch", "deepspeed"]},
    "memory": {"limit": "1GiB"},
}


def test_a_study_comes_back_with_its_best_plan_and_a_row_a_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tune(JOB, tmp_path / "s", runner="simulated", trials=4)
    assert study.best is not None
    assert len(study.trials) == 4
    frame = study.frame()
    assert list(frame.index) == [0, 1, 2, 3]
    assert frame["step_time_s"].min() == pytest.approx(study.best.measured.step_time_s)
    assert set(KNOB_NAMES) <= set(frame.columns)
    assert set(frame["recompute"]) <= {"none", "selective", "full"}
    assert study.report.exists()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_study_goes_on_and_is_read_again_from_its_folder(tmp_path: Path) -> None:
    first = tune(JOB, tmp_path / "s", runner="simulated", trials=2)
    second = tune(JOB, tmp_path / "s", runner="simulated", trials=3)
    assert second.trials[:2] == first.trials
    assert read_study(tmp_path / "s").trials == second.trials


def test_plans_are_those_of_the_command_in_its_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(JOB))
    found = plans(file)
    frame = found.frame()
    assert main(["plans", str(file), "--top", "5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (len(found), found.num_fitting) == (told["num_legal"], told["num_fitting"])
    assert len(frame) == len(found)
    for rank, entry in enumerate(told["plans"]):
        assert found[rank].to_dict() == entry["plan"]
        row = frame.iloc[rank]
        assert {name: row[name] for name in KNOB_NAMES} == entry["plan"]
        assert row["predicted_step_time_s"] == entry["predicted_step_time_s"]
        assert row["fits"] == entry["fits"]
    removed = found.waterfall_frame()["removed"].sum()
    assert removed == told["num_combinations"] - told["num_legal"]


def test_a_mapping_plans_what_the_same_file_plans(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(JOB))
    assert plans(JOB).frame().equals(plans(file).frame())


def test_a_mapping_finds_its_model_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    monkeypatch.chdir(tmp_path)
    job = JOB | {"workload": JOB["workload"] | {"model": "config.json"}}
    assert plans(job).job.workload.model.name


def test_a_prediction_adds_up_to_what_is_predicted_of_all_plans() -> None:
    found = plans(JOB)
    told = predict(JOB, found[0])
    row = found.frame().iloc[0]
    assert told.is_legal
    assert told.fits is True
    assert told.step_time_s == pytest.approx(row["predicted_step_time_s"])
    assert told.peak_memory_bytes == pytest.approx(row["predicted_peak_memory_bytes"], rel=1e-6)
    terms = told.frame()
    assert terms[terms["kind"] == "time_s"]["predicted"].sum() == pytest.approx(told.step_time_s)


def test_a_prediction_of_an_illegal_plan_names_its_rules() -> None:
    told = predict(JOB, {"backend": "pytorch", "tp": 3})
    assert not told.is_legal
    assert told.fits is None
    assert "G-02" in dict(told.broken_rules)
    assert predict(JOB, ParallelPlan(backend=Backend.PYTORCH)).is_legal


def test_the_rows_of_a_sweep_are_predicted(tmp_path: Path) -> None:
    table = tmp_path / "sweep.csv"
    table.write_text(
        "model,hidden,layers,heads,vocab,gpu,gpus,gpus_per_node,seq,global_batch,micro_batch,tp,pp,"
        "dp,zero,precision,recompute,step_time_s,outcome\n"
        "m,1024,24,16,50257,h100-sxm-80gb,8,8,1024,64,1,1,1,8,0,bf16,none,0.5,measured\n"
        "m,1024,24,16,50257,h100-sxm-80gb,8,8,1024,64,8,1,1,8,0,bf16,none,0.4,measured\n"
    )
    frame = predict_sweep(table)
    assert list(frame.index) == [0, 1]
    assert (frame["predicted_step_time_s"] > 0).all()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: tune(JOB), "study=FOLDER"),
        (lambda: tune(JOB, "s", trils=3), "'--trils' is no option; did you mean --trials?"),
        (lambda: plans(JOB | {"serch": {}}), "serch is not a key; did you mean search?"),
        (lambda: predict(JOB, {"tensor": 2}), "unknown knob 'tensor'"),
        (lambda: predict(JOB, {"backend": "pytorch", "tp": "x"}), "tp must be a whole number"),
        (lambda: predict(JOB, {"backend": "foo"}), "backend must be one of pytorch"),
        (lambda: predict(JOB, {"tp": 2}), "backend must be given"),
        (lambda: plans("nowhere.yaml"), "must be a file that can be read"),
        (lambda: tune(JOB | {"search": {"tp": [3]}}, "s"), "tp must divide"),
    ],
)
def test_a_mistake_is_told_as_on_the_command_line(call: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        call()


def test_without_pandas_frames_say_what_to_install_and_the_rest_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("pandas")
    found = plans(JOB)
    assert len(found) > 0
    with pytest.raises(UserError, match=r"pip install 'paratune\[notebook\]'"):
        found.frame()
