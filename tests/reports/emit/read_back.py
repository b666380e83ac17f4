"""Emitted files as the frameworks themselves load them, and the plan that they then stand for."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from reports.emit.accelerate import ACCELERATE_FILE
from reports.emit.formats import Format
from reports.emit.megatron_bridge import OVERRIDES_FILE
from reports.emit.torchtitan import TITAN_MODULE
from reports.emit.training_arguments import TRAINING_ARGUMENTS_FILE
from tuner.framework_settings.pytorch_settings import EXPANDABLE_SEGMENTS
from tuner.launch import DEEPSPEED_FILE, MEGATRON_FILE, PYTORCH_FILE, TRAINING_FILE, LaunchFile
from tuner.plan import ParallelPlan

Knobs = dict[str, Any]
Values = dict[str, bool | int]
_SETTINGS = "settings"
"""Among the knobs that a reader gives: the framework settings that it found."""


def read_back(
    form: Format, files: tuple[LaunchFile, ...], num_gpus: int, folder: Path
) -> tuple[ParallelPlan, Values]:
    """The plan and the framework settings that the files stand for, by the framework's own loader.

    Args:
        form: what they were emitted as.
        files: all of them.
        num_gpus: ranks that they are started on.
        folder: where they may be written to.
    """
    for old in folder.iterdir():
        if old.is_file():
            old.unlink()
    for file in files:
        (folder / file.name).write_bytes(file.text.encode())
    with mock.patch.dict(os.environ, DS_ACCELERATOR="cpu"), contextlib.chdir(folder):
        knobs = _READERS[form](num_gpus)
    settings: Values = knobs.pop(_SETTINGS, {})
    settings["expandable_segments"] = any(EXPANDABLE_SEGMENTS in file.text for file in files)
    return ParallelPlan.from_dict(knobs), settings


def _deepspeed(num_gpus: int) -> Knobs:
    config = json.loads(Path(DEEPSPEED_FILE).read_text())
    recompute = json.loads(Path(TRAINING_FILE).read_text())["recompute"]
    if config.get("pipeline", {}).get("activation_checkpoint_interval"):
        recompute = "full"
    return _deepspeed_knobs(config, num_gpus) | {"recompute": recompute}


def _deepspeed_knobs(config: dict[str, Any], num_gpus: int) -> Knobs:
    from deepspeed.runtime.config import DeepSpeedConfig

    tp = config.get("tensor_parallel", {}).get("autotp_size", 1)
    pp = config.get("pipeline", {}).get("stages", 1)
    dp = num_gpus // (tp * pp)
    with _world(num_gpus):
        read = DeepSpeedConfig(config, None if dp == num_gpus else _DataParallel(dp))
    assert read.train_batch_size == 64
    zero, shards = read.zero_config, read.zero_config.zero_hpz_partition_size
    halves = {"fp16": read.float16_config.enabled, "bf16": read.bfloat16_config.enabled}
    offload = "optimizer" if zero.offload_optimizer else "none"
    return {
        "backend": "deepspeed",
        "zero_stage": int(zero.stage),
        "dp_replicate": 1 if shards == 1 else dp // shards,
        "micro_batch": read.train_micro_batch_size_per_gpu,
        "tp": max(1, read.tensor_parallel_config.autotp_size) if tp > 1 else 1,
        "pp": read.pipeline["stages"] if pp > 1 else 1,
        "precision": next((name for name, on in halves.items() if on), "fp32"),
        "offload": "params" if zero.offload_param else offload,
        _SETTINGS: {
            "reduce_bucket_size": zero.reduce_bucket_size,
            "allgather_bucket_size": zero.allgather_bucket_size,
            "overlap_comm": zero.overlap_comm,
            "contiguous_gradients": zero.contiguous_gradients,
            "round_robin_gradients": zero.round_robin_gradients,
            "stage3_prefetch_bucket_size": zero.prefetch_bucket_size,
            "stage3_param_persistence_threshold": zero.param_persistence_threshold,
        },
    }


class _DataParallel:
    """What AutoTP's groups and a pipeline's grid tell DeepSpeedConfig."""

    def __init__(self, degree: int) -> None:
        self._degree = degree

    def get_data_parallel_world_size(self) -> int:
        return self._degree


@contextmanager
def _world(num_ranks: int) -> Iterator[None]:
    """Rank 0 of so many, whose collectives return at once."""
    import deepspeed
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    dist.init_process_group("fake", rank=0, world_size=num_ranks, store=FakeStore())
    try:
        if deepspeed.comm.comm.cdb is None:
            deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
        yield
    finally:
        dist.destroy_process_group()


def trainer_arguments() -> Any:
    """``training_arguments.json`` as the Trainer takes it; ranks of a test are on CPUs."""
    from transformers import TrainingArguments

    given = json.loads(Path(TRAINING_ARGUMENTS_FILE).read_text()) | {"use_cpu": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TrainingArguments(**given)


def _hf_deepspeed(num_gpus: int) -> Knobs:
    arguments = trainer_arguments()
    filled = arguments.hf_deepspeed_config.config
    assert '"auto"' not in json.dumps(filled)
    recompute = "full" if arguments.gradient_checkpointing else "none"
    # The Trainer silences DeepSpeed's printing with an infinity that its config does not take.
    filled["steps_per_print"] = 1_000_000_000
    return _deepspeed_knobs(filled, num_gpus) | {"recompute": recompute}


@functools.cache
def _launch_parser() -> Any:
    from accelerate.commands.launch import launch_command_parser

    return launch_command_parser()


def _accelerate(num_gpus: int) -> Knobs:
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    config = load_config_from_file(ACCELERATE_FILE)
    assert config.num_processes == num_gpus
    words = ["--config_file", ACCELERATE_FILE, "--main_process_port", "0"]
    words += ["--main_process_ip", "localhost", "train.py"]
    with mock.patch.dict(os.environ):
        launch, _, mixed = _validate_launch_command(_launch_parser().parse_args(words))
        launch.main_process_port = 0
        # ``accelerate launch`` leaves DeepSpeed and FSDP out where it is told to use the CPU.
        assert not (launch.cpu and (launch.use_deepspeed or launch.use_fsdp))
        if launch.use_deepspeed:
            given = [*config.deepspeed_config, *(["mixed_precision"] if mixed else [])]
            launch.deepspeed_fields_from_accelerate_config = ",".join(given)
            _, environment = prepare_deepspeed_cmd_env(launch)
        else:
            environment = prepare_multi_gpu_env(launch)
    with mock.patch.dict(os.environ, environment, clear=True):
        arguments = json.loads(Path(TRAINING_ARGUMENTS_FILE).read_text())
        micro_batch = arguments["per_device_train_batch_size"]
        precision = environment["ACCELERATE_MIXED_PRECISION"].replace("no", "fp32")
        common = {"micro_batch": micro_batch, "precision": precision}
        if launch.use_deepspeed:
            return _accelerate_deepspeed(num_gpus, arguments)
        if launch.use_megatron_lm:
            return common | _accelerate_megatron()
        return common | _accelerate_pytorch(num_gpus, arguments, fsdp=launch.use_fsdp)


def _accelerate_deepspeed(num_gpus: int, arguments: Mapping[str, Any]) -> Knobs:
    from accelerate.utils import DeepSpeedPlugin

    config = DeepSpeedPlugin().deepspeed_config
    config["steps_per_print"] = 1_000_000_000
    recompute = "full" if arguments["gradient_checkpointing"] else "none"
    return _deepspeed_knobs(config, num_gpus) | {"recompute": recompute}


def _accelerate_megatron() -> Knobs:
    from accelerate.utils import MegatronLMPlugin

    given = MegatronLMPlugin().megatron_lm_default_args
    assert given["recompute_method"] == "uniform"
    assert given["clip_grad"] == 0.0
    return {
        "backend": "megatron",
        "zero_stage": int(given["use_distributed_optimizer"]),
        "tp": given["tensor_model_parallel_size"],
        "pp": given["pipeline_model_parallel_size"],
        "cp": given["context_parallel_size"],
        "ep": given["expert_model_parallel_size"],
        "sequence_parallel": given["sequence_parallel"],
        "recompute": given["recompute_granularity"],
        "offload": "optimizer" if given["optimizer_cpu_offload"] else "none",
    }


def _accelerate_pytorch(num_gpus: int, arguments: Mapping[str, Any], *, fsdp: bool) -> Knobs:
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin

    knobs: Knobs = {"backend": "pytorch"}
    if not fsdp:
        recompute = "full" if arguments["gradient_checkpointing"] else "none"
        names = ("ddp_bucket_cap_mb", "ddp_static_graph")
        settings = {name: arguments[name] for name in names if name in arguments}
        # Of DistributedDataParallel itself, which accelerate leaves alone.
        settings["ddp_gradient_as_bucket_view"] = False
        return knobs | {"zero_stage": 0, "recompute": recompute, _SETTINGS: settings}
    plugin, degrees = FullyShardedDataParallelPlugin(), ParallelismConfig()
    assert plugin.fsdp_version == 2
    assert degrees.total_size == num_gpus
    assert not arguments["gradient_checkpointing"]
    return knobs | {
        "zero_stage": 3 if plugin.reshard_after_forward else 2,
        "dp_replicate": degrees.dp_replicate_size,
        "tp": degrees.tp_size,
        "cp": degrees.cp_size,
        "recompute": "full" if plugin.activation_checkpointing else "none",
        "offload": "params" if type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy" else "none",
    }


def _megatron(num_gpus: int) -> Knobs:
    from runners.bench.megatron_arguments import MegatronArguments

    read = MegatronArguments.read(Path(MEGATRON_FILE))
    halves = {"fp8": read.fp8, "fp16": read.fp16, "bf16": read.bf16}
    return {
        "backend": "megatron",
        "zero_stage": int(read.use_distributed_optimizer),
        "dp_replicate": read.num_distributed_optimizer_instances,
        "micro_batch": read.micro_batch_size,
        "tp": read.tensor_model_parallel_size,
        "pp": read.pipeline_model_parallel_size,
        "vpp": read.num_virtual_stages_per_pipeline_rank,
        "cp": read.context_parallel_size,
        "ep": read.expert_model_parallel_size,
        "sequence_parallel": read.sequence_parallel,
        "precision": next((name for name, on in halves.items() if on), "fp32"),
        "recompute": read.recompute_granularity or "none",
        "offload": "optimizer" if read.optimizer_cpu_offload else "none",
        _SETTINGS: {
            "overlap_grad_reduce": read.overlap_grad_reduce,
            "overlap_param_gather": read.overlap_param_gather,
            "align_param_gather": read.align_param_gather,
            "ddp_bucket_size": read.ddp_bucket_size,
            "ddp_average_in_collective": read.ddp_average_in_collective,
            "microbatch_group_size": read.microbatch_group_size_per_vp_stage,
        },
    }


@functools.cache
def bridge_fields() -> Mapping[str, frozenset[str]]:
    """What Bridge's sections take: Megatron-Core's own classes, and what its provider adds."""
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import TransformerConfig

    provider = {"seq_length", "make_vocab_size_divisible_by"}
    return {
        "model": frozenset(field.name for field in fields(TransformerConfig)) | provider,
        "optimizer": frozenset(field.name for field in fields(OptimizerConfig)),
        "ddp": frozenset(field.name for field in fields(DistributedDataParallelConfig)),
        "train": frozenset({"micro_batch_size", "global_batch_size"}),
        "scheduler": frozenset({"lr_decay_style"}),
        "dist": frozenset({"distributed_backend"}),
    }


def _megatron_bridge(num_gpus: int) -> Knobs:
    given: dict[str, Any] = {}
    for line in Path(OVERRIDES_FILE).read_text().splitlines():
        if not line.startswith("#"):
            key, _, value = line.partition("=")
            section, _, name = key.partition(".")
            assert key == "mixed_precision" or name in bridge_fields()[section], key
            given[key] = yaml.safe_load(value)
    recipes = {None: "fp32", "fp16_mixed": "fp16", "bf16_mixed": "bf16"}
    zero_stage = given["ddp.use_distributed_optimizer"]
    assert zero_stage == given["optimizer.use_distributed_optimizer"]
    return {
        "backend": "megatron",
        "zero_stage": int(zero_stage),
        "dp_replicate": given.get("ddp.num_distributed_optimizer_instances", 1),
        "micro_batch": given["train.micro_batch_size"],
        "tp": given["model.tensor_model_parallel_size"],
        "pp": given["model.pipeline_model_parallel_size"],
        "vpp": given.get("model.virtual_pipeline_model_parallel_size", 1),
        "cp": given.get("model.context_parallel_size", 1),
        "ep": given.get("model.expert_model_parallel_size", 1),
        "sequence_parallel": given["model.sequence_parallel"],
        "precision": recipes[given["mixed_precision"]],
        "recompute": given.get("model.recompute_granularity", "none"),
        "offload": "optimizer" if given.get("optimizer.optimizer_cpu_offload") else "none",
        _SETTINGS: {
            "overlap_grad_reduce": given["ddp.overlap_grad_reduce"],
            "overlap_param_gather": given["ddp.overlap_param_gather"],
            "align_param_gather": given.get("ddp.align_param_gather", True),
            "ddp_bucket_size": given.get("ddp.bucket_size"),
            "ddp_average_in_collective": given.get("ddp.average_in_collective", False),
            "microbatch_group_size": given.get("model.microbatch_group_size_per_vp_stage"),
        },
    }


def titan_config(folder: Path) -> Any:
    """What the emitted module makes of a base configuration: torchtitan's own classes."""
    # Here, or they would be imported anew each time: sys.modules is put back below.
    import torchtitan.components.optimizer
    import torchtitan.distributed.activation_checkpoint  # noqa: F401
    from torchtitan.config import CompileConfig, TrainingConfig

    base = types.ModuleType("a_torchtitan_base")
    made = types.SimpleNamespace(training=TrainingConfig(steps=12), compile=CompileConfig())
    base.debug = lambda: made  # type: ignore[attr-defined]
    at = importlib.util.spec_from_file_location(TITAN_MODULE, folder / f"{TITAN_MODULE}.py")
    assert at is not None
    assert at.loader is not None
    module = importlib.util.module_from_spec(at)
    environment = mock.patch.dict(os.environ, TORCHTITAN_BASE="a_torchtitan_base:debug")
    with environment, mock.patch.dict(sys.modules, a_torchtitan_base=base):
        at.loader.exec_module(module)
        return module.plan()


