"""``megatron.args`` read: the options of Megatron-LM's ``pretrain_gpt.py`` that paratune emits."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronArguments:
    """The options by Megatron-LM's own names, with its own defaults."""

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    vocab_size: int
    seq_length: int
    max_position_embeddings: int
    micro_batch_size: int
    global_batch_size: int
    lr: float
    min_lr: float = 0.0
    kv_channels: int | None = None
    group_query_attention: bool = False
    num_query_groups: int = 1
    make_vocab_size_divisible_by: int = 128
    attention_dropout: float = 0.1
    hidden_dropout: float = 0.1
    normalization: str = "LayerNorm"
    layernorm_epsilon: float = 1e-5
    position_embedding_type: str = "learned_absolute"
    rotary_base: int = 10000
    use_rope_scaling: bool = False
    rope_scaling_factor: float = 8.0
    window_size: tuple[int, int] | None = None
    qk_layernorm: bool = False
    swiglu: bool = False
    add_bias_linear: bool = True
    add_qkv_bias: bool = False
    untie_embeddings_and_output_weights: bool = False
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    num_virtual_stages_per_pipeline_rank: int = 1
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    context_parallel_size: int = 1
    sequence_parallel: bool = False
    num_experts: int | None = None
    moe_ffn_hidden_size: int | None = None
    moe_router_topk: int = 2
    moe_router_pre_softmax: bool = False
    moe_router_load_balancing_type: str = "aux_loss"
    moe_token_dispatcher_type: str = "allgather"
    moe_grouped_gemm: bool = False
    moe_shared_expert_intermediate_size: int | None = None
    moe_shared_expert_gate: bool = False
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int | None = None
    use_distributed_optimizer: bool = False
    num_distributed_optimizer_instances: int = 1
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    align_param_gather: bool = True
    ddp_bucket_size: int | None = None
    ddp_average_in_collective: bool = False
    microbatch_group_size_per_vp_stage: int | None = None
    recompute_granularity: str | None = None
    recompute_method: str | None = None
    recompute_num_layers: int | None = None
    recompute_modules: str | None = None
    bf16: bool = False
    fp16: bool = False
    fp8: str | None = None
    accumulate_allreduce_grads_in_fp32: bool = False
    initial_loss_scale: float = 2.0**32
    optimizer: str = "adam"
    use_precision_aware_optimizer: bool = False
    optimizer_cpu_offload: bool = False
    lr_decay_style: str = "linear"
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_eps: float = 1e-8
    clip_grad: float = 1.0
    transformer_impl: str = "transformer_engine"
    distributed_backend: str = "nccl"
    gradient_accumulation_fusion: bool = True
    masked_softmax_fusion: bool = True
    apply_rope_fusion: bool = True
    bias_gelu_fusion: bool = True
    bias_swiglu_fusion: bool = True
    bias_dropout_fusion: bool = True
    check_for_nan_in_loss_and_grad: bool = True

    @classmethod
    def read(cls, path: Path) -> MegatronArguments:
        """The arguments in this file.

        Raises:
            ValueError: an option is missing, unknown, or has a value that it cannot have.
        """
        options = vars(_parser(str(path)).parse_args(shlex.split(path.read_text(), comments=True)))
        return cls(**options)

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding over all tensor-parallel ranks, as Megatron-LM pads them."""
        multiple = self.make_vocab_size_divisible_by * self.tensor_model_parallel_size
        return -(-self.vocab_size // multiple) * multiple

    @property
    def query_groups(self) -> int:
        """Key and value heads."""
        return self.num_query_groups if self.group_query_attention else self.num_attention_heads

    @property
    def expert_tensor_ranks(self) -> int:
        """Ranks that one expert is split over; as many as a layer's, unless it is said."""
        return self.expert_tensor_parallel_size or self.tensor_model_parallel_size


