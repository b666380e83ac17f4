"""The imports of a framework, done before the device is opened and memory is counted."""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import assert_never

from tuner.plan import Backend


def import_framework(backend: Backend) -> None:
    """Imports what trains with it: its memory and its time are not the plan's.

    What was imported lives as long as the process: the collector need not walk through it again,
    which takes it a tenth of a second each time and, in a forked process, copies every page.
    Libraries leave some imports until a model or an engine is built: up to 600 modules, 41 MiB and
    a second in each rank.
    """
    match backend:
        case Backend.PYTORCH:
            import transformers.modeling_utils  # noqa: F401  # late

            import runners.bench.pytorch_training
        case Backend.DEEPSPEED:
            import runners.bench.deepspeed_training

            with suppress(ImportError):  # late, and not in every version
                import deepspeed.module_inject.auto_ep_layer
                import deepspeed.module_inject.tp_plan_converter
                import deepspeed.runtime.superoffload.superoffload_stage3
                import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401
        case Backend.MEGATRON:
            import runners.bench.megatron_groups
            import runners.bench.megatron_training  # noqa: F401
        case _:
            assert_never(backend)
    gc.collect()
    gc.freeze()
