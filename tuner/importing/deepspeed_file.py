"""A DeepSpeed JSON as a plan: plain, or with "auto" and TrainingArguments beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.framework_settings.deepspeed_settings import DEEPSPEED_SETTINGS
from tuner.framework_settings.pytorch_settings import ALLOCATOR_VARIABLE
from tuner.importing.batch import BatchTriple, batch_notes, micro_batch_of
from tuner.importing.deepspeed_keys import BLOCK_KEYS, KNOWN_KEYS, REMOVED_KEYS, TOP_LEVEL_KEYS
from tuner.importing.framework_settings import (
    carried_settings,
    is_own_launch,
    says_expandable_segments,
)
from tuner.importing.imported import Findings, IgnoredKey, Imported, ImportTarget
from tuner.importing.settings import Settings, nearest_hint, sorted_out
from tuner.importing.trainer_arguments import argument, check_world_size
from tuner.launch import TRAINING_FILE
from tuner.plan import ParallelPlan

_MICRO = "train_micro_batch_size_per_gpu"
_FROM_ARGUMENTS = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "bf16.enabled": "bf16",
    "fp16.enabled": "fp16",
}
"""What the Trainer puts in the place of "auto"."""
_NEVER_AUTO = (
    "zero_optimization.stage",
    "zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_param.device",
)
_TRAINER_SIZES: Mapping[str, Callable[[int], int]] = {
    "reduce_bucket_size": lambda hidden: hidden * hidden,
    "stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
"""What the Trainer makes of "auto" there, by the model's hidden size."""
_STAGE_3_ONLY = "zero_optimization.stage3_"


