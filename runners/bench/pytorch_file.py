"""``pytorch.toml`` as a rank reads it, in torchtitan's words."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict

from tuner.plan import Recompute

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ParallelismTable(_Table):
    """How many ways each axis is split."""

    data_parallel_replicate_degree: int
    data_parallel_shard_degree: int
    fsdp_reshard_after_forward: Literal["never", "always"]
    tensor_parallel_degree: int
    enable_sequence_parallel: bool
    context_parallel_degree: Literal[1]
    expert_parallel_degree: Literal[1]
    pipeline_parallel_degree: int
    pipeline_parallel_schedule: Literal["1F1B", "Interleaved1F1B"]
    pipeline_parallel_microbatch_size: int


class BatchTable(_Table):
    """``[training]``: batch, length and precision."""

    local_batch_size: int
    """Sequences that a data-parallel rank takes at once; a pipeline splits them."""
    global_batch_size: int
    seq_len: int
    mixed_precision_param: Literal["float32", "float16", "bfloat16"]
    mixed_precision_reduce: Literal["float32"]
    enable_cpu_offload: bool

    @property
    def compute_dtype(self) -> torch.dtype:
        """Of the matrix products."""
        return _DTYPES[self.mixed_precision_param]


class ActivationCheckpointTable(_Table):
    """What the backward pass computes again."""

    mode: Recompute


class OptimizerTable(_Table):
    """The optimizer; betas, epsilon and decay are torch's defaults."""

    name: Literal["AdamW"]
    lr: float


class ParatuneTable(_Table):
    """What torchtitan has no word for."""

    zero_stage: Literal[0, 1, 2, 3]
    pipeline_parallel_stages_per_rank: int
    ddp_bucket_cap_mb: int | None = None
    """None: torch's 25, with a smaller first bucket."""
    ddp_gradient_as_bucket_view: bool = True
    ddp_static_graph: bool = False
    fsdp_forward_prefetch: int = 0
    """Layers that are gathered ahead; 0 = torch's own way."""
    fsdp_backward_prefetch: int = 0
    """Likewise; 0 = torch's own way, one layer."""
    fsdp_reshard_last_layer: bool = True
    """False: a stage's last layer stays gathered for its backward pass, which comes next."""


class PytorchFile(_Table):
    """The whole file."""

    parallelism: ParallelismTable
    training: BatchTable
    activation_checkpoint: ActivationCheckpointTable
    optimizer: OptimizerTable
    paratune: ParatuneTable

    @classmethod
    def read(cls, path: Path) -> PytorchFile:
        """The file at this path.

        Raises:
            ValueError: a key is missing, unknown or has a value that it cannot have.
        """
        return cls.model_validate(tomllib.loads(path.read_text()))

    @property
    def data_parallel(self) -> int:
        """Ranks that see different data."""
        degrees = self.parallelism
        return degrees.data_parallel_replicate_degree * degrees.data_parallel_shard_degree

    @property
    def local_samples(self) -> int:
        """Sequences of one data-parallel rank in an optimizer step."""
        return self.training.global_batch_size // self.data_parallel

    @property
    def micro_batch(self) -> int:
        """Sequences of one forward pass."""
        if self.parallelism.pipeline_parallel_degree > 1:
            return self.parallelism.pipeline_parallel_microbatch_size
        return self.training.local_batch_size

    def check(self, num_ranks: int) -> None:
        """Refuses a file that does not fit this many ranks.

        Raises:
            ValueError: the degrees or the batch do not divide.
        """
        degrees = self.parallelism
        product = self.data_parallel * (
            degrees.tensor_parallel_degree * degrees.pipeline_parallel_degree
        )
        if product != num_ranks:
            raise ValueError(
                f"pytorch.toml: the product of the degrees must be the number of ranks "
                f"({num_ranks}), got {product}; change a degree or start {product} ranks"
            )
        samples = self.micro_batch * self.data_parallel
        if self.training.global_batch_size % samples:
            raise ValueError(
                f"pytorch.toml: micro-batch times data-parallel degree ({samples}) must divide "
                f"global_batch_size ({self.training.global_batch_size}); change one of them"
            )
