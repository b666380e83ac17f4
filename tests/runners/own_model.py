"""A user's own module, as a job file may name it."""

from __future__ import annotations

import torch
from torch import nn


class Bigram(nn.Module):
    """Logits of the next token from the present one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(2)])
        self.head = nn.Linear(32, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.embedding(tokens)
        for layer in self.layers:
            states = states + torch.relu(layer(states))
        logits: torch.Tensor = self.head(states)
        return logits


def make() -> nn.Module:
    return Bigram()


def make_random() -> nn.Module:
    """With dropout: the same tokens give another loss each time."""
    model = Bigram()
    model.layers.append(nn.Dropout(0.5))
    return model
