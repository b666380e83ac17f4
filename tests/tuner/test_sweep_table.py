"""Recorded sweeps are read as groups of plans, and what was measured only when asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.cost_model.software import Attention
from tuner.errors import UserError
from tuner.plan import Precision, Recompute
from tuner.sweep_table import is_measured, read_sweep

ROW = {
    "model": "llama-1B",
    "hidden": "2048",
    "layers": "16",
    "heads": "32",
    "kv_heads": "8",
    "ffn": "8192",
    "vocab": "128256",
    "gpu": "h100-sxm-80gb",
    "gpus": "8",
    "gpus_per_node": "8",
    "seq": "4096",
    "global_batch": "256",
    "micro_batch": "2",
    "tp": "2",
    "pp": "1",
    "dp": "4",
    "zero": "1",
    "step_time_s": "1.5",
    "peak_mem_gb": "20",
    "outcome": "measured",
}


def table(folder: Path, *rows: dict[str, str]) -> Path:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(columns)]
    lines += [
        ",".join('"' + row.get(n, "").replace('"', '""') + '"' for n in columns) for row in rows
    ]
    path = folder / "sweep.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rows_of_one_workload_are_one_group_in_the_file_s_order(tmp_path: Path) -> None:
    other = ROW | {"gpus": "16", "dp": "8"}
    sweep = read_sweep(table(tmp_path, ROW, other, ROW | {"micro_batch": "4"}))
    assert [group.rows for group in sweep.groups] == [(0, 2), (1,)]
    assert sweep.groups[0].key["gpus"] == "8"
    assert [plan.micro_batch for plan in sweep.groups[0].plans] == [2, 4]


def test_blank_knobs_take_their_documented_defaults(tmp_path: Path) -> None:
    bare = {n: c for n, c in ROW.items() if n not in ("tp", "pp", "dp", "zero", "micro_batch")}
    plan = read_sweep(table(tmp_path, bare)).groups[0].plans[0]
    assert (plan.tp, plan.pp, plan.cp, plan.zero_stage, plan.micro_batch) == (1, 1, 1, 0, 1)
    assert plan.precision is Precision.BF16
    assert plan.recompute is Recompute.NONE


def test_words_of_other_programs_are_understood(tmp_path: Path) -> None:
    words = {"precision": "bf16+float8", "recompute": "selective(op)", "flash_attn": "unfused"}
    group = read_sweep(table(tmp_path, ROW | words)).groups[0]
    assert group.plans[0].precision is Precision.FP8
    assert group.plans[0].recompute is Recompute.SELECTIVE
    assert group.subjects[0].software.attention is Attention.MATERIALISED


def test_the_params_column_tells_whether_embeddings_are_tied(tmp_path: Path) -> None:
    layers = 16 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192)
    tied = read_sweep(table(tmp_path, ROW | {"params": str(layers + 128256 * 2048)}))
    untied = read_sweep(table(tmp_path, ROW | {"params": str(layers + 2 * 128256 * 2048)}))
    assert tied.groups[0].subjects[0].shape.tied_embeddings
    assert not untied.groups[0].subjects[0].shape.tied_embeddings


def test_blank_shapes_come_from_the_config_beside_the_table(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 512,
        "vocab_size": 1000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    blank = ROW | {"hidden": "", "layers": "", "heads": "", "config": "config.json"}
    shape = read_sweep(table(tmp_path, blank)).groups[0].subjects[0].shape
    assert (shape.hidden, shape.num_layers) == (256, 4)


def test_a_config_that_is_not_there_skips_its_row_by_name(tmp_path: Path) -> None:
    lost = ROW | {"hidden": "", "config": "lost.json"}
    sweep = read_sweep(table(tmp_path, ROW, lost))
    (reason,) = sweep.skipped
    assert "lost.json" in reason


def test_further_columns_that_vary_are_knobs_of_their_own(tmp_path: Path) -> None:
    rows = [ROW | {"allocator": word, "note": "same"} for word in ("a", "b")]
    assert read_sweep(table(tmp_path, *rows)).groups[0].knobs == {"allocator": ("a", "b")}


def test_measured_cells_are_no_knobs_and_are_had_row_by_row(tmp_path: Path) -> None:
    oom = ROW | {"step_time_s": "", "peak_mem_gb": "", "outcome": "out_of_memory"}
    sweep = read_sweep(table(tmp_path, ROW | {"alloc_gb_by_rank": "[1]"}, oom))
    assert sweep.groups[0].knobs == {}
    assert sweep.measurement(0).step_time_s == 1.5
    assert sweep.measurement(0).peak_memory_bytes == 20 * 2**30
    assert sweep.measurement(1).outcome == "out_of_memory"
    assert sweep.measurement(1).step_time_s is None


@pytest.mark.parametrize("name", ["step_time_s", "outcome", "reserved_gb_by_rank", "mem_gb_last"])
def test_a_measured_column_is_known_by_its_name(name: str) -> None:
    assert is_measured(name)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tp": "3"}, "tp * pp * cp * dp is not gpus"),
        ({"hidden": ""}, "hidden is missing"),
        ({"hidden": "nan"}, "hidden is not a whole number"),
        ({"seq": "long"}, "seq is not a number"),
        ({"gpu": "abacus"}, "gpu 'abacus' is not known"),
        ({"zero": "7"}, "zero must be 0, 1, 2 or 3"),
        ({"pp": "100000", "gpus": "800000"}, "pp is above 4096"),
        ({"kv_heads": "5"}, "num_key_value_heads (5) must divide num_attention_heads (32)"),
    ],
)
def test_a_row_that_cannot_be_answered_is_skipped_with_its_reason(
    tmp_path: Path, change: dict[str, str], reason: str
) -> None:
    sweep = read_sweep(table(tmp_path, ROW | change, ROW))
    assert sweep.skipped == {reason: (0,)}
    assert sweep.groups[0].rows == (1,)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"num-experts": 10**30}, "num-experts is too large"),
        ({"num-experts": "9" * 5000}, "num-experts is too large"),
        ({"kv-channels": [1]}, "kv-channels is not a whole number"),
        ({"mtp-num-layers": float("inf")}, "mtp-num-layers is not a whole number"),
        ({"vocab-size": -1}, "vocab-size is not a whole number"),
        ({"num-distributed-optimizer-instances": 1.5}, "instances is not a whole number"),
        ({"pipeline-model-parallel-size": 10**9}, "size is not 1 to 4096"),
        ({"pipeline-model-parallel-layout": "(t*99999)*99999999"}, "layout is too long"),
        ({"hidden-dropout": {}}, "hidden-dropout is not a number"),
    ],
)
def test_an_argument_out_of_all_bounds_skips_its_row_by_name(
    arguments: dict[str, object], reason: str, tmp_path: Path
) -> None:
    row = ROW | {"vocab": "", "megatron_args": json.dumps({"swiglu": True, **arguments})}
    sweep = read_sweep(table(tmp_path, row, ROW))
    (said,) = sweep.skipped
    assert said.endswith(reason)
    assert said.startswith("megatron_args: ")


def test_a_gpu_name_without_its_memory_leaves_the_fit_open(tmp_path: Path) -> None:
    unclear = read_sweep(table(tmp_path, ROW | {"gpu": "A100"})).groups[0]
    given = read_sweep(table(tmp_path, ROW | {"gpu": "A100", "gpu_mem_gb": "40"})).groups[0]
    assert unclear.memory_known == (False,)
    assert given.memory_known == (True,)
    assert given.subjects[0].cluster.gpu.name == "a100-sxm-40gb"


def test_megatron_s_arguments_describe_the_model(tmp_path: Path) -> None:
    arguments = {
        "swiglu": True,
        "num-layers": 8,
        "num-experts": 8,
        "moe-router-topk": 2,
        "moe-layer-freq": "([0]*2+[1]*6)",
        "pipeline-model-parallel-size": 2,
        "pipeline-model-parallel-layout": "Et*3|(tt|)*2tL",
        "vocab-size": 1000,
    }
    row = ROW | {"tp": "1", "pp": "2", "vocab": "", "megatron_args": json.dumps(arguments)}
    group = read_sweep(table(tmp_path, row)).groups[0]
    shape, software = group.subjects[0].shape, group.subjects[0].software
    assert shape.experts is not None
    assert (shape.experts.num_experts, shape.experts.num_dense_layers) == (8, 2)
    assert shape.vocab == 1000
    assert software.stage_layers == (5, 3)
    assert group.plans[0].vpp == 2


def test_a_table_without_answers_says_what_was_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no row can be answered: hidden is missing \(2 rows\)"):
        read_sweep(table(tmp_path, ROW | {"hidden": ""}, ROW | {"hidden": ""}))


def test_a_file_that_is_no_sweep_names_the_missing_columns(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("name,age\nx,3\n")
    with pytest.raises(UserError, match="gpu, global_batch is missing"):
        read_sweep(path)


def test_no_file_is_the_user_s_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_sweep(tmp_path / "none.csv")
