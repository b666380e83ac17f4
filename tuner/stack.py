"""Which versions of which frameworks a plan is made for: installed here, or somewhere else."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet
from packaging.version import Version

COMPONENTS = (
    "torch",
    "deepspeed",
    "megatron-core",
    "transformer-engine",
    "apex",
    "flash-attn",
)
"""Distributions whose version, or absence, decides what is legal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Versions by distribution; what is not installed is missing."""

    versions: Mapping[str, str] = field(hash=False)

    def has(self, distribution: str, versions: str = "") -> bool:
        """Whether it is there, in a version that the PEP 440 specifier allows."""
        version = self.versions.get(distribution)
        if version is None:
            return False
        return SpecifierSet(versions).contains(Version(version), prereleases=True)


def installed_stack() -> Stack:
    """What is installed here, read without importing it."""
    versions = {}
    for name in COMPONENTS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return Stack(versions=versions)
