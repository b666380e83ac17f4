"""This rank's chunks of a GPT model in Megatron-Core, as ``megatron.args`` describes it."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.extensions.transformer_engine import HAVE_TE
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from torch.nn import functional

from runners.bench.megatron_arguments import MegatronArguments
from runners.bench.megatron_norm import Norm
from runners.bench.megatron_weights import fill_weights


def uses_transformer_engine(arguments: MegatronArguments) -> bool:
    """Whether its layers are used: asked for, and installed. Otherwise Megatron's own are."""
    return arguments.transformer_impl == "transformer_engine" and bool(HAVE_TE)


def model_chunks(arguments: MegatronArguments, *, seed: int) -> list[Any]:
    """The chunks of this pipeline stage, filled, in this precision, in Megatron's DDP."""
    config = transformer_config(arguments)
    chunks = []
    for index in range(arguments.num_virtual_stages_per_pipeline_rank):
        model = _gpt_model(arguments, config, _virtual_stage(arguments, index))
        fill_weights(model, seed=seed, gated_mlp=arguments.swiglu)
        wrapped = Float16Module(config, model) if arguments.bf16 or arguments.fp16 else model
        chunks.append(
            DistributedDataParallel(
                config=config,
                ddp_config=_ddp_config(arguments),
                module=wrapped,
                # As Megatron-LM has it: later chunks' gradients are ready together anyway.
                disable_bucketing=index > 0,
            )
        )
    _overlap_with_data_parallel(config, arguments, chunks)
    return chunks


def whole_model(arguments: MegatronArguments, *, seed: int) -> Any:
    """The model on one rank, filled, in no DDP: its gradients stay where torch puts them."""
    model = _gpt_model(arguments, transformer_config(arguments), None)
    fill_weights(model, seed=seed, gated_mlp=arguments.swiglu)
    return model


def params_dtype(arguments: MegatronArguments) -> torch.dtype:
    """The type of the weights that the model computes with."""
    if arguments.bf16:
        return torch.bfloat16
    return torch.float16 if arguments.fp16 else torch.float32


def transformer_config(arguments: MegatronArguments) -> TransformerConfig:
    """Megatron-Core's configuration, as Megatron-LM makes it from these arguments."""
    interleaved = arguments.num_virtual_stages_per_pipeline_rank > 1
    return TransformerConfig(
        **_shape_options(arguments),
        **_kernel_options(arguments),
        **_expert_options(arguments),
        tensor_model_parallel_size=arguments.tensor_model_parallel_size,
        pipeline_model_parallel_size=arguments.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=(
            arguments.num_virtual_stages_per_pipeline_rank if interleaved else None
        ),
        account_for_embedding_in_pipeline_split=arguments.account_for_embedding_in_pipeline_split,
        account_for_loss_in_pipeline_split=arguments.account_for_loss_in_pipeline_split,
        context_parallel_size=arguments.context_parallel_size,
        microbatch_group_size_per_vp_stage=arguments.microbatch_group_size_per_vp_stage,
        overlap_p2p_comm=interleaved,
        batch_p2p_comm=not interleaved,
        # Interleaving frees what it is still sending: gloo, which has no streams, reads it late.
        deallocate_pipeline_outputs=not (interleaved and arguments.distributed_backend == "gloo"),
        sequence_parallel=arguments.sequence_parallel,
        params_dtype=params_dtype(arguments),
        pipeline_dtype=params_dtype(arguments),
        bf16=arguments.bf16,
        fp16=arguments.fp16,
        fp8=arguments.fp8,
        recompute_granularity=arguments.recompute_granularity,
        recompute_method=arguments.recompute_method,
        recompute_num_layers=arguments.recompute_num_layers,
        recompute_modules=(
            None if arguments.recompute_modules is None else [arguments.recompute_modules]
        ),
        # The weights are filled afterwards; with an init method Megatron marks how they are split.
        init_method=_leave_as_it_is,
        output_layer_init_method=_leave_as_it_is,
        embedding_init_method=_leave_as_it_is,
    )


def _leave_as_it_is(weight: torch.Tensor) -> torch.Tensor:
    return weight


def _shape_options(arguments: MegatronArguments) -> dict[str, Any]:
    return {
        "num_layers": arguments.num_layers,
        "hidden_size": arguments.hidden_size,
        "ffn_hidden_size": arguments.ffn_hidden_size,
        "num_attention_heads": arguments.num_attention_heads,
        "num_query_groups": arguments.query_groups,
        "kv_channels": arguments.kv_channels,
        "attention_dropout": arguments.attention_dropout,
        "hidden_dropout": arguments.hidden_dropout,
        "normalization": arguments.normalization,
        "layernorm_epsilon": arguments.layernorm_epsilon,
        "gated_linear_unit": arguments.swiglu,
        "activation_func": functional.silu if arguments.swiglu else functional.gelu,
        "add_bias_linear": arguments.add_bias_linear,
        "add_qkv_bias": arguments.add_qkv_bias,
        "qk_layernorm": arguments.qk_layernorm,
        "window_size": arguments.window_size,
    }


