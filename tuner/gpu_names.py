"""What people, tables and drivers call a GPU, and which presets they may mean by it."""

from __future__ import annotations

import re

from tuner.cluster import Gpu
from tuner.gpu_presets import GPUS, PRESETS, Preset

_MEMORY_TOLERANCE = 0.04
"""Drivers show up to 3 % less than a preset has, by their version and by ECC; the nearest sizes
of one GPU (H100 of 94 and 96 GB) are told apart by taking the nearer one."""

_NOISE = frozenset(
    (
        *("nvidia", "amd", "tesla", "geforce", "instinct", "quadro"),
        *("gpu", "graphics", "tensor", "core", "accelerator", "module"),
    )
)
"""Words that tell no two presets apart."""

_FAMILIES = sorted({gpu.name.split("-")[0] for gpu in GPUS}, key=len, reverse=True)
_WORD = re.compile(
    rf"""
      (?P<family>{"|".join(_FAMILIES)})(?!\d)  # the longest first: gb200 before b200
    | (?P<memory>\d+)[ _-]?g(?:i?b)?(?![a-z0-9])
    | (?P<form>sxm(?:\d(?!\d))?|pcie|nvl\d*|oam|gcd)
    | (?P<stack>hbm\d?e?|gddr\d?x?)
    | (?P<other>[a-z]+\d*[a-z]*|\d+[a-z]*)
    """,
    re.VERBOSE,
)
_RTX = re.compile(r"(?:rtx[ _-]*)?(?<!\d)([45]090)(?![0-9a-z])")


def gpus_spelled(name: str) -> tuple[Gpu, ...]:
    """All GPUs that a usual spelling of a name may mean.

    ``H100-80GB-SXM``, ``NVIDIA H100 80GB HBM3`` and ``h100 sxm5`` say what they say; a word that
    a GPU does not carry excludes it. Empty where none is known, several where it is ambiguous.
    """
    for gpu in GPUS:
        if gpu.name == name.strip().lower():
            return (gpu,)
    words = _words(name)
    return tuple(preset.gpu for preset in PRESETS if words and _may_mean(words, preset))


def gpu_named(name: str) -> Gpu | None:
    """The one GPU that a spelling means; None where it is unknown or ambiguous."""
    spelled = gpus_spelled(name)
    return spelled[0] if len(spelled) == 1 else None


def gpu_of_device(product: str, memory_bytes: int) -> Gpu | None:
    """The GPU that the driver calls by this product name and shows this much memory of."""
    # Product names of SXM modules may lack that word ("NVIDIA H200"); PCIe and NVL cards have it.
    said = set(_words(product))
    near = [
        gpu
        for gpu in gpus_spelled(product)
        if abs(gpu.memory_bytes / memory_bytes - 1) < _MEMORY_TOLERANCE
        and all(form in said for form in ("pcie", "nvl") if form in gpu.name.split("-"))
    ]
    return min(near, key=lambda gpu: abs(gpu.memory_bytes - memory_bytes), default=None)


def gpu_names_by_nearness(name: str) -> tuple[str, ...]:
    """The names of all presets, those most like this one first: the GPU, then its form."""
    spelled = "-".join(_words(name)) or name.lower()

    def unlike(gpu: Gpu) -> tuple[int, int]:
        family = _edits(spelled.split("-")[0], gpu.name.split("-")[0])
        return family, _edits(spelled, gpu.name)

    return tuple(gpu.name for gpu in sorted(GPUS, key=unlike))


def _edits(one: str, other: str) -> int:
    """The least letters to add, drop or change that make one word the other."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        before, row[0] = row[0], i
        for j, wanted in enumerate(other, start=1):
            before, row[j] = (
                row[j],
                min(row[j] + 1, row[j - 1] + 1, before + (letter != wanted)),
            )
    return row[-1]


def _may_mean(words: tuple[str, ...], preset: Preset) -> bool:
    """Whether it is of the family and carries every word that was said."""
    own = preset.gpu.name.split("-")
    return own[0] in words and all(
        word in own or word in preset.words or word in _NOISE for word in words
    )


def _words(name: str) -> tuple[str, ...]:
    """``H100SXM5-80 GB`` as h100, sxm5, 80gb; letters that name no part stay words of their own."""
    text = _RTX.sub(r"rtx\1", name.lower())
    words = []
    for match in _WORD.finditer(text):
        memory = match.group("memory")
        words.append(f"{memory}gb" if memory else match.group())
    return tuple(words)
