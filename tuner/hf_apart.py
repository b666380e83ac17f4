"""Reads a ``config.json`` in a process of its own: transformers and torch take 300 MB and stay.

``python -m tuner.hf_apart`` is that process: values on its standard input, the answer on its
standard output. A driver that lives for hours then holds a tenth of the memory.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from tuner.hf_config import ConfigRead, config_read
from tuner.model_shape import ModelShape

_SHAPE = TypeAdapter(ModelShape)
_LIMIT_S = 600.0
"""Importing torch from a cold network file system takes minutes."""
_known: dict[str, ModelShape] = {}
"""By the values as JSON: of models that were read in an earlier process."""


def config_read_apart(values: Mapping[str, Any]) -> ConfigRead:
    """As ``config_read``, in another process unless this one has transformers already.

    Raises:
        ValueError: the model is not a causal one, or its sizes contradict each other.
        RuntimeError: the other process ends without an answer.
    """
    text = json.dumps(values)
    if text in _known:
        return ConfigRead(kept=dict(values), shape=_known[text])
    if "transformers" in sys.modules:
        return config_read(values)
    answer = json.loads(_answer(text))
    if "refused" in answer:
        raise ValueError(answer["refused"])
    return ConfigRead(kept=answer["kept"], shape=_SHAPE.validate_python(answer["shape"]))


def remember(values: Mapping[str, Any], shape: ModelShape) -> None:
    """From now on this process knows the shape of these values, which a study has kept."""
    _known[json.dumps(values)] = shape


def read_here() -> None:
    """From now on this process reads by itself: for one that has many files and ends soon."""
    importlib.import_module("transformers")


@lru_cache(maxsize=4)  # a study's model is read again for its reports
def _answer(values_text: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tuner.hf_apart"],
        input=values_text,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"the process that reads config.json with transformers ended with {done.returncode}: "
            f"{done.stderr.strip()[-400:]}"
        )
    return done.stdout


def _main() -> None:
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # what transformers prints is not the answer
    try:
        read = config_read(json.load(sys.stdin))
        shape = _SHAPE.dump_python(read.shape, mode="json")
        answer = {"kept": read.kept, "shape": shape}  # json keeps infinity, pydantic does not
    except ValueError as error:
        answer = {"refused": str(error)}
    with os.fdopen(answer_fd, "w") as out:
        json.dump(answer, out)


if __name__ == "__main__":
    _main()
