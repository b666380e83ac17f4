"""Published models by name: the sizes of their ``config.json``; nothing is fetched."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from tuner.errors import UserError
from tuner.hf_file import hf_model_of
from tuner.workload import HfModel

PRESETS_FILE = "model_presets.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPreset:
    """A published model."""

    name: str
    published_params: int
    """As its makers give it, rounded where they round."""
    source: str
    config: Mapping[str, Any]
    """As in its ``config.json``."""


@cache
def model_presets() -> Mapping[str, ModelPreset]:
    """Every preset by its name."""
    text = files("tuner").joinpath(PRESETS_FILE).read_text(encoding="utf-8")
    return {
        name: ModelPreset(
            name=name,
            published_params=entry["params"],
            source=entry["source"],
            config=entry["config"],
        )
        for name, entry in json.loads(text).items()
    }


def preset_named(name: str) -> ModelPreset | None:
    """The preset of this name, whatever its case and separators; None where there is none."""
    wanted = _letters(name)
    for preset in model_presets().values():
        if _letters(preset.name) == wanted:
            return preset
    return None


def near_presets(name: str) -> list[str]:
    """Names of presets that look like this one, the nearest first."""
    by_letters = {_letters(known): known for known in model_presets()}
    near = difflib.get_close_matches(_letters(name), list(by_letters), n=4, cutoff=0.6)
    return [by_letters[letters] for letters in near]


def preset_model(name: str, *, named: str) -> HfModel:
    """The model of a preset.

    Args:
        name: of the preset, or nearly.
        named: the file and key of the job that asked for it, for messages.

    Raises:
        UserError: there is no such preset.
    """
    preset = preset_named(name)
    if preset is None:
        near = near_presets(name)
        known = f"near are {', '.join(near)}" if near else "docs/models.md lists them"
        raise UserError(
            f"{named} must be a preset, a config.json, a Megatron-LM script, sizes or "
            f"package.module:factory, got {name!r}, which is no file and no preset; {known}"
        )
    return hf_model_of(preset.config, name=preset.name, named=f"{named}: {preset.name}")


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "", name.rsplit("/", 1)[-1].lower())
