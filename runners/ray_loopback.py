"""Keeps a Ray that is started for this machine alone on its loopback interface."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ray._private import ray_constants


@contextmanager
def on_loopback() -> Iterator[None]:
    """A Ray that starts inside listens on 127.0.0.1 with every port, and nobody else reaches it.

    By itself Ray takes the machine's own address, even where 127.0.0.1 is asked for, and listens
    on all interfaces. Only where it believes that this machine cannot be part of a cluster (it has
    Windows and macOS in mind) it does not, and there is no public way of telling it so.
    """
    kept = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = kept
