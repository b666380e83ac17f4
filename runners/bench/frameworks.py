"""The imports of a framework, done before the device is opened and memory is counted."""

from __future__ import annotations

import gc
from typing import assert_never

from tuner.plan import Backend


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
    gc.collect()
    gc.freeze()
