"""What a rank does once its training has raised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runners.bench.launch_folder import LaunchFolder


class FullMeter:
    """Of a rank that cannot allocate anything more under its limit."""

    def __init__(self) -> None:
        self.is_limited = True

    def peak_bytes(self) -> int:
        if self.is_limited:
            raise MemoryError
        return 7

    def details(self) -> dict[str, Any]:
        return {"cpu_limit_bytes": 8}

    def lift_limit(self) -> None:
        self.is_limited = False


def test_it_reports_without_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runners.bench import rank

    def trained(_launch: object, _place: object, _report: object, meters: list[FullMeter]) -> None:
        meters.append(FullMeter())
        raise MemoryError

    monkeypatch.setattr(rank, "_trained", trained)
    monkeypatch.setattr(LaunchFolder, "read", lambda _: None)
    assert rank.run_rank(tmp_path, tmp_path) == 1
    error = json.loads((tmp_path / "rank-0.json").read_text())["error"]
    assert error["memory"] == {"peak_bytes": 7, "cpu_limit_bytes": 8}