def _torchtitan(num_gpus: int) -> Knobs:
    config = titan_config(Path.cwd())
    degrees, training = config.parallelism, config.training
    product = degrees.data_parallel_replicate_degree * degrees.data_parallel_shard_degree
    product *= degrees.tensor_parallel_degree * degrees.pipeline_parallel_degree
    assert product * degrees.context_parallel_degree == num_gpus
    sharded = degrees.data_parallel_shard_degree > 1
    pp, layers = degrees.pipeline_parallel_degree, degrees.pipeline_parallel_layers_per_stage
    micro_batch = degrees.pipeline_parallel_microbatch_size
    reshards = degrees.fsdp_reshard_after_forward == "always"
    precisions = {"float32": "fp32", "bfloat16": "bf16"}
    return {
        "backend": "pytorch",
        "zero_stage": 3 if reshards else 2 if sharded or training.enable_cpu_offload else 0,
        "dp_replicate": degrees.data_parallel_replicate_degree if sharded else 1,
        "micro_batch": micro_batch if pp > 1 else training.local_batch_size,
        "tp": degrees.tensor_parallel_degree,
        "pp": pp,
        "vpp": 32 // (pp * layers) if pp > 1 else 1,
        "cp": degrees.context_parallel_degree,
        "ep": degrees.expert_parallel_degree,
        "sequence_parallel": degrees.enable_sequence_parallel,
        "precision": precisions[training.mixed_precision_param],
        "recompute": "full" if config.activation_checkpoint else "none",
        "offload": "params" if training.enable_cpu_offload else "none",
    }


