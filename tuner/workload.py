"""What is trained: a model's shape, the sequence length and the global batch; no hardware."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a decoder-only transformer."""

    family: str
    """The Hugging Face ``model_type``: ``llama``, ``gpt2``, ..."""
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_positions: int
    gated_mlp: bool
    tied_embeddings: bool
    num_params: int

    def __post_init__(self) -> None:
        for name in (
            "num_layers",
            "hidden",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "ffn",
            "vocab",
        ):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_key_value_heads ({self.num_kv_heads}) must divide "
                f"num_attention_heads ({self.num_heads})"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class HfModel:
    """A model given by its Hugging Face configuration, kept as the text of ``config.json``."""

    name: str
    config_text: str
    shape: ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class FactoryModel:
    """A user's own module, given as ``package.module:factory``; its shape is not known here."""

    factory: str
    vocab: int

    @property
    def name(self) -> str:
        """The factory as the user wrote it."""
        return self.factory


Model = HfModel | FactoryModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model trained on sequences of one length with a fixed global batch."""

    model: Model
    seq_len: int
    """Tokens of one sequence."""
    global_batch_sequences: int
    """Sequences of one optimizer step, over all GPUs."""
    optimizer: str = "adamw"
    learning_rate: float = 1e-4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("seq_len", "global_batch_sequences"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def shape(self) -> ModelShape | None:
        """The model's sizes, or None for a user's own module."""
        return self.model.shape if isinstance(self.model, HfModel) else None

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step, over all GPUs."""
        return self.seq_len * self.global_batch_sequences
