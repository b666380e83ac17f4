"""The formats by name: a subject in, its files out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from reports.emit.accelerate import accelerate_files
from reports.emit.deepspeed import deepspeed_files
from reports.emit.hf_deepspeed import hf_deepspeed_files
from reports.emit.megatron import megatron_files
from reports.emit.megatron_bridge import bridge_files
from reports.emit.slurm import slurm_files, torchrun_files
from reports.emit.subject import Subject
from reports.emit.torchtitan import torchtitan_files
from tuner.launch import LaunchFile


class Format(StrEnum):
    """What launch files can be emitted as."""

    DEEPSPEED = "deepspeed"
    HF_DEEPSPEED = "hf-deepspeed"
    ACCELERATE = "accelerate"
    MEGATRON = "megatron"
    MEGATRON_BRIDGE = "megatron-bridge"
    TORCHTITAN = "torchtitan"
    TORCHRUN = "torchrun"
    SLURM = "slurm"


_FILES: Mapping[Format, Callable[[Subject], tuple[LaunchFile, ...]]] = {
    Format.DEEPSPEED: deepspeed_files,
    Format.HF_DEEPSPEED: hf_deepspeed_files,
    Format.ACCELERATE: accelerate_files,
    Format.MEGATRON: megatron_files,
    Format.MEGATRON_BRIDGE: bridge_files,
    Format.TORCHTITAN: torchtitan_files,
    Format.TORCHRUN: torchrun_files,
    Format.SLURM: slurm_files,
}
assert set(_FILES) == set(Format)


def emitted(subject: Subject, form: Format) -> tuple[LaunchFile, ...]:
    """The files of a legal plan in this format; pure.

    Raises:
        UserError: the format cannot say the plan; every knob in the way is named, with what to
            use instead.
    """
    return _FILES[form](subject)
