"""A plan: one way to lay a training job out over GPUs, one point of the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from numbers import Integral
from typing import Any

from tuner.units import MOST_COUNT, MOST_GPUS

PlanValue = str | int | bool


class Backend(StrEnum):
    """The framework that carries a plan out."""

    PYTORCH = "pytorch"
    DEEPSPEED = "deepspeed"
    MEGATRON = "megatron"


class Precision(StrEnum):
    """The type of the matrix products; the optimizer always keeps fp32 weights and moments."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"


class Recompute(StrEnum):
    """What the backward pass computes again instead of keeping.

    SELECTIVE: the attention core of every layer. FULL: every layer, from its input.
    """

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Offload(StrEnum):
    """What is kept in host memory. PARAMS means the optimizer's states and the parameters."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    PARAMS = "params"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """One point of the search: framework, degrees, micro-batch, precision, what is recomputed.

    dp_replicate * dp_shard * cp * tp * pp = GPUs. The data-parallel degree and the number of
    micro-batches follow from the GPUs and the global batch; they are never knobs.
    """

    backend: Backend
    zero_stage: int = 0
    """0 replicated, 1 optimizer states sharded, 2 and gradients, 3 and parameters."""
    dp_replicate: int = 1
    """Sharded groups that hold the same shards (HSDP, hpZ); 1 = shard over all data ranks."""
    micro_batch: int = 1
    """Sequences of one forward pass of one data-parallel rank."""
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    """Model chunks on each pipeline stage; 1 = no interleaving."""
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = False
    precision: Precision = Precision.BF16
    recompute: Recompute = Recompute.NONE
    offload: Offload = Offload.NONE

    def __post_init__(self) -> None:
        if self.zero_stage not in (0, 1, 2, 3):
            raise ValueError(f"zero_stage must be 0, 1, 2 or 3, got {self.zero_stage}")
        for name in ("dp_replicate", "micro_batch", "tp", "pp", "vpp", "cp", "ep"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value}")
            most = MOST_COUNT if name == "micro_batch" else MOST_GPUS
            if value > most:
                raise ValueError(f"{name} must be at most {most}, got {value:.6g}")

    def data_parallel(self, num_gpus: int) -> int:
        """Data-parallel degree on this many GPUs (floor where it does not divide)."""
        return num_gpus // (self.tp * self.pp * self.cp)

    def num_microbatches(self, num_gpus: int, global_batch_sequences: int) -> int:
        """Forward passes of one data-parallel rank in one optimizer step."""
        return global_batch_sequences // (self.micro_batch * self.data_parallel(num_gpus))

    def to_dict(self) -> dict[str, PlanValue]:
        """The knobs as plain JSON values."""
        return {k: str(v) if isinstance(v, StrEnum) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ParallelPlan:
        """The plan of these knobs; missing knobs take their defaults.

        Raises:
            ValueError: an unknown knob or option, named with the known ones; no backend.
        """
        unknown = sorted(set(values) - set(KNOB_NAMES))
        if unknown:
            raise ValueError(f"unknown knob {unknown[0]!r}; the knobs are {', '.join(KNOB_NAMES)}")
        if "backend" not in values:
            raise ValueError(f"backend must be given: one of {', '.join(Backend)}")
        return cls(**{name: _option(name, value) for name, value in values.items()})

    def label(self) -> str:
        """The knobs that differ from their defaults, in a line: ``deepspeed zero2 mb4 bf16``."""
        parts = [str(self.backend), f"zero{self.zero_stage}", f"mb{self.micro_batch}"]
        parts += [
            f"{name}{getattr(self, name)}"
            for name in ("tp", "pp", "vpp", "cp", "ep")
            if getattr(self, name) > 1
        ]
        if self.dp_replicate > 1:
            parts.append(f"replicate{self.dp_replicate}")
        if self.sequence_parallel:
            parts.append("sp")
        parts.append(str(self.precision))
        if self.recompute is not Recompute.NONE:
            parts.append(f"recompute-{self.recompute}")
        if self.offload is not Offload.NONE:
            parts.append(f"offload-{self.offload}")
        return " ".join(parts)


KNOB_NAMES = tuple(f.name for f in fields(ParallelPlan))
_ENUM_KNOBS: Mapping[str, type[StrEnum]] = {
    "backend": Backend,
    "precision": Precision,
    "recompute": Recompute,
    "offload": Offload,
}


def _option(name: str, value: Any) -> Any:
    """The value of a knob, of its type.

    Raises:
        ValueError: it is none of the knob's options.
    """
    kind = _ENUM_KNOBS.get(name)
    if kind is not None:
        try:
            return kind(value)
        except ValueError as error:
            options = ", ".join(kind)
            raise ValueError(f"{name} must be one of {options}, got {value!r}") from error
    if name == "sequence_parallel":
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, got {value!r}")
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        options = "0, 1, 2 or 3" if name == "zero_stage" else "a whole number of at least 1"
        raise ValueError(f"{name} must be {options}, got {value!r}")
    return int(value)
