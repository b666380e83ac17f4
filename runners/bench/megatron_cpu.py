"""Lets Megatron-Core, which takes CUDA for granted, train on CPU ranks.

Nothing happens at import: ``install_cpu_stand_ins`` is called when a training is built on a CPU,
in a process that does nothing else. Each stand-in names what in Megatron-Core 0.16 needs it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.moe import moe_utils, token_dispatcher

_CPU = torch.device("cpu")
_FACTORIES = ("empty", "full", "ones", "tensor", "zeros")


@functools.cache  # once: a second time would wrap the wrappers
def install_cpu_stand_ins() -> None:
    """Replaces, in this process and for good, the CUDA calls that Megatron makes."""
    for name in _FACTORIES:  # schedules, optimizer, grad_scaler, the causal mask: device="cuda"
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    torch.cuda.current_device = lambda: _CPU  # type: ignore[assignment,return-value]
    torch.cuda.Stream = _OneStream  # type: ignore[misc,assignment]
    torch.cuda.default_stream = _OneStream  # type: ignore[assignment]
    torch.cuda.current_stream = _OneStream  # type: ignore[assignment]
    torch.cuda.stream = contextlib.nullcontext  # type: ignore[assignment]
    torch.cuda.synchronize = _nothing  # p2p_communication, initialize_model_parallel
    # The language model moves tied embeddings to the GPU.
    torch.Tensor.cuda = _itself  # type: ignore[method-assign,assignment]
    torch.Tensor.type = _cuda_type_name(torch.Tensor.type)  # type: ignore[method-assign]
    # Recomputation saves and restores this device's generator; the CPU's it does by itself.
    megatron_random._get_cuda_rng_state = _no_state
    megatron_random._set_cuda_rng_state = _nothing
    # The splits of an all-to-all would stay a tensor where nothing is moved; it takes an array.
    token_dispatcher.maybe_move_tensor_to_cpu = _splits_as_array
    # Taken for granted when its import from Transformer Engine has failed; None is its "without".
    if not moe_utils.HAVE_TE:
        moe_utils.te_general_gemm = None
    # Its fork() is empty: the one generator of a CPU rank is no tracker's to swap.
    megatron_random.initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)


class _OneStream:
    """Stream and event at once, and always the same: all work is in one order here.

    DistributedDataParallel with several optimizer instances, and the experts' token dispatcher.
    """

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OneStream)

    def __hash__(self) -> int:
        return 0

    def wait_stream(self, other: _OneStream) -> None:
        """Nothing to wait for."""

    def record_event(self) -> _OneStream:
        """Already happened."""
        return self

    def synchronize(self) -> None:
        """Nothing to wait for."""


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        if device is not None and str(device).startswith("cuda"):
            kwargs["device"] = _CPU
        kwargs.pop("pin_memory", None)  # rotary positions of a split sequence; needs a GPU
        return factory(*args, **kwargs)

    return made


def _cuda_type_name(original: Callable[..., Any]) -> Callable[..., Any]:
    """Both optimizers accept a parameter only if its type is called ``torch.cuda.*``."""

    @functools.wraps(original)
    def type_or_cast(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = original(tensor, *args, **kwargs)
        return result.replace("torch.", "torch.cuda.", 1) if isinstance(result, str) else result

    return type_or_cast


def _splits_as_array(
    tensor: torch.Tensor | None, as_numpy: bool = False, record_stream: bool = False
) -> Any:
    """In place of ``maybe_move_tensor_to_cpu``, which makes an array only of what it moves."""
    return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor


def _itself(tensor: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
    return tensor


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


def _no_state(*_args: Any, **_kwargs: Any) -> torch.Tensor:
    return torch.empty(0)
