"""An accelerate YAML as a plan: FSDP 1 and 2, DeepSpeed, Megatron-LM, or plain data parallelism.

The file has no micro-batch, which the training script says: it comes from TrainingArguments
beside it, or follows from the job's batch where the file counts the accumulation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tuner.errors import UserError
from tuner.importing.accelerate_keys import KNOWN_KEYS
from tuner.importing.deepspeed_file import deepspeed_plan
from tuner.importing.imported import Findings, Imported, ImportTarget
from tuner.importing.settings import Settings, nearest_hint, sorted_out
from tuner.importing.text_files import json_values, read_text
from tuner.importing.trainer_arguments import argument, check_world_size
from tuner.plan import ParallelPlan

_STRATEGIES = {
    "FULL_SHARD": 3,
    "SHARD_GRAD_OP": 2,
    "NO_SHARD": 0,
    "HYBRID_SHARD": 3,
    "HYBRID_SHARD_ZERO2": 2,
}
_PRECISIONS = {"no": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}
_KINDS = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "MULTI_GPU", "MULTI_CPU", "NO", "TP")


def is_accelerate(values: Mapping[str, object]) -> bool:
    """Whether a YAML is accelerate's, by its keys."""
    return bool({"distributed_type", "compute_environment"} & set(values))


def accelerate_plan(settings: Settings, target: ImportTarget) -> Imported:
    """The plan of an accelerate file.

    Raises:
        UserError: a value cannot be one, the micro-batch is nowhere, or it is of another cluster.
    """
    _check_processes(settings, target)
    check_world_size(target)
    kind = settings.word("distributed_type", _KINDS, "NO")
    if kind == "DEEPSPEED" and settings.has("deepspeed_config.deepspeed_config_file"):
        return _deepspeed_beside(settings, target)
    backend = {"DEEPSPEED": "deepspeed", "MEGATRON_LM": "megatron"}.get(kind, "pytorch")
    findings = Findings.of(backend)
    findings.found("precision", _precision(settings, target), "mixed_precision")
    if kind == "DEEPSPEED":
        _read_deepspeed(settings, findings)
    elif kind == "MEGATRON_LM":
        _read_megatron(settings, findings)
    else:
        _read_parallelism(settings, findings)
        if kind == "FSDP":
            _read_fsdp(settings, target, findings)
    _read_recompute(settings, target, findings)
    degrees = {name: int(findings.knobs.get(name, 1)) for name in ("tp", "pp", "cp")}
    data_parallel = _data_parallel(settings, target, findings, degrees)
    _read_micro_batch(settings, target, findings, data_parallel)
    findings.without_lone_sharding(data_parallel)
    return _imported(settings, findings)


def _check_processes(settings: Settings, target: ImportTarget) -> None:
    gpus, nodes = target.cluster.num_gpus, target.cluster.num_nodes
    processes = settings.whole("num_processes", gpus)
    if processes != gpus:
        raise settings.error(
            "num_processes",
            f"must be the job's GPUs ({gpus}), got {processes}; change the job's cluster, or the "
            "file",
        )
    machines = settings.whole("num_machines", nodes)
    if machines != nodes:
        raise settings.error(
            "num_machines",
            f"must be the job's nodes ({nodes}), got {machines}; change the job's cluster, or the "
            "file",
        )


def _precision(settings: Settings, target: ImportTarget) -> str:
    """Of the file, or of the Trainer, which accelerate takes where the file says no."""
    said = settings.word("mixed_precision", ("no", "fp16", "bf16", "fp8", "False"), "no")
    if said in ("no", "False"):
        for name in ("bf16", "fp16"):
            if argument(target, name) is True:
                return name
    return _PRECISIONS.get(said, "fp32")


def _deepspeed_beside(settings: Settings, target: ImportTarget) -> Imported:
    key = "deepspeed_config.deepspeed_config_file"
    named = str(settings.take(key))
    path = settings.file.parent / named
    if not path.exists():
        path = Path(named)
    if not path.exists():
        raise settings.error(key, f"must be a file, here or beside this one, got {named}")
    text = read_text(path)
    values = json_values(text, path)
    # accelerate fills "auto" in from its own file, and the Trainer from its arguments over it.
    said = settings.word("mixed_precision", tuple(_PRECISIONS), "no")
    own = {"bf16": said == "bf16", "fp16": said == "fp16"} if said != "no" else {}
    target = replace(target, arguments={**own, **target.arguments})
    return deepspeed_plan(Settings(values, file=path, text=text), values, target)


