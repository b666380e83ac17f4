"""A Megatron-LM launch script or argument list as a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tuner.errors import UserError
from tuner.framework_settings.pytorch_settings import ALLOCATOR_VARIABLE
from tuner.importing.batch import batch_notes, length_notes
from tuner.importing.framework_settings import (
    carried_settings,
    is_own_launch,
    says_expandable_segments,
)
from tuner.importing.imported import Findings, IgnoredKey, Imported, ImportTarget, PinnedKey
from tuner.importing.megatron_keys import LAUNCHER_OPTIONS, known_flags, reason_ignored
from tuner.importing.settings import nearest_hint
from tuner.importing.shell_script import computed_script, unknown_part
from tuner.megatron_arguments import megatron_options
from tuner.plan import ParallelPlan
from tuner.units import MOST_COUNT

_DEGREES = (
    ("tp", "--tensor-model-parallel-size"),
    ("pp", "--pipeline-model-parallel-size"),
    ("cp", "--context-parallel-size"),
    ("ep", "--expert-model-parallel-size"),
    ("dp_replicate", "--num-distributed-optimizer-instances"),
)
_SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""Of ``--data-parallel-sharding-strategy``, Megatron-FSDP's."""
_KNOB_OPTIONS = frozenset(
    [option for _, option in _DEGREES]
    + [
        "--micro-batch-size",
        "--sequence-parallel",
        "--use-distributed-optimizer",
        "--bf16",
        "--fp16",
        "--fp8-format",
        "--fp8-hybrid",
        "--recompute-granularity",
        "--recompute-activations",
        "--checkpoint-activations",
        "--optimizer-cpu-offload",
        "--num-virtual-stages-per-pipeline-rank",
        "--num-layers-per-virtual-pipeline-stage",
        "--model-parallel-size",
        "--use-torch-fsdp2",
    ]
)
_SWITCHES = {
    "overlap_grad_reduce": ("--overlap-grad-reduce", True),
    "overlap_param_gather": ("--overlap-param-gather", True),
    "align_param_gather": ("--no-align-param-gather", False),
    "ddp_average_in_collective": ("--ddp-average-in-collective", True),
}
"""Framework settings with the option that says them, and what it says."""
_SIZES = {
    "ddp_bucket_size": "--ddp-bucket-size",
    "microbatch_group_size": "--microbatch-group-size-per-virtual-pipeline-stage",
}
_RECOMPUTE_OPTIONS = ("--recompute-method", "--recompute-num-layers", "--recompute-modules")
_SHAPE = (
    ("--num-layers", "num_layers"),
    ("--hidden-size", "hidden"),
    ("--num-attention-heads", "num_heads"),
)


def megatron_plan(text: str, file: Path, target: ImportTarget) -> Imported:
    """The plan of a script or an argument list.

    Raises:
        UserError: an option that decides the plan is missing, wrong, or cannot be computed.
    """
    try:
        words = megatron_options(computed_script(text))
    except ValueError as error:
        raise UserError(f"{file}: {error}") from error
    options = _Options(words, file=file, text=text)
    if options.has("--deepspeed"):
        raise options.error(
            "--deepspeed", "is of the Megatron-DeepSpeed fork, which no framework here runs"
        )
    options.check_cluster(target)
    findings = Findings.of("megatron")
    _read_degrees(options, findings, target)
    _read_stages(options, findings, target)
    _read_sharding(options, findings)
    _read_precision(options, findings)
    _read_recompute(options, findings)
    micro = options.whole("--micro-batch-size", None)
    findings.found("micro_batch", micro, "--micro-batch-size")
    degrees = {name: int(findings.knobs.get(name, 1)) for name in ("tp", "pp", "cp")}
    findings.without_lone_sharding(target.data_parallel(**degrees))
    findings.notes += _workload_notes(options, target)
    _read_settings(options, findings)
    _read_left_out(options, findings, target)
    return _imported(options, findings, target)


