"""`paratune emit` as a user runs it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from reports.emit.formats import Format
from runners.backends.launch import launch_for
from tests.reports.a_study import measured, study_folder, trial, trials
from tests.tiny_job import LLAMA_CONFIG, cpu_cluster, tiny_workload
from tuner.cli.main import main
from tuner.launch import DEEPSPEED_FILE, Measurement
from tuner.launch_files import write_launch_files
from tuner.outcome import Rejected, Source
from tuner.plan import Backend, ParallelPlan, Precision
from tuner.study_folder import StudyFolder
from tuner.trial import Trial

PYTORCH = ParallelPlan(backend=Backend.PYTORCH, zero_stage=2, micro_batch=2)
DEEPSPEED = ParallelPlan(backend=Backend.DEEPSPEED, zero_stage=3)


@pytest.fixture
def study(tmp_path: Path) -> StudyFolder:
    """PyTorch is the fastest, DeepSpeed trained too, Megatron did not."""
    tried = (
        trial(0, PYTORCH, measured(1.0)),
        trial(1, DEEPSPEED, measured(2.0)),
        trial(3, DEEPSPEED, Rejected(reasons=("G-03: tp must divide",))),
        trials()[2],
    )
    folder = study_folder(tmp_path / "study", tried)
    with_launch_files(folder, *tried)
    return folder


def with_launch_files(folder: StudyFolder, *tried: Trial) -> None:
    """The trials' own launch files, in place of those that stand for them."""
    job = folder.read_json(folder.job_file) | {"defaults": {}}
    folder.write_json(folder.job_file, job)
    for one in tried:
        spec = launch_for(one.plan, tiny_workload(), cpu_cluster(4), Measurement())
        (folder.launch_folder(one.number) / "training.json").unlink(missing_ok=True)
        write_launch_files(spec, folder.launch_folder(one.number))


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, Any, str]:
    code = main(["emit", *map(str, words)])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out.startswith("{") else out, err


