from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.reports.a_study import DEFAULTS, study_folder, trials
from tuner.cli.main import main
from tuner.study_folder import StudyFolder
from tuner.trial import Trial


def folder_of(path: Path, tried: tuple[Trial, ...]) -> StudyFolder:
    folder = study_folder(path, tried)
    job = folder.read_json(folder.job_file)
    defaults = {str(backend): plan.to_dict() for backend, plan in DEFAULTS.items()}
    folder.write_json(folder.job_file, job | {"defaults": defaults})
    return folder


def test_all_reports_are_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path / "s", trials())

    assert main(["report", str(folder.path)]) == 0

    for name in ("report.md", "report.html", "trials.csv", "best/README.md"):
        assert (folder.path / name).is_file()
    assert str(folder.path / "report.html") in capsys.readouterr().out
    with (folder.path / "trials.csv").open() as table:
        assert len(list(csv.DictReader(table))) == 6


def test_nothing_trained_exits_with_one(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "s", trials()[1:3])

    assert main(["report", str(folder.path), "--json"]) == 1
    assert "No answer yet" in (folder.path / "report.html").read_text()


def test_two_studies_are_compared_in_the_folder_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = folder_of(tmp_path / "a", trials()), folder_of(tmp_path / "b", trials()[:3])

    assert main(["report", str(first.path), str(second.path)]) == 0

    assert "The best plan of b is 0.50x as fast as that of a." in capsys.readouterr().out
    assert "0.50x" in (first.path / "comparison.md").read_text()
    assert "0.50x" in (first.path / "comparison.html").read_text()
    assert (second.path / "report.html").is_file()


def test_a_comparison_is_one_json_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = folder_of(tmp_path / "a", trials()), folder_of(tmp_path / "b", trials()[:3])

    assert main(["report", str(first.path), str(second.path), "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert [study["study"] for study in document["studies"]] == [str(first.path), str(second.path)]
    assert document["comparison"]["speed_ratio"] == 0.5


def test_a_study_is_not_compared_with_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "a", trials())

    assert main(["report", str(folder.path), str(folder.path)]) == 2
    assert "two different studies" in capsys.readouterr().err


def test_what_is_no_study_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "must be a study folder, but it has no job.json" in capsys.readouterr().err
