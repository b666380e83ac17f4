"""The norm of a Megatron layer without Transformer Engine or APEX: also under sequence parallel."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Norm(nn.Module):
    """RMSNorm or LayerNorm, whichever the Megatron configuration asks for.

    Megatron's own stand-in refuses sequence parallel, because torch's norms do not mark their
    parameters: each rank sees a part of the sequence, so their gradients must be summed over the
    tensor-parallel ranks. The mark tells Megatron's ``finalize_model_grads`` to do it.
    """

    def __init__(
        self, config: Any, hidden_size: int, eps: float = 1e-5, **_fused_kernel_options: Any
    ) -> None:
        super().__init__()
        self._shape = (hidden_size,)
        self._eps = eps
        place = {"device": torch.cuda.current_device(), "dtype": config.params_dtype}
        self.weight = nn.Parameter(torch.ones(self._shape, **place))
        self.bias = None
        if config.normalization == "LayerNorm":
            self.bias = nn.Parameter(torch.zeros(self._shape, **place))
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self._is_rms = config.normalization == "RMSNorm"

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Normalizes over the last dimension."""
        if self._is_rms:
            return functional.rms_norm(hidden_states, self._shape, self.weight, self._eps)
        return functional.layer_norm(hidden_states, self._shape, self.weight, self.bias, self._eps)
