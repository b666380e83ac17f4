"""Seconds of an optimizer step on CPU ranks: work of cores that the ranks of a node share.

Nothing overlaps on a core: what ranks compute, copy and send adds up, and the step takes as long
as the node's cores need for it all, or as its longest chain of stages does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tuner.cost_model.case import Case
from tuner.cost_model.coefficients import DEFAULT, TimeCoefficients
from tuner.cost_model.cpu_work import (
    end_work_s,
    exchange_work_s,
    layer_work_s,
    optimizer_work_s,
)
from tuner.cost_model.layer_time import smooth_max
from tuner.cost_model.layout import FloatArray


def cpu_step_terms(case: Case, c: TimeCoefficients) -> Mapping[str, FloatArray]:
    """Seconds a step of every plan by term, shape (n,); their sum is the step time."""
    lay = case.lay
    m = lay.num_microbatches
    zero, last = np.zeros(len(lay)), lay.pp - 1
    layer = layer_work_s(case, c)
    layer_s = np.asarray(sum(layer.values()))
    first_s = end_work_s(case, c, zero)
    last_s = np.where(lay.pp > 1, end_work_s(case, c, last), 0.0)
    handed = _hand_over_s(case, c)
    each = c.host_microbatch_s + handed
    exchange = exchange_work_s(case, c)
    once = optimizer_work_s(case, c) + c.step_s
    layers = float(case.shape.num_layers)
    # Of the ranks of one pipeline together, and of a micro-batch on its slowest stage.
    alone = layers * layer_s + first_s + last_s + lay.pp * each
    ends = np.where(lay.pp > 1, np.maximum(first_s, last_s), first_s)
    slowest = case.table.most(lay.pp) * layer_s + ends + each
    slowest = slowest + exchange.of_microbatch
    work = m * (alone / lay.pp + exchange.of_microbatch) + exchange.of_step + once
    chain = m * slowest + (alone - slowest) / lay.vpp + exchange.of_step + once
    cores = case.cluster.gpu.cores
    shared = work / cores
    whole = np.where(lay.pp > 1, smooth_max(shared, chain / max(1.0, cores)), shared)
    busy = whole / work
    share = m / lay.pp * busy
    return {
        **{name: layers * part * share for name, part in layer.items()},
        "host": layers * layer["host"] * share + m * c.host_microbatch_s * busy,
        "output_layer": (first_s + last_s) * share,
        "hand_over": m * handed * busy,
        "data_parallel": (m * exchange.of_microbatch + exchange.of_step) * busy,
        "optimizer": optimizer_work_s(case, c) * busy,
        "step": c.step_s * busy,
    }


HAND_OVER_S = 2e-3
"""Work of a rank to receive and send what a chunk of a stage takes and gives, both ways."""


def _hand_over_s(case: Case, c: TimeCoefficients) -> FloatArray:
    lay = case.lay
    work = HAND_OVER_S * (c.hop_s / DEFAULT.time.hop_s)
    return np.where(lay.pp > 1, work * lay.vpp, 0.0)
