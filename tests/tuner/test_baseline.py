"""`paratune tune --baseline FILE`: what the user has is trial 0, and the answer is against it."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml

from search_spaces.enumeration import rejections
from tests.tiny_job import LLAMA_CONFIG
from tuner.cli.baseline_changes import baseline_changes
from tuner.cli.found_cluster import found_cluster
from tuner.cli.main import main
from tuner.cli.setting import job_setting
from tuner.job import read_job
from tuner.plan import Backend, ParallelPlan, Precision

MODEL = LLAMA_CONFIG | {"vocab_size": 256, "hidden_size": 32}
ZERO_1 = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Four CPU ranks; fp32 and micro-batches of 1 and 2 only."""
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    values: dict[str, Any] = {
        "workload": {"model": "config.json", "seq_len": 16, "global_batch": 16},
        "cluster": {"gpu": "cpu", "gpus_per_node": 4},
        "search": {"precision": ["fp32"], "micro_batch": [1, 2]},
        "memory": {"limit": "1GiB"},
        "measure": {"warmup_steps": 1, "steps": 2},
        "budget": {"trials": 6},
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def written(job: Path, values: dict[str, Any] | str, name: str = "ds.json") -> Path:
    file = job.parent / name
    file.write_text(values if isinstance(values, str) else json.dumps(values))
    return file


def tune(job: Path, *options: str | Path, study: str = "study") -> int:
    folder = str(job.parent / study)
    given = [str(option) for option in options]
    return main(["tune", str(job), "--study", folder, "--runner", "simulated", *given])


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def predicted_bytes(job: Path, micro_batch: int, capsys: pytest.CaptureFixture[str]) -> int:
    plan = f"backend=deepspeed,precision=fp32,micro_batch={micro_batch}"
    assert main(["explain", str(job), "--plan", plan, "--json"]) == 0
    return sum(told(capsys)["memory_bytes"].values())


@pytest.mark.parametrize("sampler", ["plan", "tpe", "random"])
def test_the_baseline_is_trial_0_whatever_the_sampler(
    job: Path, sampler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(job, ZERO_1)
    options = ("--baseline", file, "--sampler", sampler, "--trials", "3", "--json")
    assert tune(job, *options) == 0
    document = told(capsys)
    first = document["trials"][0]
    assert (first["plan"]["backend"], first["plan"]["zero_stage"]) == ("deepspeed", 1)
    assert first["reason"] == "the plan in use (--baseline)"
    assert len(document["trials"]) == 3
    assert document["baseline"]["trial"] == 0


def test_the_answer_is_the_speedup_and_the_changes_that_lead_to_it(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = "run --micro-batch-size 1 --tensor-model-parallel-size 2 --recompute-granularity full"
    file = written(job, slow, "run.sh")
    assert tune(job, "--baseline", file, "--json") == 0
    document = told(capsys)
    baseline, best = document["baseline"], document["best"]
    own_s = document["trials"][0]["step_time_s"]
    assert baseline["speedup"] == pytest.approx(own_s / best["step_time_s"])
    assert baseline["speedup"] > 1
    assert baseline["changes"][-1]["plan"] == best["plan"]
    # The simulated runner runs the same model that predicts: the changes must add up.
    factors = [change["predicted_factor"] for change in baseline["changes"]]
    assert prod(factors) == pytest.approx(baseline["speedup"])
    changed = [name for change in baseline["changes"] for name in change["knobs"]]
    own = document["trials"][0]["plan"]
    assert sorted(changed) == sorted(name for name in own if own[name] != best["plan"][name])
    assert f"({baseline['speedup']:.2f}x)" in baseline["sentence"]
    assert "predicted" in baseline["sentence"]


def test_a_baseline_that_the_search_leaves_out_is_measured_all_the_same(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(job, {"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}})
    assert tune(job, "--baseline", file, "--sampler", "random", "--trials", "4", "--json") == 0
    trials = told(capsys)["trials"]
    first, *others = (trial["plan"] for trial in trials)
    assert (first["micro_batch"], first["precision"]) == (4, "bf16")
    assert trials[0]["outcome"] == "measured"
    assert {plan["precision"] for plan in others} == {"fp32"}
    assert {plan["micro_batch"] for plan in others} <= {1, 2}


def test_an_illegal_baseline_names_the_rule_the_key_and_the_nearest_legal_plan(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = ZERO_1 | {"pipeline": {"stages": 2}, "zero_optimization": {"stage": 3}}
    values["bf16"] = {"enabled": True}
    assert tune(job, "--baseline", written(job, values)) == 2
    said = capsys.readouterr().err
    assert "ds.json: pipeline.stages with zero_optimization.stage breaks rule DS-20" in said
    assert "the nearest legal plan is deepspeed" in said
    assert "(zero_stage 3 -> 1)" in said or "(pp 2 -> 1)" in said
    assert "Traceback" not in said
    assert not (job.parent / "study").exists()


def test_a_wrong_file_is_the_users_mistake(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(job, '{"fp16": {"enabled": true}, // both\n}')
    assert tune(job, "--baseline", file) == 2
    assert "ds.json: line 1: JSON has no comments" in capsys.readouterr().err
    assert tune(job, "--baseline-arguments", file) == 2
    assert "--baseline-arguments needs --baseline FILE" in capsys.readouterr().err


def test_a_baseline_out_of_memory_is_said_and_has_no_speed(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(job, {"train_micro_batch_size_per_gpu": 4})
    values = yaml.safe_load(job.read_text())
    values["workload"]["seq_len"] = 128
    job.write_text(yaml.safe_dump(values))
    sizes = [predicted_bytes(job, micro_batch, capsys) for micro_batch in (1, 4)]
    values["memory"] = {"limit": f"{sum(sizes) // 2 // 1024}KiB"}
    job.write_text(yaml.safe_dump(values))
    assert tune(job, "--baseline", file, "--trials", "5", "--json") == 0
    document = told(capsys)
    assert document["baseline"]["outcome"] == "out_of_memory"
    assert document["baseline"]["speedup"] is None
    assert (
        "ran out of memory here (trial 0): no speed to compare"
        in (document["baseline"]["sentence"])
    )
    report = (job.parent / "study" / "report.md").read_text()
    assert "ran out of memory here (trial 0)" in report


def test_a_study_that_goes_on_keeps_its_baseline(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(job, {"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}})
    assert tune(job, "--baseline", file, "--trials", "2") == 0
    capsys.readouterr()
    assert tune(job, "--trials", "4", "--json") == 0
    document = told(capsys)
    assert len(document["trials"]) == 4
    assert document["baseline"]["trial"] == 0
    plans = [json.dumps(trial["plan"]) for trial in document["trials"]]
    assert len(set(plans)) == 4


def test_what_is_not_taken_from_the_file_is_said_before_the_first_trial(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = ZERO_1 | {"gradient_clipping": 1.0, "zero_optimisation": {"stage": 1}}
    assert tune(job, "--baseline", written(job, values), "--trials", "1") == 0
    before, _, _ = capsys.readouterr().err.partition("trial 0")
    assert "gradient_clipping" in before
    assert "does not know: zero_optimisation" in before


def test_another_baseline_in_the_same_study_is_refused(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(job, "--baseline", written(job, ZERO_1), "--trials", "1") == 0
    other = written(job, {"train_micro_batch_size_per_gpu": 2}, "other.json")
    assert tune(job, "--baseline", other) == 2
    said = capsys.readouterr().err
    assert "must have one baseline, but it was deepspeed zero1 mb1 fp32" in said
    assert "--study" in said


def test_a_baseline_that_comes_late_is_next_where_the_search_holds_it(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(job, "--trials", "2") == 0
    outside = written(job, {"train_micro_batch_size_per_gpu": 4}, "outside.json")
    assert tune(job, "--baseline", outside, "--trials", "3") == 2
    assert "begun without a baseline" in capsys.readouterr().err
    assert tune(job, "--baseline", written(job, ZERO_1), "--trials", "3", "--json") == 0
    document = told(capsys)
    assert document["baseline"]["trial"] == 2


def test_the_report_about_it_is_made_again_from_the_folder(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = "run --micro-batch-size 1 --recompute-granularity full --overlap-grad-reduces"
    assert tune(job, "--baseline", written(job, slow, "run.sh"), "--json") == 0
    before = told(capsys)
    report = job.parent / "study" / "report.md"
    text = report.read_text()
    assert "## Your configuration against the best" in text
    assert "did you mean --overlap-grad-reduce?" in text
    report.unlink()
    (job.parent / "run.sh").unlink()
    assert main(["report", str(job.parent / "study"), "--json"]) == 0
    assert told(capsys)["baseline"] == before["baseline"]
    assert report.read_text() == text


def test_the_job_document_keeps_what_was_read(job: Path) -> None:
    values = ZERO_1 | {"zero_optimisation": {"stage": 3}, "steps_per_print": 5}
    assert tune(job, "--baseline", written(job, values), "--trials", "1") == 0
    kept = json.loads((job.parent / "study" / "job.json").read_text())["baseline"]
    assert kept["format"] == "deepspeed"
    assert kept["file"].endswith("ds.json")
    assert kept["plan"]["zero_stage"] == 1
    assert kept["unknown_keys"] == ["zero_optimisation"]
    assert kept["ignored_keys"][0]["key"] == "steps_per_print"


def test_a_dry_run_shows_the_baseline(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(job, "--baseline", written(job, ZERO_1), "--dry-run") == 0
    assert capsys.readouterr().out.startswith("deepspeed zero1 mb1 fp32:")


def test_a_study_without_a_baseline_says_nothing_of_one(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(job, "--trials", "1", "--json") == 0
    assert told(capsys)["baseline"] is None
    assert "Your configuration" not in (job.parent / "study" / "report.md").read_text()


def test_every_plan_on_the_way_is_legal_and_knobs_that_need_each_other_change_together(
    job: Path,
) -> None:
    read = read_job(job, found_cluster)
    start = ParallelPlan(backend=Backend.PYTORCH, zero_stage=3, precision=Precision.FP32)
    winner = ParallelPlan(
        backend=Backend.MEGATRON,
        tp=2,
        pp=2,
        sequence_parallel=True,
        precision=Precision.FP32,
        micro_batch=2,
    )
    changes = baseline_changes(read, start, winner)
    assert changes is not None
    plans = [ParallelPlan.from_dict(step["plan"]) for step in changes["steps"]]
    assert plans[-1] == winner
    assert [rejections(plan, job_setting(read)) for plan in plans] == [()] * len(plans)
    # Sequence parallelism needs tp, and Megatron-Core has no stage 3.
    names = [list(step["knobs"]) for step in changes["steps"]]
    order = [name for step in names for name in step]
    assert order.index("tp") < order.index("sequence_parallel")
    assert len(order) == len(set(order)) == 6
