"""Presets have the published size of their model, and wrong names are met with near ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuner.errors import UserError
from tuner.model_presets import model_presets, near_presets, preset_model, preset_named

NAMES = sorted(model_presets())
DOCUMENT = Path(__file__).parents[2] / "docs/models.md"


def rounding(published: int) -> float:
    """Half a unit of the last digit that a published number shows."""
    digits = str(published)
    zeros = len(digits) - len(digits.rstrip("0"))
    return 0.5 * float(10**zeros)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_has_its_published_size(name: str) -> None:
    preset = model_presets()[name]
    shape = preset_model(name, named="here").shape
    allowed = max(0.005 * preset.published_params, rounding(preset.published_params))
    assert abs(shape.num_params - preset.published_params) <= allowed
    assert preset.source


PUBLISHED_ACTIVE = {
    "mixtral-8x7b": 12.9e9,  # arXiv 2401.04088
    "mixtral-8x22b": 39e9,  # Mistral's announcement
    "deepseek-v2": 21e9,  # arXiv 2405.04434
    "deepseek-v3": 37e9,  # arXiv 2412.19437
    "qwen3-30b-a3b": 3.3e9,  # Qwen3 model card
    "qwen3-235b-a22b": 22e9,  # Qwen3 model card
    "gpt-oss-20b": 3.61e9,  # gpt-oss model card, which leaves out the token embedding
    "gpt-oss-120b": 5.13e9,
    "olmoe-1b-7b": 1.3e9,  # arXiv 2409.02060
}


@pytest.mark.parametrize("name", sorted(PUBLISHED_ACTIVE))
def test_a_mixture_has_its_published_active_parameters(name: str) -> None:
    shape = preset_model(name, named="here").shape
    active = shape.params.active_per_token
    if name.startswith("gpt-oss"):
        active -= shape.params.embedding
    assert active == pytest.approx(PUBLISHED_ACTIVE[name], rel=0.03)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("llama-3.1-405b", "llama-3.1-405b"),
        ("Llama 3.1 405B", "llama-3.1-405b"),
        ("meta-llama/Llama-3.1-405B", "llama-3.1-405b"),
        ("GPT2-XL", "gpt2-xl"),
        ("qwen3_30b_a3b", "qwen3-30b-a3b"),
    ],
)
def test_a_preset_is_found_however_it_is_written(written: str, name: str) -> None:
    found = preset_named(written)
    assert found is not None
    assert found.name == name


def test_no_two_presets_are_written_alike() -> None:
    assert all((found := preset_named(name)) and found.name == name for name in NAMES)


def test_an_unknown_preset_is_met_with_near_ones() -> None:
    assert "llama-3-8b" in near_presets("llama-3-9b")
    with pytest.raises(UserError, match=r"'llama-3-9b', which is no file .* llama-3-8b"):
        preset_model("llama-3-9b", named="job.yaml: workload.model")
    with pytest.raises(UserError, match=r"docs/models\.md"):
        preset_model("zzzzqqq", named="job.yaml: workload.model")


def test_the_document_lists_every_preset_with_its_size() -> None:
    section = DOCUMENT.read_text().split("\n## Presets\n")[1]
    rows = re.findall(r"^\| `([^`]+)` \| ([\d,]+) \|", section, flags=re.MULTILINE)
    listed = {name: int(count.replace(",", "")) for name, count in rows}
    assert sorted(listed) == NAMES
    sample = ["gpt2", "llama-3.1-405b", "deepseek-v3", "falcon-40b"]
    for name in sample:
        assert listed[name] == preset_model(name, named="here").shape.num_params
