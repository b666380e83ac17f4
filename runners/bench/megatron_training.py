"""Trains what ``megatron.args`` says; schedules and optimizers are Megatron-Core's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.num_microbatches_calculator import (
    get_current_global_batch_size,
    get_micro_batch_size,
    get_num_microbatches,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.utils import get_batch_on_this_cp_rank, get_model_config, unwrap_model

from runners.bench.data import microbatch
from runners.bench.launch_folder import LaunchFolder, TrainingFile
from runners.bench.megatron_arguments import MegatronArguments
from runners.bench.megatron_model import model_chunks, params_dtype, uses_transformer_engine
from runners.bench.megatron_routing import send_all_tokens_to_the_first_experts
from tuner.launch import MEGATRON_FILE
from tuner.plan import Backend, Offload, Precision, Recompute

_PRECISIONS = {
    torch.float32: Precision.FP32,
    torch.bfloat16: Precision.BF16,
    torch.float16: Precision.FP16,
}
_RECOMPUTE = {
    None: Recompute.NONE,
    "selective": Recompute.SELECTIVE,
    "full": Recompute.FULL,
}


def megatron_training(launch: LaunchFolder, device: torch.device) -> MegatronTraining:
    """The model of these launch files, laid out over all ranks. Collective.

    ``start_megatron_groups`` comes first.
    """
    arguments = MegatronArguments.read(launch.path / MEGATRON_FILE)
    return MegatronTraining(launch.training, arguments, device)


class MegatronTraining:
    """A GPT model with Megatron's optimizer; one forward-backward schedule is one step."""

    def __init__(
        self, training: TrainingFile, arguments: MegatronArguments, device: torch.device
    ) -> None:
        self._training = training
        self._arguments = arguments
        self._device = device
        self._chunks = model_chunks(arguments, seed=training.seed)
        if training.routing == "worst":
            send_all_tokens_to_the_first_experts(self._chunks)
        self._optimizer = _optimizer(arguments, self._chunks)
        self._config = get_model_config(self._chunks[0])
        self._config.grad_scale_func = self._optimizer.scale_loss
        self._config.finalize_model_grads_func = finalize_model_grads
        self._num_microbatches = get_num_microbatches()
        self._local_samples = self._num_microbatches * arguments.micro_batch_size
        self._losses: list[torch.Tensor] = []

    def step(self, index: int) -> None:
        """All micro-batches in Megatron's schedule, then the optimizer."""
        self._losses.clear()
        for chunk in self._chunks:
            chunk.zero_grad_buffer()
        self._optimizer.zero_grad()
        get_forward_backward_func()(
            forward_step_func=self._forward_step,
            # Every chunk counts its own micro-batches: interleaving calls them out of turn.
            data_iterator=[self._microbatches(index) for _ in self._chunks],
            model=self._chunks,
            num_microbatches=self._num_microbatches,
            seq_length=self._arguments.seq_length,
            micro_batch_size=self._arguments.micro_batch_size,
            forward_only=False,
        )
        self._optimizer.step()

    def run_microbatches(self, count: int) -> None:
        """Megatron's schedules take the number with every step."""
        self._num_microbatches = count

    def bytes_of_microbatch(self) -> int:
        """A micro-batch's tensors go when its backward pass has ended."""
        return 0

    def loss(self) -> float:
        """Known on the last stage only, so it is summed over all ranks and counted once."""
        total = torch.zeros(1, dtype=torch.float64, device=self._device)
        if self._losses:
            total += torch.stack(self._losses).double().mean()
        dist.all_reduce(total)
        num_stages = int(parallel_state.get_pipeline_model_parallel_world_size())
        return total.item() / (dist.get_world_size() // num_stages)

    def effective(self) -> dict[str, Any]:
        """Read back from Megatron's process groups, model configuration and optimizer."""
        optimizers = self._optimizer.chained_optimizers
        sharded = all(isinstance(optimizer, DistributedOptimizer) for optimizer in optimizers)
        return {
            "backend": str(Backend.MEGATRON),
            "zero_stage": 1 if sharded else 0,
            "dp_replicate": self._chunks[0].ddp_config.num_distributed_optimizer_instances,
            "micro_batch": get_micro_batch_size(),
            "tp": parallel_state.get_tensor_model_parallel_world_size(),
            "pp": parallel_state.get_pipeline_model_parallel_world_size(),
            "vpp": len(self._chunks),
            "cp": parallel_state.get_context_parallel_world_size(),
            "ep": parallel_state.get_expert_model_parallel_world_size(),
            "sequence_parallel": self._config.sequence_parallel,
            "precision": self._precision(),
            "recompute": str(_RECOMPUTE[self._config.recompute_granularity]),
            "offload": str(Offload.OPTIMIZER if self._offloads() else Offload.NONE),
            "num_microbatches": get_num_microbatches(),
            "global_batch_sequences": get_current_global_batch_size(),
            "num_layers": self._num_layers(),
            "padded_vocab": self._padded_vocab(),
            "overlap_p2p_comm": self._config.overlap_p2p_comm,
            "grad_reduce_in_fp32": self._chunks[0].ddp_config.grad_reduce_in_fp32,
            "transformer_impl": (
                "transformer_engine" if uses_transformer_engine(self._arguments) else "local"
            ),
            "settings": self._settings(),
        }

    def _settings(self) -> dict[str, bool | int]:
        """As DistributedDataParallel and the schedule keep them; without buckets, no size."""
        told = self._chunks[0].ddp_config
        values = {
            "overlap_grad_reduce": told.overlap_grad_reduce,
            "overlap_param_gather": told.overlap_param_gather,
            "align_param_gather": told.align_param_gather,
            "ddp_bucket_size": told.bucket_size,
            "ddp_average_in_collective": told.average_in_collective,
            "microbatch_group_size": self._config.microbatch_group_size_per_vp_stage,
        }
        return {name: value for name, value in values.items() if value is not None}

    def _precision(self) -> str:
        # Without Transformer Engine, Megatron takes the option and computes in 16 bits.
        if self._config.fp8 and uses_transformer_engine(self._arguments):
            return str(Precision.FP8)
        return str(_PRECISIONS[next(self._chunks[0].parameters()).dtype])

    def _offloads(self) -> bool:
        return all(
            isinstance(optimizer.optimizer, HybridDeviceOptimizer)
            for optimizer in self._optimizer.chained_optimizers
        )

    def _num_layers(self) -> list[int]:
        """Of this stage's chunks, as they were built."""
        return [len(_gpt(chunk).decoder.layers) for chunk in self._chunks]

    def _padded_vocab(self) -> int | None:
        """Rows of the embedding or the head over all tensor ranks; None on a middle stage."""
        tp = int(parallel_state.get_tensor_model_parallel_world_size())
        for chunk in map(_gpt, self._chunks):
            if chunk.pre_process:
                return tp * int(chunk.embedding.word_embeddings.weight.shape[0])
            if chunk.post_process:
                return tp * int(chunk.output_layer.weight.shape[0])
        return None

    def _microbatches(self, step: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        first = parallel_state.get_data_parallel_rank() * self._local_samples
        size = self._arguments.micro_batch_size
        for number in range(self._num_microbatches):
            yield microbatch(
                seed=self._training.seed,
                step=step,
                first_sample=first + number * size,
                num_samples=size,
                seq_len=self._arguments.seq_length,
                vocab=self._training.vocab,
            )

    def _forward_step(
        self, microbatches: Iterator[tuple[torch.Tensor, torch.Tensor]], model: Any
    ) -> tuple[torch.Tensor, Any]:
        tokens, labels = (part.to(self._device, non_blocking=True) for part in next(microbatches))
        positions = torch.arange(tokens.shape[1], device=self._device).expand_as(tokens)
        # Of a sequence split over ranks each gets one early and one late piece: equal work.
        mine = get_batch_on_this_cp_rank({"tokens": tokens, "labels": labels, "at": positions})
        tokens, labels, positions = mine["tokens"], mine["labels"], mine["at"]
        # Without a mask the attention is causal, in both kinds of layers.
        output = model(tokens, positions, attention_mask=None, labels=labels)
        return output, self._mean_loss

    def _mean_loss(self, token_losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
        loss = token_losses.float().mean()
        self._losses.append(loss.detach().clone())  # Megatron divides the loss in place
        # Megatron sums over the ranks of a sequence, so each gives its part of the mean.
        return loss / parallel_state.get_context_parallel_world_size(), {}


def _gpt(chunk: Any) -> Any:
    return unwrap_model(chunk)


def _optimizer(arguments: MegatronArguments, chunks: list[Any]) -> Any:
    config = OptimizerConfig(
        optimizer=arguments.optimizer,
        lr=arguments.lr,
        min_lr=arguments.min_lr,
        weight_decay=arguments.weight_decay,
        adam_beta1=arguments.adam_beta1,
        adam_beta2=arguments.adam_beta2,
        adam_eps=arguments.adam_eps,
        clip_grad=arguments.clip_grad,
        bf16=arguments.bf16,
        fp16=arguments.fp16,
        params_dtype=params_dtype(arguments),
        initial_loss_scale=arguments.initial_loss_scale,
        use_distributed_optimizer=arguments.use_distributed_optimizer,
        overlap_param_gather=arguments.overlap_param_gather,
        use_precision_aware_optimizer=arguments.use_precision_aware_optimizer,
        optimizer_cpu_offload=arguments.optimizer_cpu_offload,
        optimizer_offload_fraction=1.0 if arguments.optimizer_cpu_offload else 0.0,
    )
    optimizer = get_megatron_optimizer(config, chunks, use_gloo_process_groups=False)
    # It sets each group's rate and decay (none for norms and biases) when it is made; constant.
    OptimizerParamScheduler(
        optimizer,
        init_lr=arguments.lr,
        max_lr=arguments.lr,
        min_lr=arguments.min_lr,
        lr_warmup_steps=0,
        lr_decay_steps=1,
        lr_decay_style=arguments.lr_decay_style,
        start_wd=arguments.weight_decay,
        end_wd=arguments.weight_decay,
        wd_incr_steps=1,
        wd_incr_style="constant",
    )
    return optimizer
