"""The imports of a framework, done before the device is opened and memory is counted."""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module
from typing import assert_never

from tuner.plan import Backend

_LATE = {
    Backend.PYTORCH: ("transformers.modeling_utils",),
    Backend.DEEPSPEED: (
        "deepspeed.module_inject.auto_ep_layer",
        "deepspeed.module_inject.tp_plan_converter",
        "deepspeed.runtime.superoffload.superoffload_stage3",
        "deepspeed.runtime.zero.muon.muon_optimizer",
    ),
    Backend.MEGATRON: (),
}
"""What libraries leave until a model or an engine is built: up to 600 modules, 41 MiB and a second
in each rank. Not every version has them."""


def import_framework(backend: Backend) -> None:
    """Imports what trains with it: its memory and its time are not the plan's.

    What was imported lives as long as the process: the collector need not walk through it again,
    which takes it a tenth of a second each time and, in a forked process, copies every page.
    """
    match backend:
        case Backend.PYTORCH:
            import runners.bench.pytorch_training
        case Backend.DEEPSPEED:
            import runners.bench.deepspeed_training
        case Backend.MEGATRON:
            import runners.bench.megatron_groups
            import runners.bench.megatron_training  # noqa: F401
        case _:
            assert_never(backend)
    for name in _LATE[backend]:
        with suppress(ImportError):
            import_module(name)
    gc.collect()
    gc.freeze()
