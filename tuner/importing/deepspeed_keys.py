"""The keys of a DeepSpeed JSON that no knob is read from: pinned, ignored, or removed (0.19.8)."""

from __future__ import annotations

from collections.abc import Mapping

_LOGGING = "it logs, and does not change how training runs"
_OPTIMIZER = "the job says which optimizer is trained, and how fast it learns"
_CHECKPOINT = "it is about checkpoints, which a trial does not write"
_SCHEDULE = "the learning rate does not change the speed"

KNOWN_KEYS: Mapping[str, str | None] = {
    "zero_optimization": None,
    "zero_optimization.load_from_fp32_weights": _CHECKPOINT,
    "zero_optimization.elastic_checkpoint": _CHECKPOINT,
    "zero_optimization.pipeline_loading_checkpoint": _CHECKPOINT,
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": _CHECKPOINT,
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": _CHECKPOINT,
    "zero_optimization.log_trace_cache_warnings": _LOGGING,
    "optimizer.type": _OPTIMIZER,
    "optimizer.params": _OPTIMIZER,
    "optimizer.params.torch_adam": None,
    "optimizer.legacy_fusion": None,
    "scheduler": _SCHEDULE,
    "gradient_clipping": None,
    "fp16": None,
    "bf16": None,
    "bfloat16": None,
    "torch_autocast": None,
    "data_types": None,
    "communication_data_type": None,
    "seq_parallel_communication_data_type": None,
    "prescale_gradients": None,
    "gradient_predivide_factor": None,
    "gradient_allreduce_op": None,
    "managed_gradient_accumulation": None,
    "disable_allgather": None,
    "zero_allow_untested_optimizer": None,
    "zero_force_ds_cpu_optimizer": None,
    "disable_python_gc": None,
    "aio": None,
    "activation_checkpointing": (
        "it says how layers are recomputed, not whether: DeepSpeed leaves that to the training "
        "script, or to gradient_checkpointing of --baseline-arguments"
    ),
    "compile": None,
    "pipeline": None,
    "tensor_parallel": None,
    "expert_parallel": None,
    "hybrid_engine": None,
    "use_data_before_expert_parallelism": None,
    "weight_quantization": None,
    "data_parallel_size": None,
    "steps_per_print": _LOGGING,
    "wall_clock_breakdown": _LOGGING,
    "memory_breakdown": _LOGGING,
    "dump_state": _LOGGING,
    "log_level": _LOGGING,
    "tensorboard": _LOGGING,
    "wandb": _LOGGING,
    "comet": _LOGGING,
    "csv_monitor": _LOGGING,
    "flops_profiler": _LOGGING,
    "comms_logger": _LOGGING,
    "timers": _LOGGING,
    "monitor_config": _LOGGING,
    "autotuning": "it is for DeepSpeed's own tuner",
    "checkpoint": _CHECKPOINT,
    "checkpoint_engine": _CHECKPOINT,
    "datastates_ckpt": _CHECKPOINT,
    "data_efficiency": "it is about data, which the job gives",
    "dataloader_drop_last": "it is about data, which the job gives",
    "vocabulary_size": "the job gives the model",
}
"""None pins a key: it may change the speed, and no knob turns it."""

BLOCK_KEYS: Mapping[str, frozenset[str]] = {
    "zero_optimization": frozenset(
        [
            "stage",
            "contiguous_gradients",
            "reduce_scatter",
            "reduce_bucket_size",
            "use_multi_rank_bucket_allreduce",
            "allgather_partitions",
            "allgather_bucket_size",
            "overlap_comm",
            "compute_grad_norm",
            "load_from_fp32_weights",
            "elastic_checkpoint",
            "offload_param",
            "offload_optimizer",
            "zenflow",
            "sub_group_size",
            "cpu_offload_param",
            "cpu_offload_use_pin_memory",
            "cpu_offload",
            "stage3_prefetch_bucket_size",
            "stage3_param_persistence_threshold",
            "stage3_model_persistence_threshold",
            "stage3_max_live_parameters",
            "stage3_max_reuse_distance",
            "stage3_gather_16bit_weights_on_model_save",
            "stage3_module_granularity_threshold",
            "stage3_use_all_reduce_for_fetch_params",
            "stage3_allgather_sequential",
            "stage3_gather_fp16_weights_on_model_save",
            "ignore_unused_parameters",
            "legacy_stage1",
            "round_robin_gradients",
            "parameter_alignment",
            "zero_hpz_partition_size",
            "zero_quantized_weights",
            "zero_quantized_nontrainable_weights",
            "zero_quantized_gradients",
            "memory_efficient_linear",
            "pipeline_loading_checkpoint",
            "override_module_apply",
            "log_trace_cache_warnings",
            "enable_sanity_checks",
            "save_muon_momentum_buffer_in_memory",
            "leaf_module",
            "mics_shard_size",
            "mics_hierarchical_params_gather",
            "zeropp_loco_param",
        ]
    ),
    "zero_optimization.offload_optimizer": frozenset(
        [
            "device",
            "nvme_path",
            "buffer_count",
            "pin_memory",
            "pipeline_read",
            "pipeline_write",
            "fast_init",
            "ratio",
            "super_offload",
            "cpuadam_cores_perc",
        ]
    ),
    "zero_optimization.offload_param": frozenset(
        ["device", "nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pin_memory"]
    ),
    "fp16": frozenset(
        [
            "enabled",
            "auto_cast",
            "loss_scale",
            "initial_scale_power",
            "loss_scale_window",
            "hysteresis",
            "consecutive_hysteresis",
            "min_loss_scale",
            "fp16_master_weights_and_grads",
        ]
    ),
    "bf16": frozenset(
        [
            "enabled",
            "immediate_grad_update",
            "check_grad_overflow",
            "bf16_master_weights_and_grads",
            "bf16_optimizer_states",
        ]
    ),
}
"""Blocks in which DeepSpeed refuses an unknown key (rule DS-09), with the keys that they have."""

REMOVED_KEYS = (
    "nebula",
    "compression_training",
    "amp",
    "quantize_training",
    "sparse_gradients",
    "eigenvalue",
    "sparse_attention",
    "elasticity",
    "graph_harvesting",
    "curriculum_learning",
    "progressive_layer_drop",
    "zero_optimization.mics_shard_size",
    "zero_optimization.mics_hierarchical_params_gather",
    "zero_optimization.zeropp_loco_param",
)
"""Rule DS-08: DeepSpeed 0.19 raises where one of them is left."""

TOP_LEVEL_KEYS = frozenset(
    [key.split(".")[0] for key in KNOWN_KEYS]
    + [
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "sequence_parallel_size",
    ]
)
"""What DeepSpeed reads; anything else it ignores in silence (rule DS-09)."""
