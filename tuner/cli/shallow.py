"""A small cousin of a workload that a plan still fits: fewer layers and micro-batches, all else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from search_spaces.enumeration import rejections
from search_spaces.rule import Setting
from tuner.cluster import Cluster
from tuner.errors import UserError
from tuner.hf_file import hf_model_of
from tuner.plan import ParallelPlan
from tuner.stack import installed_stack
from tuner.workload import HfModel, Workload

_LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_LEARNING_RATE = 1e-3
"""High enough for a wrong update to show in the next loss."""


def is_legal(plan: ParallelPlan, workload: Workload, cluster: Cluster) -> bool:
    """Whether the plan breaks no rule with what is installed here."""
    setting = Setting(workload=workload, cluster=cluster, stack=installed_stack())
    return not rejections(plan, setting)


def shallow_workload(plan: ParallelPlan, workload: Workload, cluster: Cluster) -> Workload:
    """The smallest for which the plan is legal; the whole one where none smaller is."""
    for batch in _batches(plan, workload, cluster):
        for model in _models(plan, workload):
            small = replace(
                workload,
                model=model,
                global_batch_sequences=batch,
                learning_rate=max(_LEARNING_RATE, workload.learning_rate),
            )
            if is_legal(plan, small, cluster):
                return small
    return workload


def _batches(plan: ParallelPlan, workload: Workload, cluster: Cluster) -> Iterator[int]:
    rows = plan.micro_batch * plan.data_parallel(cluster.num_gpus)
    most = workload.global_batch_sequences // rows
    yield from (rows * number for number in range(min(2, most), most + 1))


def _models(plan: ParallelPlan, workload: Workload) -> Iterator[Any]:
    model = workload.model
    if isinstance(model, HfModel):
        whole = model.shape.num_layers
        unit = plan.pp * plan.vpp
        for depth in range(max(2, unit), min(whole, 4 * unit + 2), 1):
            if (cut := _cut(model, depth)) is not None:
                yield cut
    yield model


def _cut(model: HfModel, depth: int) -> HfModel | None:
    """The model with fewer layers; None where its configuration does not let itself be cut."""
    values = json.loads(model.config_text)
    key = next((key for key in _LAYER_KEYS if isinstance(values.get(key), int)), None)
    if key is None:
        return None
    whole = values[key]
    values = {
        name: value[:depth] if isinstance(value, list) and len(value) == whole else value
        for name, value in values.items()
    }
    try:
        return hf_model_of(values | {key: depth}, name=model.name, named=model.name)
    except UserError:
        return None
