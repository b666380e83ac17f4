"""Legal plans of a small grid, with a cost that physics could not know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import optuna

from tests.tiny_job import tiny_workload
from tuner.cluster import Cluster
from tuner.cost_model.case import Subject
from tuner.cost_model.coefficients import DEFAULT
from tuner.cost_model.fit import usable_bytes
from tuner.cost_model.prediction import needed_memory
from tuner.model_shape import ParamCounts
from tuner.plan import ParallelPlan
from tuner.plan_arrays import PlanArrays
from tuner.presets import gpu_named
from tuner.samplers.candidates import Candidates
from tuner.samplers.plan_belief import PlanBelief, physical_belief
from tuner.samplers.plan_sampler import PlanSampler
from tuner.samplers.telling import tell_infeasible, tell_measured
from tuner.workload import HfModel, Workload

LAYER_PARAMS = 4096 * 4096 * 12


def a_subject(num_nodes: int = 2) -> Subject:
    """An 8B-like model on nodes of eight H100."""
    gpu = gpu_named("h100-sxm-80gb")
    assert gpu is not None
    tiny = tiny_workload(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=32000,
    ).shape
    assert tiny is not None
    ends = 32000 * 4096
    params = ParamCounts(embedding=ends, head=ends, layers=(LAYER_PARAMS,) * 32, other=4096)
    shape = replace(tiny, params=params)
    model = HfModel(name="llama", config_text="", shape=shape)
    return Subject(
        shape=shape,
        workload=Workload(model=model, seq_len=4096, global_batch_sequences=128),
        cluster=Cluster(gpu=gpu, num_nodes=num_nodes, gpus_per_node=8),
    )


def grid_plans() -> PlanArrays:
    """Degrees, micro-batches and ZeRO stages of Megatron-Core on sixteen GPUs."""
    plans = PlanArrays(columns={}).crossed("backend", ["megatron"])
    options: dict[str, list[int | str | bool]] = {
        "zero_stage": [0, 1],
        "dp_replicate": [1],
        "micro_batch": [1, 2, 4, 8],
        "tp": [1, 2, 4, 8],
        "pp": [1, 2, 4],
        "vpp": [1],
        "cp": [1],
        "ep": [1],
        "sequence_parallel": [True],
        "precision": ["bf16"],
        "recompute": ["none", "full"],
        "offload": ["none"],
    }
    for name, values in options.items():
        plans = plans.crossed(name, values)
    return plans.kept(plans.ints("tp") * plans.ints("pp") <= 16)


PLANS = grid_plans()
CANDIDATES = Candidates.of_plans(PLANS)


def belief(candidates: Candidates = CANDIDATES, plans: PlanArrays = PLANS) -> PlanBelief:
    """Physics over the grid."""
    subject = a_subject()
    return physical_belief(candidates, [subject], plans, usable_bytes(subject.cluster.gpu))


NEEDED_BYTES = needed_memory(a_subject(), PLANS, DEFAULT.memory)
LIMIT_BYTES = usable_bytes(a_subject().cluster.gpu)


def seconds(plan: ParallelPlan) -> float:
    """Unlike physics: pipelines are cheap, tensor parallelism dear, ZeRO-1 slow."""
    slow = 1.3 if plan.recompute == "full" else 1.0
    return slow * (4 + plan.tp + 1 / plan.micro_batch + 2 * plan.zero_stage + 0.1 * plan.pp)


def cost(plan: ParallelPlan) -> float | None:
    """The same, None where it does not fit: memory is a little less than predicted."""
    row = PLANS.find(plan)
    assert row is not None
    return seconds(plan) if NEEDED_BYTES[row] <= 1.03 * LIMIT_BYTES else None


def best_seconds(of: Callable[[ParallelPlan], float | None] = cost) -> float:
    """Of the whole grid."""
    return min(value for plan in PLANS if (value := of(plan)) is not None)


def asked(study: optuna.Study, candidates: Candidates = CANDIDATES) -> tuple[optuna.Trial, int]:
    """The next trial of a study, and its candidate."""
    trial = study.ask()
    values = {n: trial.suggest_categorical(n, o) for n, o in candidates.options.items()}
    row = candidates.find(values)
    assert row is not None
    return trial, row


def told(study: optuna.Study, trial: optuna.Trial, value: float | None) -> None:
    """Tells seconds, or that memory was short."""
    if value is None:
        tell_infeasible(study, trial, "out_of_memory")
    else:
        tell_measured(study, trial, value)


def study_of(sampler: PlanSampler) -> optuna.Study:
    """In memory."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="minimize", sampler=sampler)


def search(
    sampler: PlanSampler, trials: int, of: Callable[[ParallelPlan], float | None] = cost
) -> list[tuple[int, float | None]]:
    """Rows in the order tried, with their seconds; None = out of memory."""
    study = study_of(sampler)
    found = []
    for _ in range(trials):
        trial, row = asked(study, sampler.candidates)
        value = of(PLANS[row])
        told(study, trial, value)
        found.append((row, value))
    return found
