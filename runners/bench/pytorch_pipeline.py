"""The pipeline of ``torch.distributed.pipelining``: 1F1B, or interleaved over several chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

from runners.bench.pytorch_file import PytorchFile


def stage_layers(file: PytorchFile, rank: int, num_layers: int) -> list[tuple[int, int]]:
    """First and end (exclusive) layer of each chunk of this pipeline rank, equal stages.

    With several chunks, rank r holds stages r, r + pp, r + 2 pp, ...
    """
    num_stages = file.pp * file.stages_per_rank
    size = num_layers // num_stages
    stages = range(rank, num_stages, file.pp)
    return [(stage * size, (stage + 1) * size) for stage in stages]


class Pipeline:
    """Forward and backward of all micro-batches of a step."""

    def __init__(
        self,
        file: PytorchFile,
        mesh: DeviceMesh,
        device: torch.device,
        chunks: list[nn.Module],
        num_microbatches: int,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> None:
        self._rank, self._pp = mesh.get_local_rank(), file.pp
        group = mesh.get_group()
        num_stages = file.pp * file.stages_per_rank
        stages = [
            PipelineStage(chunk, self._rank + number * file.pp, num_stages, device, group=group)
            for number, chunk in enumerate(chunks)
        ]
        self._schedule: Any
        if len(stages) == 1:
            self._schedule = Schedule1F1B(stages[0], num_microbatches, loss_fn=loss)
        else:
            self._schedule = ScheduleInterleaved1F1B(stages, num_microbatches, loss_fn=loss)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        """One step; the schedule cuts the batch, shape (sequences, tokens), into micro-batches.

        Returns the loss of each micro-batch on the last stage, nothing elsewhere. (The loss
        function itself is also called once on made-up logits, to learn shapes.)
        """
        first, last = self._rank == 0, self._rank == self._pp - 1
        arguments = (inputs,) if first else ()
        losses: list[torch.Tensor] = []
        # Logits of all micro-batches would otherwise be kept, and merged, on the last stage.
        self._schedule.step(
            *arguments,
            target=targets if last else None,
            losses=losses if last else None,
            return_outputs=False,
        )
        return losses
