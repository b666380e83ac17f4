"""What test ranks would each import: the fork server does once, before it forks the first."""

from __future__ import annotations

import transformers.models.llama.modeling_llama  # noqa: F401  # of the models of most tests

import runners.bench.rank  # noqa: F401
from runners.bench.frameworks import import_framework
from tuner.plan import Backend

for _backend in Backend:
    import_framework(_backend)
