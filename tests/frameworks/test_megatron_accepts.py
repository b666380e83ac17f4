"""Our rules and Megatron-Core agree, both ways: each plan is built and stepped by the real one.

What we call legal Megatron must accept and lay out as it was asked; what one of its rules alone
refuses, Megatron must refuse too, or silently lay out differently.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from runners.backends.megatron_core import megatron_launch
from search_spaces.enumeration import rejections, search_space
from search_spaces.megatron_core import MEGATRON_RULES
from search_spaces.rule import Setting
from search_spaces.rule_table import RULES
from tests.frameworks.megatron_probe import Accepted, Probe, Refused, started_probe
from tests.runners.megatron_models import family_workload
from tests.tiny_job import CPU_STACK, cpu_cluster
from tuner.cluster import Cluster
from tuner.launch import Measurement
from tuner.plan import KNOB_NAMES, ParallelPlan, PlanValue
from tuner.plan_arrays import PlanArrays
from tuner.presets import gpu_named
from tuner.stack import Stack
from tuner.workload import Workload

pytestmark = pytest.mark.ranks

H100 = gpu_named("h100-sxm-80gb")
assert H100 is not None

ENGINE_STACK = Stack(versions={**CPU_STACK.versions, "transformer-engine": "2.8.0"})

FREE: dict[str, tuple[PlanValue, ...]] = {
    "backend": ("megatron",),
    "zero_stage": (0, 1),
    "dp_replicate": (1, 2, 4),
    "micro_batch": (1, 2, 4),
    "tp": (1, 2, 4, 8),
    "pp": (1, 2, 3, 4, 8),
    "vpp": (1, 2, 3, 4),
    "cp": (1,),
    "ep": (1, 2, 4, 8),
    "sequence_parallel": (False, True),
    "precision": ("fp32", "bf16"),
    "recompute": ("none", "selective", "full"),
    "offload": ("none",),
}
"""What refused plans are sought among, unless a rule's case says otherwise."""


@pytest.fixture(scope="module")
def probe() -> Iterator[Probe]:
    with started_probe() as started:
        yield started


@functools.cache
def _model(family: str, changes: tuple[tuple[str, Any], ...]) -> Workload:
    return family_workload(family, **dict(changes))


def _setting(
    family: str,
    cluster: Cluster,
    *,
    seq_len: int = 32,
    batch: int = 16,
    changes: tuple[tuple[str, Any], ...] = (),
) -> Setting:
    workload = dataclasses.replace(
        _model(family, changes), seq_len=seq_len, global_batch_sequences=batch
    )
    return Setting(workload=workload, cluster=cluster, stack=CPU_STACK)


