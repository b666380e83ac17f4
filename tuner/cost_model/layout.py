"""How plans lay a workload out over a cluster, as arrays: degrees, tokens a rank, micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tuner.cluster import Cluster
from tuner.plan import Backend, Offload, Precision, Recompute
from tuner.plan_arrays import BoolArray, PlanArrays
from tuner.workload import Workload

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Layout:
    """What follows from plans, the batch and the GPUs; every array has shape (n,)."""

    tp: FloatArray
    pp: FloatArray
    vpp: FloatArray
    cp: FloatArray
    ep: FloatArray
    dp: FloatArray
    shards: FloatArray
    """Data ranks, context ranks among them, that share out the sharded states."""
    replicas: FloatArray
    zero_stage: FloatArray
    micro_batch: FloatArray
    num_microbatches: FloatArray
    tokens: FloatArray
    """Of one micro-batch on one rank: micro_batch * seq / cp."""
    tokens_split: FloatArray
    """The same where sequence parallelism splits them over tp too."""
    sequence_parallel: BoolArray
    fp32: BoolArray
    fp8: BoolArray
    recompute_full: BoolArray
    recompute_selective: BoolArray
    offload_optimizer: BoolArray
    offload_params: BoolArray
    megatron: BoolArray
    deepspeed: BoolArray
    pytorch: BoolArray

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def value_bytes(self) -> FloatArray:
        """Of one activation or compute weight, shape (n,)."""
        return np.where(self.fp32, 4.0, 2.0)

    @property
    def sharded_params(self) -> BoolArray:
        """Where ZeRO-3 or FSDP splits the weights themselves, shape (n,)."""
        return self.zero_stage >= 3


def layout(workload: Workload, cluster: Cluster, plans: PlanArrays) -> Layout:
    """The layout of every plan; the degrees are taken to fit the GPUs."""
    number = {
        name: plans.columns[name].astype(np.float64)
        for name in ("tp", "pp", "vpp", "cp", "ep", "zero_stage", "micro_batch", "dp_replicate")
    }
    dp = np.maximum(np.floor(cluster.num_gpus / (number["tp"] * number["pp"] * number["cp"])), 1.0)
    per_rank = workload.global_batch_sequences / dp
    tokens = number["micro_batch"] * workload.seq_len / number["cp"]
    sequence_parallel = plans.flags("sequence_parallel") & (number["tp"] > 1)
    return Layout(
        **{name: number[name] for name in ("tp", "pp", "vpp", "cp", "ep")},
        dp=dp,
        shards=np.maximum(dp * number["cp"] / number["dp_replicate"], 1.0),
        replicas=number["dp_replicate"],
        zero_stage=number["zero_stage"],
        micro_batch=number["micro_batch"],
        num_microbatches=np.maximum(np.floor(per_rank / number["micro_batch"]), 1.0),
        tokens=tokens,
        tokens_split=np.where(sequence_parallel, tokens / number["tp"], tokens),
        sequence_parallel=sequence_parallel,
        fp32=plans.equals("precision", Precision.FP32),
        fp8=plans.equals("precision", Precision.FP8),
        recompute_full=plans.equals("recompute", Recompute.FULL),
        recompute_selective=plans.equals("recompute", Recompute.SELECTIVE),
        offload_optimizer=~plans.equals("offload", Offload.NONE),
        offload_params=plans.equals("offload", Offload.PARAMS),
        megatron=plans.equals("backend", Backend.MEGATRON),
        deepspeed=plans.equals("backend", Backend.DEEPSPEED),
        pytorch=plans.equals("backend", Backend.PYTORCH),
    )
