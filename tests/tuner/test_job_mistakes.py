"""Every mistake in a job file is one clear message with file and key, exit code 2, no traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tiny_job import LLAMA_CONFIG
from tuner.cli.main import main
from tuner.presets import GPUS

Change = dict[str, Any]


def job(**changes: Any) -> dict[str, Any]:
    """A right job, changed; a key such as ``workload__seq_len`` reaches into a section."""
    values: dict[str, Any] = {
        "workload": {"model": "config.json", "seq_len": 32, "global_batch": 8},
        "cluster": {"gpu": "cpu", "gpus_per_node": 4},
        "memory": {"limit": "1GiB"},
    }
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if not key:
            values[section] = value
        elif value is None:
            del values[section][key]
        else:
            values.setdefault(section, {})[key] = value
    return values


MISTAKES: list[tuple[str, Change, list[str]]] = [
    ("unknown key", {"worklod": {}}, ["worklod", "workload"]),
    ("unknown nested key", {"workload__seqlen": 3}, ["workload.seqlen", "seq_len"]),
    ("missing section", {"workload": None}, ["workload", "section"]),
    ("missing key", {"workload__seq_len": None}, ["workload.seq_len", "missing"]),
    ("text for a number", {"workload__seq_len": "long"}, ["workload.seq_len", "'long'"]),
    ("number as text", {"workload__global_batch": "8"}, ["workload.global_batch", "'8'"]),
    ("fraction", {"workload__global_batch": 8.5}, ["workload.global_batch", "8.5"]),
    ("zero sequences", {"workload__global_batch": 0}, ["workload.global_batch", "0"]),
    ("no such model", {"workload__model": "nowhere.json"}, ["workload.model", "nowhere.json"]),
    ("model is no JSON", {"workload__model": "text.json"}, ["workload.model", "JSON"]),
    ("model is a list", {"workload__model": "list.json"}, ["workload.model", "object"]),
    ("unknown family", {"workload__model": "bert.json"}, ["model_type", "'bert'", "llama"]),
    ("contradiction", {"workload__model": "heads.json"}, ["heads.json", "64", "7"]),
    ("uneven groups", {"workload__model": "groups.json"}, ["num_key_value_heads"]),
    ("factory without vocabulary", {"workload__model": "pkg:make"}, ["workload.vocab_size"]),
    ("no name for a factory", {"workload__model": "pkg:2 make"}, ["package.module:factory"]),
    ("vocabulary twice", {"workload__vocab_size": 9}, ["workload.vocab_size", "config.json"]),
    ("long sequence", {"workload__seq_len": 4096}, ["workload.seq_len", "128", "4096"]),
    ("unknown optimizer", {"workload__optimizer": "sgd"}, ["workload.optimizer", "adamw"]),
    ("no GPUs", {"cluster__gpus_per_node": 0}, ["cluster.gpus_per_node", "0"]),
    ("unknown GPU", {"cluster__gpu": "h900"}, ["cluster.gpu", "h900", "h100-sxm-80gb"]),
    ("cluster is a word", {"cluster": "all"}, ["cluster", "auto"]),
    ("negative budget", {"budget": {"trials": -1}}, ["budget.trials", "-1"]),
    ("bad time", {"budget": {"time": "soon"}}, ["budget.time", "30m"]),
    ("bad size", {"memory": {"limit": "lots"}}, ["memory.limit", "70GiB"]),
    ("margin and limit", {"memory__margin": 0.1}, ["memory", "margin", "limit"]),
    ("margin above 1", {"memory": {"margin": 5}}, ["memory.margin", "5"]),
    ("unknown backend", {"search": {"backend": ["jax"]}}, ["search.backend, item 1:", "jax"]),
    ("one value", {"search": {"precision": "bf17"}}, ["search.precision: it must", "'bf17'"]),
    ("second item", {"search": {"tp": [1, 0]}}, ["search.tp, item 2: it must", "got 0"]),
    ("empty options", {"search": {"tp": []}}, ["search.tp"]),
    ("negative degree", {"search": {"tp": [-2]}}, ["search.tp", "-2"]),
    ("unknown knob", {"search": {"tensor": [2]}}, ["search.tensor"]),
    ("zero stage 4", {"search": {"zero_stage": 4}}, ["search.zero_stage", "4"]),
    ("no experts", {"measure": {"routing": "worst"}}, ["measure.routing", "learned", "remove it"]),
    ("unknown routing", {"measure": {"routing": "even"}}, ["measure.routing", "worst", "'even'"]),
    ("one step", {"measure": {"steps": 1}}, ["measure.steps", "1"]),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files: dict[str, Any] = {
        "config.json": LLAMA_CONFIG,
        "list.json": [1],
        "bert.json": {"model_type": "bert"},
        "heads.json": LLAMA_CONFIG | {"num_attention_heads": 7, "num_key_value_heads": 7},
        "groups.json": LLAMA_CONFIG | {"num_key_value_heads": 3},
    }
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps(value))
    (tmp_path / "text.json").write_text("not json")
    return tmp_path


def complaint(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    path = folder / "job.yaml"
    path.write_text(text)
    assert main(["tune", str(path), "--study", str(folder / "study")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert not (folder / "study").exists()
    return captured.err


@pytest.mark.parametrize(("_name", "changes", "words"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_named_with_its_key(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    _name: str,
    changes: Change,
    words: list[str],
) -> None:
    said = complaint(folder, yaml.safe_dump(job(**changes)), capsys)
    assert "job.yaml" in said
    assert len(said.splitlines()) == 1, said
    for word in words:
        assert word in said, f"{word!r} is not in {said!r}"


def test_an_unknown_gpu_is_told_the_four_nearest_and_where_all_are(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complaint(folder, yaml.safe_dump(job(cluster__gpu="h1000")), capsys)
    assert said.count("h100-") == 4
    assert "a100" not in said
    assert f"all {len(GPUS)}," in said
    assert "docs/clusters.md" in said


@pytest.mark.parametrize(
    ("text", "word"),
    [("", "workload"), ("- a", "list"), ("a: [", "YAML"), ("workload: {}\nworkload: {}", "twice")],
)
def test_a_file_that_is_no_job_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, word: str
) -> None:
    said = complaint(folder, text, capsys)
    assert "job.yaml" in said
    assert word in said


def test_a_missing_job_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plans", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err


def test_a_right_job_plans(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "job.yaml").write_text(yaml.safe_dump(job()))
    assert main(["plans", str(folder / "job.yaml"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["num_legal"] > 0
    assert document["plans"][0]["fits"] is True
    removed = sum(step["removed"] for step in document["waterfall"])
    assert document["num_combinations"] - removed == document["num_legal"]


def test_several_mistakes_are_all_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(folder, yaml.safe_dump(job(workload__seq_len=0, cluster__gpus=4)), capsys)
    assert "workload.seq_len" in said
    assert "cluster.gpus" in said
    assert "did you mean gpu?" in said
