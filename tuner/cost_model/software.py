"""What the training program does beyond the plan: attention kernel, fusion, stages, exchanges."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Attention(StrEnum):
    """How attention is computed."""

    FLASH = "flash"
    """In tiles: the scores of all pairs are never stored (arXiv 2205.14135)."""
    MATERIALISED = "materialised"
    """Scores, softmax and dropout of all pairs are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Facts of the program that no knob turns; the defaults are this product's own trials."""

    attention: Attention = Attention.FLASH
    fused: bool = True
    """Megatron's norms, rotary embedding and activation functions are one kernel each and keep
    only their inputs, as Transformer Engine's do; eager PyTorch, and so the other frameworks
    anyway, keeps what lies between too."""
    loss_bytes: float = 0.0
    """Bytes per logit at the peak of the loss; 0 = by ``fused``."""
    split_loss: bool = False
    """The loss works on a vocabulary split by tp in every framework, not in Megatron alone."""
    dropout: bool = False
    """Hidden and attention dropout keep their masks, as GPT models of Megatron do by default."""
    layers_weighed: bool = False
    """Stages get layers by compute, the output layer counted in; otherwise equal counts."""
    stage_layers: tuple[int, ...] = ()
    """Layers of every stage where the program says so itself; empty = by the rule above."""
    extra_last_layers: int = 0
    """Multi-token prediction: layers after the last one; their logits come and go first."""
    expert_tp: int = 0
    """How many ways one expert is split; 0 = as many as all else."""
    recomputed: frozenset[str] = frozenset({"core_attn"})
    """What selective recomputation of Megatron computes again, in its words."""
    blocking_exchange: bool = False
    """Stages hand over with the host waiting, tensor sizes first, as eager pipelines do."""
    overlaps_data: bool = True
    """Gradients are reduced while the last backward pass goes on; otherwise only unsharded ones
    of a lone micro-batch are."""
    overlaps_tensor: bool = False
    """Gathers and scatters of the hidden states go on behind matrix products."""
    extra_gradients: bool = False
    """Autograd's 16-bit gradients stay beside the fp32 ones that they are added to."""
    padded_vocab: int = 128
    """The vocabulary is padded to a multiple of this times tp; 1 = not at all."""