def _expert_options(arguments: MegatronArguments) -> dict[str, Any]:
    if arguments.num_experts is None:
        return {}
    return {
        "num_moe_experts": arguments.num_experts,
        "moe_ffn_hidden_size": arguments.moe_ffn_hidden_size,
        "moe_router_topk": arguments.moe_router_topk,
        "moe_router_pre_softmax": arguments.moe_router_pre_softmax,
        "moe_router_load_balancing_type": arguments.moe_router_load_balancing_type,
        "moe_token_dispatcher_type": arguments.moe_token_dispatcher_type,
        "moe_grouped_gemm": _groups_gemms(arguments),
        "moe_shared_expert_intermediate_size": arguments.moe_shared_expert_intermediate_size,
        "moe_shared_expert_gate": arguments.moe_shared_expert_gate,
        "expert_model_parallel_size": arguments.expert_model_parallel_size,
        "expert_tensor_parallel_size": arguments.expert_tensor_ranks,
    }


def _groups_gemms(arguments: MegatronArguments) -> bool:
    """Without Transformer Engine it would take another package; the experts run in turn then."""
    return arguments.moe_grouped_gemm and uses_transformer_engine(arguments)


def _kernel_options(arguments: MegatronArguments) -> dict[str, Any]:
    return {
        "gradient_accumulation_fusion": arguments.gradient_accumulation_fusion,
        "masked_softmax_fusion": arguments.masked_softmax_fusion,
        "attention_softmax_in_fp32": False,  # Megatron-LM's default, unlike the core's
        "apply_rope_fusion": arguments.apply_rope_fusion and uses_transformer_engine(arguments),
        "bias_activation_fusion": (
            arguments.bias_swiglu_fusion if arguments.swiglu else arguments.bias_gelu_fusion
        ),
        "bias_dropout_fusion": arguments.bias_dropout_fusion,
    }


def _virtual_stage(arguments: MegatronArguments, index: int) -> int | None:
    return index if arguments.num_virtual_stages_per_pipeline_rank > 1 else None


def _gpt_model(
    arguments: MegatronArguments, config: TransformerConfig, virtual_stage: int | None
) -> GPTModel:
    model = GPTModel(
        config=config,
        transformer_layer_spec=_layer_spec(arguments, config, virtual_stage),
        vocab_size=arguments.padded_vocab_size,
        max_sequence_length=arguments.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(
            ignore_virtual=False, vp_stage=virtual_stage
        ),
        post_process=parallel_state.is_pipeline_last_stage(
            ignore_virtual=False, vp_stage=virtual_stage
        ),
        share_embeddings_and_output_weights=not arguments.untie_embeddings_and_output_weights,
        position_embedding_type=arguments.position_embedding_type,
        rotary_base=arguments.rotary_base,
        rope_scaling=arguments.use_rope_scaling,
        rope_scaling_factor=arguments.rope_scaling_factor,
        vp_stage=virtual_stage,
    )
    return model.to(torch.cuda.current_device())


def _layer_spec(
    arguments: MegatronArguments, config: TransformerConfig, virtual_stage: int | None
) -> Any:
    if uses_transformer_engine(arguments):
        return get_gpt_layer_with_transformer_engine_spec(
            num_experts=arguments.num_experts,
            moe_grouped_gemm=_groups_gemms(arguments),
            qk_layernorm=arguments.qk_layernorm,
        )
    layer = get_gpt_layer_local_spec(
        num_experts=arguments.num_experts,
        moe_grouped_gemm=False,
        qk_layernorm=arguments.qk_layernorm,
        normalization=arguments.normalization,
    )
    layer.submodules.input_layernorm = Norm
    layer.submodules.pre_mlp_layernorm = Norm
    if arguments.qk_layernorm:
        attention = layer.submodules.self_attention.submodules
        attention.q_layernorm = attention.k_layernorm = Norm
    return TransformerBlockSubmodules(
        layer_specs=[layer] * get_num_layers_to_build(config, virtual_stage), layer_norm=Norm
    )


def _ddp_config(arguments: MegatronArguments) -> DistributedDataParallelConfig:
    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=arguments.accumulate_allreduce_grads_in_fp32,
        overlap_grad_reduce=arguments.overlap_grad_reduce,
        overlap_param_gather=arguments.overlap_param_gather,
        align_param_gather=_aligns_param_gather(arguments),
        use_distributed_optimizer=arguments.use_distributed_optimizer,
        num_distributed_optimizer_instances=arguments.num_distributed_optimizer_instances,
        bucket_size=arguments.ddp_bucket_size,
        average_in_collective=arguments.ddp_average_in_collective,
        check_for_nan_in_grad=arguments.check_for_nan_in_loss_and_grad,
    )


def _aligns_param_gather(arguments: MegatronArguments) -> bool:
    """All stages gather at the same time: only of use with interleaving, as in Megatron-LM."""
    interleaved = arguments.num_virtual_stages_per_pipeline_rank > 1
    return arguments.align_param_gather and arguments.overlap_param_gather and interleaved


def _overlap_with_data_parallel(
    config: TransformerConfig, arguments: MegatronArguments, chunks: list[Any]
) -> None:
    """Gives the schedule the hooks by which it starts and holds back communication."""
    if arguments.overlap_grad_reduce:
        config.no_sync_func = _one_or_all([chunk.no_sync for chunk in chunks])
        config.grad_sync_func = _one_or_all([chunk.start_grad_sync for chunk in chunks])
    if _aligns_param_gather(arguments):
        config.param_sync_func = _one_or_all([chunk.start_param_sync for chunk in chunks])


def _one_or_all(functions: list[Any]) -> Any:
    return functions[0] if len(functions) == 1 else functions
