"""A study folder that comes back from a cluster through a job's log: checked, then put in place."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runners.ray_job_entry import ARCHIVE_MARK, LIMIT_BYTES
from tuner.errors import UserError
from tuner.kept_files import write_atomically
from tuner.study_folder import StudyFolder

_ORIGIN_FILE = "submitted.json"
"""In a folder that came back: where it came from."""


def check_place(folder: StudyFolder, origin: Mapping[str, str]) -> None:
    """Makes sure that what will come back overwrites nothing but an earlier state of the same.

    Raises:
        UserError: something else is there.
    """
    path = folder.path
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    kept = _origin(path)
    if kept.get("remote_study") != origin["remote_study"]:
        came = f"one of {kept['remote_study']}" if kept else "another one"
        raise UserError(
            f"the study folder {path} must be new, or one that came back from "
            f"{origin['remote_study']}, but {came} is there; give another folder with --study"
        )


def _origin(path: Path) -> dict[str, Any]:
    try:
        value = json.loads((path / _ORIGIN_FILE).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def bring_back(log: str, folder: StudyFolder, origin: Mapping[str, str]) -> tuple[str, ...] | None:
    """Unpacks the archive in a log in place of the folder.

    Returns:
        The files that were left out of it; None where there is no study to come back yet.

    Raises:
        RuntimeError: the study is too large, or the archive was damaged on its way.
    """
    found = _archive(log)
    if found is None:
        return None
    content, left_out = found
    folder.path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.path.parent, prefix=".paratune-") as above:
        new = Path(above) / "new"
        _unpack(content, new)
        write_atomically(new / _ORIGIN_FILE, json.dumps(dict(origin), indent=2).encode())
        if folder.path.exists():
            folder.path.rename(Path(above) / "old")
        new.rename(folder.path)
    return left_out


def _archive(log: str) -> tuple[bytes, tuple[str, ...]] | None:
    """The bytes, and the names of the files that were left out."""
    said = [line.split(" ", 2)[1:] for line in log.splitlines() if line.startswith(ARCHIVE_MARK)]
    by_kind = {kind: text for kind, text in said if kind != "data"}
    if "nothing" in by_kind:
        return None
    if "refused" in by_kind:
        raise RuntimeError(by_kind["refused"])
    if "end" not in by_kind:
        last = log.strip().splitlines()[-1:] or ["nothing"]
        raise RuntimeError(f"the job that sends it said: {last[0][:300]}")
    facts = json.loads(by_kind["end"])
    try:
        content = b"".join(base64.b64decode(text) for kind, text in said if kind == "data")
    except binascii.Error as error:
        raise RuntimeError(f"it was damaged on its way: {error}") from error
    if (digest := hashlib.sha256(content).hexdigest()) != facts["sha256"]:
        raise RuntimeError(
            f"it was damaged on its way: SHA-256 must be {facts['sha256']}, got {digest}"
        )
    return content, tuple(facts["left_out"])


def _unpack(content: bytes, folder: Path) -> None:
    """Regular files only, none outside the folder, and not endlessly many bytes."""
    folder.mkdir()
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            num_bytes = 0
            for member in archive:
                num_bytes += member.size
                if not member.isreg() or num_bytes > 2 * LIMIT_BYTES:
                    raise RuntimeError(f"it holds what a study folder does not: {member.name}")
                archive.extract(member, folder, filter="data")
    except tarfile.TarError as error:
        shutil.rmtree(folder)
        raise RuntimeError(f"it cannot be unpacked: {error}") from error
