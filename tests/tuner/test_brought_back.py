"""A study folder comes back whole, checked, and never over something else."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

import pytest

from runners import ray_job_entry
from tuner.cli.brought_back import bring_back, check_place
from tuner.errors import UserError
from tuner.study_folder import StudyFolder

ORIGIN = {"address": "http://head:8265", "job": "paratune-x", "remote_study": "~/studies/x"}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """What a study leaves on the cluster."""
    folder = tmp_path / "there"
    for name, text in {
        "job.json": "{}",
        "lock": "4711",
        "best/ds_config.json": '{"a": 1}',
        "trials/0000/rank-0.log": "short\n",
        "trials/0001/rank-0.log": "x" * 5000,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def sent(study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The log of the job that sends the folder, with lines of others in it."""
    monkeypatch.setattr(sys, "argv", ["entry", "--study", str(study)])
    ray_job_entry.main()
    return f"2026 INFO worker.py\n{capsys.readouterr().out}bye\n"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_every_file_comes_back_as_it_was_and_says_whence(
    study: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ray_job_entry, "_LINE_BYTES", 30)  # many lines
    here = StudyFolder(tmp_path / "new" / "here")
    log = sent(study, monkeypatch, capsys)
    assert bring_back(log, here, ORIGIN) == ()
    came = contents(here.path)
    assert json.loads(came.pop("submitted.json")) == ORIGIN
    expected = contents(study)
    del expected["lock"]
    assert came == expected
    (study / "best" / "ds_config.json").unlink()
    bring_back(sent(study, monkeypatch, capsys), here, ORIGIN)
    assert not (here.path / "best").exists()  # a later state replaces the earlier one
    assert [path.name for path in here.path.parent.iterdir()] == ["here"]


def test_logs_that_are_too_large_are_left_out_and_named(
    study: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ray_job_entry, "LIMIT_BYTES", 1000)
    here = StudyFolder(tmp_path / "here")
    log = sent(study, monkeypatch, capsys)
    assert bring_back(log, here, ORIGIN) == ("trials/0001/rank-0.log",)
    assert (here.path / "trials/0000/rank-0.log").exists()


def test_a_folder_that_is_too_large_is_named_and_a_missing_one_is_nothing(
    study: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ray_job_entry, "LIMIT_BYTES", 5)
    with pytest.raises(RuntimeError, match="has 10 bytes without logs, more than 5"):
        bring_back(sent(study, monkeypatch, capsys), StudyFolder(tmp_path / "here"), ORIGIN)
    log = sent(tmp_path / "none", monkeypatch, capsys)
    assert bring_back(log, StudyFolder(tmp_path / "here"), ORIGIN) is None
    assert not (tmp_path / "here").exists()


def test_an_archive_that_was_damaged_on_its_way_changes_nothing(
    study: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ray_job_entry, "_LINE_BYTES", 30)
    lines = sent(study, monkeypatch, capsys).splitlines()
    here = StudyFolder(tmp_path / "here")
    with pytest.raises(RuntimeError, match="SHA-256 must be"):
        bring_back("\n".join(lines[:3] + lines[4:]), here, ORIGIN)
    with pytest.raises(
        RuntimeError, match="the job that sends it said: python: No module named runners"
    ):
        bring_back("python: No module named runners", here, ORIGIN)
    assert not here.path.exists()


@pytest.mark.parametrize("name", ["../outside", "link"])
def test_nothing_in_an_archive_leaves_the_folder(name: str, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        if name == "link":
            member.type, member.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(member)
    content = buffer.getvalue()
    facts = {"sha256": hashlib.sha256(content).hexdigest(), "left_out": []}
    mark = ray_job_entry.ARCHIVE_MARK
    log = f"{mark} data {base64.b64encode(content).decode()}\n{mark} end {json.dumps(facts)}\n"
    here = StudyFolder(tmp_path / "a" / "here")
    with pytest.raises(RuntimeError, match=r"cannot be unpacked|what a study folder does not"):
        bring_back(log, here, ORIGIN)
    assert contents(tmp_path) == {}


def test_a_folder_of_something_else_is_never_replaced(study: Path, tmp_path: Path) -> None:
    check_place(StudyFolder(tmp_path / "missing"), ORIGIN)
    (tmp_path / "empty").mkdir()
    check_place(StudyFolder(tmp_path / "empty"), ORIGIN)
    with pytest.raises(UserError, match=r"but another one is there; .* --study"):
        check_place(StudyFolder(study), ORIGIN)
    (study / "submitted.json").write_text(json.dumps(ORIGIN | {"remote_study": "/other"}))
    with pytest.raises(UserError, match="but one of /other is there"):
        check_place(StudyFolder(study), ORIGIN)
    (study / "submitted.json").write_text(json.dumps(ORIGIN | {"job": "an earlier one"}))
    check_place(StudyFolder(study), ORIGIN)
