"""`paratune replay`: the contract, bad tables, and that nothing of a row is known untried."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tuner.samplers.grid import PLANS, cost
from tuner.cli.main import main
from tuner.cli.replay_command import Replay, against_table, replayed
from tuner.samplers.registry import SAMPLERS
from tuner.sweep_table import SweepTable, read_sweep

SHAPE = {
    "model": "llama-8b",
    "hidden": 4096,
    "layers": 32,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 14336,
    "vocab": 32000,
    "gpu": "h100-sxm-80gb",
    "gpu_mem_gb": 80,
    "gpus": 16,
    "gpus_per_node": 8,
    "seq": 4096,
    "global_batch": 128,
    "precision": "bf16",
}


def rows() -> list[dict[str, Any]]:
    """The grid as a sweep: one workload of 16 GPUs."""
    found = []
    for plan in PLANS:
        seconds = cost(plan)
        found.append(
            SHAPE
            | {
                "tp": plan.tp,
                "pp": plan.pp,
                "micro_batch": plan.micro_batch,
                "zero": plan.zero_stage,
                "recompute": str(plan.recompute),
                "flash_attn": "te",
                "step_time_s": "" if seconds is None else f"{seconds:.4f}",
                "tokens_per_s_per_gpu": "" if seconds is None else f"{1e5 / seconds:.1f}",
                "outcome": "out_of_memory" if seconds is None else "measured",
            }
        )
    return found


def table(tmp_path: Path, content: Sequence[Mapping[str, Any]], name: str = "sweep.csv") -> Path:
    path = tmp_path / name
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(content[0]))
        writer.writeheader()
        writer.writerows(content)
    return path


def replay(
    path: Path, capsys: pytest.CaptureFixture[str], *options: str, code: int = 0
) -> list[dict[str, Any]]:
    assert main(["replay", str(path), "--json", *options]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def trials_to_best(line: Mapping[str, Any]) -> int:
    """Trials until one within 1 % of the best of the grid."""
    best = min(seconds for plan in PLANS if (seconds := cost(plan)) is not None)
    for number, trial in enumerate(line["trials"], 1):
        if trial["step_time_s"] is not None and trial["step_time_s"] <= 1.01 * best:
            return number
    return len(PLANS)


def test_a_line_holds_the_contract(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = rows()
    (line,) = replay(table(tmp_path, content), capsys, "--trials", "9")
    key = ("model", "gpu", "gpus", "seq", "global_batch")
    assert line["workload"] == {name: str(SHAPE[name]) for name in key}
    assert line["num_candidates"] == len(content)
    assert len({trial["row"] for trial in line["trials"]}) == 9
    for trial in line["trials"]:
        assert trial["outcome"] == content[trial["row"]]["outcome"]
        assert str(trial["step_time_s"] or "") == str(
            content[trial["row"]]["step_time_s"] and float(content[trial["row"]]["step_time_s"])
        )


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_tries_each_row_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sampler: str
) -> None:
    if sampler == "gp":
        pytest.importorskip("scipy")
    content = rows()[:20]
    (line,) = replay(table(tmp_path, content), capsys, "--sampler", sampler, "--trials", "99")
    assert sorted(trial["row"] for trial in line["trials"]) == list(range(20))


def test_the_best_row_is_found_in_a_few_trials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = replay(table(tmp_path, rows()), capsys)
    assert trials_to_best(line) <= 10


def test_measurements_shuffled_between_rows_are_found_no_sooner_than_by_chance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = []
    for seed in range(3):
        content = rows()
        order = np.random.default_rng(seed).permutation(len(content))
        results = ("step_time_s", "tokens_per_s_per_gpu", "outcome")
        shuffled = [
            row | {name: content[other][name] for name in results}
            for row, other in zip(content, order, strict=True)
        ]
        path = table(tmp_path, shuffled, f"{seed}.csv")
        # Later trials would only take longer: what is not found by then counts as never.
        (line,) = replay(path, capsys, "--trials", str(len(content) // 5))
        counts.append(trials_to_best(line))
    # By chance half of the rows are needed on average.
    assert np.mean(counts) > len(PLANS) / 5


def test_a_row_is_looked_at_only_when_it_is_tried(tmp_path: Path) -> None:
    sweep = read_sweep(table(tmp_path, rows()))
    looked: list[int] = []

    class Watched(SweepTable):
        def measurement(self, row: int) -> Any:
            looked.append(row)
            return sweep.measurement(row)

    kept = {field.name: getattr(sweep, field.name) for field in fields(sweep)}
    watched = Watched(**kept | {"measured_cells": ()})  # nothing to be found another way
    found = replayed(watched, sweep.groups[0], "plan", trials=7, seed=0)
    assert looked == [sweep.groups[0].rows[one.row] for one in found.tries]


def test_the_order_does_not_depend_on_what_was_not_tried_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = rows()
    (line,) = replay(table(tmp_path, content), capsys, "--trials", "6")
    tried = [trial["row"] for trial in line["trials"]]
    for number, row in enumerate(content):
        if number not in tried:
            row.update(step_time_s="0.0001", outcome="measured", tokens_per_s_per_gpu="9e9")
    (other,) = replay(table(tmp_path, content, "other.csv"), capsys, "--trials", "6")
    assert [trial["row"] for trial in other["trials"]] == tried


def test_columns_of_results_are_no_knobs_and_others_are(tmp_path: Path) -> None:
    from tuner.cli.replay_rows import chosen_groups

    content = [
        row | {"mfu": number % 3, "kernel": "ab"[number % 2], "achieved_tflops": number % 4}
        for number, row in enumerate(rows())
    ]
    (group,) = chosen_groups(read_sweep(table(tmp_path, content)), "")
    assert set(group.knobs) == {"kernel"}


def test_an_unknown_knob_that_matters_is_learnt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = []
    for row in rows():
        for kernel, slow in (("slow", 1.5), ("fast", 1.0)):
            seconds = row["step_time_s"] and f"{float(row['step_time_s']) * slow:.4f}"
            content.append(row | {"step_time_s": seconds, "rms_kernel": kernel})
    (line,) = replay(table(tmp_path, content), capsys, "--trials", "12")
    late = [content[trial["row"]]["rms_kernel"] for trial in line["trials"][-6:]]
    assert late.count("fast") >= 5


def test_where_leaves_the_rows_with_these_cells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = rows()
    path = table(tmp_path, content)
    (line,) = replay(path, capsys, "--where", "tp=2,zero=1", "--trials", "99")
    assert line["num_candidates"] == sum(r["tp"] == 2 and r["zero"] == 1 for r in content)
    assert {content[trial["row"]]["tp"] for trial in line["trials"]} == {2}


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("colour=red", "its columns are"),
        ("tp=3", "tp is 1, 2, 4, 8"),
        ("tp", "must be k=v"),
        ("step_time_s=5", "must name columns"),
        ("outcome=measured", "must name columns"),
    ],
)
def test_a_wrong_where_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str, said: str
) -> None:
    assert main(["replay", str(table(tmp_path, rows())), "--where", where]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1


def test_where_nothing_ran_the_least_memory_needed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = [row | {"outcome": "out_of_memory", "step_time_s": ""} for row in rows()[:12]]
    path = table(tmp_path, content)
    assert main(["replay", str(path), "--json"]) == 1
    captured = capsys.readouterr()
    assert "none of the 12 rows" in captured.err
    assert "GiB a GPU" in captured.err
    assert len(json.loads(captured.out)["trials"]) == 12


def test_equal_rows_are_separate_and_each_is_tried_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = [rows()[60] | {"outcome": "measured", "step_time_s": "2.5"}] * 9
    (line,) = replay(table(tmp_path, content), capsys)
    assert sorted(trial["row"] for trial in line["trials"]) == list(range(9))


def test_one_varying_knob_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = [row for row in rows() if (row["tp"], row["pp"], row["zero"]) == (4, 2, 1)]
    (line,) = replay(table(tmp_path, content), capsys)
    assert len(line["trials"]) == len(content)


def test_a_thousand_columns_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    content = [
        row | {f"column_{number}": int(rng.integers(3)) for number in range(1000)}
        for row in rows()[:30]
    ]
    (line,) = replay(table(tmp_path, content), capsys, "--trials", "5")
    assert len(line["trials"]) == 5


@pytest.mark.parametrize("missing", ["step_time_s", "global_batch", "hidden"])
def test_a_missing_column_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    content = [{k: v for k, v in row.items() if k != missing} for row in rows()]
    assert main(["replay", str(table(tmp_path, content))]) == 2
    assert missing in capsys.readouterr().err


def test_an_empty_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.csv"
    path.write_text("")
    assert main(["replay", str(path)]) == 2
    assert "must have the columns" in capsys.readouterr().err


def test_without_json_a_table_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(table(tmp_path, rows())), "--trials", "4"]) == 0
    assert "llama-8b" in capsys.readouterr().out


def test_the_table_holds_the_whole_plan_and_what_was_lost_to_the_best_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    content = [
        SHAPE
        | {"tp": tp, "pp": 2, "micro_batch": 1, "zero": 1, "recompute": "selective"}
        | {"step_time_s": seconds, "outcome": outcome}
        for tp, seconds, outcome in [(1, 9.0, "measured"), (2, 3.0, "measured"), (4, "", "failed")]
    ]
    path = table(tmp_path, content)
    assert main(["replay", str(path), "--trials", "3"]) == 0
    out = capsys.readouterr().out
    plan = "megatron zero1 mb1 tp2 pp2 bf16 recompute-selective"
    assert f"best is 3.00 s (row 1: {plan}); it was found" in out
    assert f"{plan} │" in out
    sweep = read_sweep(path)
    found = replayed(sweep, sweep.groups[0], "plan", trials=3, seed=0)
    slower = Replay(group=found.group, tries=tuple(t for t in found.tries if t.row != 1))
    assert against_table(sweep, slower).endswith("what was found is 200.0% slower")
