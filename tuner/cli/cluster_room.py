"""Whether a running Ray has the nodes that a job asks for, and what would fit where it has not."""

from __future__ import annotations

from collections.abc import Sequence

from runners.ray_cluster import RayNode
from tuner.cluster import Cluster, Device
from tuner.errors import UserError


def check_room(cluster: Cluster, nodes: Sequence[RayNode], *, named: str) -> None:
    """Makes sure that a trial can be placed on the nodes that there are.

    Args:
        cluster: what the job asks for.
        nodes: those of the Ray that are alive.
        named: file and key of the cluster, for the message.

    Raises:
        UserError: it cannot: what is needed, what there is, and what would fit.
    """
    on_gpus = cluster.gpu.device is Device.CUDA
    needed = cluster.gpus_per_node if on_gpus else 1  # CPU ranks share what a node has
    counts = [node.num_gpus if on_gpus else node.num_cpus for node in nodes]
    if sum(count >= needed for count in counts) >= cluster.num_nodes:
        return
    what = "GPU" if on_gpus else "CPU"
    has = ", ".join(f"{node.host} ({count})" for node, count in zip(nodes, counts, strict=True))
    raise UserError(
        f"{named} must fit the Ray: it needs {_several(cluster.num_nodes, 'node')} with "
        f"{_several(needed, what)} each, but the Ray has {_several(len(nodes), 'node')} with "
        f"{_several(sum(counts), what)} in all: {has}; "
        f"{_what_fits(cluster, counts, on_gpus=on_gpus)}"
    )


def _what_fits(cluster: Cluster, counts: Sequence[int], *, on_gpus: bool) -> str:
    """The job's own nodes, fewer of them; and the most GPUs in equal nodes of another size."""
    if not any(counts):
        return "start Ray with --num-gpus on nodes that have some"
    if on_gpus:
        sizes = {size: sum(count >= size for count in counts) for size in counts if size}
        alike = sum(count >= cluster.gpus_per_node for count in counts)
        largest = max(sizes, key=lambda size: (sizes[size] * size, size))
        fitting = {largest: sizes[largest], **({cluster.gpus_per_node: alike} if alike else {})}
    else:
        fitting = {cluster.gpus_per_node: sum(count > 0 for count in counts)}
    name = cluster.gpu.name
    texts = [f"{number}x{size} {name}" for size, number in sorted(fitting.items(), reverse=True)]
    return f"what would fit is cluster: {' or cluster: '.join(texts)}"


def _several(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