def _read_deepspeed(settings: Settings, findings: Findings) -> None:
    key = "deepspeed_config.zero_stage"
    stage = settings.whole(key, 2, least=0)  # DeepSpeedPlugin's default
    if stage > 3:
        raise settings.error(key, f"must be 0, 1, 2 or 3, got {stage}")
    findings.found("zero_stage", stage, key)
    devices = {}
    for what in ("optimizer", "params"):
        name = f"deepspeed_config.offload_{what.removesuffix('s')}_device"
        devices[what] = settings.word(name, ("none", "cpu", "nvme"), "none")
        if devices[what] == "nvme":
            raise settings.error(name, "must be cpu or none to be measured here, got nvme")
    if devices["params"] == "cpu" and stage == 3:
        findings.found("offload", "params", "deepspeed_config.offload_param_device")
    elif devices["optimizer"] == "cpu":
        findings.found("offload", "optimizer", "deepspeed_config.offload_optimizer_device")


def _read_megatron(settings: Settings, findings: Findings) -> None:
    prefix = "megatron_lm_config.megatron_lm_"
    for knob, name in (
        ("tp", "tp_degree"),
        ("pp", "pp_degree"),
        ("cp", "context_parallel_size"),
        ("ep", "expert_model_parallel_size"),
    ):
        if (degree := settings.whole(prefix + name, 1)) > 1:
            findings.found(knob, degree, prefix + name)
    if settings.flag(prefix + "sequence_parallelism") and int(findings.knobs.get("tp", 1)) > 1:
        findings.found("sequence_parallel", True, prefix + "sequence_parallelism")
    if settings.flag(prefix + "use_distributed_optimizer"):
        findings.found("zero_stage", 1, prefix + "use_distributed_optimizer")
    if settings.flag(prefix + "optimizer_cpu_offload"):
        findings.found("offload", "optimizer", prefix + "optimizer_cpu_offload")
    granularity = settings.word(
        prefix + "recompute_granularity", ("full", "selective", "none"), "none"
    )
    if granularity != "none":
        findings.found("recompute", granularity, prefix + "recompute_granularity")
    elif settings.flag(prefix + "recompute_activations"):
        findings.found("recompute", "selective", prefix + "recompute_activations")


def _read_parallelism(settings: Settings, findings: Findings) -> None:
    prefix = "parallelism_config.parallelism_config_"
    for knob, name in (("tp", "tp_size"), ("cp", "cp_size"), ("cp", "sp_size")):
        if (degree := settings.whole(prefix + name, 1)) > 1:
            findings.found(knob, degree, prefix + name)


def _read_fsdp(settings: Settings, target: ImportTarget, findings: Findings) -> None:
    version = settings.whole("fsdp_config.fsdp_version", 1)
    if version == 1:
        _read_fsdp1(settings, target, findings)
    else:
        key = "fsdp_config.fsdp_reshard_after_forward"
        said = str(settings.take(key) if settings.has(key) else True)
        reshards = said.lower() in ("true", "full_shard")
        findings.found("zero_stage", 3 if reshards else 2, key)
    replicas = settings.whole("parallelism_config.parallelism_config_dp_replicate_size", 1)
    settings.take("parallelism_config.parallelism_config_dp_shard_size")
    if replicas > 1:
        key = "parallelism_config.parallelism_config_dp_replicate_size"
        findings.found("dp_replicate", replicas, key)
    if settings.flag("fsdp_config.fsdp_offload_params"):
        findings.found("offload", "params", "fsdp_config.fsdp_offload_params")
    if settings.flag("fsdp_config.fsdp_activation_checkpointing"):
        findings.found("recompute", "full", "fsdp_config.fsdp_activation_checkpointing")


