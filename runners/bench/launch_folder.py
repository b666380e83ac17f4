"""The launch files as a rank reads them: the very files that the user gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tuner.launch import MODEL_FILE, TRAINING_FILE, AdaptiveSteps, ReferenceSplit, Routing
from tuner.plan import Backend, Recompute
from tuner.short_steps import ShortSteps


class TrainingFile(BaseModel):
    """``training.json``: what is trained and how it is measured, the same for all frameworks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    paratune_version: str
    backend: Backend
    num_ranks: int
    factory: str | None = None
    """``package.module:factory`` of a user's own module; None = ``config.json`` in the folder."""
    vocab: int
    """Token ids are drawn from 0 (inclusive) to this (exclusive)."""
    seq_len: int
    global_batch_sequences: int
    optimizer: str
    learning_rate: float
    seed: int
    warmup_steps: int
    steps: int
    measurement: AdaptiveSteps | None = None
    """When to stop after ``steps``; None = at once."""
    short_steps: ShortSteps | None = None
    """Steps have fewer micro-batches than the framework's own file says; None = as many."""
    routing: Routing = "learned"
    """``worst``: Megatron-Core's routers send all tokens to the first experts of each layer."""
    reference: ReferenceSplit | None = None
    """Set where this rank is the one that a plan is held against."""
    memory_limit_bytes: int | None = None
    """What a rank may allocate once it has started; None = as much as there is."""
    recompute: Recompute = Recompute.NONE
    """Only for DeepSpeed without pipeline, whose file leaves it to the training script."""
    settings: dict[str, bool | int] = {}
    """Framework settings that were asked for; the framework's own file is what says them to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFolder:
    """A folder of launch files, read."""

    path: Path
    training: TrainingFile

    @classmethod
    def read(cls, path: Path) -> LaunchFolder:
        """Reads ``training.json``; the framework's own file is read by its module."""
        text = (path / TRAINING_FILE).read_text()
        return cls(path=path, training=TrainingFile.model_validate_json(text))

    @property
    def model_config_path(self) -> Path:
        """The Hugging Face ``config.json`` of the model."""
        return self.path / MODEL_FILE