_REQUIRED: dict[str, type] = {
    "--num-layers": int,
    "--hidden-size": int,
    "--ffn-hidden-size": int,
    "--num-attention-heads": int,
    "--vocab-size": int,
    "--seq-length": int,
    "--max-position-embeddings": int,
    "--micro-batch-size": int,
    "--global-batch-size": int,
    "--lr": float,
}
_OPTIONAL: dict[str, type] = {
    "--kv-channels": int,
    "--num-query-groups": int,
    "--make-vocab-size-divisible-by": int,
    "--attention-dropout": float,
    "--hidden-dropout": float,
    "--rotary-base": int,
    "--rope-scaling-factor": float,
    "--tensor-model-parallel-size": int,
    "--pipeline-model-parallel-size": int,
    "--num-virtual-stages-per-pipeline-rank": int,
    "--context-parallel-size": int,
    "--num-experts": int,
    "--moe-ffn-hidden-size": int,
    "--moe-router-topk": int,
    "--moe-shared-expert-intermediate-size": int,
    "--expert-model-parallel-size": int,
    "--expert-tensor-parallel-size": int,
    "--num-distributed-optimizer-instances": int,
    "--ddp-bucket-size": int,
    "--recompute-num-layers": int,
    "--initial-loss-scale": float,
    "--min-lr": float,
    "--weight-decay": float,
    "--adam-beta1": float,
    "--adam-beta2": float,
    "--adam-eps": float,
    "--clip-grad": float,
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "--normalization": ("LayerNorm", "RMSNorm"),
    "--position-embedding-type": ("learned_absolute", "rope"),
    "--recompute-granularity": ("full", "selective"),
    "--recompute-method": ("uniform", "block"),
    "--recompute-modules": ("core_attn",),
    "--moe-router-load-balancing-type": ("none",),
    "--moe-token-dispatcher-type": ("alltoall",),
    "--optimizer": ("adam",),
    "--lr-decay-style": ("constant",),
    "--transformer-impl": ("local", "transformer_engine"),
    "--distributed-backend": ("nccl", "gloo"),
}
_SWITCHES_ON = (
    "--group-query-attention",
    "--use-rope-scaling",
    "--qk-layernorm",
    "--swiglu",
    "--add-qkv-bias",
    "--untie-embeddings-and-output-weights",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--sequence-parallel",
    "--moe-router-pre-softmax",
    "--moe-grouped-gemm",
    "--moe-shared-expert-gate",
    "--use-distributed-optimizer",
    "--overlap-grad-reduce",
    "--overlap-param-gather",
    "--ddp-average-in-collective",
    "--bf16",
    "--fp16",
    "--use-precision-aware-optimizer",
    "--optimizer-cpu-offload",
    "--accumulate-allreduce-grads-in-fp32",
)
_SWITCHES_OFF = {
    "--disable-bias-linear": "add_bias_linear",
    "--no-align-param-gather": "align_param_gather",
    "--no-gradient-accumulation-fusion": "gradient_accumulation_fusion",
    "--no-masked-softmax-fusion": "masked_softmax_fusion",
    "--no-rope-fusion": "apply_rope_fusion",
    "--no-bias-gelu-fusion": "bias_gelu_fusion",
    "--no-bias-swiglu-fusion": "bias_swiglu_fusion",
    "--no-bias-dropout-fusion": "bias_dropout_fusion",
    "--no-check-for-nan-in-loss-and-grad": "check_for_nan_in_loss_and_grad",
}


def _pair(text: str) -> tuple[int, int]:
    left, right = text.strip("()").split(",")
    return int(left), int(right)


class _Parser(argparse.ArgumentParser):
    """Raises instead of ending the process: a rank reports its exceptions."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{self.prog}: {message}; paratune's bench runs what paratune emits")


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = _Parser(prog=prog, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for flag, kind in _REQUIRED.items():
        parser.add_argument(flag, type=kind, required=True)
    for flag, kind in _OPTIONAL.items():
        parser.add_argument(flag, type=kind)
    parser.add_argument("--norm-epsilon", type=float, dest="layernorm_epsilon")
    parser.add_argument("--fp8-format", choices=("hybrid",), dest="fp8")
    parser.add_argument(
        "--microbatch-group-size-per-virtual-pipeline-stage",
        type=int,
        dest="microbatch_group_size_per_vp_stage",
    )
    parser.add_argument("--window-size", type=_pair)
    for flag, choices in _CHOICES.items():
        parser.add_argument(flag, choices=choices)
    for flag in _SWITCHES_ON:
        parser.add_argument(flag, action="store_true")
    for flag, name in _SWITCHES_OFF.items():
        parser.add_argument(flag, action="store_false", dest=name)
    return parser
