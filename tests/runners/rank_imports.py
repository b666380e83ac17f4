"""What test ranks would each import: the fork server does once, before it forks the first."""

from __future__ import annotations

import gc
from importlib import import_module

for _name in (
    "runners.bench.rank",
    "runners.bench.pytorch_training",
    "runners.bench.deepspeed_training",
    "runners.bench.megatron_groups",
    "runners.bench.megatron_training",
    # What the frameworks leave until a model is built.
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "transformers.models.llama.modeling_llama",
):
    import_module(_name)
# As the product's warm processes do: else each rank's first collection copies all of their pages.
gc.collect()
gc.freeze()
