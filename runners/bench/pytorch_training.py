"""Trains what ``pytorch.toml`` says with PyTorch's own parallelism."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.nn.parallel import DistributedDataParallel

from runners.bench.data import microbatch
from runners.bench.hf_model import logits_of, model_on_meta, token_loss
from runners.bench.launch_folder import LaunchFolder, TrainingFile
from runners.bench.pytorch_effective import effective_layout
from runners.bench.pytorch_file import PytorchFile
from runners.bench.pytorch_layout import Layout, laid_out
from runners.bench.pytorch_optimizer import ShardedGradScaler, adamw
from runners.bench.pytorch_stage import decoder_stage
from tuner.launch import PYTORCH_FILE


def pytorch_layout(launch: LaunchFolder, device: torch.device) -> Layout:
    """Where each rank is, by these launch files; joins the process groups. Collective.

    Raises:
        ValueError: ``pytorch.toml`` does not fit the number of ranks or this bench.
    """
    file = PytorchFile.read(launch.path / PYTORCH_FILE)
    file.check(launch.training.num_ranks)
    return Layout.over_ranks(file, device, seed=launch.training.seed)


def pytorch_training(launch: LaunchFolder, layout: Layout) -> PytorchTraining:
    """The model of these launch files, laid out over all ranks. Collective."""
    degrees, settings = layout.file.parallelism, layout.file.paratune
    num_stages = degrees.pipeline_parallel_degree * settings.pipeline_parallel_stages_per_rank
    if degrees.pipeline_parallel_degree > 1:
        first = layout.mesh.get_local_rank("pp")
        indices = range(first, num_stages, degrees.pipeline_parallel_degree)
        models: list[nn.Module] = [
            decoder_stage(launch, index=index, num_stages=num_stages) for index in indices
        ]
        parts = [laid_out(model, layout) for model in models]
        return PipelineTraining(launch.training, layout, parts, list(indices))
    if degrees.tensor_parallel_degree > 1:
        return PytorchTraining(
            launch.training,
            layout,
            [laid_out(decoder_stage(launch, index=0, num_stages=1), layout)],
        )
    return PytorchTraining(launch.training, layout, [laid_out(model_on_meta(launch), layout)])


class PytorchTraining:
    """A model without pipeline: micro-batches one after the other, then the update."""

    def __init__(self, training: TrainingFile, layout: Layout, models: list[nn.Module]) -> None:
        self._training = training
        self._layout = layout
        self._file = layout.file
        self._models = models
        parameters = [p for model in models for p in model.parameters()]
        self._optimizer = adamw(parameters, self._file, layout.device)
        self._scaler = ShardedGradScaler(
            layout.device.type, enabled=self._file.training.compute_dtype is torch.float16
        )
        # Makes the scale: of a pipeline, only the last stage ever scales a loss.
        self._scaler.scale(torch.zeros((), device=layout.device))
        self._num_microbatches = self._file.local_samples // self._file.micro_batch
        self._losses: list[torch.Tensor] = []

    def step(self, index: int) -> None:
        """Gradients of all micro-batches, then one update."""
        self._losses.clear()
        self._optimizer.zero_grad()
        self._accumulate(index)
        self._scaler.unscale_(self._optimizer)
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def run_microbatches(self, count: int) -> None:
        """They run in a loop."""
        self._num_microbatches = count

    def bytes_of_microbatch(self) -> int:
        """One after the other, nothing is kept."""
        return 0

    def loss(self) -> float:
        """Known on the ranks of the last stage only: summed over all ranks, copies counted."""
        total = torch.zeros(1, dtype=torch.float64, device=self._layout.device)
        if self._losses:
            total += torch.stack(self._losses).double().mean()
        dist.all_reduce(total)
        return float(total.item()) * self._layout.mesh["pp"].size() / dist.get_world_size()

    def effective(self) -> dict[str, Any]:
        """Read back from the mesh, the wrapped modules and the optimizer."""
        sharded_states = isinstance(self._optimizer, ZeroRedundancyOptimizer)
        with self._autocast(self._models[0]):
            casts = torch.is_autocast_enabled(self._layout.device.type)
            dtype = torch.get_autocast_dtype(self._layout.device.type) if casts else None
        return effective_layout(
            self._layout, self._models, sharded_states=sharded_states, autocast_dtype=dtype
        ) | {"num_microbatches": self._num_microbatches}

    def _accumulate(self, index: int) -> None:
        (model,) = self._models
        for number in range(self._num_microbatches):
            inputs, targets = self._samples(index, number, self._file.micro_batch)
            with self._gradients_at(model, is_last=number == self._num_microbatches - 1):
                with self._autocast(model):
                    loss = token_loss(logits_of(model, inputs), targets)
                self._losses.append(loss.detach())
                scaled: torch.Tensor = self._scaler.scale(loss / self._num_microbatches)
                scaled.backward()  # type: ignore[no-untyped-call]  # torch's

    def _gradients_at(self, model: nn.Module, *, is_last: bool) -> AbstractContextManager[Any]:
        """Replicas exchange gradients once a step; shards at once, or each rank would hold all."""
        if isinstance(model, DistributedDataParallel):
            return nullcontext() if is_last else model.no_sync()
        if self._file.paratune.zero_stage == 0:
            model.set_requires_gradient_sync(is_last)  # type: ignore[operator]  # replicate's
        return nullcontext()

    def _autocast(self, model: nn.Module) -> AbstractContextManager[Any]:
        """FSDP2 and replicate cast by their own policy."""
        dtype = self._file.training.compute_dtype
        if dtype is torch.float32 or not isinstance(model, DistributedDataParallel):
            return nullcontext()
        return torch.autocast(self._layout.device.type, dtype=dtype)

    def _samples(self, step: int, number: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Part ``number`` of this rank's share of a global batch, in parts of ``size``."""
        inputs, targets = microbatch(
            seed=self._training.seed,
            step=step,
            first_sample=self._layout.data_rank * self._file.local_samples + number * size,
            num_samples=size,
            seq_len=self._training.seq_len,
            vocab=self._training.vocab,
        )
        device = self._layout.device
        return inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)


