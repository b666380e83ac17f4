"""A small Llama on the CPU ranks of one machine, as a subject of predictions."""

from __future__ import annotations

from tuner.cluster import Cluster
from tuner.cost_model.case import Subject
from tuner.model_shape import ModelShape, ParamCounts
from tuner.plan import Backend, ParallelPlan, Precision
from tuner.presets import cpu_rank
from tuner.workload import HfModel, Workload

MIB = 2**20
VOCAB, HIDDEN, LAYERS = 32000, 64, 8


def small_llama() -> ModelShape:
    """TinyLLama-v0's sizes: 4.6 million weights, nine tenths of them embedding and head."""
    ffn = 256
    layer = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * ffn + 2 * HIDDEN
    return ModelShape(
        family="llama",
        num_layers=LAYERS,
        hidden=HIDDEN,
        num_heads=16,
        num_kv_heads=16,
        head_dim=4,
        ffn=ffn,
        vocab=VOCAB,
        max_positions=2048,
        gated_mlp=True,
        tied_embeddings=False,
        params=ParamCounts(
            embedding=VOCAB * HIDDEN,
            head=VOCAB * HIDDEN,
            layers=(layer,) * LAYERS,
            other=HIDDEN,
        ),
    )


def cpu_subject(*, ranks: int = 4, cores: float = 0.5) -> Subject:
    """32 sequences of 128 tokens a step."""
    shape = small_llama()
    return Subject(
        shape=shape,
        workload=Workload(
            model=HfModel(name="small-llama", config_text="{}", shape=shape),
            seq_len=128,
            global_batch_sequences=32,
        ),
        cluster=Cluster(gpu=cpu_rank(480 * MIB, cores=cores), gpus_per_node=ranks),
    )


def plan(
    backend: Backend, *, zero: int = 0, mb: int = 1, tp: int = 1, pp: int = 1, half: bool = False
) -> ParallelPlan:
    """A plan of CPU ranks."""
    return ParallelPlan(
        backend=backend,
        zero_stage=zero,
        micro_batch=mb,
        tp=tp,
        pp=pp,
        precision=Precision.BF16 if half else Precision.FP32,
    )
