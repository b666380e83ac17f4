"""What is trained: a model's shape, the sequence length and the global batch; no hardware."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.model_shape import ModelShape


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