class PipelineTraining(PytorchTraining):
    """The stages of one rank of a pipeline; torch's schedule runs the micro-batches."""

    def __init__(
        self,
        training: TrainingFile,
        layout: Layout,
        models: list[nn.Module],
        indices: list[int],
    ) -> None:
        super().__init__(training, layout, models)
        pp = layout.mesh["pp"]
        stages = [
            PipelineStage(
                model, index, pp.size() * len(models), layout.device, group=pp.get_group()
            )
            for model, index in zip(models, indices, strict=True)
        ]
        self._stages = stages
        self._schedules: dict[int, Schedule1F1B | ScheduleInterleaved1F1B] = {}
        self._schedule = self._schedule_of(self._num_microbatches)
        self._is_first = any(stage.is_first for stage in stages)
        self._is_last = any(stage.is_last for stage in stages)

    def run_microbatches(self, count: int) -> None:
        """A schedule is made for one number; it makes its stages' buffers in its first step."""
        self._num_microbatches = count
        self._schedule = self._schedule_of(count)
        for stage in self._stages:
            stage.chunks = max(count, stage.chunks or 0)

    def bytes_of_microbatch(self) -> int:
        """Its tokens, and torch's buffers for what stages get of it from their neighbours."""
        tokens_bytes = 2 * 8 * self._file.micro_batch * self._training.seq_len
        received = [
            part.buffer
            for stage in self._stages
            for of_microbatches in (stage.args_recv_info, stage.grad_recv_info)
            for part in of_microbatches.get(0, ())
        ]
        buffers = (buffer for buffer in received if buffer is not None)
        return tokens_bytes + sum(int(buffer.nbytes) for buffer in buffers)

    def effective(self) -> dict[str, Any]:
        """The schedule and its stages are torch's own objects: they are asked, too."""
        number = self._schedule._n_microbatches
        return super().effective() | {
            "pp": self._stages[0].num_stages // len(self._stages),
            "vpp": len(self._stages),
            "micro_batch": self._file.local_samples // number,
            "num_microbatches": number,
            "schedule": type(self._schedule).__name__,
        }

    def _schedule_of(self, count: int) -> Schedule1F1B | ScheduleInterleaved1F1B:
        if count not in self._schedules:
            self._schedules[count] = (
                Schedule1F1B(self._stages[0], count, self._scaled_loss)
                if self._file.parallelism.pipeline_parallel_schedule == "1F1B"
                else ScheduleInterleaved1F1B(list(self._stages), count, self._scaled_loss)
            )
        return self._schedules[count]

    def _scaled_loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self._scaler.scale(token_loss(logits, targets))
        return loss

    def _accumulate(self, index: int) -> None:
        samples = self._num_microbatches * self._file.micro_batch
        inputs, targets = self._samples(index, 0, samples)
        losses: list[torch.Tensor] = []
        self._schedule.step(
            *((inputs,) if self._is_first else ()),
            target=targets if self._is_last else None,
            losses=losses if self._is_last else None,
            return_outputs=False,
        )
        scale = self._scaler.get_scale()
        self._losses += [loss.detach() / scale for loss in losses]
