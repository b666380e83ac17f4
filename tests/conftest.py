"""What tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray_nodes import TwoNodes, two_node_ray

TOKEN = "0123456789abcdef" * 4


@pytest.fixture(scope="session")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    """A Ray of two nodes that asks for a token, with a home folder of its own; left as it was."""
    home: Path = tmp_path_factory.mktemp("home")
    with two_node_ray(token=TOKEN, env={"HOME": str(home)}) as nodes:
        yield nodes
    assert nodes.processes() == []
    assert not nodes.folder.exists()
