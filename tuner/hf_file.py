"""The model of a Hugging Face ``config.json``, as a job names it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.hf_apart import config_read_apart
from tuner.user_files import (
    CONFIG_BYTES,
    UnreadableError,
    check_depth,
    said_where_unparsable,
    text_of,
)
from tuner.workload import HfModel


def hf_model(path: Path, *, named: str, relative_to: str = "job file") -> HfModel:
    """The model of a ``config.json``.

    Args:
        path: the file.
        named: the file and key of the job that asked for it, for messages.
        relative_to: the file that names it, for messages.

    Raises:
        UserError: no such file, not JSON, or not a causal language model.
    """
    try:
        text = text_of(path, CONFIG_BYTES)
    except UnreadableError as error:
        raise UserError(
            f"{named} must name a Hugging Face config.json that can be read, got {path}: "
            f"{error}; paths are relative to the {relative_to}"
        ) from error
    try:
        with said_where_unparsable(f"{named}: {path}"):
            values = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{named}: {path} must be JSON, but {error}") from error
    check_depth(values, f"{named}: {path}")
    if not isinstance(values, dict):
        raise UserError(f"{named}: {path} must hold a JSON object, got {type(values).__name__}")
    return hf_model_of(values, name=path.parent.name or path.stem, named=f"{named}: {path}")


def hf_model_of(values: Mapping[str, Any], *, name: str, named: str) -> HfModel:
    """The model of the values of a ``config.json``.

    Of a wrapper (vision, audio) the text part is taken, and its configuration is kept.

    Raises:
        UserError: it is not a causal language model, or its sizes contradict each other.
    """
    try:
        read = config_read_apart(values)
    except ValueError as error:
        raise UserError(f"{named}: {error}") from error
    return HfModel(name=name, config_text=json.dumps(read.kept, indent=2) + "\n", shape=read.shape)
