"""Megatron-LM's options that no knob is read from: which may change the speed, which do not."""

from __future__ import annotations

import re
from functools import cache

from tuner.megatron_options import option_table

_PINNED = re.compile(
    r"overlap|fusion|fused|tp-comm|recompute|checkpoint-activations|^--ddp|dispatcher|grouped-gemm"
    r"|deepep|hybridep|capacity|router-padding|attention-backend|flash-attn|transformer-impl"
    r"|cuda-graph|fp8|fp4|first-last-layers-bf16|-in-bf16|offload|-in-fp32|dtype$|nccl|sharp"
    r"|p2p|cp-comm|microbatch-group|wgrad|expert-tensor|account-for|parallel-layout"
    r"|pipeline-num-layers|make-vocab|manual-gc|empty-unused|precision-aware|distributed-backend"
    r"|deterministic|jit-fuser|scatter-gather|async-tensor|distribute-saved|clip-grad"
    r"|check-for-nan|persist-layer|comm-backend|tp-pp-dp|priority|hierarchical|mcore-models"
    r"|cross-entropy|fsdp|sharding-strategy|optimizer-instances|loss-scale|virtual"
)
_MODEL = re.compile(
    r"^--(num-layers|hidden-size|ffn-hidden|num-attention|kv-channels|group-query|num-query"
    r"|max-position|position-emb|use-rot|rotary|rope|swiglu|squared-relu|normalization|norm-eps"
    r"|disable-bias|add-qkv|untie|vocab|qk-|window|num-experts|moe-|multi-latent|q-lora|kv-lora"
    r"|v-head|mtp|apply-layernorm|init-method|attention-dropout|hidden-dropout|attention-softmax"
    r"|apply-query|apply-res|no-position|openai|quick-geglu|use-rope|mscale|decoder|encoder)"
)
_BATCH = frozenset(("--global-batch-size", "--seq-length", "--rampup-batch-size"))
LAUNCHER_OPTIONS = frozenset(
    f"--{name.replace('_', dash)}"
    for dash in "_-"
    for name in [
        "nproc_per_node",
        "nnodes",
        "node_rank",
        "master_addr",
        "master_port",
        "rdzv_backend",
        "rdzv_endpoint",
        "rdzv_id",
        "standalone",
        "max_restarts",
        "local_ranks_filter",
        "tee",
        "redirects",
        "log_dir",
        "module",
        "rdzv_conf",
        "start_method",
        "role",
    ]
)
"""Of torchrun, which the same script may hold."""


@cache
def known_flags() -> frozenset[str]:
    """Every option of ``pretrain_gpt.py``, in every spelling."""
    return frozenset(option_table())


def reason_ignored(option: str) -> str | None:
    """Why an option does not matter to the plan; None for one that may change the speed."""
    if option in LAUNCHER_OPTIONS:
        return "it is the launcher's; the job says the cluster"
    if option in _BATCH:
        return "the job gives the batch and the length"
    if _PINNED.search(option):
        return None
    if _MODEL.match(option):
        return "the job gives the model"
    return "it is about data, checkpoints, logging or the learning rate"
