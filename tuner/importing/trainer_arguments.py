"""TrainingArguments of Hugging Face beside a file: what "auto" stands for, and what files omit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.importing.imported import ImportTarget
from tuner.importing.text_files import json_values, read_text, yaml_values

_DEFAULTS: Mapping[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "bf16": False,
    "fp16": False,
    "gradient_checkpointing": False,
}
"""Of TrainingArguments itself, which the Trainer takes where the user says nothing."""
_SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps")


def read_arguments(path: Path) -> dict[str, Any]:
    """TrainingArguments as JSON, as YAML, or as the options of a launch script.

    Raises:
        UserError: it is none of them, or a value that decides a plan cannot be one.
    """
    text = read_text(path)
    if path.suffix == ".json":
        values = json_values(text, path)
    elif path.suffix in (".yaml", ".yml"):
        values = yaml_values(text, path)
    else:
        values = _script_values(text)
    for name in _SIZES:
        value = values.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**53:
            raise UserError(f"{path}: {name} must be a whole number of at least 1, got {value!r}")
    if not set(values) & (set(_DEFAULTS) | {"deepspeed", "output_dir", "learning_rate"}):
        raise UserError(
            f"{path} must hold TrainingArguments such as per_device_train_batch_size, got "
            f"{', '.join(list(values)[:4]) or 'nothing'}"
        )
    return values


def _script_values(text: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in re.findall(r"--(\w+)(?:[ =]+(?!-)([^\s\\]+))?", text):
        bare = value.strip("\"'")
        word = {"true": True, "": True, "false": False}.get(bare.lower(), bare)
        values[name] = int(bare) if re.fullmatch(r"\d{1,18}", bare) else word
    return values


def argument(target: ImportTarget, name: str) -> Any:
    """One argument, or what the Trainer takes where it is not given; None without arguments."""
    default = None if target.arguments_file is None else _DEFAULTS[name]
    return target.arguments.get(name, default)


def check_world_size(target: ImportTarget) -> None:
    """A number of ranks among the arguments must be the job's.

    Raises:
        UserError: it is another.
    """
    for name in ("world_size", "num_processes"):
        said = target.arguments.get(name)
        if said is not None and said != target.cluster.num_gpus:
            raise UserError(
                f"{target.arguments_file}: {name} must be the job's GPUs "
                f"({target.cluster.num_gpus}), got {said}; change one of the two files"
            )
