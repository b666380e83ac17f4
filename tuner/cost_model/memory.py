"""Bytes that a plan should need on its fullest rank: states, activations, logits."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.cluster import Cluster
from tuner.model_shape import ModelShape
from tuner.plan import Backend, Offload, ParallelPlan, Precision, Recompute
from tuner.workload import Workload

OPTIMIZER_BYTES_PER_PARAM = 8
"""Two fp32 moments of Adam."""
GRADIENT_BYTES_PER_PARAM = 4
"""Gradients are accumulated in fp32 everywhere here."""
ACTIVATION_VALUES_PER_HIDDEN = 17
"""Values kept per token, layer and hidden unit without recomputation and without keeping the
attention scores: 34 bytes in 16 bits, Korthikanti et al. 2022, equation 2 less its last term."""
LOGIT_COPIES = 4
"""In fp32: the logits, their log-softmax, its gradient and theirs. In 16 bits the first and last
take half, but an fp32 copy stands between: the same sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerms:
    """Bytes of the fullest rank, term by term."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float

    @property
    def total_bytes(self) -> float:
        """The sum."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.logits


def memory_terms(
    shape: ModelShape, workload: Workload, cluster: Cluster, plan: ParallelPlan
) -> MemoryTerms:
    """Bytes that the fullest rank should need.

    Rough: no allocator overhead, no communication buffers; it orders plans, trials decide.
    """
    dp = plan.data_parallel(cluster.num_gpus)
    shards = dp // plan.dp_replicate
    params = params_of_fullest_rank(shape, plan)
    weight_bytes = 4 if plan.precision is Precision.FP32 else 6
    sharded = [1, shards if plan.zero_stage >= 1 else 1, shards if plan.zero_stage >= 2 else 1]
    kept = shards if plan.zero_stage >= 3 else 1
    on_device = plan.offload is Offload.NONE
    return MemoryTerms(
        parameters=0 if plan.offload is Offload.PARAMS else params * weight_bytes / kept,
        gradients=params * GRADIENT_BYTES_PER_PARAM / sharded[2],
        optimizer=params * OPTIMIZER_BYTES_PER_PARAM / sharded[1] if on_device else 0,
        activations=_activation_bytes(shape, workload, cluster, plan),
        logits=_logit_bytes(shape, workload, plan),
    )


def params_of_fullest_rank(shape: ModelShape, plan: ParallelPlan) -> float:
    """Parameters of the fullest stage, split by tp, before any sharding over data ranks."""
    embedding = shape.vocab * shape.hidden
    ends = embedding if shape.tied_embeddings or plan.pp > 1 else 2 * embedding
    all_embeddings = embedding if shape.tied_embeddings else 2 * embedding
    layers = shape.num_params - all_embeddings
    return (layers / plan.pp + ends) / plan.tp


def _activation_bytes(
    shape: ModelShape, workload: Workload, cluster: Cluster, plan: ParallelPlan
) -> float:
    value_bytes = 4 if plan.precision is Precision.FP32 else 2
    tokens = plan.micro_batch * workload.seq_len / plan.cp
    layer_input = tokens * shape.hidden * value_bytes
    layer = layer_input * ACTIVATION_VALUES_PER_HIDDEN / plan.tp
    layers = shape.num_layers / plan.pp
    in_flight = min(plan.pp, plan.num_microbatches(cluster.num_gpus, _batch(workload)))
    if plan.recompute is Recompute.FULL:
        return layers * layer_input * in_flight + layer
    share = 0.8 if plan.recompute is Recompute.SELECTIVE else 1.0
    return layers * layer * share * in_flight


def _logit_bytes(shape: ModelShape, workload: Workload, plan: ParallelPlan) -> float:
    tokens = plan.micro_batch * workload.seq_len / plan.cp
    # Only Megatron takes the loss of a split vocabulary; the others gather the logits first.
    split = plan.tp if plan.backend is Backend.MEGATRON else 1
    return tokens * shape.vocab * 4 * LOGIT_COPIES / split


def _batch(workload: Workload) -> int:
    return workload.global_batch_sequences