def _cpus(num_gpus: int, num_nodes: int = 1) -> Cluster:
    return dataclasses.replace(cpu_cluster(num_gpus // num_nodes), num_nodes=num_nodes)


def _differences(plan: ParallelPlan, setting: Setting, effective: Mapping[str, Any]) -> list[str]:
    """What Megatron runs that was not asked for."""
    workload, num_gpus = setting.workload, setting.cluster.num_gpus
    assert workload.shape is not None
    asked: dict[str, Any] = plan.to_dict() | {
        "global_batch_sequences": workload.global_batch_sequences,
        "num_microbatches": plan.num_microbatches(num_gpus, workload.global_batch_sequences),
        "overlap_p2p_comm": plan.vpp > 1,
        "grad_reduce_in_fp32": plan.precision != "fp32",
    }
    got = dict(effective)
    if got["padded_vocab"] is not None:  # first and last stages have one
        asked["padded_vocab"] = -(-workload.shape.vocab // 8) * 8
    return [f"{k}: {v} -> {got[k]}" for k, v in asked.items() if got[k] != v]


# --- what we call legal is accepted --------------------------------------------------------------


SHAPES = ((8, 2, 509), (6, 8, 512), (4, 1, 512))
"""Layers, key-value heads and vocabulary: few, as counting a model's parameters takes a while."""


@st.composite
def _settings(draw: st.DrawFn) -> Setting:
    family = draw(st.sampled_from(("llama", "gpt2", "qwen2", "qwen3", "mixtral", "qwen2_moe")))
    nodes = draw(st.sampled_from((1, 2, 4, 8)))
    cluster = _cpus(nodes * draw(st.sampled_from((1, 2, 4, 8))), nodes)
    layers, kv_heads, vocab = draw(st.sampled_from(SHAPES))
    changes: dict[str, Any] = {"n_layer": layers, "vocab_size": vocab}
    if family != "gpt2":
        changes = {
            "num_hidden_layers": layers,
            "num_attention_heads": 8,
            "head_dim": 8,
            "num_key_value_heads": kv_heads,
            "vocab_size": vocab,
        }
    return _setting(
        family,
        cluster,
        seq_len=draw(st.sampled_from((12, 16, 20))),
        batch=cluster.num_gpus * draw(st.sampled_from((1, 2, 3, 4))),
        changes=tuple(changes.items()),
    )


@functools.cache
def _legal(setting: Setting) -> PlanArrays:
    """Of few micro-batches, which are stepped one after another."""
    plans = search_space(setting, {"backend": ("megatron",)}).plans
    return plans.kept(setting.num_microbatches(plans) <= 8)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(setting=_settings(), data=st.data())
def test_megatron_trains_every_legal_plan_as_it_was_asked(
    setting: Setting, data: st.DataObject, probe: Probe
) -> None:
    plans = _legal(setting)
    assume(len(plans) > 0)
    plan = plans[data.draw(st.integers(0, len(plans) - 1), label="plan")]
    spec = megatron_launch(plan, setting.workload, setting.cluster, Measurement())
    last = setting.cluster.num_gpus - 1
    answer = probe.ask(spec, rank=data.draw(st.sampled_from((0, last)), label="rank"))
    assert isinstance(answer, Accepted), f"{plan.label()}: {answer}"
    assert _differences(plan, setting, answer.effective) == []


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_what_needs_transformer_engine_is_configured_as_it_was_asked(
    data: st.DataObject, probe: Probe
) -> None:
    """Without it only the arguments, groups and configuration can be made, not the layers."""
    assert H100 is not None
    nodes = data.draw(st.sampled_from((1, 2, 8)))
    cluster = Cluster(gpu=H100, num_nodes=nodes, gpus_per_node=8)
    drawn = _setting(data.draw(st.sampled_from(("llama", "mixtral"))), cluster, batch=64)
    setting = dataclasses.replace(drawn, stack=ENGINE_STACK)
    plans = _legal(setting)
    split = plans.ints("cp") > 1
    for name, word in (("precision", "fp8"), ("offload", "optimizer")):
        split |= plans.equals(name, word)
    plans = plans.kept(split)
    plan = plans[data.draw(st.integers(0, len(plans) - 1), label="plan")]
    spec = megatron_launch(plan, setting.workload, cluster, Measurement())
    answer = probe.ask(spec, rank=cluster.num_gpus - 1, build=False)
    assert isinstance(answer, Accepted), f"{plan.label()}: {answer}"
    asked: dict[str, Any] = {
        name: getattr(plan, name) for name in ("tp", "pp", "cp", "ep", "vpp", "sequence_parallel")
    }
    batch = setting.workload.global_batch_sequences
    asked["num_microbatches"] = plan.num_microbatches(cluster.num_gpus, batch)
    asked["fp8"] = "hybrid" if plan.precision == "fp8" else None
    assert answer.effective == asked


@pytest.mark.parametrize(
    ("layers", "knobs"),
    [(6, {"pp": 4}), (6, {"pp": 2, "vpp": 4}), (2, {"pp": 4}), (14, {"pp": 4, "vpp": 2})],
    ids=str,
)
def test_uneven_stages_are_accepted(layers: int, knobs: dict[str, Any], probe: Probe) -> None:
    setting = _setting("llama", _cpus(8), changes=(("num_hidden_layers", layers),))
    plan = ParallelPlan.from_dict({"backend": "megatron", "precision": "fp32"} | knobs)
    assert {rule for rule, _ in rejections(plan, setting)} <= OTHERS
    spec = megatron_launch(plan, setting.workload, setting.cluster, Measurement())
    for rank in range(8):
        answer = probe.ask(spec, rank=rank)
        assert isinstance(answer, Accepted), answer
        assert _differences(plan, setting, answer.effective) == []


# --- what one rule alone refuses is refused ------------------------------------------------------

OTHERS = {"S-04"}
"""Rules that say the same for all frameworks; a plan may break them besides."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Where plans are sought that only one rule refuses."""

    rule: str
    because: str
    """In what Megatron raises, or in what it changed."""
    family: str = "llama"
    cluster: Cluster = dataclasses.field(default_factory=lambda: _cpus(8))
    seq_len: int = 32
    batch: int = 16
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """To the family's config.json."""
    options: Mapping[str, tuple[PlanValue, ...]] = dataclasses.field(default_factory=dict)
    """Of the knobs that the rule is about; the others' are ``FREE``."""

    @property
    def setting(self) -> Setting:
        """Made when it is asked for: it takes transformers, which takes seconds to import."""
        changes = tuple(self.changes.items())
        sizes = {"seq_len": self.seq_len, "batch": self.batch}
        return _setting(self.family, self.cluster, changes=changes, **sizes)


H100S = Cluster(gpu=H100, gpus_per_node=8)
SHARED = {"shared_expert_intermediate_size": 36, "num_attention_heads": 8}
SIX_GROUPS = {"hidden_size": 96, "num_attention_heads": 12, "num_key_value_heads": 6}
EXECUTED: tuple[Case, ...] = (
    Case(
        rule="MC-02",
        because="world_size (8) is not divisible by expert_tensor_model_pipeline_parallel size",
        family="mixtral",
        changes={"num_local_experts": 16},
        options={"ep": (4, 8, 16)},
    ),
    Case(
        rule="MC-04",
        because="Expert data parallel size should be divisible",
        family="mixtral",
        cluster=_cpus(16, 4),
        options={"zero_stage": (1,), "ep": (4,)},
    ),
    Case(
        rule="MC-12",
        because="num_query_groups (6) must be a multiple or divisor of",
        changes=SIX_GROUPS,
        options={"tp": (4,)},
    ),
    Case(
        rule="MC-14",
        because="36 is not divisible by 8",
        family="qwen2_moe",
        changes=SHARED,
        options={"tp": (8,), "sequence_parallel": (True,)},
    ),
    Case(
        rule="MC-18",
        because="Context parallelism is only supported by TEDotProductAttention",
        cluster=H100S,
        options={"cp": (2, 4), "precision": ("bf16",)},
    ),
    Case(
        rule="MC-21",
        because="contiguous micro-batches in a virtual pipeline stage",
        options={"vpp": (2,), "pp": (2, 4), "micro_batch": (1, 4)},
    ),
    Case(
        rule="MC-21",
        because="contiguous micro-batches in a virtual pipeline stage",
        batch=24,
        options={"vpp": (2,), "pp": (2,), "micro_batch": (2,)},
    ),
    Case(
        rule="MC-22",
        because="must be divisible",
        changes={"num_hidden_layers": 7},
        options={"pp": (2, 4)},
    ),
    Case(
        rule="MC-23",
        because="number of layers on each pipeline rank: 3",
        options={"vpp": (4, 6)},
    ),
    Case(
        rule="MC-40",
        because="when instantiating MoELayer",
        family="mixtral",
        changes={"num_local_experts": 6},
        options={"ep": (4, 8)},
    ),
    Case(
        rule="MC-41",
        because="without also enabling sequence parallelism",
        family="mixtral",
        options={"sequence_parallel": (False,)},
    ),
    Case(
        rule="MC-45",
        because="--moe-router-pre-softmax when topk is 1",
        family="mixtral",
        changes={"num_experts_per_tok": 1},
    ),
    Case(
        rule="MC-67",
        because="'NoneType' and 'Version'",
        cluster=H100S,
        options={"offload": ("optimizer",), "zero_stage": (1,), "precision": ("bf16",)},
    ),
    Case(
        rule="TE-01",
        because="precision: fp8 -> bf16",
        cluster=H100S,
        options={"precision": ("fp8",)},
    ),
    # Rules of every framework that are Megatron's too: MC-26, MC-16, MC-17, MC-11, MC-14.
    Case(
        rule="G-10",
        because="should be greater than 1 with interleaved schedule",
        options={"pp": (1,), "vpp": (2, 4)},
    ),
    Case(
        rule="G-11",
        because="Cannot use sequence parallelism without tensor parallelism",
        options={"tp": (1,), "sequence_parallel": (True,)},
    ),
    Case(
        rule="G-11",
        because="divisible by tensor parallel size",
        seq_len=34,
        options={"tp": (4,), "sequence_parallel": (True,), "pp": (1,)},
    ),
    Case(
        rule="S-01",
        because="num_attention_heads (4) must be a multiple of",
        options={"tp": (8,)},
    ),
    Case(
        rule="S-03",
        because="132 is not divisible by 8",
        changes={"intermediate_size": 132, "num_attention_heads": 8},
        options={"tp": (8,)},
    ),
)
"""MC-01 and MC-05 (G-02, G-01) are refused by our own launch before Megatron sees them."""
NOT_EXECUTED = {
    "MC-12a": "binds megatron-core before 0.16, which is not the one installed",
    "MC-17": "needs cp above 1, and that Transformer Engine, which needs a GPU",
    "MC-18a": "needs cp above 1, and that Transformer Engine, which needs a GPU",
    "MC-40a": "is of Megatron-LM's check of its arguments, which is not in the package",
    "MC-52": "is of a version of Transformer Engine, which needs a GPU",
    "MC-68": "megatron-core asserts it only after the version of Transformer Engine (MC-67)",
    "TE-05": "is asserted by Transformer Engine at the first product, which needs a GPU",
    "TE-05a": "is asserted by Transformer Engine at the first product, which needs a GPU",
    "TE-08": "is asserted by Transformer Engine's attention, which needs a GPU",
    "TE-08a": "is asserted by Transformer Engine's attention, which needs a GPU",
}
"""By rule: why this test cannot ask Megatron on a CPU."""


def _refused_only_by_its_rule(case: Case, most: int) -> list[ParallelPlan]:
    """Some plans that this rule alone refuses, spread evenly over all of them."""
    arrays, setting = PlanArrays(columns={}), case.setting
    for name in KNOB_NAMES:
        arrays = arrays.crossed(name, case.options.get(name, FREE[name]))
    alone = np.ones(len(arrays), dtype=np.bool_)
    for rule in RULES:
        if "megatron" not in rule.backends or not rule.binds(setting.stack):
            continue
        broken = rule.breaks(arrays, setting)
        if rule.id == case.rule:
            alone &= broken
        elif rule.id not in OTHERS:
            alone &= ~broken
    found = np.flatnonzero(alone)
    return [arrays[int(i)] for i in found[:: max(1, len(found) // most)][:most]]


@pytest.mark.parametrize("case", EXECUTED, ids=[case.rule for case in EXECUTED])
def test_megatron_refuses_or_rewrites_what_a_rule_alone_refuses(case: Case, probe: Probe) -> None:
    plans = _refused_only_by_its_rule(case, most=4)
    assert plans, f"{case.rule}: no plan is refused by it alone"
    for plan in plans:
        setting = case.setting
        spec = megatron_launch(plan, setting.workload, setting.cluster, Measurement())
        for rank in (0, setting.cluster.num_gpus - 1):
            match probe.ask(spec, rank=rank):
                case Refused(error=error):
                    said = error
                case Accepted(effective=effective):
                    said = "; ".join(_differences(plan, setting, effective))
            assert case.because in said, f"{case.rule} refuses {plan.label()}; Megatron: {said}"


def test_every_rule_is_executed_or_says_why_not() -> None:
    ours = {rule.id for rule in MEGATRON_RULES if rule.source.startswith("ours")}
    theirs = {rule.id for rule in MEGATRON_RULES} - ours
    executed = {case.rule for case in EXECUTED} - {"G-10", "G-11", "S-01", "S-03"}
    assert executed | NOT_EXECUTED.keys() == theirs
    assert not executed & NOT_EXECUTED.keys()
