"""Seconds of ring collectives and of a hand-over, on the links that a group really crosses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuner.cluster import Cluster
from tuner.cost_model.coefficients import TimeCoefficients
from tuner.cost_model.layout import FloatArray

INSIDE_HOP_S = 3e-6
"""Latency of a ring inside an NVLink domain, a rank; nccl-tests on 8 GPUs give 20-30 us in all."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Group:
    """Ranks that communicate, of every plan; shape (n,) each."""

    size: FloatArray
    inside: FloatArray
    """Of them in one NVLink domain."""

    @property
    def crosses(self) -> FloatArray:
        """1 where the group leaves its NVLink domain, else 0."""
        return (self.inside < self.size).astype(np.float64)


def group(cluster: Cluster, size: FloatArray, stride: FloatArray) -> Group:
    """The group of ranks ``stride`` apart, ranks being numbered along the nodes."""
    near = np.maximum(np.floor(cluster.gpus_per_nvlink_domain / stride), 1.0)
    return Group(size=size, inside=np.minimum(near, size))


def gather_s(
    cluster: Cluster, coefficients: TimeCoefficients, ranks: Group, whole_bytes: FloatArray
) -> FloatArray:
    """One ring all-gather, or reduce-scatter, of this many bytes in all; 0 for a lone rank.

    Every rank sends (n - 1) / n of them. Rings that leave a node share its network cards: a
    group with k ranks in a node may use k cards (one a GPU).
    """
    n = ranks.size
    link = cluster.gpu.link_bytes_per_s * coefficients.link
    network = cluster.network_bytes_per_s * coefficients.network * ranks.inside
    rate = np.where(ranks.crosses > 0, np.minimum(link, network), link)
    hop = np.where(ranks.crosses > 0, coefficients.hop_s, INSIDE_HOP_S)
    return np.where(n > 1, (n - 1) / n * whole_bytes / rate + (n - 1) * hop, 0.0)
