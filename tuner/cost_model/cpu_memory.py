"""Bytes that a CPU rank holds on each pipeline stage: what its framework keeps over gloo.

Large tensors go straight back to the system when they are freed (runners/bench/memory.py), so the
peak is what lives at once. It is the larger of two moments: the loss of a micro-batch, and the end
of a backward pass, where gradients are exchanged and activations are gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tuner.cost_model.activations import in_flight_layers, layer_bytes
from tuner.cost_model.case import Case
from tuner.cost_model.coefficients import DEFAULT, MemoryCoefficients
from tuner.cost_model.layout import FloatArray, Layout
from tuner.cost_model.software import Attention
from tuner.cost_model.stages import StageParams, stage_params

MOMENTS_BYTES = 8.0
"""Two fp32 moments of Adam, for a parameter."""
DEEPSPEED_BUCKET_PARAMS = 5e8
"""reduce_bucket_size and allgather_bucket_size unless set (deepspeed/runtime/zero/config.py)."""
SCORES_AT_WORK = 3.0
"""Arrays of a layer's scores that live at once in Megatron's own attention, backward."""
CONTEXT_BYTES = 24 * 2**20
"""What a rank touches after its imports beside large tensors: kernels that oneDNN makes when they
are first used, gloo's buffers, threads, the heaps of small tensors, autograd's own objects."""


def cpu_stage_memory(
    case: Case, stage: FloatArray, c: MemoryCoefficients
) -> Mapping[str, FloatArray]:
    """Bytes of one stage of every plan, shape (n,) a term; stages are counted from 0."""
    lay = case.lay
    last = stage == lay.pp - 1
    layers = case.table.of(lay.pp, stage)
    params = stage_params(case.shape, case.software, lay, layers, stage)
    held = _held_bytes(lay, params)
    logits = last * _logit_bytes(case) * c.logits
    kept, again = _activation_bytes(case, layers, stage)
    # A recomputed layer is whole again for a moment, but not while the loss is.
    activations = kept * c.activations + np.maximum(again * c.activations - logits, 0.0)
    exchange = _exchange_bytes(lay, params) * c.workspace
    return {
        "parameters": held.parameters * c.states,
        "gradients": held.gradients * c.states,
        "optimizer": held.optimizer * c.states,
        "activations": activations,
        "logits": logits,
        "workspace": np.maximum(exchange - activations - logits, 0.0),
        "context": np.full(
            len(lay.pp), CONTEXT_BYTES * c.context_bytes / DEFAULT.memory.context_bytes
        ),
    }


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Held:
    """At the loss of every micro-batch but the first; shape (n,) each."""

    parameters: FloatArray
    gradients: FloatArray
    optimizer: FloatArray


def _held_bytes(lay: Layout, params: StageParams) -> _Held:
    count, shards = params.total, lay.shards
    value = lay.value_bytes
    sharded = lay.zero_stage >= 2
    ddp = lay.pytorch & ~sharded & (lay.tp == 1) & (lay.pp == 1)
    # PyTorch keeps fp32 weights. What computes: DDP's autocast copies, FSDP's and replicate's
    # gathered weights; of ZeRO-3 the root's, which holds embedding and output layer.
    computing = np.where(ddp, np.where(lay.fp32, 0.0, value), value) * count
    gathered = np.where(lay.zero_stage >= 3, value * params.ends, computing)
    torch_weights = 4.0 * count / np.where(sharded, shards, 1.0) + gathered
    # DeepSpeed's ZeRO has a flat copy that computes and an fp32 partition, of fp32 weights too;
    # its ZeRO-3 keeps what it has gathered, for all of a small model is within its limits, and
    # the bucket of its gradients.
    master = np.where(lay.fp32 & ~(lay.deepspeed & (lay.zero_stage >= 1)), 0.0, 4.0)
    bucket = np.minimum(count, DEEPSPEED_BUCKET_PARAMS)
    whole = value * count + np.where(lay.zero_stage >= 3, value * (count / shards + bucket), 0.0)
    split = np.where(lay.zero_stage >= 1, shards, 1.0)
    weights = np.where(lay.pytorch, torch_weights, whole)
    optimizer = (MOMENTS_BYTES + np.where(lay.pytorch, 0.0, master)) * count / split
    gradients = 4.0 * count / np.where(sharded, shards, 1.0)
    return _Held(
        parameters=np.where(lay.offload_params, 0.0, weights),
        gradients=gradients,
        optimizer=np.where(lay.offload_optimizer, 0.0, optimizer),
    )


def _activation_bytes(
    case: Case, layers: FloatArray, stage: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Kept by the micro-batches in flight, and of a layer that is computed again."""
    lay = case.lay
    flash = replace(case.software, fused=False, attention=Attention.FLASH)
    stored = replace(flash, attention=Attention.MATERIALISED)
    # Megatron's own layers store the scores of all pairs; transformers' call torch's kernel.
    torchs, megatrons = (layer_bytes(case.shape, s, lay) for s in (flash, stored))
    kept = np.where(lay.megatron, megatrons.kept, torchs.kept)
    whole = np.where(lay.megatron, megatrons.whole, torchs.whole)
    again = np.where(lay.recompute_full, whole, 0.0) * np.minimum(layers, 1.0)
    # A buffer for scores that stays, and a layer's products, softmax and their gradients.
    scores = np.where(lay.megatron, megatrons.whole - torchs.whole, 0.0)
    kept = kept * in_flight_layers(lay, layers, stage) + scores
    return kept, again + SCORES_AT_WORK * scores


def _logit_bytes(case: Case) -> FloatArray:
    """What lives of a micro-batch's logits when the loss's gradient is made.

    torch's loss: its log-softmax, the gradient of that and its own, 4 bytes each; DeepSpeed's
    trainer and torch's pipeline refer to the logits still, and tensor parallelism to its own part
    of the gathered ones. Megatron's loss works in place, on an fp32 copy of 16-bit logits.
    """
    lay = case.lay
    value = lay.value_bytes
    refers = lay.deepspeed | (lay.pp > 1)
    torchs = 12.0 + np.where(refers, value, 0.0) + np.where(lay.tp > 1, value / lay.tp, 0.0)
    megatrons = np.where(lay.fp32, 4.0, 6.0)
    split = np.where(lay.megatron | case.software.split_loss, lay.tp, 1.0)
    return np.where(lay.megatron, megatrons, torchs) * lay.tokens * case.shape.vocab / split


def _exchange_bytes(lay: Layout, params: StageParams) -> FloatArray:
    """Gradients on their way: made, flattened, reduced by gloo on a copy of its own."""
    value = lay.value_bytes
    fsdp = lay.pytorch & ((lay.zero_stage >= 2) | (lay.tp > 1) | (lay.pp > 1))
    # FSDP's root, embedding and output layer, comes last: its gradients, and two fp32 copies.
    torchs = np.where(fsdp, (value + 8.0) * params.ends, 0.0)
    deepspeed = np.where(lay.zero_stage >= 1, (value + 4.0) * params.total, 4.0 * params.total)
    return np.where(lay.pytorch, torchs, np.where(lay.deepspeed, deepspeed, 0.0))
