"""Tokens as a function of (seed, step, sample): every layout sees the same global batches."""

from __future__ import annotations

import numpy as np
import torch


def sample_tokens(*, seed: int, step: int, sample: int, length: int, vocab: int) -> torch.Tensor:
    """Token ids of one sequence, shape (length,), int64.

    Low ids are far more frequent than high ones (the cube of a uniform number), so that there is
    something to learn and a layout that trains wrongly shows in the loss within a few steps.
    """
    generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, step, sample]))
    uniform = generator.random(length)
    return torch.from_numpy((uniform**3 * vocab).astype(np.int64))


def microbatch(
    *, seed: int, step: int, first_sample: int, num_samples: int, seq_len: int, vocab: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and next-token targets, each of shape (num_samples, seq_len), int64.

    ``first_sample`` is the index in the global batch, from 0.
    """
    rows = [
        sample_tokens(seed=seed, step=step, sample=sample, length=seq_len + 1, vocab=vocab)
        for sample in range(first_sample, first_sample + num_samples)
    ]
    tokens = torch.stack(rows)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
