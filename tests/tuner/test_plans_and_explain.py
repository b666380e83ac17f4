"""`paratune plans` and `paratune explain` as a user runs them, with no GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tiny_job import LLAMA_CONFIG
from tuner.cli.explain_command import parsed_plan
from tuner.cli.main import main
from tuner.stack import Stack

MODEL = LLAMA_CONFIG | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
"""The shape of Llama 3 8B."""

Run = tuple[int, Any, str]


class Desk:
    """A job file that a test may change, and the commands run on it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (folder / "config.json").write_text(json.dumps(MODEL))
        self.path = folder / "job.yaml"
        self.capsys = capsys
        self.values: dict[str, Any] = {
            "workload": {"model": "config.json", "seq_len": 8192, "global_batch": 128},
            "cluster": {"gpu": "h100-sxm-80gb", "gpus_per_node": 8},
            "search": {"precision": "bf16"},
        }

    def json(self, command: str, *options: str) -> Run:
        code, out, err = self.text(command, *options, "--json")
        return code, json.loads(out), err

    def text(self, command: str, *options: str) -> tuple[int, str, str]:
        self.path.write_text(yaml.safe_dump(self.values))
        self.capsys.readouterr()
        code = main([command, str(self.path), *options])
        told = self.capsys.readouterr()
        return code, told.out, told.err


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, capsys)


def test_plans_are_ranked_those_that_fit_first_and_the_waterfall_adds_up(desk: Desk) -> None:
    code, document, _ = desk.json("plans", "--top", "100000")
    assert code == 0
    plans = document["plans"]
    assert len(plans) == document["num_legal"]
    fits = [plan["fits"] for plan in plans]
    assert fits == sorted(fits, reverse=True)
    assert sum(fits) == document["num_fitting"] > 0
    times = [plan["predicted_step_time_s"] for plan in plans if plan["fits"]]
    assert times == sorted(times)
    removed = sum(removal["removed"] for removal in document["waterfall"])
    assert removed + document["num_legal"] == document["num_combinations"]


def test_predictions_say_how_sure_they_are_and_fits_near_the_limit_are_not_certain(
    desk: Desk,
) -> None:
    _, document, _ = desk.json("plans", "--top", "100000")
    zones = {(plan["fits"], plan["fit_zone"]) for plan in document["plans"]}
    assert zones == {
        (True, "fits"),
        (True, "uncertain"),
        (False, "uncertain"),
        (False, "too large"),
    }
    assert all(1 < plan["predicted_step_time_within_factor"] < 4 for plan in document["plans"])
    near = next(plan for plan in document["plans"] if plan["fit_zone"] == "uncertain")
    options = ",".join(f"{k}={str(v).lower()}" for k, v in near["plan"].items() if v is not None)
    _, explained, _ = desk.json("explain", "--plan", options)
    assert explained["fit_probability"] == pytest.approx(near["fit_probability"])
    _, said, _ = desk.text("explain", "--plan", options)
    assert "It probably fits in the" in said
    _, said, _ = desk.text("plans", "--top", "100000")
    assert "probably yes" in said
    assert "probably no" in said


def test_a_pinned_illegal_combination_is_refused_with_the_rule_and_what_to_free(
    desk: Desk,
) -> None:
    desk.values["search"] |= {"backend": "deepspeed", "pp": 2, "zero_stage": 3}
    code, document, err = desk.json("plans")
    assert code == 2
    assert document["num_legal"] == 0
    assert "DS-20" in err
    freed = {change["change"] for change in document["changes"]}
    assert {"leave search.backend auto", "leave search.zero_stage auto"} <= freed
    assert all(change["num_fitting"] > 0 for change in document["changes"])


def test_a_batch_smaller_than_the_gpus_names_the_batch_that_would_do(desk: Desk) -> None:
    desk.values["workload"]["global_batch"] = 4
    desk.values["search"] |= {"tp": 1, "pp": 1, "cp": 1, "offload": "none"}
    code, document, err = desk.json("plans")
    assert code == 2
    assert "global batch (4), got 1 * 8 = 8" in err
    assert "make workload.global_batch 8 (now 4)" in {c["change"] for c in document["changes"]}


@pytest.mark.parametrize("num_gpus", [3, 7])
def test_an_odd_number_of_gpus_with_no_legal_plan_says_what_would_help(
    desk: Desk, num_gpus: int
) -> None:
    desk.values["cluster"]["gpus_per_node"] = num_gpus
    desk.values["search"] |= {"pp": 1}
    code, document, err = desk.json("plans")
    assert code == 2
    assert f"* {num_gpus} = " in err
    assert any("GPUs a node" in change["change"] for change in document["changes"])


def test_what_never_fits_names_the_largest_term_and_the_changes_that_help(desk: Desk) -> None:
    desk.values["search"] |= {"tp": 1, "pp": 1, "recompute": "none", "zero_stage": 0}
    code, document, err = desk.json("plans")
    assert code == 1
    assert document["num_legal"] > document["num_fitting"] == 0
    assert "none of" in err
    assert "that a rank may allocate" in err
    changes = {change["change"]: change for change in document["changes"]}
    assert "leave search.zero_stage auto" in changes
    for change in changes.values():
        assert change["predicted_peak_memory_bytes"] < 80 * 2**30


def test_an_illegal_plan_is_explained_by_every_rule_and_its_nearest_legal_plans(
    desk: Desk,
) -> None:
    code, document, _ = desk.json("explain", "--plan", "backend=deepspeed,zero_stage=3,pp=2,tp=2")
    assert code == 1
    assert not document["legal"]
    assert {"DS-20", "DS-24"} <= {rejection["rule"] for rejection in document["rejections"]}
    nearest = [near["plan"] for near in document["nearest_plans"]]
    assert nearest
    assert all(plan["backend"] == "deepspeed" for plan in nearest)