def _pytorch(num_gpus: int) -> Knobs:
    from runners.bench.pytorch_file import PytorchFile

    read = PytorchFile.read(Path(PYTORCH_FILE))
    read.check(num_gpus)
    degrees, zero_stage = read.parallelism, read.paratune.zero_stage
    replicas = degrees.data_parallel_replicate_degree
    names = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
    return {
        "backend": "pytorch",
        "zero_stage": zero_stage,
        "dp_replicate": replicas if zero_stage >= 2 else 1,
        "micro_batch": read.micro_batch,
        "tp": degrees.tensor_parallel_degree,
        "pp": degrees.pipeline_parallel_degree,
        "vpp": read.paratune.pipeline_parallel_stages_per_rank,
        "cp": degrees.context_parallel_degree,
        "ep": degrees.expert_parallel_degree,
        "sequence_parallel": degrees.enable_sequence_parallel,
        "precision": names[read.training.mixed_precision_param],
        "recompute": str(read.activation_checkpoint.mode),
        "offload": "params" if read.training.enable_cpu_offload else "none",
        _SETTINGS: {
            name: value
            for name, value in read.paratune.model_dump().items()
            if name.startswith(("ddp_", "fsdp_"))
        },
    }


def _own_files(num_gpus: int) -> Knobs:
    own = {DEEPSPEED_FILE: _deepspeed, MEGATRON_FILE: _megatron, PYTORCH_FILE: _pytorch}
    (read,) = (reader for name, reader in own.items() if Path(name).exists())
    return read(num_gpus)


_READERS: Mapping[Format, Callable[[int], Knobs]] = {
    Format.DEEPSPEED: _deepspeed,
    Format.HF_DEEPSPEED: _hf_deepspeed,
    Format.ACCELERATE: _accelerate,
    Format.MEGATRON: _megatron,
    Format.MEGATRON_BRIDGE: _megatron_bridge,
    Format.TORCHTITAN: _torchtitan,
    Format.TORCHRUN: _own_files,
    Format.SLURM: _own_files,
}
