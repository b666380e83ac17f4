"""Megatron's process groups: every rank's place in tensor, pipeline and data parallel."""

from __future__ import annotations

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

from runners.bench.launch_folder import LaunchFolder
from runners.bench.megatron_arguments import MegatronArguments
from runners.bench.megatron_cpu import install_cpu_stand_ins
from runners.bench.ranks import GROUP_TIMEOUT
from tuner.launch import MEGATRON_FILE


def start_megatron_groups(launch: LaunchFolder, device: torch.device) -> None:
    """Joins all of them. Collective.

    Raises:
        ValueError: ``megatron.args`` does not fit the number of ranks or this bench.
    """
    arguments = MegatronArguments.read(launch.path / MEGATRON_FILE)
    _must_divide(arguments, launch.training.num_ranks)
    if device.type == "cpu":
        install_cpu_stand_ins()
    interleaved = arguments.num_virtual_stages_per_pipeline_rank > 1
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=arguments.tensor_model_parallel_size,
        pipeline_model_parallel_size=arguments.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=(
            arguments.num_virtual_stages_per_pipeline_rank if interleaved else None
        ),
        context_parallel_size=arguments.context_parallel_size,
        expert_model_parallel_size=arguments.expert_model_parallel_size,
        expert_tensor_parallel_size=arguments.expert_tensor_ranks,
        num_distributed_optimizer_instances=arguments.num_distributed_optimizer_instances,
        distributed_timeout_minutes=round(GROUP_TIMEOUT.total_seconds() / 60),
        create_gloo_process_groups=False,
    )
    init_num_microbatches_calculator(
        rank=dist.get_rank(),
        rampup_batch_size=None,
        global_batch_size=arguments.global_batch_size,
        micro_batch_size=arguments.micro_batch_size,
        data_parallel_size=parallel_state.get_data_parallel_world_size(),
    )
    model_parallel_cuda_manual_seed(launch.training.seed + 1)


def _must_divide(arguments: MegatronArguments, num_ranks: int) -> None:
    model_ranks = (
        arguments.tensor_model_parallel_size
        * arguments.pipeline_model_parallel_size
        * arguments.context_parallel_size
    )
    if num_ranks % model_ranks:
        raise ValueError(
            f"{MEGATRON_FILE}: tensor * pipeline * context parallel size ({model_ranks}) must "
            f"divide the number of ranks ({num_ranks}); start a multiple of {model_ranks}"
        )
    samples = arguments.micro_batch_size * (num_ranks // model_ranks)
    if arguments.global_batch_size % samples:
        raise ValueError(
            f"{MEGATRON_FILE}: micro-batch size times data-parallel size ({samples}) must divide "
            f"--global-batch-size ({arguments.global_batch_size}); change one of them"
        )