def test_a_legal_plan_that_does_not_fit_names_the_one_knob_that_would_help(desk: Desk) -> None:
    code, document, _ = desk.json("explain", "--plan", "backend=megatron,micro_batch=4")
    assert code == 0
    assert document["legal"]
    assert document["fits"] is False
    assert sum(document["memory_bytes"].values()) > document["memory_limit_bytes"]
    asked = document["plan"]
    for near in document["nearest_plans"]:
        assert near["fits"]
        assert sum(near["plan"][knob] != asked[knob] for knob in asked) == 1
    assert document["nearest_plans"]


def test_the_text_for_people_holds_the_same_sentences(desk: Desk) -> None:
    code, out, _ = desk.text("explain", "--plan", "backend=megatron,tp=3")
    assert code == 1
    assert "breaks G-03: tp must divide the GPUs of an NVLink domain (8)" in out
    assert "Nearest legal plans" in out
    code, out, _ = desk.text("plans", "--top", "3")
    assert code == 0
    assert "legal plans" in out
    assert "Predicted, not" in out


def test_a_plan_with_an_unknown_knob_is_refused_with_the_known_ones(desk: Desk) -> None:
    code, _, err = desk.text("explain", "--plan", "tensor=4")
    assert code == 2
    assert "unknown knob 'tensor'" in err
    assert "micro_batch" in err


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("sequence_parallel=maybe", "sequence_parallel must be true or false, got 'maybe'"),
        ("tp=x", "tp must be a whole number of at least 1, got 'x'"),
        ("tp=", "tp must be a whole number of at least 1, got ''"),
        ("tp=2.5", "tp must be a whole number of at least 1, got '2.5'"),
        ("tp=true", "tp must be a whole number of at least 1, got True"),
        ("pp=0", "pp must be a whole number of at least 1, got 0"),
        ("zero_stage=x", "zero_stage must be 0, 1, 2 or 3, got 'x'"),
        ("zero_stage=4", "zero_stage must be 0, 1, 2 or 3, got 4"),
        ("backend=foo", "backend must be one of pytorch, deepspeed, megatron, got 'foo'"),
        ("precision=fp99", "precision must be one of fp32, fp16, bf16, fp8, got 'fp99'"),
        ("backend=megatron,tp=2,tp=4", "--plan must give each knob once, got tp twice"),
        ("backend=pytorch,backend=pytorch", "each knob once, got backend twice"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "emit"])
def test_a_plan_with_a_wrong_option_names_what_is_allowed(
    desk: Desk, command: str, plan: str, said: str
) -> None:
    more = ("--format", "torchtitan") if command == "emit" else ()
    code, out, err = desk.text(command, "--plan", plan, *more)
    assert code == 2
    assert not out
    assert said in err


@pytest.fixture
def without_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where Megatron-Core is installed and Transformer Engine is not."""
    versions = {"torch": "2.9.0", "deepspeed": "0.18.2", "megatron-core": "0.16.1"}
    monkeypatch.setattr("tuner.job_stack.installed_stack", lambda: Stack(versions=versions))


@pytest.mark.usefixtures("without_engine")
def test_plans_removed_for_a_package_missing_here_say_how_to_name_the_cluster_s(
    desk: Desk,
) -> None:
    desk.values["search"] |= {"backend": "megatron", "pp": 1, "micro_batch": 1}
    said = "planned for the packages installed here (no transformer-engine); for the cluster's own"
    for command, *options in (["plans"], ["explain", "--plan", "backend=megatron,cp=2"]):
        assert said in desk.text(command, *options)[2]
    assert said not in desk.text("explain", "--plan", "backend=megatron,tp=2")[2]
    desk.values["stack"] = {"transformer-engine": "2.11"}
    assert said not in desk.text("plans")[2]
    desk.values["stack"] = {"transformer-engine": "none"}
    assert said not in desk.text("plans")[2]


@pytest.mark.parametrize(
    ("model", "said"),
    [("config.json", ", 8.03B parameters"), ("Meta/Llama_3.1 8B", "preset llama-3.1-8b, 8.03B")],
)
def test_plans_begin_with_what_was_planned(desk: Desk, model: str, said: str) -> None:
    desk.values["workload"]["model"] = model
    desk.values["search"] |= {"backend": "pytorch", "tp": 1, "precision": ["bf16", "fp8"]}
    first = desk.text("plans", "--top", "1")[1].splitlines()[0]
    assert said in first
    assert ("preset" in first) == ("preset" in said)
    assert first.endswith(
        "8 h100-sxm-80gb, sequences of 8,192 tokens, global batch 128, precision bf16 or fp8"
    )


def test_explain_leaves_out_zeros_and_prints_near_plans_as_the_option_takes_them(
    desk: Desk,
) -> None:
    plan = "backend=pytorch,zero_stage=3,recompute=full"
    code, out, _ = desk.text("explain", "--plan", plan)
    assert code == 0
    assert " 0.0 ms" not in out
    assert "-0.0" not in out
    assert " 0 B" not in out
    assert "context parallel" not in out
    code, out, _ = desk.text("explain", "--plan", "backend=megatron,tp=3,precision=fp16")
    assert code == 1
    near = [line.split()[1] for line in out.splitlines() if line.startswith("    --plan ")]
    code, document, _ = desk.json("explain", "--plan", "backend=megatron,tp=3,precision=fp16")
    assert [parsed_plan(text).to_dict() for text in near] == [
        one["plan"] for one in document["nearest_plans"]
    ]
    assert near
