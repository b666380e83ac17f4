"""Below a failed trial stand the last words of the rank that failed first, and where all is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.reports.a_study import measured, trial
from tuner.cli.root_traceback import root_traceback
from tuner.outcome import Failed, Outcome, OutOfMemory, Phase
from tuner.plan import Backend, ParallelPlan
from tuner.study_folder import StudyFolder

FAILED = Failed(rank=1, phase=Phase.MODEL, error="ValueError", message="sizes differ")


def lines_of(folder: Path, outcome: Outcome = FAILED) -> tuple[str, ...]:
    return root_traceback(
        StudyFolder(folder), trial(3, ParallelPlan(backend=Backend.PYTORCH), outcome)
    )


@pytest.fixture
def trial_folder(tmp_path: Path) -> Path:
    folder = StudyFolder(tmp_path).trial_folder(3)
    folder.mkdir(parents=True)
    for rank in (0, 1):
        (folder / f"rank-{rank}.log").write_text(f"log of rank {rank}\n")
        error = {"traceback": "Traceback\n" + "  frame\n" * 30 + f"ValueError: of rank {rank}\n"}
        (folder / f"rank-{rank}.json").write_text(json.dumps({"error": error}))
    return folder


def test_it_is_the_traceback_of_the_rank_that_failed_first(
    tmp_path: Path, trial_folder: Path
) -> None:
    *lines, last = lines_of(tmp_path)
    assert lines[-1] == "ValueError: of rank 1"
    assert len(lines) < 20
    assert last == f"all of it: {trial_folder / 'rank-1.log'}"


def test_a_rank_that_wrote_no_report_is_heard_by_its_log(
    tmp_path: Path, trial_folder: Path
) -> None:
    (trial_folder / "rank-1.json").write_text('{"error": null}')
    assert lines_of(tmp_path)[0] == "log of rank 1"


def test_a_rank_that_left_nothing_is_told_by_the_outcome(tmp_path: Path) -> None:
    assert lines_of(tmp_path) == ("sizes differ",)


def test_what_trained_or_did_not_fit_needs_no_traceback(tmp_path: Path, trial_folder: Path) -> None:
    assert lines_of(tmp_path, measured(1.0)) == ()
    assert lines_of(tmp_path, OutOfMemory(rank=1, phase=Phase.MODEL, message="full")) == ()
