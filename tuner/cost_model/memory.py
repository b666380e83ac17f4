"""Bytes that a plan needs on each stage, term by term; the fullest stage decides."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tuner.cluster import Device
from tuner.cost_model.activations import in_flight_layers, layer_bytes, logit_bytes
from tuner.cost_model.case import Case
from tuner.cost_model.coefficients import DEFAULT, MemoryCoefficients
from tuner.cost_model.cpu_memory import DEEPSPEED_BUCKET_PARAMS, cpu_stage_memory
from tuner.cost_model.layer_time import host_lead
from tuner.cost_model.layout import FloatArray, Layout
from tuner.cost_model.stages import StageParams, stage_params
from tuner.cost_model.states import state_bytes
from tuner.model_shape import ModelShape

LATE_TERM = "given_back_late"
"""Not needed: where memory runs out, the allocator waits for it and tries again."""


def stage_memory(
    case: Case, stage: FloatArray, coefficients: MemoryCoefficients
) -> Mapping[str, FloatArray]:
    """Bytes of one stage of every plan, shape (n,) a term; stages are counted from 0."""
    if case.cluster.gpu.device is Device.CPU:
        return {**cpu_stage_memory(case, stage, coefficients), LATE_TERM: np.zeros(len(case.lay))}
    shape, software, lay = case.shape, case.software, case.lay
    last = stage == lay.pp - 1
    layers = case.table.of(lay.pp, stage) + software.extra_last_layers * last
    params = stage_params(shape, software, lay, layers, stage)
    states = state_bytes(lay, software, params)
    layer = layer_bytes(shape, software, lay)
    in_flight = in_flight_layers(lay, layers, stage)
    kept = layer.kept * in_flight
    # A recomputed layer is whole again for a moment, but not while the loss is.
    logits = logit_bytes(shape, software, lay) * last * coefficients.logits
    again = np.where(lay.recompute_full, layer.whole * np.minimum(layers, 1.0), 0.0)
    again = again * coefficients.activations
    handed_over = np.where(lay.pp > 1, 2.0, 0.0) * shape.hidden * lay.value_bytes * lay.tokens_split
    return {
        "parameters": states.parameters * coefficients.states,
        "gradients": states.gradients * coefficients.states,
        "optimizer": states.optimizer * coefficients.states,
        "activations": kept * coefficients.activations + np.maximum(again - logits, 0.0),
        "logits": logits,
        LATE_TERM: _late_bytes(case, in_flight) * coefficients.activations,
        "workspace": coefficients.workspace * _workspace_bytes(shape, lay, params) + handed_over,
        "context": np.full(len(lay), coefficients.context_bytes),
    }


def _late_bytes(case: Case, in_flight: FloatArray) -> FloatArray:
    """Gathered hidden states that are given back late, where the host runs ahead of the GPU.

    Asynchronous gathers are made on a stream of their own; the allocator takes such memory back
    only once the GPU has caught up (torch.Tensor.record_stream). A host that is the slower of
    the two finds it free; one that is ahead allocates anew: both products' inputs of a layer,
    three quarters of them in the sweep that shows it.
    """
    lay = case.lay
    if not case.software.overlaps_tensor:
        return np.zeros(len(lay))
    lead = np.clip(2 * host_lead(case, DEFAULT.time) - 0.7, 0.0, 1.0)
    gathered = lay.tokens * case.shape.hidden * lay.value_bytes * in_flight
    several = np.where(lay.num_microbatches > 1, 1.5, 0.5)
    return np.where(lay.sequence_parallel, several * gathered * lead, 0.0)


def _workspace_bytes(shape: ModelShape, lay: Layout, params: StageParams) -> FloatArray:
    """Gradients before they are accumulated, gathered weights, buckets."""
    layer = sum(shape.params.layers) / shape.num_layers / lay.tp
    widest = shape.hidden * (2.0 if shape.gated_mlp else 1.0) * shape.ffn / lay.tp
    matrix = np.maximum(shape.vocab * shape.hidden / lay.tp * (params.ends > 0), widest)
    gradient = 1.5 * lay.value_bytes * matrix
    # Sequence parallelism gathers the tokens for a product, and their gradients behind it.
    gathers_tokens = lay.sequence_parallel & (lay.tp > 1)
    whole = np.where(gathers_tokens, 4 * lay.tokens * shape.hidden * lay.value_bytes, 0.0)
    # FSDP: this layer and the next are gathered, the root's embedding and head stay gathered,
    # and one layer's gradient waits for its reduce-scatter (torch.distributed.fsdp docs).
    gathered = (2 * layer + params.ends) * lay.value_bytes + 2 * lay.value_bytes * layer
    bucket = 2 * lay.value_bytes * np.minimum(params.total, DEEPSPEED_BUCKET_PARAMS)
    bucket = np.where(lay.deepspeed & (lay.zero_stage >= 1), bucket, 0.0)
    gathers = (lay.zero_stage >= 3) & (lay.shards > 1)
    return gradient + whole + np.where(gathers, gathered, 0.0) + bucket


def candidate_stages(lay: Layout) -> tuple[FloatArray, ...]:
    """Stages one of which is the fullest: most in flight, no embedding but as many, the loss."""
    zero = np.zeros(len(lay))
    return zero, np.minimum(1.0, lay.pp - 1), lay.pp - 1
