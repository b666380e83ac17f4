"""A head of Ray that is gone is told from a supervisor that is, and within a bound; no Ray here."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

import runners.ray_head
from runners.ray_head import HeadWatch

WAIT_S = 20


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners.ray_head, "_LOOK_S", 0.02)
    monkeypatch.setattr(runners.ray_head, "_SILENT_S", 0.2)
    monkeypatch.setattr(runners.ray_head, "_END_LIMIT_S", 0.2)


@pytest.fixture
def head() -> Iterator[socket.socket]:
    """Listens, as the GCS does, until it is closed."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield server


def address_of(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def test_while_the_head_answers_nothing_is_raised(head: socket.socket) -> None:
    watch = HeadWatch(address_of(head))
    watch.raise_if_lost()
    watch.close()


def test_a_head_that_is_gone_is_named_in_one_sentence(head: socket.socket) -> None:
    address = address_of(head)
    watch = HeadWatch(address, lambda _: None)
    head.close()
    with pytest.raises(RuntimeError, match=f"head of Ray at {address} is gone") as lost:
        watch.raise_if_lost()
    assert "the same command" in str(lost.value)
    assert "\n" not in str(lost.value)


def test_a_study_that_hangs_in_ray_is_ended(head: socket.socket) -> None:
    ended = threading.Event()
    HeadWatch(address_of(head), lambda _: ended.set())
    head.close()
    assert ended.wait(WAIT_S)


def test_a_study_that_has_ended_in_order_is_left_alone(head: socket.socket) -> None:
    ended = threading.Event()
    watch = HeadWatch(address_of(head), lambda _: ended.set())
    head.close()
    with pytest.raises(RuntimeError):
        watch.raise_if_lost()
    watch.close()
    watch._thread.join(WAIT_S)
    assert not ended.is_set()
