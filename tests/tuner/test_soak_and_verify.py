"""`paratune soak` and `paratune verify` as a user runs them, over ranks that are played."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.cli import soak_command, verify_command
from tuner.cli.kept_study import RunnerChoice, run_record
from tuner.cli.main import main
from tuner.cluster import Cluster
from tuner.launch import LaunchSpec, Measurement
from tuner.outcome import Measured, Outcome, OutOfMemory, Phase
from tuner.plan import Backend, ParallelPlan, Precision
from tuner.runner import PhaseListener
from tuner.study_folder import StudyFolder
from tuner.trial import Trial
from tuner.workload import HfModel, Workload

PLAN = ParallelPlan(backend=Backend.PYTORCH, micro_batch=2, precision=Precision.FP32)
LIMIT_BYTES = 1000
LOSSES = (6.0, 5.5, 5.0)


def measured(*, peak_bytes: int = 500, losses: tuple[float, ...] = LOSSES) -> Measured:
    return Measured(
        step_times_s=(1.0,) * 4 + (1.1,) * 4,
        step_time_s=1.05,
        step_time_ci_s=(1.0, 1.1),
        tokens_per_s=100.0,
        peak_memory_bytes=peak_bytes,
        peak_memory_bytes_by_rank=(peak_bytes, 1),
        memory_limit_bytes=LIMIT_BYTES,
        losses=losses,
    )


class Played:
    """A runner whose outcome is a function of how many ranks it has."""

    num_slots = 1

    def __init__(self, outcome: Outcome, is_deterministic: bool) -> None:
        self._outcome = outcome
        self._is_deterministic = is_deterministic

    def describe(self, plan: ParallelPlan) -> LaunchSpec:
        return LaunchSpec(plan=plan, num_nodes=1, ranks_per_node=1, files=())

    def run(self, plan: ParallelPlan, folder: Path, on_phase: PhaseListener) -> Outcome:
        folder.mkdir(parents=True, exist_ok=True)
        effective = {
            "is_deterministic": self._is_deterministic,
            "first_losses": {},
            "later_losses": {},
        }
        report = {"result": {"effective": effective}}
        (folder / "rank-0.json").write_text(json.dumps(report))
        return self._outcome

    def stop(self) -> None:
        """Nothing goes on in another thread."""

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def study(tmp_path: Path) -> StudyFolder:
    """Of one trial that trained on two CPU ranks."""
    folder = StudyFolder(tmp_path / "study")
    folder.create()
    limits_s = dict.fromkeys(Phase, 60.0)
    job = {
        "num_nodes": 1,
        "gpus_per_node": 2,
        "memory_limit_bytes": LIMIT_BYTES,
        "defaults": {},
        "identity": {"cluster": {"gpu": "cpu"}},
        "job": {},
        "run": run_record(cpu_cluster(2), "local", None, limits_s),
    }
    folder.write_json(folder.job_file, job)
    folder.append(
        Trial(number=0, plan=PLAN, outcome=measured(), started_at=0.0, wall_s=1.0),
    )
    model = tiny_workload().model
    assert isinstance(model, HfModel)
    launch = folder.launch_folder(0)
    launch.mkdir()
    (launch / "config.json").write_text(model.config_text)
    training = {
        "factory": None,
        "seq_len": 32,
        "global_batch_sequences": 8,
        "optimizer": "adamw",
        "learning_rate": 1e-3,
        "seed": 0,
    }
    folder.write_json(launch / "training.json", training)
    return folder


Play = Callable[..., list[Measurement]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Has the plan, and the single rank, end like this; gives how each was measured."""

    def played(
        plan: Outcome, one_rank: Outcome | None = None, *, is_deterministic: bool = True
    ) -> list[Measurement]:
        asked: list[Measurement] = []

        def named(
            choice: RunnerChoice,
            workload: Workload,
            cluster: Cluster,
            measurement: Measurement,
            limits_s: Mapping[Phase, float],
        ) -> Played:
            asked.append(measurement)
            outcome = one_rank if one_rank and measurement.reference else plan
            return Played(outcome, is_deterministic)

        monkeypatch.setattr(soak_command, "runner_named", named)
        monkeypatch.setattr(verify_command, "runner_named", named)
        return asked

    return played


def test_soak_trains_for_as_long_as_it_is_told_and_says_what_grew(
    study: StudyFolder, play: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = play(measured(peak_bytes=990))
    assert main(["soak", str(study.path), "--time", "90s", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert asked[0].adaptive is not None
    assert asked[0].adaptive.time_s == 90
    assert not asked[0].short_steps
    assert document["drift"] == pytest.approx(0.1)
    assert document["headroom_bytes"] == 10
    assert document["is_nearly_full"]
    assert json.loads((study.path / "soak.json").read_text()) == document


def test_soak_that_runs_out_of_memory_says_so_and_ends_with_1(
    study: StudyFolder, play: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    play(OutOfMemory(rank=1, phase=Phase.STEPS, message="can't allocate"))
    assert main(["soak", str(study.path), "--time", "1s"]) == 1
    assert "out of memory (rank 1" in capsys.readouterr().out


def test_soak_of_no_time_is_refused(study: StudyFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", str(study.path), "--time", "soon"]) == 2
    assert "--time" in capsys.readouterr().err


def test_verify_holds_the_winner_against_one_rank(
    study: StudyFolder, play: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = play(measured(), measured())
    assert main(["verify", str(study.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "right"
    assert [m.reference is not None for m in asked] == [True, False]
    kept = study.verification()
    assert kept is not None
    assert kept.plan == PLAN


def test_verify_names_a_wrong_winner_and_ends_with_1(
    study: StudyFolder, play: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    play(measured(losses=(6.0, 5.4, 4.0)), measured())
    assert main(["verify", str(study.path)]) == 1
    said = capsys.readouterr().out
    assert "wrong" in said
    assert "the loss of step 1" in said


def test_verify_of_a_random_forward_pass_can_tell_nothing(
    study: StudyFolder, play: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    play(measured(), measured(), is_deterministic=False)
    assert main(["verify", str(study.path)]) == 1
    assert "random" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["soak", "verify"])
def test_a_study_without_a_winner_has_nothing_to_run(
    study: StudyFolder, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (only,) = study.trials()
    study.append(replace(only, outcome=OutOfMemory(rank=0, phase=Phase.MODEL, message="full")))
    assert main([command, str(study.path)]) == 1
    assert "no plan has trained" in capsys.readouterr().err
