"""Seconds that an optimizer step should take: arithmetic, pipeline bubble, traffic, overhead."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.cluster import Cluster, Device
from tuner.cost_model.memory import params_of_fullest_rank
from tuner.model_shape import ModelShape
from tuner.plan import Offload, ParallelPlan, Recompute
from tuner.workload import Workload

PEAK_SHARE = 0.45
"""Of the datasheet's dense peak that large transformer layers reach in practice; a prior, which
measured trials correct."""
OVERHEAD_S = {Device.CUDA: 2e-5, Device.CPU: 2e-3}
"""Host time per layer, forward and backward, of one micro-batch: launches and Python."""

PCIE_BYTES_PER_S = 25e9
"""PCIe gen 4 x16 in one direction, as measured by most copies; 32 GB/s by the standard."""
HOST_MEMORY_BYTES_PER_S = 20e9
"""A host's memory bandwidth, shared by the ranks of a node: 160 GB/s over 8."""
HOST_ADAM_BYTES_PER_PARAM = 32
"""Weight, gradient and two moments are read (16), three of them written, in fp32 (12), and the
16-bit copy (2), rounded up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTerms:
    """Seconds of a step, term by term."""

    compute: float
    bubble: float
    tensor_parallel: float
    data_parallel: float
    overhead: float
    offload: float

    @property
    def total_s(self) -> float:
        """The sum; nothing is taken to overlap."""
        return (
            self.compute + self.bubble + self.tensor_parallel + self.data_parallel + self.overhead
        )


def time_terms(
    shape: ModelShape, workload: Workload, cluster: Cluster, plan: ParallelPlan
) -> TimeTerms:
    """Seconds that a step should take. Rough: it orders plans, trials decide."""
    gpu = cluster.gpu
    microbatches = plan.num_microbatches(cluster.num_gpus, workload.global_batch_sequences)
    flops_per_token = 6 * shape.num_params + 6 * shape.num_layers * workload.seq_len * shape.hidden
    again = {Recompute.NONE: 1.0, Recompute.SELECTIVE: 1.03, Recompute.FULL: 4 / 3}
    rate = gpu.flops_per_s.get(str(plan.precision), gpu.flops_per_s["fp32"]) * PEAK_SHARE
    compute = (
        flops_per_token * workload.tokens_per_step * again[plan.recompute] / cluster.num_gpus / rate
    )
    layers = shape.num_layers / plan.pp
    overhead = microbatches * layers * OVERHEAD_S[gpu.device]
    if plan.zero_stage == 3 or plan.tp > 1:
        overhead *= 1.5
    return TimeTerms(
        compute=compute,
        bubble=(compute + overhead) * (plan.pp - 1) / (microbatches * plan.vpp),
        tensor_parallel=_tensor_parallel_s(shape, workload, cluster, plan),
        data_parallel=_data_parallel_s(shape, workload, cluster, plan),
        overhead=overhead,
        offload=_offload_s(shape, workload, cluster, plan),
    )


def _offload_s(
    shape: ModelShape, workload: Workload, cluster: Cluster, plan: ParallelPlan
) -> float:
    """Gradients down and weights up once a step; offloaded weights also up each micro-batch."""
    if plan.offload is Offload.NONE:
        return 0.0
    shards = plan.data_parallel(cluster.num_gpus) // plan.dp_replicate
    params = params_of_fullest_rank(shape, plan) / shards
    moved_bytes = 6 * params
    if plan.offload is Offload.PARAMS:
        microbatches = plan.num_microbatches(cluster.num_gpus, workload.global_batch_sequences)
        moved_bytes += 2 * 2 * params * microbatches
    host_update_s = params * HOST_ADAM_BYTES_PER_PARAM / HOST_MEMORY_BYTES_PER_S
    return moved_bytes / PCIE_BYTES_PER_S + host_update_s


def _tensor_parallel_s(
    shape: ModelShape, workload: Workload, cluster: Cluster, plan: ParallelPlan
) -> float:
    """Four all-reduces of the hidden states a layer and micro-batch, ring cost."""
    if plan.tp == 1:
        return 0.0
    tokens = workload.tokens_per_step / plan.data_parallel(cluster.num_gpus)
    moved = 4 * 2 * (plan.tp - 1) / plan.tp * tokens * shape.hidden * 2
    return moved * shape.num_layers / plan.pp / cluster.gpu.link_bytes_per_s


def _data_parallel_s(
    shape: ModelShape, workload: Workload, cluster: Cluster, plan: ParallelPlan
) -> float:
    """One all-reduce of the gradients a step; ZeRO-3 also gathers weights each micro-batch."""
    dp = plan.data_parallel(cluster.num_gpus)
    if dp == 1:
        return 0.0
    inside = dp * plan.tp <= cluster.gpus_per_node
    rate = cluster.gpu.link_bytes_per_s if inside else cluster.network_bytes_per_s
    rank_bytes = 4 * params_of_fullest_rank(shape, plan)
    gathers = 0.0
    if plan.zero_stage == 3:
        gathers = plan.num_microbatches(cluster.num_gpus, workload.global_batch_sequences)
    return rank_bytes * (dp - 1) / dp * (2 + gathers) / rate