def is_deepspeed(values: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a DeepSpeed configuration, by its keys."""
    telling = TOP_LEVEL_KEYS - {"optimizer", "scheduler", "compile", "checkpoint", "timers"}
    return bool(telling & set(values))


def deepspeed_plan(settings: Settings, values: Mapping[str, Any], target: ImportTarget) -> Imported:
    """The plan of a DeepSpeed configuration.

    Raises:
        UserError: DeepSpeed would refuse it, or it is of another cluster.
    """
    _refuse_what_deepspeed_refuses(settings, values)
    check_world_size(target)
    resolved = _Resolved(settings, target)
    findings = Findings.of("deepspeed")
    _read_zero(settings, findings)
    _read_degrees(settings, findings)
    _read_precision(settings, resolved, findings)
    _read_recompute(settings, target, findings)
    data_parallel = _data_parallel(settings, target, findings)
    said = _read_batch(settings, resolved, findings, data_parallel, target.cluster.num_gpus)
    _read_replicas(settings, findings, data_parallel)
    findings.notes += batch_notes(target, said, of="its global batch")
    findings.without_lone_sharding(data_parallel)
    _read_settings(settings, target, findings)
    return _imported(settings, findings, target)


def auto_notes(settings: Settings, target: ImportTarget) -> tuple[str, ...]:
    """What is still "auto" once a file that DeepSpeed itself must read has been read."""
    left = [key for key, value in settings.left() if value == "auto"]
    if not left or target.arguments_file is not None:
        return ()
    places = ", ".join(f"{key} (line {settings.line(key)})" for key in left)
    return (
        '"auto" without a Trainer is refused by DeepSpeed, or dropped for its default (rule '
        f"DS-06): {places}",
    )


def _refuse_what_deepspeed_refuses(settings: Settings, values: Mapping[str, Any]) -> None:
    for key in REMOVED_KEYS:
        if settings.stands(key):
            raise settings.error(
                key, "was removed from DeepSpeed, which refuses it (rule DS-08); remove it"
            )
    for block, known in BLOCK_KEYS.items():
        inside = settings.take(block)
        if inside is None:
            continue
        if not isinstance(inside, Mapping):
            raise settings.error(block, f"must be a block with keys, got {inside!r}")
        for name in inside:
            if name not in known:
                raise settings.error(
                    f"{block}.{name}",
                    f"is not a key: DeepSpeed refuses unknown keys in {block} "
                    f"(rule DS-09){nearest_hint(name, known)}",
                )
    for key in _NEVER_AUTO:
        if settings.take(key) == "auto":
            raise settings.error(
                key,
                'must be said, got "auto", which neither DeepSpeed nor the Trainer fills in '
                "(rule DS-06)",
            )
    settings.forget()


class _Resolved:
    """Values with "auto" replaced as the Trainer does, and held to its arguments."""

    def __init__(self, settings: Settings, target: ImportTarget) -> None:
        self._settings = settings
        self._target = target

    def value(self, key: str) -> Any:
        value = self._settings.take(key)
        name = _FROM_ARGUMENTS[key]
        if value == "auto":
            if (filled := argument(self._target, name)) is None:
                raise self._without_trainer(key, name)
            return filled
        given = (self._target.arguments or {}).get(name)
        if value is not None and given is not None and value != given:
            raise self._settings.error(
                key,
                f"must equal {name} of {self._target.arguments_file} ({given}), got {value}: the "
                "Trainer refuses files that differ",
            )
        return value

    def filled(self, key: str, argument_key: str) -> int:
        """What the Trainer puts in the place of "auto", by what it does for another key."""
        if (value := argument(self._target, _FROM_ARGUMENTS[argument_key])) is None:
            raise self._without_trainer(key, _FROM_ARGUMENTS[argument_key])
        return int(value)

    def _without_trainer(self, key: str, name: str) -> UserError:
        return self._settings.error(
            key,
            f'is "auto", which the Trainer fills in from {name}; give its '
            "TrainingArguments with --baseline-arguments FILE, or a number here",
        )

    def whole(self, key: str) -> int | None:
        value = self.value(key)
        if self._settings.take(key) != "auto":
            return None if value is None else self._settings.whole(key, 1)
        return int(value)

    def flag(self, key: str) -> bool:
        value = self.value(key)
        return bool(value) if self._settings.take(key) == "auto" else self._settings.flag(key)


def _read_zero(settings: Settings, findings: Findings) -> None:
    stage = settings.whole("zero_optimization.stage", 0, least=0)
    if stage > 3:
        raise settings.error("zero_optimization.stage", f"must be 0, 1, 2 or 3, got {stage}")
    findings.found("zero_stage", stage, "zero_optimization.stage")
    optimizer = _device(settings, "offload_optimizer") or settings.flag(
        "zero_optimization.cpu_offload"
    )
    params = _device(settings, "offload_param") or settings.flag(
        "zero_optimization.cpu_offload_param"
    )
    if params and stage == 3:
        findings.found("offload", "params", "zero_optimization.offload_param.device")
        if not optimizer:
            findings.notes.append(
                "only parameters are offloaded in the file; offload params here takes the "
                "optimizer's states with them"
            )
    elif optimizer:
        findings.found("offload", "optimizer", "zero_optimization.offload_optimizer.device")


def _device(settings: Settings, block: str) -> bool:
    key = f"zero_optimization.{block}.device"
    device = settings.word(key, ("none", "cpu", "nvme"), "none")
    if device == "nvme":
        raise settings.error(key, "must be cpu or none to be measured here, got nvme")
    return device == "cpu"


def _read_degrees(settings: Settings, findings: Findings) -> None:
    for knob, key in (
        ("tp", "tensor_parallel.autotp_size"),
        ("tp", "tensor_parallel.tp_size"),
        ("tp", "tensor_parallel.tp.tp_size"),
        ("pp", "pipeline.stages"),
        ("cp", "sequence_parallel_size"),
    ):
        if settings.has(key) and (degree := settings.whole(key, 1, least=0)) > 1:
            findings.found(knob, degree, key)


def _read_precision(settings: Settings, resolved: _Resolved, findings: Findings) -> None:
    bf16 = resolved.flag("bf16.enabled") or settings.flag("bfloat16.enabled")
    fp16 = resolved.flag("fp16.enabled")
    if bf16 and fp16:
        raise settings.error(
            "fp16.enabled",
            "and bf16.enabled must not both be true (rule DS-10), got both; set one to false",
        )
    key = "bf16.enabled" if bf16 else "fp16.enabled" if fp16 else "bf16.enabled (absent)"
    precision = "bf16" if bf16 else "fp16" if fp16 else "fp32"
    if precision == "fp32" and settings.flag("torch_autocast.enabled"):
        dtype = str(settings.take("torch_autocast.dtype") or "bfloat16")
        precision, key = ("bf16" if "bf" in dtype else "fp16"), "torch_autocast.dtype"
        findings.notes.append(
            f"torch_autocast keeps fp32 parameters; measured is {precision} with its own master "
            "weights"
        )
    findings.found("precision", precision, key)


def _read_recompute(settings: Settings, target: ImportTarget, findings: Findings) -> None:
    if settings.whole("pipeline.activation_checkpoint_interval", 0, least=0):
        findings.found("recompute", "full", "pipeline.activation_checkpoint_interval")
    elif (beside := _recompute_beside(settings.file)) is not None:
        findings.found("recompute", beside, f"recompute of {TRAINING_FILE}")
    elif argument(target, "gradient_checkpointing"):
        findings.found("recompute", "full", "gradient_checkpointing")


def _recompute_beside(file: Path) -> str | None:
    """Of a file that a study wrote: DeepSpeed's own has no word for it."""
    if not is_own_launch(file):
        return None
    return str(json.loads(file.with_name(TRAINING_FILE).read_text()).get("recompute", "none"))


def _data_parallel(settings: Settings, target: ImportTarget, findings: Findings) -> int:
    degrees = {name: int(findings.knobs.get(name, 1)) for name in ("tp", "pp", "cp")}
    data_parallel = target.data_parallel(**degrees)
    product = degrees["tp"] * degrees["pp"] * degrees["cp"]
    if target.cluster.num_gpus % product:
        key = next(findings.keys[name] for name in degrees if degrees[name] > 1)
        raise settings.error(
            key,
            f"must divide the job's GPUs ({target.cluster.num_gpus}), with the other degrees, "
            f"got {product}; is the file of another cluster?",
        )
    return data_parallel


def _read_batch(
    settings: Settings,
    resolved: _Resolved,
    findings: Findings,
    data_parallel: int,
    num_gpus: int,
) -> int:
    """Finds the micro-batch; the file's global batch."""
    train = settings.take("train_batch_size")
    triple = BatchTriple(
        train=None if train in (None, "auto") else settings.whole("train_batch_size", 1),
        micro=resolved.whole("train_micro_batch_size_per_gpu"),
        accumulation=resolved.whole("gradient_accumulation_steps"),
    )
    if train == "auto" and triple.micro is None:
        triple = replace(triple, micro=resolved.filled("train_batch_size", _MICRO))
    micro = micro_batch_of(triple, data_parallel, settings, num_gpus=num_gpus)
    from_micro = triple.micro is not None
    key = "train_micro_batch_size_per_gpu" if from_micro else "train_batch_size"
    findings.found("micro_batch", micro, key)
    return triple.train or micro * (triple.accumulation or 1) * data_parallel


def _read_replicas(settings: Settings, findings: Findings, data_parallel: int) -> None:
    key = "zero_optimization.zero_hpz_partition_size"
    shards = settings.whole(key, 1, least=0)
    if shards <= 1 or findings.knobs["zero_stage"] != 3:
        return
    if data_parallel % shards:
        raise settings.error(
            key, f"must divide the data-parallel ranks ({data_parallel}; rule DS-43), got {shards}"
        )
    findings.found("dp_replicate", data_parallel // shards, key)


def _read_settings(settings: Settings, target: ImportTarget, findings: Findings) -> None:
    """Those that stand in the file; "auto" as the Trainer fills it in, which knows the model."""
    if says_expandable_segments("", settings.file):
        findings.set_to("expandable_segments", True, ALLOCATOR_VARIABLE)
    for setting in DEEPSPEED_SETTINGS:
        key = f"zero_optimization.{setting.name}"
        if findings.knobs["zero_stage"] != 3 and key.startswith(_STAGE_3_ONLY):
            continue
        if settings.peek(key) == "auto":
            filled = _filled_in(setting.name, target)
            if filled is not None:
                settings.take(key)
                findings.set_to(setting.name, filled, key)
        elif settings.has(key):
            value = settings.flag(key) if setting.is_switch else settings.size(key)
            findings.set_to(setting.name, value, key)


def _filled_in(setting: str, target: ImportTarget) -> int | None:
    """What the Trainer makes of "auto"; None where there is no Trainer, or it leaves it alone."""
    shape, size = target.workload.shape, _TRAINER_SIZES.get(setting)
    if target.arguments_file is None or shape is None or size is None:
        return None
    return size(shape.hidden)


def _imported(settings: Settings, findings: Findings, target: ImportTarget) -> Imported:
    stage = findings.knobs["zero_stage"]
    off = {"fp16": "fp16 is off", "bf16": "bf16 is off"}
    off.pop(str(findings.knobs["precision"]), None)
    known = {**KNOWN_KEYS, **off}
    meaningless = [
        IgnoredKey(key=key, reason=f"it has no effect with ZeRO stage {stage}")
        for key, _ in settings.left()
        if stage != 3 and key.startswith((_STAGE_3_ONLY, "zero_optimization.offload_param"))
    ]
    if settings.has("zero_optimization.offload_param.device") and stage != 3:
        meaningless.append(
            IgnoredKey(
                key="zero_optimization.offload_param.device",
                reason=f"parameters are offloaded only with ZeRO stage 3 (rule DS-35), got {stage}",
            )
        )
    skipped = {one.key for one in meaningless}
    unknown, ignored, pinned = sorted_out(
        ((key, value) for key, value in settings.left() if key not in skipped), known
    )
    if unknown:
        hints = [key + nearest_hint(key.split(".")[0], TOP_LEVEL_KEYS) for key in unknown]
        findings.notes.append(
            f"DeepSpeed ignores keys that it does not know in silence: {', '.join(hints)}"
        )
    kind = str((settings.take("optimizer.type")) or "AdamW")
    if kind.lower() not in ("adam", "adamw"):
        findings.notes.append(f"its optimizer is {kind}; the job's AdamW is trained")
    try:
        plan = ParallelPlan.from_dict(findings.knobs)
    except ValueError as error:
        raise UserError(f"{settings.file}: {error}") from error
    carried, idle = carried_settings(plan, findings, target, settings.error)
    return Imported(
        plan=plan,
        file=settings.file,
        format="deepspeed",
        key_of_knob=findings.keys,
        unknown_keys=unknown,
        ignored_keys=(*meaningless, *idle, *ignored),
        settings=carried,
        pinned=pinned,
        notes=tuple(findings.notes),
    )
