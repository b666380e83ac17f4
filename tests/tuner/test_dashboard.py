"""optuna-dashboard shows a study from the journal in its folder, as docs/watching.md says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_server
from typing import Any

import pytest

from tests.tuner.test_api import JOB
from tuner.api import tune
from tuner.study_folder import StudyFolder

pytestmark = pytest.mark.slow
DASHBOARD = shutil.which("optuna-dashboard", path=str(Path(sys.executable).parent))
_PATIENCE_S = 60.0


def test_the_dashboard_lists_the_study_with_its_trials(tmp_path: Path) -> None:
    assert DASHBOARD is not None, "it is among the development packages"
    study = tune(JOB, tmp_path / "s", runner="simulated", trials=4)
    with served(StudyFolder(tmp_path / "s").journal_file) as address:
        listed = answer(f"{address}/api/studies")["study_summaries"]
        assert [one["study_name"] for one in listed] == ["paratune"]
        told = answer(f"{address}/api/studies/{listed[0]['study_id']}?after=0")
    shown = {
        trial["values"][0]: {p["name"]: p["param_external_value"] for p in trial["params"]}
        for trial in told["trials"]
        if trial["state"] == "Complete"
    }
    assert study.best is not None
    best = shown[study.best.measured.step_time_s]
    assert best["backend"] == str(study.best.plan.backend)
    assert len(told["trials"]) >= 4


@contextmanager
def served(journal: Path) -> Iterator[str]:
    """The dashboard on a free port of this machine, ended in the end."""
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(DASHBOARD), str(journal), "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=20)


def answer(url: str) -> dict[str, Any]:
    """What the address answers, once it does."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                told: dict[str, Any] = json.load(response)
                return told
        except urllib.error.URLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
