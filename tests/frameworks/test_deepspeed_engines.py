"""DeepSpeed's engines: what is legal is built as asked, what a rule refuses is not.

The engines are built in another process, a fork each, and what they are is read back from their
parts; see ``deepspeed_engines``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from search_spaces.deepspeed_zero import DEEPSPEED_RULES
from search_spaces.enumeration import rejections
from search_spaces.rule import Setting
from tests.search_spaces.test_deepspeed_rules import OLD, gpus
from tests.tiny_job import cpu_cluster, setting, tiny_workload
from tuner.plan import ParallelPlan
from tuner.stack import installed_stack

pytestmark = pytest.mark.ranks

_TORCH_ADAM = {"optimizer": {"params": {"lr": 1e-3, "torch_adam": True}}}
"""For offload on a CPU: DeepSpeed's own CPU Adam would be compiled first."""


def case(num_ranks: int, rank: int, knobs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "num_ranks": num_ranks,
        "rank": rank,
        "knobs": {"precision": "fp32", **knobs},
        "model": more.get("model", {}),
        "edit": more.get("edit", {}),
        "forward": more.get("forward", False),
    }


LEGAL: dict[str, dict[str, Any]] = {
    "replicated": case(4, 0, {"micro_batch": 2}),
    "replicated bf16": case(2, 1, {"precision": "bf16"}),
    "zero 1": case(4, 3, {"zero_stage": 1, "micro_batch": 2}),
    "zero 2 of eight": case(8, 7, {"zero_stage": 2, "precision": "bf16"}),
    "zero 2 tied": case(4, 1, {"zero_stage": 2}, model={"tie_word_embeddings": True}),
    "zero 3": case(4, 0, {"zero_stage": 3, "recompute": "full"}),
    "zero 3 bf16": case(4, 3, {"zero_stage": 3, "precision": "bf16", "recompute": "selective"}),
    "hpZ": case(4, 2, {"zero_stage": 3, "dp_replicate": 2}),
    "tensor-parallel": case(4, 3, {"tp": 2, "zero_stage": 1}),
    "tensor-parallel odd vocabulary": case(
        2, 0, {"tp": 2}, model={"vocab_size": 511}, forward=True
    ),
    "tensor-parallel zero 3": case(4, 0, {"tp": 2, "zero_stage": 3}),
    "tensor-parallel bf16": case(4, 1, {"tp": 2, "zero_stage": 2, "precision": "bf16"}),
    "staged": case(4, 3, {"pp": 2, "zero_stage": 1, "precision": "bf16"}),
    "staged, recomputed": case(4, 0, {"pp": 4, "recompute": "full"}),
    "staged, a stage a rank": case(2, 1, {"pp": 2, "precision": "bf16", "recompute": "selective"}),
    "tensor-parallel logits": case(2, 0, {"tp": 2}, forward=True),
}

RAISES: dict[str, tuple[dict[str, Any], str]] = {
    "DS-20": (case(4, 0, {"pp": 2, "zero_stage": 2}), "incompatible with pipeline parallelism"),
    "DS-24": (case(4, 0, {"pp": 2, "tp": 2}), "Not able to determine model policy"),
}

REWRITTEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "DS-35": (
        case(4, 0, {"zero_stage": 2, "offload": "params"}, edit=_TORCH_ADAM),
        {"offload": "optimizer"},
    ),
    "DS-65": (case(4, 0, {"pp": 2, "precision": "bf16"}), {"zero_stage": 1}),
    "DS-71": (case(4, 0, {"offload": "optimizer"}, edit=_TORCH_ADAM), {"offload": "none"}),
}
"""What is read back instead of what was asked."""

BROKEN: dict[str, dict[str, Any]] = {
    "DS-43": case(8, 0, {"zero_stage": 3, "tp": 2, "dp_replicate": 2}),
    "DS-62": case(4, 0, {"pp": 2}, model={"tie_word_embeddings": True}),
    "DS-64": case(2, 0, {"tp": 2}, model={"tie_word_embeddings": True}, forward=True),
}
"""Accepted, and then another model or other groups than were asked; a test each."""

NOT_TRIED = {
    "DS-11": "needs a GPU older than compute capability 7.0",
    "DS-50": "needs DeepSpeed up to 0.19.3; that it binds no newer one is tried below",
    "DS-60": "ours: a PipelineModule has no number of chunks to ask for",
    "DS-61": "ours: the bench has no list of layers for other families",
    "DS-63": "ours: other families were not tried, AutoTP may know them",
    "DS-66": "ours: nothing in the launch file asks for Ulysses",
    "DS-67": "ours: nothing in the launch file asks for AutoEP",
    "DS-68": "ours: nothing in the launch file asks for it",
    "DS-69": "ours: the config has no block for fp8",
    "DS-70": "ours: built without complaint on a CPU, its training was not tried on GPUs",
    "DS-72": "ours: the window's mask is missing in our own pipeline layer, not in DeepSpeed",
}

