"""Joins a Ray, asks every node for its GPUs, and prints what they said; run as a module.

A process of its own: Ray's attempts to connect cannot be ended, and the study joins Ray itself.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")

_TASK_LIMIT_S = 60.0


def main() -> int:
    """Prints one JSON document: the nodes, or why they cannot be asked."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    try:
        ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
        alive = [node for node in ray.nodes() if node["Alive"]]
        asked = {
            node["NodeID"]: ray.remote(node_facts)
            .options(
                num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            )
            .remote()
            for node in alive
        }
        facts = dict(zip(asked, ray.get(list(asked.values()), timeout=_TASK_LIMIT_S), strict=True))
    except Exception as error:  # Ray documents none of those that it raises
        _say({"error": " ".join(str(error).split())[:400] or type(error).__name__})
        return 1
    nodes = [
        {
            "host": node["NodeManagerHostname"],
            "num_gpus": int(node["Resources"].get("GPU", 0)),
            "num_cpus": int(node["Resources"].get("CPU", 0)),
            **facts[node["NodeID"]],
        }
        for node in alive
    ]
    _say({"nodes": nodes})
    return 0


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")


def node_facts() -> dict[str, Any]:
    """What the node says of itself: its memory, and product and bytes of each of its GPUs."""
    import psutil

    from runners.nvidia_devices import nvidia_driver

    driver = nvidia_driver()
    devices = driver.devices if driver is not None else ()
    return {
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": [[device.product, device.memory_bytes, device.split] for device in devices],
    }


if __name__ == "__main__":
    sys.exit(main())
