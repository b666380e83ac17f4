"""Builds and steps one rank of a Megatron launch in a process of its own, with no peers.

The process group is torch's fake one: every rank of any world can be built on one CPU, and
collectives return without having moved anything. The losses mean nothing; what is refused does.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

from packaging.version import Version

from tuner.launch import LaunchSpec
from tuner.launch_files import write_launch_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The rank was built and stepped; this is the layout that it then had."""

    effective: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What was raised."""

    error: str


Answer = Accepted | Refused


class Probe:
    """The other end of the process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def ask(self, spec: LaunchSpec, *, rank: int, build: bool = True) -> Answer:
        """What Megatron makes of this rank; without ``build``, of its groups and configuration."""
        with tempfile.TemporaryDirectory() as folder:
            write_launch_files(spec, Path(folder) / "launch")
            self._connection.send((str(Path(folder) / "launch"), rank, build))
            kind, value = self._connection.recv()
        return Accepted(effective=value) if kind == "accepted" else Refused(error=value)


@contextmanager
def started_probe() -> Iterator[Probe]:
    """A fresh process: Megatron's stand-ins for CUDA would stay in ours."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Probe(ours)
    finally:
        process.kill()
        process.join()


def _serve(connection: Connection) -> None:
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # what is fused on GPUs would be compiled for minutes
    import torch

    torch.set_num_threads(1)
    _let_experts_exchange()
    while True:
        folder, rank, build = connection.recv()
        try:
            connection.send(("accepted", _effective(Path(folder), rank, build=build)))
        except Exception as error:  # whatever a framework refuses with
            connection.send(("refused", f"{type(error).__name__}: {error}"))


def _let_experts_exchange() -> None:
    """Their token counts, which size later buffers, must make sense: peers send as this rank does.

    The fake group would leave what is gathered as it was allocated.
    """
    import torch
    from megatron.core.tensor_parallel import mappings

    def gathered(output: torch.Tensor, own: torch.Tensor, group: Any = None, **_: Any) -> None:
        output.copy_(torch.cat([own] * group.size()).view_as(output))

    def exchanged(
        output: torch.Tensor, own: torch.Tensor, group: Any = None, **splits: Any
    ) -> None:
        for sizes, tensor in (("output_split_sizes", output), ("input_split_sizes", own)):
            if splits.get(sizes) is not None:
                assert (len(splits[sizes]), sum(splits[sizes])) == (group.size(), len(tensor))
        output.zero_()

    mappings.dist_all_gather_func = gathered
    torch.distributed.all_to_all_single = exchanged  # type: ignore[assignment]


def _effective(folder: Path, rank: int, *, build: bool) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from megatron.core import num_microbatches_calculator, parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from runners.bench.launch_folder import LaunchFolder
    from runners.bench.megatron_arguments import MegatronArguments
    from runners.bench.megatron_groups import start_megatron_groups
    from runners.bench.megatron_model import transformer_config
    from runners.bench.megatron_training import megatron_training
    from tuner.launch import MEGATRON_FILE

    launch, cpu = LaunchFolder.read(folder), torch.device("cpu")
    dist.init_process_group(
        "fake", rank=rank, world_size=launch.training.num_ranks, store=FakeStore()
    )
    try:
        start_megatron_groups(launch, cpu)
        if not build:
            # Its version, which the configuration of 8-bit experts asks for, is made up.
            with patch("megatron.core.utils.get_te_version", return_value=Version("2.8.0")):
                config = transformer_config(MegatronArguments.read(folder / MEGATRON_FILE))
            return {
                "tp": parallel_state.get_tensor_model_parallel_world_size(),
                "pp": parallel_state.get_pipeline_model_parallel_world_size(),
                "cp": parallel_state.get_context_parallel_world_size(),
                "ep": parallel_state.get_expert_model_parallel_world_size(),
                "vpp": config.virtual_pipeline_model_parallel_size or 1,
                "sequence_parallel": config.sequence_parallel,
                "num_microbatches": num_microbatches_calculator.get_num_microbatches(),
                "fp8": config.fp8,
            }
        training = megatron_training(launch, cpu)
        training.step(0)
        return training.effective()
    finally:
        parallel_state.destroy_model_parallel()
        num_microbatches_calculator.destroy_num_microbatches_calculator()
        dist.destroy_process_group()