_OVERLAP = case(
    4,
    0,
    {"pp": 2, "zero_stage": 1},
    edit={"zero_optimization": {"overlap_comm": True}},
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of every case, by name; one process imports DeepSpeed for all."""
    cases = LEGAL | {"overlap": _OVERLAP} | BROKEN
    cases |= {rule: one for rule, (one, _) in (RAISES | REWRITTEN).items()}
    folder = tmp_path_factory.mktemp("engines")
    (folder / "cases.json").write_text(json.dumps(list(cases.values())))
    command = [sys.executable, "-m", "tests.frameworks.deepspeed_engines"]
    with (folder / "log").open("w") as log:
        subprocess.run(
            [*command, str(folder / "cases.json"), str(folder / "results.json")],
            cwd=Path(__file__).parents[2],
            stdout=log,
            stderr=log,
            check=True,
        )
    results = json.loads((folder / "results.json").read_text())
    return dict(zip(cases, results, strict=True))


def _plan(one: dict[str, Any]) -> ParallelPlan:
    return ParallelPlan.from_dict({"backend": "deepspeed", **one["knobs"]})


def _where(one: dict[str, Any], *, on_gpus: bool) -> Setting:
    cluster = gpus(one["num_ranks"]) if on_gpus else cpu_cluster(one["num_ranks"])
    return setting(tiny_workload(**one["model"]), cluster)


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_layout_is_built_as_it_was_asked(
    built: dict[str, dict[str, Any]], name: str
) -> None:
    one, result = LEGAL[name], built[name]
    plan, num_ranks = _plan(one), one["num_ranks"]
    assert rejections(plan, _where(one, on_gpus=False)) == ()
    assert "effective" in result, result
    effective = result["effective"]
    asked = plan.to_dict()
    assert {knob: effective[knob] for knob in asked} == asked
    assert effective["data_parallel"] == plan.data_parallel(num_ranks)
    assert effective["num_microbatches"] == plan.num_microbatches(num_ranks, 8)
    assert effective["overlap_comm"] is False
    assert _weights_fit(result, plan, num_ranks)
    if one["forward"]:
        assert result["logits_width"] == one["model"].get("vocab_size", 512)


def _weights_fit(result: dict[str, Any], plan: ParallelPlan, num_ranks: int) -> bool:
    """A rank updates its share of its own model, plus padding to what DeepSpeed aligns to."""
    shards = plan.data_parallel(num_ranks) if plan.zero_stage else 1
    updated, held = result["effective"]["optimizer_elements"], result["model_elements"]
    if plan.zero_stage == 3 and plan.tp > 1:
        # What AutoTP leaves whole is sharded over all ranks, as it was when the model was built.
        return bool(held / num_ranks < updated <= held / shards)
    padding = 64 * shards
    return bool(held <= updated * shards <= held + padding * shards)


def _sole_rule(one: dict[str, Any]) -> list[str]:
    return [rule for rule, _ in rejections(_plan(one), _where(one, on_gpus=True))]


@pytest.mark.parametrize("rule", RAISES)
def test_what_only_this_rule_refuses_deepspeed_refuses(
    built: dict[str, dict[str, Any]], rule: str
) -> None:
    one, message = RAISES[rule]
    assert _sole_rule(one) == [rule]
    assert message in built[rule]["error"]


@pytest.mark.parametrize("rule", REWRITTEN)
def test_what_only_this_rule_refuses_deepspeed_rewrites_in_silence(
    built: dict[str, dict[str, Any]], rule: str
) -> None:
    one, instead = REWRITTEN[rule]
    assert _sole_rule(one) == [rule]
    asked, effective = _plan(one).to_dict(), built[rule]["effective"]
    assert {knob: effective[knob] for knob in asked if effective[knob] != asked[knob]} == instead


def test_hpz_with_tensor_parallelism_would_group_tensor_parallel_ranks(
    built: dict[str, dict[str, Any]],
) -> None:
    assert _sole_rule(BROKEN["DS-43"]) == ["DS-43"]
    assert built["DS-43"]["hpz_ranks"] == built["DS-43"]["tensor_ranks"] == [0, 1]
    assert built["hpZ"]["hpz_ranks"] == [2, 3]


def test_stages_would_each_train_a_tied_embedding_of_their_own(
    built: dict[str, dict[str, Any]],
) -> None:
    assert _sole_rule(BROKEN["DS-62"]) == ["DS-62"]
    untied = 512 * 64 * 2 + 64 + 4 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64)
    assert built["DS-62"]["effective"]["data_parallel"] == 2
    assert built["DS-62"]["model_elements"] * 2 == pytest.approx(untied, abs=64)


def test_a_tied_head_would_give_a_part_of_the_logits(built: dict[str, dict[str, Any]]) -> None:
    assert _sole_rule(BROKEN["DS-64"]) == ["DS-64"]
    assert built["DS-64"]["logits_width"] == 512 // 2


def test_a_pipeline_turns_overlapping_off_in_silence(built: dict[str, dict[str, Any]]) -> None:
    assert built["overlap"]["asked_overlap"] is True
    assert built["overlap"]["effective"]["overlap_comm"] is False


def test_every_rule_is_tried_or_says_why_not() -> None:
    tried = {*RAISES, *REWRITTEN, *BROKEN}
    assert not tried & set(NOT_TRIED)
    assert tried | set(NOT_TRIED) == {rule.id for rule in DEEPSPEED_RULES}


def test_the_installed_deepspeed_is_not_bound_by_the_rule_for_older_ones() -> None:
    (old,) = [rule for rule in DEEPSPEED_RULES if rule.id == "DS-50"]
    assert old.binds(OLD)
    assert not old.binds(installed_stack())
