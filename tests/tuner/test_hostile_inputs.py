"""Files that would hang, overflow or confuse their reader are refused in one sentence, exit 2."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.tiny_job import LLAMA_CONFIG
from tuner.cli.main import main

JOB = """\
workload: {{model: config.json, seq_len: 32, global_batch: {batch}}}
cluster: {{gpu: cpu, gpus_per_node: {gpus}, num_nodes: {nodes}}}
memory: {{limit: 1GiB}}
search: {{backend: [pytorch], tp: {tp}}}
"""
HUGE = "9" * 30
LONG = "9" * 5000
DEEP = 100_000


def written(folder: Path, **values: str) -> Path:
    folder.joinpath("config.json").write_text(json.dumps(LLAMA_CONFIG))
    options = {"batch": "8", "gpus": "4", "nodes": "1", "tp": "[1]", **values}
    path = folder / "job.yaml"
    path.write_text(JOB.format(**options))
    return path


def said_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"batch": HUGE}, "global_batch"),
        ({"batch": LONG}, "job.yaml"),
        ({"batch": "0200"}, "global_batch"),
        ({"batch": "2:08"}, "global_batch"),
        ({"nodes": HUGE}, "num_nodes"),
        ({"gpus": "1000000000"}, "gpus_per_node"),
        ({"tp": f"[{HUGE}]"}, "search.tp"),
        ({"tp": "null"}, "search.tp"),
        ({"tp": "[" * DEEP}, "job.yaml"),
    ],
    ids=[
        *("huge batch", "long batch", "octal", "base 60", "nodes", "gpus", "tp", "null", "deep"),
    ],
)
def test_a_job_out_of_all_bounds_is_refused_with_its_key(
    values: dict[str, str], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert word in said_of(["plans", str(written(tmp_path, **values))], capsys)


def test_a_device_or_a_pipe_is_no_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    for path in (Path("/dev/zero"), pipe):
        assert "no regular file" in said_of(["plans", str(path)], capsys)


def _doubling() -> str:
    lines = ["A=xx", *["A=$A$A"] * 60, "torchrun pretrain_gpt.py --micro-batch-size $A"]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("double.sh", _doubling()),
        ("deep.json", "[" * DEEP),
        ("deep.yaml", "[" * DEEP),
        ("deep.toml", "a = " + "[" * DEEP),
        ("huge.json", json.dumps({"train_micro_batch_size_per_gpu": 10**30})),
        ("long.json", '{"train_micro_batch_size_per_gpu": ' + LONG + "}"),
    ],
)
def test_a_baseline_out_of_all_bounds_is_refused_with_its_file(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = tmp_path / name
    baseline.write_text(text)
    job = str(written(tmp_path))
    study = str(tmp_path / "study")
    arguments = ["tune", job, "--runner", "simulated", "--study", study]
    assert name in said_of([*arguments, "--baseline", str(baseline)], capsys)


def test_a_byte_order_mark_is_no_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = tmp_path / "ds.json"
    text = json.dumps({"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}})
    baseline.write_text(text, encoding="utf-8-sig")
    job = written(tmp_path)
    job.write_text(job.read_text().replace("[pytorch]", "[pytorch, deepspeed]"))
    study = str(tmp_path / "study")
    arguments = ["tune", str(job), "--runner", "simulated", "--study", study, "--trials", "1"]
    assert main([*arguments, "--baseline", str(baseline), "--quiet"]) == 0
