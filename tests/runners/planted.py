"""Mistakes planted into a rank before it runs, each as a careless change to the bench would be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def plant(mistake: str) -> None:
    """Makes this process compute wrongly from now on."""
    {
        "": lambda: None,
        "unsynchronised": _unsynchronised,
        "doubled": _doubled,
        "shifted": _shifted,
    }[mistake]()


def _unsynchronised() -> None:
    """No rank sends its gradients, whichever framework runs."""
    from deepspeed.runtime.engine import DeepSpeedEngine
    from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup

    from runners.bench.pytorch_training import PytorchTraining

    original = PytorchTraining._gradients_at

    def never(self: Any, model: Any, *, is_last: bool) -> Any:
        return original(self, model, is_last=False)

    PytorchTraining._gradients_at = never  # type: ignore[method-assign]
    DeepSpeedEngine.allreduce_gradients = lambda *_, **__: None
    for of_step in ("start_grad_sync", "finish_grad_sync"):
        setattr(_ParamAndGradBucketGroup, of_step, lambda *_, **__: None)


def _doubled() -> None:
    """The second micro-batch of a rank is the first once more."""
    import runners.bench.deepspeed_training as deepspeed
    import runners.bench.megatron_training as megatron
    from runners.bench.pytorch_training import PytorchTraining

    original = PytorchTraining._samples

    def same(self: Any, step: int, number: int, size: int) -> Any:
        inputs, targets = original(self, step, number if number != 1 else 0, size)
        if inputs.shape[0] > self._file.micro_batch:  # a pipeline cuts the batch itself
            each = self._file.micro_batch
            inputs[each : 2 * each], targets[each : 2 * each] = inputs[:each], targets[:each]
        return inputs, targets

    PytorchTraining._samples = same  # type: ignore[method-assign]
    for module in (deepspeed, megatron):
        module.microbatch = _second_is_first(module.microbatch)  # type: ignore[attr-defined]


def _second_is_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of the micro-batches of a step, which are asked for one after the other."""
    firsts: dict[int, list[int]] = {}

    def same(*, step: int, first_sample: int, **others: Any) -> Any:
        asked = firsts.setdefault(step, [])
        asked.append(first_sample)
        seen = asked[0] if len(asked) == 2 else first_sample
        return original(step=step, first_sample=seen, **others)

    return same


def _shifted() -> None:
    """Labels are those of the token itself, as a stage that shifts once too often has them."""
    from runners.bench.pytorch_training import PytorchTraining

    original = PytorchTraining._samples

    def late(self: Any, step: int, number: int, size: int) -> Any:
        inputs, targets = original(self, step, number, size)
        return inputs, targets.roll(-1, dims=1)

    PytorchTraining._samples = late  # type: ignore[method-assign]
