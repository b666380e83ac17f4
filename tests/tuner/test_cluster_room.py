"""Too few nodes or GPUs in a running Ray are named, with what would fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runners.ray_cluster import RayNode
from tests.tiny_job import cpu_cluster
from tuner.cli.cluster_room import check_room
from tuner.cluster import Cluster
from tuner.errors import UserError
from tuner.presets import gpus_spelled

(H100,) = gpus_spelled("h100-sxm-80gb")


def node(host: str, *, gpus: int = 0, cpus: int = 8) -> RayNode:
    return RayNode(
        host=host, num_gpus=gpus, num_cpus=cpus, memory_bytes=2**36, products=(), split=False
    )


def refused(cluster: Cluster, *nodes: RayNode) -> str:
    with pytest.raises(UserError) as found:
        check_room(cluster, nodes, named="job.yaml: cluster")
    assert "\n" not in str(found.value)
    return str(found.value)


def test_nodes_that_are_enough_pass_whatever_else_there_is() -> None:
    cluster = Cluster(gpu=H100, num_nodes=2, gpus_per_node=8)
    check_room(cluster, [node("head"), node("a", gpus=8), node("b", gpus=8)], named="cluster")


def test_too_few_nodes_are_named_with_what_would_fit() -> None:
    cluster = Cluster(gpu=H100, num_nodes=4, gpus_per_node=8)
    said = refused(cluster, node("a", gpus=8), node("b", gpus=4), node("c", gpus=4))
    assert "needs 4 nodes with 8 GPUs each" in said
    assert "the Ray has 3 nodes with 16 GPUs in all: a (8), b (4), c (4)" in said
    assert "cluster: 1x8 h100-sxm-80gb or cluster: 3x4 h100-sxm-80gb" in said


def test_too_few_gpus_of_a_node_are_named_with_what_would_fit() -> None:
    said = refused(Cluster(gpu=H100, gpus_per_node=8), node("a", gpus=2))
    assert "needs 1 node with 8 GPUs each, but the Ray has 1 node with 2 GPUs in all: a (2)" in said
    assert said.endswith("what would fit is cluster: 1x2 h100-sxm-80gb")


def test_a_ray_without_gpus_is_named() -> None:
    said = refused(Cluster(gpu=H100, gpus_per_node=8), node("a"))
    assert "1 node with 0 GPUs in all: a (0)" in said
    assert said.endswith("start Ray with --num-gpus on nodes that have some")


def test_cpu_ranks_need_nodes_and_not_a_cpu_each() -> None:
    two = replace(cpu_cluster(4), num_nodes=2)
    check_room(two, [node("a", cpus=1), node("b", cpus=1)], named="cluster")
    said = refused(two, node("a"))
    assert "needs 2 nodes with 1 CPU each" in said
    assert said.endswith("what would fit is cluster: 1x4 cpu")
