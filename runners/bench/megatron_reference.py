"""Megatron-Core's model on one rank, plain: what its plans are held against."""

from __future__ import annotations

import torch
from torch import nn

from runners.bench.launch_folder import LaunchFolder
from runners.bench.megatron_arguments import MegatronArguments
from runners.bench.megatron_model import whole_model
from tuner.launch import MEGATRON_FILE


class PlainMegatronModel:
    """What Megatron-Core plans train."""

    def __init__(self, launch: LaunchFolder, device: torch.device) -> None:
        self._arguments = MegatronArguments.read(launch.path / MEGATRON_FILE)
        self._seed = launch.training.seed
        self._device = device

    def fresh(self) -> nn.Module:
        """The model with its initial weights."""
        model: nn.Module = whole_model(self._arguments, seed=self._seed).to(self._device)
        return model

    def loss(self, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean loss of one micro-batch."""
        positions = torch.arange(inputs.shape[1], device=self._device).expand_as(inputs)
        losses: torch.Tensor = model(inputs, positions, attention_mask=None, labels=targets)
        return losses.float().mean()
