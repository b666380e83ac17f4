"""Trains with DeepSpeed as ``ds_config.json`` says, through ``deepspeed.initialize``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import groups
from torch import nn

from runners.bench.data import microbatch
from runners.bench.deepspeed_facts import engine_facts
from runners.bench.deepspeed_pipeline import DeepSpeedPipelineTraining
from runners.bench.deepspeed_recompute import recompute_in, recompute_of
from runners.bench.hf_model import built_model, logits_of, token_loss, unfilled_model
from runners.bench.launch_folder import LaunchFolder
from runners.bench.training import Training
from runners.bench.weights import initial_weight
from tuner.launch import DEEPSPEED_FILE


def deepspeed_training(launch: LaunchFolder, device: torch.device) -> Training:
    """The model in a DeepSpeed engine, ready for its first step."""
    config = json.loads((launch.path / DEEPSPEED_FILE).read_text())
    if "pipeline" in config:
        return DeepSpeedPipelineTraining(launch, config, device)
    model = _model(launch, config, device)
    recompute_in(model, launch.training.recompute)
    engine, _, _, _ = deepspeed.initialize(model=model, config=config)
    return DeepSpeedTraining(launch, engine, device)


def join_deepspeed(device: torch.device) -> None:
    """Has DeepSpeed use the process group that is there. Collective.

    On CPU it would first compile a shared-memory operator, which takes tens of seconds, needs a
    compiler, and makes ranks wait for one another's build lock. gloo does the same without.
    """
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    backend = "nccl" if device.type == "cuda" else "gloo"
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)


def _model(launch: LaunchFolder, config: Mapping[str, Any], device: torch.device) -> nn.Module:
    if config["zero_optimization"]["stage"] < 3:
        return built_model(launch, device)
    return _sharded_model(launch, config)


def _sharded_model(launch: LaunchFolder, config: Mapping[str, Any]) -> nn.Module:
    """ZeRO-3: sharded as it is built, so that a model that fits only in shards can start."""
    with deepspeed.zero.Init(config_dict_or_path=dict(config)):
        model = unfilled_model(launch)
    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
            if dist.get_rank() == 0:
                value = initial_weight(
                    name, parameter.shape, seed=launch.training.seed, device=parameter.device
                )
                parameter.data.copy_(value)
    return model


class DeepSpeedTraining:
    """Whole optimizer steps of a DeepSpeed engine without pipeline."""

    def __init__(
        self,
        launch: LaunchFolder,
        engine: Any,
        device: torch.device,
    ) -> None:
        self._training = launch.training
        self._engine = engine
        self._device = device
        # Without AutoTP there are no DeepSpeed groups: all ranks are data-parallel.
        self._tp = max(1, engine.autotp_size())
        data_group = groups.get_data_parallel_group() if self._tp > 1 else dist.group.WORLD
        self._data_rank = dist.get_rank(data_group)
        self._dp = dist.get_world_size(data_group)
        self._loss_sum = torch.zeros((), device=device)

    def step(self, index: int) -> None:
        """One optimizer step over global batch ``index``."""
        size = self._engine.train_micro_batch_size_per_gpu()
        count = self._engine.gradient_accumulation_steps()
        self._loss_sum.zero_()
        for number in range(count):
            inputs, targets = microbatch(
                seed=self._training.seed,
                step=index,
                first_sample=(self._data_rank * count + number) * size,
                num_samples=size,
                seq_len=self._training.seq_len,
                vocab=self._training.vocab,
            )
            logits = logits_of(self._engine, inputs.to(self._device))
            loss = token_loss(logits, targets.to(self._device))
            self._loss_sum += loss.detach() / count
            self._engine.backward(loss)  # divides by the accumulation steps itself
            self._engine.step()

    def run_microbatches(self, count: int) -> None:
        """The engine counts micro-batches from its start to find the last one of a step."""
        self._engine.set_train_batch_size(
            count * self._engine.train_micro_batch_size_per_gpu() * self._engine.dp_world_size
        )
        self._engine.micro_steps = 0
        if hasattr(self._engine.optimizer, "gradient_accumulation_steps"):  # ZeRO's own copy
            self._engine.optimizer.gradient_accumulation_steps = count

    def bytes_of_microbatch(self) -> int:
        """One after the other, nothing is kept."""
        return 0

    def loss(self) -> float:
        """Mean over the global batch; tensor-parallel ranks hold the same."""
        total = self._loss_sum.clone()
        dist.all_reduce(total)
        return float(total.item()) / dist.get_world_size()

    def effective(self) -> dict[str, Any]:
        """Read from the engine."""
        return {
            **engine_facts(self._engine),
            "tp": self._tp,
            "num_microbatches": self._engine.gradient_accumulation_steps(),
            "data_parallel": self._dp,
            "recompute": str(recompute_of(self._engine.module)),
        }
