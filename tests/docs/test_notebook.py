"""The notebook of examples/ runs from its first cell to its last, and is kept with its outputs."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tuner.api import StudyResult

NOTEBOOK = Path(__file__).parents[2] / "examples" / "tour.ipynb"


@pytest.fixture(scope="module")
def cells() -> list[dict[str, Any]]:
    """Its code cells."""
    notebook = json.loads(NOTEBOOK.read_text())
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_runs_without_gpu_and_network(
    cells: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    names: dict[str, Any] = {}
    shown = [_last_value("".join(cell["source"]), names) for cell in cells]
    study = names["study"]
    assert isinstance(study, StudyResult)
    assert len(study.trials) == 12
    assert study.best is not None
    assert sum(type(value).__name__ == "Figure" for value in shown) == 3


def test_the_notebook_is_kept_with_its_outputs_and_no_trace_of_a_machine(
    cells: list[dict[str, Any]],
) -> None:
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert all(output["output_type"] != "error" for output in outputs)
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert kinds.count("application/vnd.plotly.v1+json") == 3
    assert "/home/" not in json.dumps(outputs)
    assert "site-packages" not in json.dumps(outputs)


def _last_value(source: str, names: dict[str, Any]) -> Any:
    """Runs a cell; what a notebook would show below it."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)
