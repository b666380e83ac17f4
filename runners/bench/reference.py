"""What one rank computes, plainly: the whole model in fp32, micro-batch by micro-batch.

Besides the right losses it finds those that known mistakes of a layout would give, so that a wrong
layout is not only noticed but named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn

from runners.bench.data import microbatch
from runners.bench.hf_model import built_model, logits_of, token_loss
from runners.bench.launch_folder import LaunchFolder
from tuner.verification import DOUBLED, SHIFTED, UNSYNCHRONISED

_MAX_REPLICAS = 8
"""More would take long, and eight that go their own ways show it as well."""
_SAME = 1e-6
"""Two runs of the same kernels on the same tokens differ by less, where nothing is random."""


class PlainModel(Protocol):
    """A framework's own model on one rank: frameworks name, and so fill, weights differently."""

    def fresh(self) -> nn.Module:
        """The model with its initial weights."""
        ...

    def loss(self, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean loss of one micro-batch, shape ()."""
        ...


class PlainTorchModel:
    """What PyTorch and DeepSpeed plans train."""

    def __init__(self, launch: LaunchFolder, device: torch.device) -> None:
        self._launch = launch
        self._device = device

    def fresh(self) -> nn.Module:
        """The model with its initial weights."""
        return built_model(self._launch, self._device)

    def loss(self, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean loss of one micro-batch."""
        return token_loss(logits_of(model, inputs), targets)


class ReferenceTraining:
    """Trains like the simplest of all plans."""

    def __init__(self, launch: LaunchFolder, plain: PlainModel, device: torch.device) -> None:
        reference = launch.training.reference
        assert reference is not None, "only where the launch asks for it"
        self._launch = launch
        self._plain = plain
        self._device = device
        self._micro_batch = reference.micro_batch
        self._data_parallel = reference.data_parallel
        num_samples = launch.training.global_batch_sequences
        self._num_microbatches = num_samples // self._micro_batch
        self._model, self._optimizer = self._fresh()
        self._losses: list[float] = []
        self._num_steps = 0
        self._first: dict[str, list[float]] = {}
        self._is_deterministic = True

    def step(self, index: int) -> None:
        """The whole global batch on this one rank."""
        if index == 0:
            self._look_at_first_batch()
        self._losses = self._stepped(
            self._model, self._optimizer, index, range(self._num_microbatches)
        )
        self._num_steps = index + 1
        if index == 0:
            self._first[DOUBLED] = self._with_one_doubled(self._losses)

    def run_microbatches(self, count: int) -> None:
        """A reference sees whole batches."""
        if count != self._num_microbatches:
            raise ValueError(
                f"a reference must run all {self._num_microbatches} micro-batches, got {count}"
            )

    def bytes_of_microbatch(self) -> int:
        """One after the other, nothing is kept."""
        return 0

    def loss(self) -> float:
        """Mean over the global batch."""
        return sum(self._losses) / len(self._losses)

    def effective(self) -> dict[str, Any]:
        """What the verdict needs beside the losses."""
        return {
            "is_deterministic": self._is_deterministic,
            "first_losses": self._first,
            "later_losses": self._losses_of_replicas_apart(),
        }

    def _fresh(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = self._plain.fresh()
        rate = self._launch.training.learning_rate
        return model, torch.optim.AdamW(model.parameters(), lr=rate)

    def _stepped(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        index: int,
        numbers: Sequence[int],
    ) -> list[float]:
        """One update from these micro-batches; their losses."""
        losses = []
        optimizer.zero_grad()
        for number in numbers:
            inputs, targets = self._samples(index, number)
            loss = self._plain.loss(model, inputs, targets)
            (loss / len(numbers)).backward()  # type: ignore[no-untyped-call]  # torch's
            losses.append(float(loss.detach()))
        optimizer.step()
        return losses

    def _samples(self, index: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        training = self._launch.training
        inputs, targets = microbatch(
            seed=training.seed,
            step=index,
            first_sample=number * self._micro_batch,
            num_samples=self._micro_batch,
            seq_len=training.seq_len,
            vocab=training.vocab,
        )
        return inputs.to(self._device), targets.to(self._device)

    @torch.no_grad()
    def _look_at_first_batch(self) -> None:
        """Before any update: the losses with shifted labels; and is there anything random?"""
        early, late, again = [], [], []
        for number in range(self._num_microbatches):
            inputs, targets = self._samples(0, number)
            early.append(self._now(inputs, inputs))
            late.append(self._now(inputs, targets.roll(-1, dims=1)))
            if number == 0:
                again = [self._now(inputs, targets) for _ in range(2)]
        count = self._num_microbatches
        self._first[SHIFTED] = [sum(early) / count, sum(late) / count]
        self._is_deterministic = abs(again[0] - again[1]) <= _SAME * abs(again[0])

    def _now(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float(self._plain.loss(self._model, inputs, targets))

    def _with_one_doubled(self, losses: list[float]) -> list[float]:
        """First losses where one micro-batch takes the place of another: of one rank, or of all."""
        per_rank = self._num_microbatches // self._data_parallel
        mean = sum(losses) / len(losses)
        found = []
        for seen in range(per_rank):
            for missed in range(per_rank):
                if seen == missed:
                    continue
                changes = [
                    (losses[rank * per_rank + seen] - losses[rank * per_rank + missed])
                    / len(losses)
                    for rank in range(self._data_parallel)
                ]
                found += [mean + change for change in changes]
                found.append(mean + sum(changes))
        return found

    def _losses_of_replicas_apart(self) -> dict[str, list[float]]:
        """Losses where every data-parallel rank goes its own way."""
        if not 1 < self._data_parallel <= _MAX_REPLICAS:
            return {}
        del self._model, self._optimizer  # two models may be one too many for the device
        per_rank = self._num_microbatches // self._data_parallel
        totals = [0.0] * self._num_steps
        for rank in range(self._data_parallel):
            model, optimizer = self._fresh()
            numbers = range(rank * per_rank, (rank + 1) * per_rank)
            for index in range(self._num_steps):
                losses = self._stepped(model, optimizer, index, numbers)
                totals[index] += sum(losses) / len(losses) / self._data_parallel
        return {UNSYNCHRONISED: totals}
