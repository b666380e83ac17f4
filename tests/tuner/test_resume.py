"""A study that ends at any moment goes on as if nothing had happened: the folder is the truth."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from tests.tuner.computed_study import ComputedRunner, outcome_of, study
from tuner.errors import UserError
from tuner.plan import ParallelPlan
from tuner.study import Budget, StudyListener
from tuner.study_folder import StudyFolder
from tuner.trial import Trial

NUM_TRIALS = 14


def plans(trials: tuple[Trial, ...]) -> list[tuple[int, ParallelPlan]]:
    return [(trial.number, trial.plan) for trial in trials]


def run(tmp_path: Path, trials: int, sampler: str = "plan") -> list[tuple[int, ParallelPlan]]:
    one = study(tmp_path, ComputedRunner(outcome_of), sampler=sampler)
    return plans(one.run(Budget(trials=trials), StudyListener()).trials)


@pytest.mark.parametrize("sampler", ["plan", "random", "brute", "tpe"])
def test_a_new_process_for_every_trial_tries_what_one_process_would(
    tmp_path: Path, sampler: str
) -> None:
    undisturbed = run(tmp_path / "one", NUM_TRIALS, sampler)
    for count in range(1, NUM_TRIALS + 1):
        found = run(tmp_path / "many", count, sampler)
    assert found == undisturbed


@pytest.mark.parametrize("sampler", ["plan", "tpe"])
def test_a_trial_that_was_kept_but_not_told_is_told_by_the_next_run(
    tmp_path: Path, sampler: str
) -> None:
    """Killed between the trial's file and the journal."""
    undisturbed = run(tmp_path / "one", NUM_TRIALS, sampler)
    run(tmp_path / "killed", 9, sampler)
    journal = tmp_path / "killed" / "study" / "journal.log"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]))
    assert run(tmp_path / "killed", NUM_TRIALS, sampler) == undisturbed


@pytest.mark.parametrize("cut", [1, 40, 300])
def test_a_journal_cut_in_its_last_line_loses_nothing(tmp_path: Path, cut: int) -> None:
    undisturbed = run(tmp_path / "one", NUM_TRIALS)
    run(tmp_path / "killed", 9)
    journal = tmp_path / "killed" / "study" / "journal.log"
    journal.write_bytes(journal.read_bytes()[:-cut])
    assert run(tmp_path / "killed", NUM_TRIALS) == undisturbed
    for line in journal.read_text().splitlines():
        json.loads(line)


def test_a_last_line_of_nothing_but_zeros_is_dropped(tmp_path: Path) -> None:
    """What a power cut leaves on some file systems."""
    undisturbed = run(tmp_path / "one", NUM_TRIALS)
    run(tmp_path / "killed", 9)
    journal = tmp_path / "killed" / "study" / "journal.log"
    with journal.open("ab") as file:
        file.write(bytes(200) + b"\n")
    assert run(tmp_path / "killed", NUM_TRIALS) == undisturbed


def test_a_journal_damaged_in_the_middle_is_put_aside_and_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    undisturbed = run(tmp_path / "one", NUM_TRIALS)
    run(tmp_path / "killed", 9)
    journal = tmp_path / "killed" / "study" / "journal.log"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:3], b"{damaged\n", *lines[4:]]))
    with caplog.at_level(logging.WARNING):
        assert run(tmp_path / "killed", NUM_TRIALS) == undisturbed
    assert "made again from the trials" in caplog.text
    assert journal.with_name("journal.log.damaged").exists()


def test_optuna_reads_the_journal_with_every_trial_and_its_number(tmp_path: Path) -> None:
    run(tmp_path, 6)
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "study" / "journal.log")))
    stored = optuna.load_study(study_name="paratune", storage=storage).trials
    assert [trial.user_attrs["paratune_trial"] for trial in stored] == list(range(6))
    assert all(trial.state.is_finished() for trial in stored)


def test_a_lock_that_a_killed_driver_left_on_the_journal_holds_nobody_up(tmp_path: Path) -> None:
    run(tmp_path, 2)
    journal = tmp_path / "study" / "journal.log"
    journal.with_name("journal.log.lock").symlink_to(journal)
    assert len(run(tmp_path, 3)) == 3


def test_a_number_that_was_in_flight_is_given_again(tmp_path: Path) -> None:
    run(tmp_path, 5)
    (tmp_path / "study" / "trials" / "0003" / "trial.json").unlink()
    found = run(tmp_path, 6)
    assert [number for number, _ in found] == list(range(6))


def test_a_folder_of_another_format_is_refused_in_a_sentence(tmp_path: Path) -> None:
    run(tmp_path, 2)
    folder = StudyFolder(tmp_path / "study")
    folder.write_json(folder.study_file, {"format": 0, "name": "old"})
    with pytest.raises(UserError, match="must be of format 1, which this paratune writes, got 0"):
        run(tmp_path, 3)


def test_a_damaged_trial_is_named_with_what_to_do(tmp_path: Path) -> None:
    run(tmp_path, 3)
    damaged = tmp_path / "study" / "trials" / "0001" / "trial.json"
    damaged.write_text(damaged.read_text()[:100])
    with pytest.raises(UserError, match=r"0001/trial.json must be .* move that trial's folder"):
        run(tmp_path, 4)


def test_a_trial_under_another_s_number_is_refused(tmp_path: Path) -> None:
    run(tmp_path, 3)
    trials = tmp_path / "study" / "trials"
    (trials / "0002").rename(trials / "0007")
    with pytest.raises(UserError, match=r"0007/trial.json must .*it is of trial 2"):
        run(tmp_path, 4)
