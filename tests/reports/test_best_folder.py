from __future__ import annotations

from pathlib import Path

import pytest

from reports.wording import BENCH_VALUES
from reports.write import write_reports
from tests.reports.a_study import measured, study_folder, summary_of, trial, trials
from tuner.errors import UserError
from tuner.outcome import Source
from tuner.plan import Backend, ParallelPlan
from tuner.study_folder import StudyFolder


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _deepspeed_best(path: Path, num_nodes: int) -> StudyFolder:
    plan = ParallelPlan(backend=Backend.DEEPSPEED, zero_stage=1)
    tried = (trial(0, plan, measured(1.0)),)
    folder = study_folder(path, tried, num_nodes=num_nodes)
    write_reports(folder, summary_of(*tried))
    return folder


def test_best_holds_the_launch_files_of_the_fastest_trial_byte_for_byte(tmp_path: Path) -> None:
    folder = study_folder(tmp_path, trials())
    write_reports(folder, summary_of(*trials()))
    best = _files(folder.best_folder)
    readme = best.pop("README.md").decode()
    assert best == _files(folder.launch_folder(3))
    assert (
        "OMP_NUM_THREADS=1 NOTE='a b' torchrun --standalone --nproc-per-node=4 "
        "-m runners.bench --launch .\n"
    ) in readme
    assert "pytorch zero2 mb4 bf16" in readme
    assert BENCH_VALUES in readme
    assert "deepspeed" not in readme


def test_a_faster_trial_takes_the_place_of_the_former_best_and_leaves_nothing_of_it(
    tmp_path: Path,
) -> None:
    folder = study_folder(tmp_path, trials())
    write_reports(folder, summary_of(*trials()))
    (folder.launch_folder(3) / "only-here.toml").write_text("")
    write_reports(folder, summary_of(*trials()))
    assert (folder.best_folder / "only-here.toml").exists()
    faster = trial(6, ParallelPlan(backend=Backend.MEGATRON, pp=2), measured(0.5))
    study_folder(tmp_path, (faster,))
    before = {path.name for path in tmp_path.iterdir()}
    write_reports(folder, summary_of(*trials(), faster))
    assert not (folder.best_folder / "only-here.toml").exists()
    assert (folder.best_folder / "training.json").read_bytes() == b'{"n": 6}\r\n'
    assert {path.name for path in tmp_path.iterdir()} == before


def test_missing_launch_files_keep_the_former_best_and_are_named(tmp_path: Path) -> None:
    folder = study_folder(tmp_path, trials())
    write_reports(folder, summary_of(*trials()))
    before = _files(folder.best_folder)
    folder.launch_folder(3).rename(tmp_path / "away")
    with pytest.raises(UserError, match="trials/0003/launch must hold the launch files"):
        write_reports(folder, summary_of(*trials()))
    assert _files(folder.best_folder) == before


def test_a_deepspeed_plan_names_its_own_launcher_too(tmp_path: Path) -> None:
    readme = (_deepspeed_best(tmp_path, 1).best_folder / "README.md").read_text()
    assert "torchrun --standalone --nproc-per-node=4 -m runners.bench --launch ." in readme
    assert (
        "deepspeed --num_gpus=4 --module --no_local_rank runners.bench --launch-folder ." in readme
    )


def test_on_two_nodes_the_commands_say_where_the_ranks_meet(tmp_path: Path) -> None:
    readme = (_deepspeed_best(tmp_path, 2).best_folder / "README.md").read_text()
    assert "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT --nproc-per-node=2" in readme
    assert "deepspeed --hostfile=HOSTFILE --num_nodes=2 --num_gpus=2 --module" in readme
    assert "OMP_NUM_THREADS, NOTE in `~/.deepspeed_env` too" in readme


def test_simulated_numbers_say_so_beside_the_launch_files(tmp_path: Path) -> None:
    simulated = measured(1.0, source=Source.SIMULATED)
    tried = (trial(0, ParallelPlan(backend=Backend.PYTORCH), simulated),)
    folder = study_folder(tmp_path, tried)
    write_reports(folder, summary_of(*tried))
    readme = (folder.best_folder / "README.md").read_text()
    page = (folder.path / "report.html").read_text()
    assert "numbers are simulated" in readme
    assert "were written for this plan and have never run" in readme
    assert "the steps that the job asks of a trial" in readme
    assert "written for this plan and never run" in page
    for text in (readme, page):
        assert "byte for byte" not in text
        assert "the trial did" not in text


def test_a_megatron_plan_says_what_its_arguments_are_for(tmp_path: Path) -> None:
    tried = (trial(0, ParallelPlan(backend=Backend.MEGATRON), measured(1.0)),)
    folder = study_folder(tmp_path, tried)
    write_reports(folder, summary_of(*tried))
    readme = (folder.best_folder / "README.md").read_text()
    assert "`megatron.args` is an argument list of Megatron-LM's `pretrain_gpt.py`" in readme


def test_nothing_measured_writes_a_report_and_no_best(tmp_path: Path) -> None:
    failed = trials()[1:3]
    folder = study_folder(tmp_path, failed)
    write_reports(folder, summary_of(*failed))
    assert folder.report_file.exists()
    assert not folder.best_folder.exists()
