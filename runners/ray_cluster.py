"""The nodes of a running Ray and their GPUs, asked in a process that can be ended."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from runners.ray_token import token_sentence
from tuner.errors import UserError

_LISTEN_LIMIT_S = 5.0
_PROBE_LIMIT_S = 120.0
"""To import Ray, join it and run one task on every node, whose workers import us first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """One node: what Ray may give of it, and what its driver shows."""

    host: str
    num_gpus: int
    num_cpus: int
    memory_bytes: int
    products: tuple[tuple[str, int], ...]
    """Product name and bytes of each GPU; Ray may have been given fewer of them."""
    split: bool
    """Whether a GPU is divided into MIG instances."""


def ray_nodes(address: str) -> tuple[RayNode, ...]:
    """The nodes that are alive, in Ray's order.

    Raises:
        UserError: no Ray answers at the address, or another one, or it wants a token.
    """
    reason = silent(address)
    if reason is None:
        answer = _asked(address)
        if isinstance(answer, list):
            return tuple(_node(node) for node in answer)
        reason = answer
    if "Version mismatch" in reason:
        versions = reason.partition(": ")[2]
        raise UserError(
            f"this machine must have the Ray and the Python of the cluster at {address}: "
            f"{versions}; install those here, or start the cluster with these"
        )
    raise UserError(
        f"the Ray address must be HOST:PORT of a running Ray (or auto), got {address}: {reason}; "
        "`ray start --head` prints the address"
    )


def silent(address: str) -> str | None:
    """Why nothing can be asked there, where that is known at once; Ray would try for long."""
    if "://" in address:
        return "Ray Client is not supported, paratune must run on a machine of the cluster"
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), _LISTEN_LIMIT_S).close()
        except (OSError, OverflowError) as error:
            return f"nothing listens there ({getattr(error, 'strerror', None) or error})"
    return None


def _asked(address: str) -> list[dict[str, Any]] | str:
    """What the nodes say, or why they do not."""
    command = [sys.executable, "-m", "runners.ray_probe", address]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_PROBE_LIMIT_S:.0f} s"
    if "InvalidAuthToken" in done.stderr:  # its exception does not say so
        raise UserError(token_sentence(f"the Ray at {address}"))
    lines = done.stdout.strip().splitlines()
    try:
        answer = json.loads(lines[-1])
    except (IndexError, ValueError):
        said = done.stderr.strip().splitlines()
        return said[-1][:300] if said else f"the probe ended with {done.returncode}"
    if "no authentication token was found" in str(answer.get("error")):
        raise UserError(token_sentence(f"the Ray at {address}", found=False))
    return list(answer["nodes"]) if "nodes" in answer else str(answer["error"])


def _node(facts: dict[str, Any]) -> RayNode:
    return RayNode(
        host=facts["host"],
        num_gpus=facts["num_gpus"],
        num_cpus=facts["num_cpus"],
        memory_bytes=facts["memory_bytes"],
        products=tuple((product, num_bytes) for product, num_bytes, _ in facts["gpus"]),
        split=any(split for *_, split in facts["gpus"]),
    )