class _Options:
    """Options with their lines; a wrong one is the user's mistake."""

    def __init__(self, options: Mapping[str, str], *, file: Path, text: str) -> None:
        self.options = options
        self.file = file
        self.text = text

    def has(self, option: str) -> bool:
        return option in self.options

    def error(self, option: str, sentence: str) -> UserError:
        places = list(re.finditer(rf"{re.escape(option)}(?![\w-])", self.text))
        line = f": line {self.text.count(chr(10), 0, places[-1].start()) + 1}" if places else ""
        return UserError(f"{self.file}{line}: {option} {sentence}")

    def whole(self, option: str, default: int | None) -> int:
        text = self.options.get(option)
        if text is None:
            if default is None:
                raise self.error(option, "must be given, but it is missing; add it")
            return default
        if (why := unknown_part(text)) is not None:
            raise self.error(option, f"must be a number that the script says, but {why}; write it")
        if not text.isdecimal() or len(text) > 4000 or int(text) < 1:
            raise self.error(option, f"must be a whole number of at least 1, got {text!r}")
        if int(text) > MOST_COUNT:
            raise self.error(option, f"must be at most {MOST_COUNT}, got {text}")
        return int(text)

    def known_number(self, *spellings: str) -> int | None:
        """A number that only matters for a comparison: None where it cannot be known."""
        texts = [self.options[option] for option in spellings if option in self.options]
        return int(texts[-1]) if texts and re.fullmatch(r"\d{1,18}", texts[-1]) else None

    def check_cluster(self, target: ImportTarget) -> None:
        per_node = self.known_number("--nproc_per_node", "--nproc-per-node")
        nodes = self.known_number("--nnodes")
        if nodes is None and not self.has("--nnodes"):
            nodes = 1
        if per_node is None or nodes is None:
            return
        if per_node * nodes != target.cluster.num_gpus:
            option = next(o for o in ("--nproc_per_node", "--nproc-per-node") if self.has(o))
            raise self.error(
                option,
                f"times the nodes must be the job's GPUs ({target.cluster.num_gpus}), got "
                f"{per_node} * {nodes} = {per_node * nodes}; change the job's cluster, or the "
                "script",
            )


def _read_degrees(options: _Options, findings: Findings, target: ImportTarget) -> None:
    for knob, option in _DEGREES:
        if options.has(option):
            findings.found(knob, options.whole(option, 1), option)
    if options.has("--model-parallel-size"):
        findings.found("tp", options.whole("--model-parallel-size", 1), "--model-parallel-size")
    split = 1
    for knob in ("tp", "pp", "cp"):
        split *= int(findings.knobs.get(knob, 1))
    if target.cluster.num_gpus % split:
        key = next(findings.keys[knob] for knob in ("tp", "pp", "cp") if knob in findings.keys)
        raise options.error(
            key,
            "times the pipeline and context degrees must divide the job's GPUs "
            f"({target.cluster.num_gpus}), got {split}; is the file of another cluster?",
        )
    tp = int(findings.knobs.get("tp", 1))
    if options.has("--sequence-parallel") and tp > 1:
        findings.found("sequence_parallel", True, "--sequence-parallel")


