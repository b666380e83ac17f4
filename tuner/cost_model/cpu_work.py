"""Seconds of a core's work on a CPU rank: a layer, the ends of the model, exchanges, the update.

Constants are of one core of a Xeon with AVX-512 (2.x GHz, shared), each measured by itself on
small tensors; what a machine makes of them is for the coefficients to say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tuner.cost_model.case import Case
from tuner.cost_model.coefficients import DEFAULT, TimeCoefficients
from tuner.cost_model.layer_work import elementwise_s, layer_forward_share, peak_flops_per_s
from tuner.cost_model.layout import FloatArray, Layout
from tuner.cost_model.stages import StageParams, stage_params

SCORE_S = 4.5e-9
"""torch's attention on a CPU, forward and backward, a score of fp32; and for each of its heads'
components:"""
SCORE_COMPONENT_S = 0.2e-9
HALF_SCORE_S = 27e-9
"""More for a score in 16 bits: small products are converted one by one."""
STORED_SCORE_S = 8e-9
"""Megatron's own attention, which stores the scores: some 16 passes over 4 bytes."""
LAYER_HOST_SHARE = 0.65
"""Python and dispatch of an eager layer on a core, of the host time of a GPU's layer."""
MEGATRON_HOST = 3.0
"""Times as much in Megatron's layers: modules that return their biases, buffers, contexts."""
GATHERED_HOST = 6.0
"""Times as much under DeepSpeed's ZeRO-3: hooks before and after every module, both ways."""
LOSS_BYTES = 45.0
"""Moved a logit, forward and backward: ten passes over 4 bytes, and pages that are cleared."""
HALF_LOSS_BYTES = 15.0
"""More for 16-bit logits: they are cast to fp32, and their gradient back."""
SPLIT_LOSS = 0.7
"""Times that in Megatron's loss, which works in place."""
GRADIENT_BYTES = 20.0
"""Moved a parameter to have its gradient in a micro-batch: cleared, written, added."""
ADAM_BYTES = 70.0
"""Moved a parameter by an Adam that is one operation after the other: 36 ms for 4.6 million."""
COLLECTIVE_S = 1.3e-3
"""Of each rank in a collective of gloo, whatever its size: Python, threads that wake each other."""
TORCH_COLLECTIVES = 2.8
"""Times as much where DTensor or AutoTP is around it."""


def layer_work_s(case: Case, c: TimeCoefficients) -> dict[str, FloatArray]:
    """Of an average layer and micro-batch on a rank, forward and backward, by part."""
    shape, lay = case.shape, case.lay
    again = layer_forward_share(lay)
    counted = shape.params
    active = (sum(counted.layers) - counted.inactive) / shape.num_layers / lay.tp
    eager = replace(case.software, fused=False)
    host = np.where(lay.megatron, MEGATRON_HOST, 1.0)
    host = host + np.where(lay.deepspeed & lay.sharded_params, GATHERED_HOST, 0.0)
    return {
        "matrix_products": 6 * lay.tokens * active / _rate(case, c) * again,
        "attention": _scores_s(case, c) * again,
        "elementwise": elementwise_s(shape, eager, lay, _bandwidth(case, c)) * again,
        "tensor_parallel": _tensor_s(case, c) * again,
        "host": c.host_layer_s * LAYER_HOST_SHARE * host * again,
    }


def end_work_s(case: Case, c: TimeCoefficients, stage: FloatArray) -> FloatArray:
    """Of a micro-batch on this stage outside its layers: output layer, loss, all its gradients."""
    shape, lay = case.shape, case.lay
    last = stage == lay.pp - 1
    logits = lay.tokens * shape.vocab
    product = 6 * logits * shape.hidden / lay.tp / _rate(case, c)
    moved = LOSS_BYTES + np.where(lay.fp32, 0.0, HALF_LOSS_BYTES)
    moved = moved * np.where(lay.megatron, SPLIT_LOSS / lay.tp, 1.0)
    gradients = _stage_params(case, stage).total * GRADIENT_BYTES
    collectives = np.where(lay.tp > 1, 4 * _collective_s(lay, c), 0.0)
    work = product + logits * moved / _bandwidth(case, c) + collectives
    return np.asarray(last * work + gradients / _bandwidth(case, c))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ExchangeWork:
    """Of data-parallel ranks, shape (n,) each."""

    of_microbatch: FloatArray
    of_step: FloatArray


