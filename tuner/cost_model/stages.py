"""Which layers each pipeline stage holds, and so its weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tuner.cost_model.layout import FloatArray, Layout
from tuner.cost_model.software import Software
from tuner.model_shape import ModelShape


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StageTable:
    """Layers of the stages for every pipeline depth that occurs; a row is a depth."""

    layers: FloatArray
    """Shape (deepest + 1, deepest): of depth p, stage s."""

    def of(self, depth: FloatArray, stage: FloatArray) -> FloatArray:
        """Layers of a stage of each plan, shape (n,)."""
        found: FloatArray = self.layers[depth.astype(np.int64), stage.astype(np.int64)]
        return found

    def most(self, depth: FloatArray) -> FloatArray:
        """Layers of the stage that has most, shape (n,)."""
        found: FloatArray = self.layers.max(axis=1)[depth.astype(np.int64)]
        return found


def stage_table(shape: ModelShape, software: Software, lay: Layout) -> StageTable:
    """The layers of every stage, for the depths of these plans."""
    depths = np.flatnonzero(np.bincount(lay.pp.astype(np.int64)))
    deepest = int(depths.max())
    table = np.zeros((deepest + 1, deepest))
    for depth in depths:
        table[depth, :depth] = _layers_of_stages(shape, software, int(depth))
    return StageTable(layers=table)


def _layers_of_stages(shape: ModelShape, software: Software, depth: int) -> list[float]:
    if len(software.stage_layers) == depth:
        return [float(count) for count in software.stage_layers]
    if software.layers_weighed:
        return _weighed(shape, depth)
    each, left = divmod(shape.num_layers, depth)
    return [float(each + (stage < left)) for stage in range(depth)]


def _weighed(shape: ModelShape, depth: int) -> list[float]:
    """Blocks in order, each stage until it passes its share of the compute."""
    return _blocks_by_weight(shape, depth)[0]


def _blocks_by_weight(shape: ModelShape, depth: int) -> tuple[list[float], bool]:
    """Layers of every stage, and whether every stage has a block: a layer, the head or the loss.

    As nanotron's build_model: a block's weight is its matrix products; embedding, norms and the
    loss weigh nothing; the next stage begins once the running total passes the stage's share.
    """
    layer = float(np.mean(shape.params.layers))
    head = float(shape.vocab * shape.hidden)
    share = (layer * shape.num_layers + head) / depth
    counts = [0.0] * depth
    stage, done = 0, 0.0
    for _ in range(shape.num_layers):
        counts[stage] += 1
        done += layer
        if stage < depth - 1 and done > share * (stage + 1):
            stage += 1
    # Head, cast and loss come last: past all shares but the last, each opens a stage if it can.
    return counts, stage + 2 >= depth - 1


def has_work_for_all(shape: ModelShape, software: Software, depth: int) -> bool:
    """Whether no stage of a pipeline this deep would be empty; one that is cannot run."""
    if software.layers_weighed:
        return _blocks_by_weight(shape, depth)[1]
    return depth <= shape.num_layers


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StageParams:
    """Weights of one stage on one rank before sharding over data ranks; shape (n,) each."""

    dense: FloatArray
    """Split by tp."""
    expert: FloatArray
    """Routed experts: split by ep and tp."""
    ends: FloatArray
    """Embedding and output layer, among ``dense``."""
    has_experts: bool

    @property
    def total(self) -> FloatArray:
        """All of them."""
        return self.dense + self.expert


def stage_params(
    shape: ModelShape, software: Software, lay: Layout, layers: FloatArray, stage: FloatArray
) -> StageParams:
    """Weights of a stage with this many layers."""
    pad = software.padded_vocab * lay.tp
    vocab = shape.vocab if software.padded_vocab == 1 else np.ceil(shape.vocab / pad) * pad
    matrix = vocab * shape.hidden
    first, last = stage == 0, stage == lay.pp - 1
    extra = shape.params.embedding - shape.vocab * shape.hidden  # learned positions
    ends = first * (matrix + extra)
    # A tied output layer on another stage than the embedding is a copy of it.
    own_head = last & (~first if shape.tied_embeddings else np.full_like(first, True))
    ends = ends + own_head * matrix
    # Multi-token prediction looks tokens up again (megatron/core/models/gpt/gpt_model.py).
    if software.extra_last_layers:
        ends = ends + (last & ~first) * matrix
    routed = expert_params_per_layer(shape)
    dense_layer = sum(shape.params.layers) / shape.num_layers - routed
    return StageParams(
        dense=(layers * dense_layer + ends) / lay.tp,
        expert=layers * routed / (lay.ep * (software.expert_tp or lay.tp)),
        ends=ends / lay.tp,
        has_experts=shape.experts is not None,
    )


def expert_params_per_layer(shape: ModelShape) -> float:
    """Weights of all routed experts, averaged over all layers."""
    experts = shape.experts
    if experts is None:
        return 0.0
    each = (3 if shape.gated_mlp else 2) * shape.hidden * experts.ffn
    moe_layers = shape.num_layers - experts.num_dense_layers
    return experts.num_experts * each * moe_layers / shape.num_layers
