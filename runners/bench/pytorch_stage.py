"""A part of a Llama-like model, or all of it, run layer by layer: what tp and pp need.

Only the parts of a stage are kept; their names stay those in the whole model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from runners.bench.hf_model import model_on_meta
from runners.bench.launch_folder import LaunchFolder


class DecoderStage(nn.Module):
    """Takes tokens (first stage) or hidden states, gives hidden states or logits (last stage)."""

    def __init__(self, whole: Any, *, index: int, num_stages: int, seq_len: int) -> None:
        super().__init__()
        refuse_short_window(whole.config, seq_len)
        num_layers = len(whole.model.layers)
        self.first = index == 0
        self.last = index == num_stages - 1
        self.seq_len = seq_len
        self.layers = range(
            index * num_layers // num_stages, (index + 1) * num_layers // num_stages
        )
        if not self.first:
            whole.model.embed_tokens = nn.Identity()
        if not self.last:
            whole.model.norm = nn.Identity()
            whole.lm_head = nn.Identity()
        for layer in set(range(num_layers)) - set(self.layers):
            whole.model.layers[layer] = nn.Identity()
        self.whole = whole

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Positions are those of whole sequences, also where each rank holds a part of them."""
        model = self.whole.model
        hidden = model.embed_tokens(inputs)
        positions = torch.arange(self.seq_len, device=inputs.device).unsqueeze(0)
        rotary = model.rotary_emb(hidden, position_ids=positions)
        for index in self.layers:
            # Without a mask, scaled_dot_product_attention is causal.
            hidden = model.layers[index](
                hidden, attention_mask=None, position_ids=positions, position_embeddings=rotary
            )
        logits: torch.Tensor = self.whole.lm_head(model.norm(hidden))
        return logits


def decoder_stage(launch: LaunchFolder, *, index: int, num_stages: int) -> DecoderStage:
    """Stage ``index`` of the folder's model, its parameters still on the meta device."""
    whole = model_on_meta(launch)
    return DecoderStage(whole, index=index, num_stages=num_stages, seq_len=launch.training.seq_len)


def refuse_short_window(config: Any, seq_len: int) -> None:
    """Raises a ValueError where layers need a sliding-window mask, which a stage does not make."""
    in_use = getattr(config, "use_sliding_window", True)
    window = getattr(config, "sliding_window", None) if in_use else None
    if window is not None and window < seq_len:
        raise ValueError(
            f"seq_len must be within the model's sliding_window ({window}) for tp or pp, got "
            f"{seq_len}; use another layout or a shorter sequence"
        )
