"""A torchtitan TOML, or the ``pytorch.toml`` that a study writes, as a plan."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.errors import UserError
from tuner.framework_settings.pytorch_settings import ALLOCATOR_VARIABLE, PYTORCH_SETTINGS
from tuner.importing.batch import batch_notes, length_notes
from tuner.importing.framework_settings import carried_settings, says_expandable_segments
from tuner.importing.imported import Findings, Imported, ImportTarget
from tuner.importing.settings import Settings, sorted_out
from tuner.plan import ParallelPlan

_MODEL = "the job gives the model"
_LOGGING = "it logs, and does not change how training runs"
_DATA = "it is about data, which the job gives"
_CHECKPOINT = "it is about checkpoints, which a trial does not write"
_OPTIMIZER = "the job says which optimizer is trained, and how fast it learns"
_KNOWN: Mapping[str, str | None] = {
    "job": _LOGGING,
    "profiling": _LOGGING,
    "metrics": _LOGGING,
    "validation": _DATA,
    "checkpoint": _CHECKPOINT,
    "model": _MODEL,
    "model.converters": None,
    "optimizer": _OPTIMIZER,
    "optimizer.implementation": None,
    "optimizer.early_step_in_backward": None,
    "lr_scheduler": _OPTIMIZER,
    "training.dataset": _DATA,
    "training.dataset_path": _DATA,
    "training.steps": "the job says how many steps are measured",
    "training.warmup_steps": _OPTIMIZER,
    "training.seed": _DATA,
    "training.deterministic": None,
    "training.max_norm": None,
    "training.compile": None,
    "training.gc_freq": None,
    "training.gc_debug": None,
    "training.dtype": None,
    "training.mixed_precision_reduce": None,
    "training.debug_moe_force_load_balance": None,
    "parallelism": None,
    "experimental": None,
    "activation_checkpoint": None,
    "compile": None,
    "float8": None,
    "quantize": None,
    "mx": None,
    "comm": None,
    "fault_tolerance": None,
    "memory_estimation": _LOGGING,
    "debug": None,
    "paratune": None,
}
_LOOPED = ("Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS", "ZBVZeroBubble", "DualPipeV")
"""Schedules with several stages on a rank: two, unless the file says otherwise."""
_PLAIN = ("1F1B", "GPipe")
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def is_torchtitan(values: Mapping[str, object]) -> bool:
    """Whether a TOML is torchtitan's, by its tables."""
    return bool({"parallelism", "training", "experimental", "activation_checkpoint"} & set(values))


def torchtitan_plan(settings: Settings, target: ImportTarget) -> Imported:
    """The plan of a torchtitan file.

    Raises:
        UserError: a value cannot be one, or the file is of another cluster.
    """
    findings = Findings.of("pytorch")
    for knob, key in _degree_keys(settings):
        if settings.has(key) and (degree := settings.whole(key, 1)) > 1:
            findings.found(knob, degree, key)
    _read_sequence_parallel(settings, findings)
    _read_data_parallel(settings, target, findings)
    _read_stages(settings, target, findings)
    _read_micro_batch(settings, findings)
    _read_precision(settings, findings)
    _read_recompute(settings, findings)
    if settings.flag("training.enable_cpu_offload"):
        findings.found("offload", "params", "training.enable_cpu_offload")
    _note_workload(settings, target, findings)
    _read_settings(settings, findings)
    unknown, ignored, pinned = sorted_out(settings.left(), _KNOWN)
    if unknown:
        findings.notes.append(
            f"torchtitan refuses keys that it does not know: {', '.join(unknown)}"
        )
    try:
        plan = ParallelPlan.from_dict(findings.knobs)
    except ValueError as error:
        raise UserError(f"{settings.file}: {error}") from error
    carried, idle = carried_settings(plan, findings, target, settings.error)
    return Imported(
        plan=plan,
        file=settings.file,
        format="paratune" if settings.has("paratune") else "torchtitan",
        key_of_knob=findings.keys,
        unknown_keys=unknown,
        ignored_keys=(*idle, *ignored),
        settings=carried,
        pinned=pinned,
        notes=tuple(findings.notes),
    )


def _read_settings(settings: Settings, findings: Findings) -> None:
    """Those of paratune's own table; torchtitan has no words for them."""
    if says_expandable_segments("", settings.file):
        findings.set_to("expandable_segments", True, ALLOCATOR_VARIABLE)
    for setting in PYTORCH_SETTINGS:
        key = f"paratune.{setting.name}"
        if settings.has(key):
            value = settings.flag(key) if setting.is_switch else settings.size(key)
            findings.set_to(setting.name, value, key)


def _degree_keys(settings: Settings) -> list[tuple[str, str]]:
    """Where this file has each degree: files before 2025 have them in other tables."""
    found = []
    for knob, name in (
        ("tp", "tensor_parallel_degree"),
        ("pp", "pipeline_parallel_degree"),
        ("cp", "context_parallel_degree"),
        ("ep", "expert_parallel_degree"),
    ):
        tables = [
            t for t in ("parallelism", "experimental", "training") if settings.has(f"{t}.{name}")
        ]
        found.append((knob, f"{tables[0] if tables else 'parallelism'}.{name}"))
    return found