def _read_fsdp1(settings: Settings, target: ImportTarget, findings: Findings) -> None:
    key = "fsdp_config.fsdp_sharding_strategy"
    said = settings.take(key)
    names = list(_STRATEGIES)
    numbered = str(said).isdecimal() and 1 <= int(str(said)) <= len(names)
    name = names[int(str(said)) - 1] if numbered else str(said or "FULL_SHARD")
    older = settings.take("fsdp_config.fsdp_reshard_after_forward")
    if said is None and isinstance(older, str) and older.upper() in _STRATEGIES:
        name, key = older.upper(), "fsdp_config.fsdp_reshard_after_forward"
    if name not in _STRATEGIES:
        raise settings.error(key, f"must be one of {', '.join(names)}, got {said!r}")
    findings.found("zero_stage", _STRATEGIES[name], key)
    if name.startswith("HYBRID") and target.cluster.num_nodes > 1:
        # FSDP 1 shards inside a node and replicates over the nodes.
        findings.found("dp_replicate", target.cluster.num_nodes, key)
    findings.notes.append(
        "it is FSDP 1, which PyTorch is leaving behind; measured is FSDP 2 with the same sharding"
    )


def _read_recompute(settings: Settings, target: ImportTarget, findings: Findings) -> None:
    if argument(target, "gradient_checkpointing") and "recompute" not in findings.knobs:
        findings.found("recompute", "full", "gradient_checkpointing")


def _data_parallel(
    settings: Settings, target: ImportTarget, findings: Findings, degrees: Mapping[str, int]
) -> int:
    product = degrees["tp"] * degrees["pp"] * degrees["cp"]
    if target.cluster.num_gpus % product:
        key = next(findings.keys[name] for name in degrees if name in findings.keys)
        raise settings.error(
            key,
            "times the other degrees must divide the job's GPUs "
            f"({target.cluster.num_gpus}), got {product}",
        )
    data_parallel = target.data_parallel(**degrees)
    key = "parallelism_config.parallelism_config_dp_shard_size"
    replicas = int(findings.knobs.get("dp_replicate", 1))
    shards = settings.whole(key, data_parallel // replicas)
    if settings.has(key) and shards * replicas != data_parallel:
        raise settings.error(
            key,
            f"times dp_replicate_size must be the data-parallel ranks ({data_parallel}), got "
            f"{shards} * {replicas}",
        )
    return data_parallel


def _read_micro_batch(
    settings: Settings, target: ImportTarget, findings: Findings, data_parallel: int
) -> None:
    name = "per_device_train_batch_size"
    if (given := argument(target, name)) is not None:
        findings.found("micro_batch", int(given), name)
        return
    counted = (
        "megatron_lm_config.megatron_lm_num_micro_batches",
        "deepspeed_config.gradient_accumulation_steps",
        "gradient_accumulation_steps",
    )
    key = next((key for key in counted if settings.has(key)), None)
    batch = target.workload.global_batch_sequences
    if key is None or settings.take(key) == "auto":
        raise UserError(
            f"{settings.file}: the micro-batch must be given, and an accelerate file has none; "
            "give the script's per_device_train_batch_size in --baseline-arguments FILE"
        )
    steps = settings.whole(key, 1)
    if batch % (steps * data_parallel):
        raise settings.error(
            key,
            f"times the data-parallel ranks ({steps} * {data_parallel}) must divide the job's "
            f"global batch ({batch}) to tell the micro-batch; give per_device_train_batch_size "
            "in --baseline-arguments FILE",
        )
    micro = batch // (steps * data_parallel)
    findings.found("micro_batch", micro, key)
    findings.notes.append(
        f"micro-batch {micro} follows from the job's global batch {batch}, {data_parallel} "
        f"data-parallel ranks and {key} {steps}"
    )


def _imported(settings: Settings, findings: Findings) -> Imported:
    unknown, ignored, pinned = sorted_out(settings.left(), KNOWN_KEYS)
    if unknown:
        hints = [key + nearest_hint(key, KNOWN_KEYS) for key in unknown]
        findings.notes.append(f"accelerate does not know {', '.join(hints)}")
    try:
        plan = ParallelPlan.from_dict(findings.knobs)
    except ValueError as error:
        raise UserError(f"{settings.file}: {error} ({json.dumps(findings.keys)})") from error
    return Imported(
        plan=plan,
        file=settings.file,
        format="accelerate",
        key_of_knob=findings.keys,
        unknown_keys=unknown,
        ignored_keys=ignored,
        pinned=pinned,
        notes=tuple(findings.notes),
    )