def _read_stages(options: _Options, findings: Findings, target: ImportTarget) -> None:
    option = "--num-virtual-stages-per-pipeline-rank"
    if options.has(option):
        findings.found("vpp", options.whole(option, 1), option)
    option = "--num-layers-per-virtual-pipeline-stage"
    if not options.has(option):
        return
    each, pp = options.whole(option, 1), int(findings.knobs.get("pp", 1))
    shape = target.workload.shape
    layers = options.known_number("--num-layers") or (shape.num_layers if shape else 0)
    if not layers or layers % (pp * each):
        raise options.error(
            option,
            f"times the pipeline stages must divide the layers ({layers}; rule MC-23), got "
            f"{each} * {pp}",
        )
    findings.found("vpp", layers // (pp * each), option)


def _read_sharding(options: _Options, findings: Findings) -> None:
    if options.has("--use-distributed-optimizer"):
        findings.found("zero_stage", 1, "--use-distributed-optimizer")
    if options.has("--use-torch-fsdp2"):
        findings.found("zero_stage", 3, "--use-torch-fsdp2")
    strategy = options.options.get("--data-parallel-sharding-strategy", "no_shard")
    if options.has("--use-megatron-fsdp") and strategy in _SHARDING:
        findings.found("zero_stage", _SHARDING[strategy], "--data-parallel-sharding-strategy")
    if options.has("--optimizer-cpu-offload"):
        findings.found("offload", "optimizer", "--optimizer-cpu-offload")


def _read_precision(options: _Options, findings: Findings) -> None:
    if options.has("--bf16") and options.has("--fp16"):
        raise options.error("--fp16", "and --bf16 must not both be given (rule MC-10), got both")
    for option, precision in (
        ("--fp8-format", "fp8"),
        ("--fp8-hybrid", "fp8"),
        ("--bf16", "bf16"),
        ("--fp16", "fp16"),
    ):
        if options.has(option):
            findings.found("precision", precision, option)
            return
    findings.found("precision", "fp32", "--bf16 (absent)")


def _read_recompute(options: _Options, findings: Findings) -> None:
    option = "--recompute-granularity"
    if options.has(option):
        granularity = options.options[option]
        if (why := unknown_part(granularity)) is not None:
            raise options.error(option, f"must be said by the script, but {why}; write it")
        if granularity not in ("full", "selective"):
            raise options.error(
                option, f"must be full or selective (rule MC-30), got {granularity!r}"
            )
        findings.found("recompute", granularity, option)
        _note_partial(options, findings, granularity)
    elif options.has("--recompute-activations"):
        findings.found("recompute", "selective", "--recompute-activations")
    elif options.has("--checkpoint-activations"):
        findings.found("recompute", "full", "--checkpoint-activations")


def _note_partial(options: _Options, findings: Findings, granularity: str) -> None:
    method = options.options.get("--recompute-method")
    number = options.options.get("--recompute-num-layers", "1")
    if granularity == "full" and (method == "block" or number != "1"):
        findings.notes.append(
            f"its full recompute is {method or 'uniform'} with {number} layers; measured is every "
            "layer of a stage"
        )
    modules = options.options.get("--recompute-modules", "core_attn")
    if granularity == "selective" and modules != "core_attn":
        findings.notes.append(
            f"its selective recompute begins with {modules}; measured is core_attn"
        )


def _read_settings(options: _Options, findings: Findings) -> None:
    for name, (option, value) in _SWITCHES.items():
        if options.has(option):
            findings.set_to(name, value, option)
    for name, option in _SIZES.items():
        # A number that the script does not say is listed as it stands.
        if options.has(option) and unknown_part(options.options[option]) is None:
            findings.set_to(name, options.whole(option, 1), option)
    if says_expandable_segments(options.text, options.file):
        findings.set_to("expandable_segments", True, ALLOCATOR_VARIABLE)


def _read_left_out(options: _Options, findings: Findings, target: ImportTarget) -> None:
    """Overlapping that is not asked for: off in Megatron-LM, and on where paratune launches."""
    degrees = {name: int(findings.knobs.get(name, 1)) for name in ("tp", "pp")}
    if target.data_parallel(**degrees) == 1:
        return
    shards = findings.knobs.get("zero_stage", 0) == 1
    names = ("overlap_grad_reduce", "overlap_param_gather") if shards else ("overlap_grad_reduce",)
    left_out = [name for name in names if name not in findings.settings]
    if "overlap_grad_reduce" in left_out and findings.settings.get("overlap_param_gather"):
        raise options.error(
            "--overlap-param-gather",
            "needs --overlap-grad-reduce (rule MC-60), got it without; add it",
        )
    if is_own_launch(options.file):
        for name in left_out:
            findings.set_to(name, False, _SWITCHES[name][0])
    elif left_out:
        said = " and ".join(_SWITCHES[name][0] for name in left_out)
        findings.notes.append(
            f"{said} left out: Megatron-LM takes it as off; measured is on, as paratune launches "
            "every plan"
        )


def _workload_notes(options: _Options, target: ImportTarget) -> list[str]:
    said = options.known_number("--global-batch-size")
    notes = batch_notes(target, said, of="--global-batch-size")
    notes += length_notes(target, options.known_number("--seq-length"), of="--seq-length")
    shape = target.workload.shape
    for option, size in _SHAPE:
        number = options.known_number(option)
        if shape is not None and number is not None and number != getattr(shape, size):
            notes.append(
                f"{option} is {number}, the job's model has {getattr(shape, size)}: it is another "
                "model, and the job's is trained"
            )
    etp = options.known_number("--expert-tensor-parallel-size") or 1
    if etp > 1 and (options.known_number("--expert-model-parallel-size") or 1) > 1:
        notes.append(f"--expert-tensor-parallel-size is {etp}; measured is 1, whole experts")
    return notes


def _imported(options: _Options, findings: Findings, target: ImportTarget) -> Imported:
    plan = ParallelPlan.from_dict(findings.knobs)
    carried, idle = carried_settings(plan, findings, target, options.error)
    unknown, ignored, pinned = [], list(idle), []
    read = set(findings.keys.values()) | set(findings.setting_keys.values())
    for option, value in options.options.items():
        if option in read:
            continue
        if option in _RECOMPUTE_OPTIONS and "recompute" in findings.knobs:
            why = "the recompute knob says it; what differs is among the notes"
            ignored.append(IgnoredKey(key=option, reason=why))
        elif option in _KNOB_OPTIONS:
            ignored.append(IgnoredKey(key=option, reason=_meaningless(option)))
        elif option not in known_flags() and option not in LAUNCHER_OPTIONS:
            unknown.append(option)
        elif (reason := reason_ignored(option)) is not None:
            ignored.append(IgnoredKey(key=option, reason=reason))
        else:
            pinned.append(PinnedKey(key=option, value=value))
    if unknown:
        hints = [option + nearest_hint(option, known_flags()) for option in unknown]
        findings.notes.append(f"Megatron-LM core 0.16 has no {', '.join(hints)}")
    return Imported(
        plan=plan,
        file=options.file,
        format="megatron",
        key_of_knob=findings.keys,
        unknown_keys=tuple(unknown),
        ignored_keys=tuple(ignored),
        settings=carried,
        pinned=tuple(pinned),
        notes=tuple(findings.notes),
    )


def _meaningless(option: str) -> str:
    if option == "--sequence-parallel":
        return "Megatron turns it off in silence where tp is 1 (rule MC-16)"
    return "another option says it"