def _read_sequence_parallel(settings: Settings, findings: Findings) -> None:
    key = "parallelism.enable_sequence_parallel"
    # torchtitan's tensor parallelism shards the sequence unless it is told not to.
    wanted = settings.flag(key, True)
    if wanted and int(findings.knobs.get("tp", 1)) > 1:
        findings.found("sequence_parallel", True, key)


def _read_data_parallel(settings: Settings, target: ImportTarget, findings: Findings) -> None:
    replicate_key = _either(settings, "data_parallel_replicate_degree")
    shard_key = _either(settings, "data_parallel_shard_degree")
    replicas = settings.whole(replicate_key, 1)
    shards = settings.whole(shard_key, -1, least=-1)
    degrees = {name: int(findings.knobs.get(name, 1)) for name in ("tp", "pp", "cp")}
    ranks = target.data_parallel(**degrees)
    if shards < 1:
        shards = max(1, ranks // replicas)
    product = replicas * shards
    for degree in degrees.values():
        product *= degree
    if product != target.cluster.num_gpus:
        raise settings.error(
            shard_key,
            f"times the other degrees must be the job's GPUs ({target.cluster.num_gpus}; rule "
            f"PT-06), got {product}; change the job's cluster, or the file",
        )
    own = settings.has("paratune.zero_stage")
    key = "paratune.zero_stage" if own else shard_key
    stage = settings.whole(key, 0, least=0) if own else _stage(settings, shards, degrees["pp"])
    settings.take("parallelism.fsdp_reshard_after_forward")
    findings.found("zero_stage", stage, key)
    if stage >= 2 and replicas > 1:
        findings.found("dp_replicate", replicas, replicate_key)
    if not own:
        findings.without_lone_sharding(ranks)


def _stage(settings: Settings, shards: int, pp: int) -> int:
    policy = settings.word(
        "parallelism.fsdp_reshard_after_forward", ("default", "always", "never"), "default"
    )
    if shards == 1:
        return 0
    # torchtitan's default keeps parameters gathered under a pipeline, which would gather anew
    # for every micro-batch.
    return 2 if policy == "never" or (policy == "default" and pp > 1) else 3


def _either(settings: Settings, name: str) -> str:
    older = f"training.{name}"
    return older if settings.has(older) else f"parallelism.{name}"


def _read_stages(settings: Settings, target: ImportTarget, findings: Findings) -> None:
    table = "parallelism" if settings.has("parallelism") else "experimental"
    key = f"{table}.pipeline_parallel_schedule"
    schedule = settings.word(key, (*_PLAIN, *_LOOPED), "1F1B")
    own = settings.whole("paratune.pipeline_parallel_stages_per_rank", 0, least=0)
    pp = int(findings.knobs.get("pp", 1))
    if own > 1:
        findings.found("vpp", own, "paratune.pipeline_parallel_stages_per_rank")
    if own or pp == 1:
        return
    if schedule in _LOOPED:
        each_key = f"{table}.pipeline_parallel_layers_per_stage"
        each = settings.whole(each_key, 0, least=0)
        shape = target.workload.shape
        vpp = shape.num_layers // (pp * each) if each and shape else 2
        findings.found("vpp", max(1, vpp), each_key if each else key)
    if schedule not in ("1F1B", "Interleaved1F1B"):
        nearest = "Interleaved1F1B" if schedule in _LOOPED else "1F1B"
        findings.notes.append(f"its schedule is {schedule}; measured is {nearest}")


def _read_micro_batch(settings: Settings, findings: Findings) -> None:
    key = "parallelism.pipeline_parallel_microbatch_size"
    piped = settings.whole(key, 1)
    older = settings.has("training.batch_size")
    local_key = "training.batch_size" if older else "training.local_batch_size"
    local = settings.whole(local_key, 8)
    if int(findings.knobs.get("pp", 1)) == 1:
        findings.found("micro_batch", local, local_key)
        return
    parts = settings.whole("experimental.pipeline_parallel_microbatches", 0, least=0)
    if parts:
        piped = max(1, local // parts)
    findings.found("micro_batch", piped, key)


def _read_precision(settings: Settings, findings: Findings) -> None:
    key = "training.mixed_precision_param"
    precision = _DTYPES[settings.word(key, tuple(_DTYPES), "bfloat16")]
    converters = settings.take("model.converters") or []
    names = converters if isinstance(converters, list) else [converters]
    old = "float8.enable_float8_linear"
    if settings.flag(old) or any("float8" in str(name) for name in names):
        precision, key = "fp8", old if settings.has(old) else "model.converters"
    findings.found("precision", precision, key)


def _read_recompute(settings: Settings, findings: Findings) -> None:
    key = "activation_checkpoint.mode"
    mode = settings.word(key, ("none", "selective", "full", "memory_budget"), "selective")
    if mode == "memory_budget":
        raise settings.error(
            key, "must be none, selective or full to be measured here, got memory_budget"
        )
    findings.found("recompute", mode, key)
    if mode == "selective" and not settings.has("paratune"):
        findings.notes.append(
            "torchtitan's selective recompute keeps the products of matrices; measured is the "
            "attention core of every layer"
        )


def _note_workload(settings: Settings, target: ImportTarget, findings: Findings) -> None:
    said = settings.whole("training.global_batch_size", -1, least=-1)
    findings.notes += batch_notes(
        target, said if said > 0 else None, of="training.global_batch_size"
    )
    length = settings.whole("training.seq_len", 2048)
    if settings.has("training.seq_len"):
        findings.notes += length_notes(target, length, of="training.seq_len")
