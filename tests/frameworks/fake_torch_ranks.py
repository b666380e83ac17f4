"""One rank of many in this process alone: torch's fake process group sends nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from runners.backends.pytorch_native import pytorch_launch
from runners.bench.launch_folder import LaunchFolder
from runners.bench.pytorch_training import PytorchTraining, pytorch_layout, pytorch_training
from tests.tiny_job import tiny_workload
from tuner.cluster import Cluster
from tuner.launch import Measurement
from tuner.launch_files import write_launch_files
from tuner.model_shape import ParamCounts
from tuner.plan import ParallelPlan
from tuner.workload import HfModel, Workload

_SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 61,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""A vocabulary that no degree divides; sizes that many do."""


def small_workload(family: str, *, batch: int = 32, **config: Any) -> Workload:
    """A workload of a small model of any Hugging Face family; ``config`` is its own."""
    values = {**_SMALL, "architectures": None, "model_type": family, **config}
    values.setdefault("num_hidden_layers", 4)
    tiny = tiny_workload(**values)
    assert isinstance(tiny.model, HfModel)
    shape = dataclasses.replace(
        tiny.model.shape,
        sliding_window=values.get("sliding_window") or 0,
        params=ParamCounts(embedding=0, head=0, layers=(), other=1),
    )
    model = dataclasses.replace(tiny.model, shape=shape, config_text=json.dumps(values))
    return dataclasses.replace(tiny, model=model, seq_len=16, global_batch_sequences=batch)


@contextmanager
def fake_ranks(num_ranks: int, rank: int = 0) -> Iterator[None]:
    """This process as a rank of a group whose other ranks are not there."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=rank, world_size=num_ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
        # Equal meshes of two groups would share cached plans, which name the first one's groups.
        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]  # torch's


def launch_folder(
    plan: ParallelPlan, workload: Workload, cluster: Cluster, path: Path
) -> LaunchFolder:
    """The files of a launch, written and read again."""
    write_launch_files(pytorch_launch(plan, workload, cluster, Measurement()), path)
    return LaunchFolder.read(path)


def built(launch: LaunchFolder) -> PytorchTraining:
    """The training of these files on this rank, as the bench builds it."""
    training = pytorch_training(launch, pytorch_layout(launch, torch.device("cpu")))
    for model in training._models:
        if isinstance(model, DistributedDataParallel):
            # DDP wants its all-reduce's result, which the fake group does not give.
            model.register_comm_hook(None, lambda state, bucket: _as_it_is(bucket))
    return training


def _as_it_is(bucket: Any) -> torch.futures.Future[torch.Tensor]:
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done
