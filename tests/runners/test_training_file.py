"""The launch files say which paratune wrote them."""

from __future__ import annotations

from importlib.metadata import version

from runners.backends.training_file import PARATUNE_VERSION


def test_the_launch_files_carry_the_version_of_the_distribution() -> None:
    assert version("paratune") == PARATUNE_VERSION