def exchange_work_s(case: Case, c: TimeCoefficients) -> ExchangeWork:
    """Gradients reduced and weights gathered: sharded ones every micro-batch, others once a step.

    gloo's rings send (n - 1) / n of the whole for a gather and twice that for a reduction, of
    which it makes every reduce-scatter. torch's pipelines hold their gradients back to the last.
    """
    lay = case.lay
    whole = _stage_params(case, np.zeros(len(lay))).total
    ranks = lay.dp * lay.cp
    sent = (ranks - 1) / ranks / _link(case, c)
    reduced = 2 * 4.0 * whole * sent
    gathered = lay.value_bytes * whole * sent
    often = (lay.zero_stage >= 2) & (lay.pp == 1)
    groups = np.where(lay.pytorch, case.shape.num_layers / lay.pp + 1, 2.0)
    gathers = np.where(lay.zero_stage >= 3, 2.0, np.where(lay.pytorch, 1.0, 0.0))
    one = reduced + groups * (1 + gathers) * _collective_s(lay, c) / TORCH_COLLECTIVES
    sharded = one + gathers * gathered
    once = reduced + np.where(lay.zero_stage >= 1, gathered, 0.0)
    once = once + 4 * _collective_s(lay, c)
    alone = ranks <= 1
    return ExchangeWork(
        of_microbatch=np.where(alone | ~often, 0.0, sharded),
        of_step=np.where(alone | (often & lay.pytorch), 0.0, np.where(often, gathered, once)),
    )


def optimizer_work_s(case: Case, c: TimeCoefficients) -> FloatArray:
    """Adam over a rank's share."""
    lay = case.lay
    share = _stage_params(case, np.zeros(len(lay))).total
    share = share / np.where(lay.zero_stage >= 1, lay.shards, 1.0)
    return share * ADAM_BYTES / _bandwidth(case, c)


def _rate(case: Case, c: TimeCoefficients) -> FloatArray:
    return peak_flops_per_s(case.cluster, case.lay) * (c.matrix / DEFAULT.time.matrix)


def _bandwidth(case: Case, c: TimeCoefficients) -> float:
    return case.cluster.gpu.memory_bytes_per_s * (c.memory / DEFAULT.time.memory)


def _link(case: Case, c: TimeCoefficients) -> float:
    return case.cluster.gpu.link_bytes_per_s * c.link


def _stage_params(case: Case, stage: FloatArray) -> StageParams:
    layers = case.table.of(case.lay.pp, stage)
    return stage_params(case.shape, case.software, case.lay, layers, stage)


def _scores_s(case: Case, c: TimeCoefficients) -> FloatArray:
    shape, lay = case.shape, case.lay
    context = lay.tokens * lay.cp / lay.micro_batch
    scores = lay.tokens * context * shape.num_heads / lay.tp
    torchs = SCORE_S + SCORE_COMPONENT_S * shape.head_dim + np.where(lay.fp32, 0.0, HALF_SCORE_S)
    each = np.where(lay.megatron, STORED_SCORE_S + SCORE_COMPONENT_S * shape.head_dim, torchs)
    return scores * each * (DEFAULT.time.attention / c.attention)


def _collective_s(lay: Layout, c: TimeCoefficients) -> FloatArray:
    around = np.where(lay.megatron, 1.0, TORCH_COLLECTIVES)
    return COLLECTIVE_S * around * (c.hop_s / DEFAULT.time.hop_s)


def _tensor_s(case: Case, c: TimeCoefficients) -> FloatArray:
    """Four reductions of hidden states a layer, or ten gathers and scatters (traffic.py)."""
    lay = case.lay
    ring = (lay.tp - 1) / lay.tp * lay.tokens * case.shape.hidden * lay.value_bytes
    count = np.where(lay.sequence_parallel, 10.0, 4.0)
    sent = np.where(lay.sequence_parallel, 10.0, 8.0) * ring / _link(case, c)
    return np.where(lay.tp > 1, sent + count * _collective_s(lay, c), 0.0)