def test_the_fastest_trial_is_emitted_with_what_was_measured(
    study: StudyFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document, _ = run(capsys, study.path, "--format", "torchrun", "--json")
    assert code == 0
    assert (document["trial"], document["numbers"]) == (0, "measured")
    assert document["plan"] == PYTORCH.to_dict()
    out = Path(document["out"])
    assert out == study.path / "emitted" / "torchrun"
    assert {path.name for path in out.iterdir()} == {*document["files"], ".emitted.json"}
    page = (out / "README.md").read_text()
    assert "Measured: step time 1.00 s (95 % interval" in page
    assert "1 x 4 ranks of h100-sxm-80gb" in page
    assert "torch 2.13.0" in page
    assert f"trial 0 of study {document['study_id']}" in page
    assert f"paratune {document['paratune_version']}" in page
    assert (out / "launch.sh").stat().st_mode & 0o111
    assert "export NOTE='a b'" in (out / "launch.sh").read_text()


def test_a_format_of_one_framework_means_its_fastest_trial_byte_for_byte(
    study: StudyFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    _, document, err = run(capsys, study.path, "--format", "deepspeed", "--json")
    assert (document["trial"], document["winner"]) == (1, 0)
    said = (
        "he winner (trial 0, pytorch zero2 mb2 bf16) cannot be said in deepspeed; this is trial 1, "
        "the fastest that can: 2.00x the winner's step time"
    )
    assert said in err
    assert said in (Path(document["out"]) / "README.md").read_text()
    kept = (study.launch_folder(1) / DEEPSPEED_FILE).read_bytes()
    assert (Path(document["out"]) / DEEPSPEED_FILE).read_bytes() == kept


def test_a_format_of_all_frameworks_that_cannot_say_the_winner_takes_the_fastest_that_it_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unsaid = ParallelPlan(backend=Backend.PYTORCH, zero_stage=1)
    tried = (
        trial(0, unsaid, measured(1.0)),
        trial(1, DEEPSPEED, measured(1.5)),
        trial(2, PYTORCH, measured(1.25)),
    )
    folder = study_folder(tmp_path / "study", tried)
    with_launch_files(folder, *tried)
    code, document, err = run(capsys, folder.path, "--format", "accelerate", "--json")
    assert (code, document["trial"], document["winner"]) == (0, 2, 0)
    assert "cannot be said in accelerate; this is trial 2" in err
    code, document, err = run(capsys, folder.path, "--format", "torchrun", "--json")
    assert (document["trial"], "winner" in document, err) == (0, False, "")
    assert run(capsys, folder.path, "--format", "accelerate", "--trial", "0")[0] == 2


def test_a_format_that_can_say_no_trial_refuses_with_what_is_in_the_winners_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tried = (trial(0, ParallelPlan(backend=Backend.PYTORCH, zero_stage=1), measured(1.0)),)
    folder = study_folder(tmp_path / "study", tried)
    with_launch_files(folder, *tried)
    code, _, err = run(capsys, folder.path, "--format", "accelerate")
    assert code == 2
    assert "zero_stage must be 0, 2 or 3, got 1" in err
    assert not (folder.path / "emitted").exists()


def test_emitting_changes_nothing_of_the_study_and_the_id_stays(
    study: StudyFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in study.path.rglob("*") if path.is_file()}

    before = files()
    words = ("--format", "slurm", "--json", "--out", tmp_path / "out")
    first = run(capsys, study.path, *words)[1]
    assert files() == before
    moved = shutil.move(study.path, tmp_path / "elsewhere")
    assert run(capsys, moved, *words)[1]["study_id"] == first["study_id"]


def test_a_second_emission_leaves_no_file_of_the_first_and_none_of_the_users_is_touched(
    study: StudyFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run(capsys, study.path, "--format", "deepspeed", "--out", out)
    (out / "train.py").write_text("mine")
    run(capsys, study.path, "--format", "torchtitan", "--out", out)
    names = {path.name for path in out.iterdir()}
    assert DEEPSPEED_FILE not in names
    assert (out / "train.py").read_text() == "mine"


def test_a_folder_of_the_users_own_is_refused(
    study: StudyFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("")
    code, _, err = run(capsys, study.path, "--format", "slurm", "--out", tmp_path / "mine")
    assert code == 2
    assert "--out must be a new folder" in err


def test_where_no_trial_of_the_framework_trained_that_is_said(
    study: StudyFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, study.path, "--format", "megatron")
    assert code == 1
    assert "no trial of megatron of" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--trial", "9"), "one of the study's trials (0, 1, 2, 3), got 9"),
        (("--trial", "3"), "trial 3 must be of a legal plan, but "),
        (("--plan", "tp=2"), "--plan must go with a job file"),
    ],
)
def test_wrong_words_for_a_study_are_named(
    study: StudyFolder, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    code, _, err = run(capsys, study.path, "--format", "slurm", *words)
    assert code == 2
    assert says in err


def test_simulated_numbers_and_trials_that_did_not_train_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated = trial(0, PYTORCH, measured(1.0, source=Source.SIMULATED))
    folder = study_folder(tmp_path / "s", (simulated, trials()[1]))
    words = ("--format", "slurm", "--json", "--trial")
    page = Path(run(capsys, folder.path, *words, "0")[1]["out"]) / "README.md"
    assert "Simulated, nothing was started: step time" in page.read_text()
    page = Path(run(capsys, folder.path, *words, "1")[1]["out"]) / "README.md"
    assert "It did not train: out of memory" in page.read_text()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    values = {
        "workload": {"model": "config.json", "seq_len": 32, "global_batch": 16},
        "cluster": {"gpu": "h100-sxm-80gb", "gpus_per_node": 8},
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_any_legal_plan_of_a_job_is_emitted_with_what_is_predicted(
    job: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("--plan", "backend=deepspeed,zero_stage=2", "--out", tmp_path / "out", "--json")
    code, document, _ = run(capsys, job, "--format", "hf-deepspeed", *words)
    assert (code, document["numbers"], document["trial"]) == (0, "predicted", None)
    page = (tmp_path / "out" / "README.md").read_text()
    assert "Predicted, not measured: step time" in page
    assert "Measured" not in page


def test_an_illegal_plan_is_refused_with_every_rule_that_it_breaks(
    job: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = "backend=pytorch,tp=3,offload=optimizer,vpp=2"
    words = ("--format", "torchrun", "--plan", plan, "--out", tmp_path / "out")
    code, _, err = run(capsys, job, *words)
    assert code == 2
    assert len([line for line in err.splitlines() if line.startswith("  ")]) >= 3
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", Format)
def test_what_cannot_be_said_writes_nothing(
    job: Path, form: Format, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = "backend=pytorch,zero_stage=1"
    words = ("--format", form, "--plan", plan, "--out", tmp_path / "out", "--json")
    code, _, err = run(capsys, job, *words)
    says_all = form in (Format.TORCHRUN, Format.SLURM)
    assert code == (0 if says_all else 2)
    assert (tmp_path / "out").exists() == says_all
    assert says_all or " must be " in err


def test_a_job_needs_a_plan_and_has_no_trials(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, job, "--format", "slurm")
    assert code == 2
    assert "or a job file with --plan" in err
    code, _, err = run(capsys, job, "--format", "slurm", "--plan", "tp=2", "--trial", "1")
    assert code == 2
    assert "--trial must go with a study folder" in err


def test_a_plan_in_fp32_says_so_to_the_trainer(
    job: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = f"backend=deepspeed,precision={Precision.FP32}"
    words = ("--format", "hf-deepspeed", "--plan", plan, "--out", tmp_path / "out")
    assert run(capsys, job, *words)[0] == 0
    arguments = json.loads((tmp_path / "out" / "training_arguments.json").read_text())
    assert (arguments["bf16"], arguments["fp16"]) == (False, False)
