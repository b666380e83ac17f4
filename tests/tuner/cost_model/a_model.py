"""A 7B Llama on H100s, as a subject of predictions."""

from __future__ import annotations

from tuner.cluster import Cluster, Gpu
from tuner.cost_model.case import Subject
from tuner.cost_model.software import Software
from tuner.model_shape import ModelShape, ParamCounts
from tuner.plan import Backend, ParallelPlan
from tuner.presets import gpu_named
from tuner.workload import HfModel, Workload

GIB = 2**30


def llama_7b() -> ModelShape:
    hidden, ffn, vocab, layers = 4096, 11008, 32000, 32
    layer = 4 * hidden * hidden + 3 * hidden * ffn + 2 * hidden
    return ModelShape(
        family="llama",
        num_layers=layers,
        hidden=hidden,
        num_heads=32,
        num_kv_heads=32,
        head_dim=128,
        ffn=ffn,
        vocab=vocab,
        max_positions=4096,
        gated_mlp=True,
        tied_embeddings=False,
        params=ParamCounts(
            embedding=vocab * hidden,
            head=vocab * hidden,
            layers=(layer,) * layers,
            other=hidden,
        ),
    )


def subject(
    *, num_nodes: int = 1, batch: int = 64, seq_len: int = 4096, software: Software | None = None
) -> Subject:
    shape = llama_7b()
    return Subject(
        shape=shape,
        workload=Workload(
            model=HfModel(name="llama-7b", config_text="{}", shape=shape),
            seq_len=seq_len,
            global_batch_sequences=batch,
        ),
        cluster=Cluster(gpu=h100(), num_nodes=num_nodes, gpus_per_node=8),
        software=software or Software(padded_vocab=1),
    )


def h100() -> Gpu:
    gpu = gpu_named("h100-sxm-80gb")
    assert gpu is not None
    return gpu


def megatron(
    *, tp: int = 1, pp: int = 1, micro_batch: int = 1, zero_stage: int = 0, vpp: int = 1
) -> ParallelPlan:
    return ParallelPlan(
        backend=Backend.MEGATRON,
        tp=tp,
        pp=pp,
        vpp=vpp,
        micro_batch=micro_batch,
        zero_stage=zero_stage,
    )
