"""The job that the fixtures are for: Llama 3 8B's shape, 8192 tokens, batch 128, 8 GPUs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tests.tiny_job import tiny_workload
from tuner.cluster import Cluster
from tuner.importing.formats import imported_plan
from tuner.importing.imported import Imported
from tuner.presets import gpu_named
from tuner.workload import Workload

FIXTURES = Path(__file__).parent / "fixtures"
H100 = gpu_named("h100-sxm-80gb")
assert H100 is not None
NODE = Cluster(gpu=H100, gpus_per_node=8)
TWO_NODES = Cluster(gpu=H100, gpus_per_node=4, num_nodes=2)
WORKLOAD: Workload = dataclasses.replace(
    tiny_workload(
        num_hidden_layers=32,
        hidden_size=4096,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
        max_position_embeddings=8192,
    ),
    seq_len=8192,
    global_batch_sequences=128,
)


def imported(path: Path, *, arguments: Path | None = None, cluster: Cluster = NODE) -> Imported:
    """What a file comes to for this job."""
    return imported_plan(path, cluster=cluster, workload=WORKLOAD, arguments=arguments)


def fixture(name: str, arguments: str | None = None, cluster: Cluster = NODE) -> Imported:
    """What one of the fixtures comes to."""
    beside = None if arguments is None else FIXTURES / arguments
    return imported(FIXTURES / name, arguments=beside, cluster=cluster)
