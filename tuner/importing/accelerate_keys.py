"""The keys of an accelerate YAML that no knob is read from: pinned or ignored (accelerate 1.15)."""

from __future__ import annotations

from collections.abc import Mapping

_LAUNCHER = "it is the launcher's; the job says the cluster"
_CHECKPOINT = "it is about checkpoints, which a trial does not write"
_LOADING = "it is about loading weights, not about steps"
_WRAPPING = "every layer is wrapped here, as all common policies do"


def _fsdp() -> dict[str, str | None]:
    return {
        "fsdp_config.fsdp_auto_wrap_policy": _WRAPPING,
        "fsdp_config.fsdp_transformer_layer_cls_to_wrap": _WRAPPING,
        "fsdp_config.fsdp_min_num_params": None,
        "fsdp_config.fsdp_backward_prefetch": None,
        "fsdp_config.fsdp_backward_prefetch_policy": None,
        "fsdp_config.fsdp_forward_prefetch": None,
        "fsdp_config.fsdp_use_orig_params": None,
        "fsdp_config.fsdp_activation_checkpointing_offload": None,
        "fsdp_config.fsdp_reshard_after_forward": None,
        "fsdp_config.fsdp_state_dict_type": _CHECKPOINT,
        "fsdp_config.fsdp_cpu_ram_efficient_loading": _LOADING,
        "fsdp_config.fsdp_sync_module_states": _LOADING,
        "fsdp_config.fsdp_sharding_strategy": "FSDP 2 takes fsdp_reshard_after_forward instead",
    }


def _deepspeed() -> dict[str, str | None]:
    return {
        "deepspeed_config.gradient_accumulation_steps": (
            "the job's global batch and the micro-batch say it"
        ),
        "deepspeed_config.gradient_clipping": None,
        "deepspeed_config.zero3_init_flag": _LOADING,
        "deepspeed_config.zero3_save_16bit_model": _CHECKPOINT,
        "deepspeed_config.deepspeed_multinode_launcher": _LAUNCHER,
        "deepspeed_config.deepspeed_hostfile": _LAUNCHER,
        "deepspeed_config.deepspeed_inclusion_filter": _LAUNCHER,
        "deepspeed_config.deepspeed_exclusion_filter": _LAUNCHER,
        "deepspeed_config.offload_optimizer_nvme_path": "nothing is offloaded to NVMe",
        "deepspeed_config.offload_param_nvme_path": "nothing is offloaded to NVMe",
        "deepspeed_config.offload_param_device": "parameters are offloaded only with ZeRO stage 3",
        "deepspeed_config.deepspeed_moe_layer_cls_names": None,
    }


def _megatron() -> dict[str, str | None]:
    names = [
        "gradient_clipping",
        "use_custom_fsdp",
        "overlap_cpu_optimizer_d2h_h2d",
        "recompute_method",
        "use_precision_aware_optimizer",
        "decoder_last_pipeline_num_layers",
        "recompute_num_layers",
        "attention_backend",
        "expert_tensor_parallel_size",
        "attention_softmax_in_fp32",
        "calculate_per_token_loss",
        "recompute_activations",
    ]
    keys: dict[str, str | None] = {f"megatron_lm_config.megatron_lm_{name}": None for name in names}
    for name in ("attention_dropout", "hidden_dropout", "use_rotary_position_embeddings"):
        keys[f"megatron_lm_config.megatron_lm_{name}"] = "the job gives the model"
    for name in ("eod_mask_loss", "no_load_optim", "no_save_optim"):
        keys[f"megatron_lm_config.megatron_lm_{name}"] = _CHECKPOINT
    keys["megatron_lm_config.megatron_lm_num_micro_batches"] = (
        "the job's global batch and the micro-batch say it"
    )
    return keys


KNOWN_KEYS: Mapping[str, str | None] = {
    **{
        name: _LAUNCHER
        for name in [
            "compute_environment",
            "debug",
            "enable_cpu_affinity",
            "machine_rank",
            "main_process_ip",
            "main_process_port",
            "main_training_function",
            "rdzv_backend",
            "same_network",
            "gpu_ids",
            "mpirun_config",
            "use_cpu",
            "tpu_name",
            "tpu_zone",
            "tpu_use_cluster",
            "tpu_use_sudo",
            "tpu_vm",
            "tpu_env",
            "tpu_env",
            "commands",
            "command_file",
        ]
    },
    "downcast_bf16": "it is for TPUs",
    "gradient_accumulation_steps": "the job's global batch and the micro-batch say it",
    "dynamo_config": None,
    "dynamo_backend": None,
    "fp8_config": None,
    **_fsdp(),
    **_deepspeed(),
    **_megatron(),
    "parallelism_config": None,
}
"""None pins a key: it may change the speed, and no knob turns it."""
