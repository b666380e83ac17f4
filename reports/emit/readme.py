"""The page beside emitted files: what was measured on what, how to start them, what differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from reports.emit.formats import Format
from reports.emit.subject import Subject
from reports.study_facts import StudyFacts
from reports.wording import BENCH_VALUES, interval_words, outcome_words, plan_words
from tuner.launch import LaunchFile
from tuner.outcome import Measured, Outcome, Source
from tuner.units import size_text, time_text

README = "README.md"
_HOW: Mapping[Format, tuple[str, ...]] = {
    Format.DEEPSPEED: (
        "`./launch.sh` (torchrun) or `./launch_deepspeed.sh` runs paratune's bench, as a trial "
        "does: a few steps on random tokens; with your own script behind it, e.g. "
        "`./launch.sh train.py --deepspeed_config ds_config.json`, it "
        "starts that on the same ranks.",
        "DeepSpeed leaves recomputation, but for whole layers of a pipeline, to your script: "
        "`training.json` says what the bench recomputes.",
        "`ds_config.json` leaves `train_batch_size` out: DeepSpeed derives it, and checks it "
        "against one rank where torch.distributed is not yet up.",
    ),
    Format.HF_DEEPSPEED: (
        "`./launch.sh train.py`, where `train.py` reads `training_arguments.json` with "
        "`HfArgumentParser(TrainingArguments).parse_json_file`. What is `auto` in `ds_config.json` "
        "is filled from there; change it only there.",
    ),
    Format.ACCELERATE: (
        "`./launch.sh train.py`. The YAML has no words for batch sizes, accumulation and "
        "optimizer: they are in `training_arguments.json`, which the script is given first.",
        "Under FSDP accelerate reduces 16-bit gradients in 16 bits; the bench reduces in 32.",
    ),
    Format.MEGATRON: (
        "`MEGATRON_LM=/path/to/Megatron-LM ./pretrain_gpt.sh` takes `mock_data.args` (random "
        "tokens); give your own data's options behind it. `./launch.sh` runs the same "
        "steps in paratune's bench, as a trial does.",
        "The null tokenizer of the mock data adds one token to the vocabulary.",
    ),
    Format.MEGATRON_BRIDGE: (
        "Put the lines of `megatron_bridge.overrides` behind a script that applies overrides to "
        "its `ConfigContainer`, whose model comes from `AutoBridge` and `config.json`.",
        "With fp16 Bridge's recipe starts the loss scale at 2**32; the bench starts at 65536.",
    ),
    Format.TORCHTITAN: (
        "`./launch.sh` starts torchtitan 0.3 with `torchtitan_plan.py`, which loads "
        "`torchtitan.toml` over one of torchtitan's own models (`TORCHTITAN_BASE=module:function` "
        "names another). Data and learning-rate schedule stay the base's; nothing is compiled.",
    ),
    Format.TORCHRUN: (
        "`./launch.sh` runs paratune's bench, as a trial does: a few steps on random tokens; "
        "`./launch.sh train.py ...` starts that on the same "
        "ranks.",
    ),
    Format.SLURM: (
        "`sbatch slurm.sh` in this folder runs paratune's bench, as a trial does: a few "
        "steps on random tokens; `sbatch slurm.sh train.py ...` starts "
        "that on the same ranks.",
    ),
}
assert set(_HOW) == set(Format)
_OWN_SCRIPT = (
    "They stand in the files beside this page, and in `training.json`; what your own script sets "
    "by itself counts instead."
)
_WHERE: Mapping[Format, str] = {
    Format.DEEPSPEED: "In `ds_config.json`: `gradient_clipping`, `optimizer.params`, `scheduler`.",
    Format.HF_DEEPSPEED: "In `training_arguments.json`: `max_grad_norm`, `learning_rate`, "
    "`lr_scheduler_type`, `weight_decay`.",
    Format.ACCELERATE: "In `training_arguments.json`: `max_grad_norm`, `learning_rate`, "
    "`lr_scheduler_type`, `weight_decay`; where there is a `ds_config.json`, in that as well; for "
    "Megatron-LM also `megatron_lm_gradient_clipping` in `accelerate.yaml`.",
    Format.MEGATRON: "Options behind `./pretrain_gpt.sh` count instead of those in "
    "`megatron.args`: `--clip-grad`, `--lr`, `--min-lr`, `--lr-decay-style`, `--weight-decay`.",
    Format.MEGATRON_BRIDGE: "In `megatron_bridge.overrides`: `optimizer.clip_grad`, "
    "`optimizer.lr`, `optimizer.min_lr`, `scheduler.lr_decay_style`, `optimizer.weight_decay`.",
    Format.TORCHTITAN: "In `torchtitan.toml`: `max_norm`, `lr`, `weight_decay`; but the schedule "
    "is the base's.",
    Format.TORCHRUN: _OWN_SCRIPT,
    Format.SLURM: _OWN_SCRIPT,
}
"""Where they are set, by the names of the format."""
assert set(_WHERE) == set(Format)
_SAID: Mapping[Source, str] = {
    Source.MEASURED: "Measured",
    Source.EXTRAPOLATED: "Extrapolated from steps of few micro-batches",
    Source.SIMULATED: "Simulated, nothing was started",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What is known of the plan, and how."""

    kind: str
    """``measured``, ``extrapolated``, ``simulated``, ``predicted``, or ``none``."""
    lines: tuple[str, ...]


def study_id(identity: str, first_started_at: float) -> str:
    """A short name for a study that stays the same: of its job, and when its first trial began."""
    return sha256(f"{identity} {first_started_at!r}".encode()).hexdigest()[:12]


def outcome_numbers(outcome: Outcome, facts: StudyFacts) -> Numbers:
    """What came of a plan that was tried, and on what."""
    on = facts.ranks_text
    versions = facts.environment.get("versions", {})
    stack = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    match outcome:
        case Measured(source=source) as measured:
            said = _SAID[source]
            lines: tuple[str, ...] = (
                f"{said}: step time {interval_words(measured)}",
                f"{said}: {measured.tokens_per_s:,.0f} tokens/s",
                f"{said}: {size_text(measured.peak_memory_bytes)} at the peak of the fullest rank",
            )
            kind = str(source)
        case _:
            lines, kind = (f"It did not train: {outcome_words(outcome)}",), "none"
    return Numbers(kind=kind, lines=(*lines, f"On: {on}", f"With: {stack or 'versions unknown'}"))


def predicted_numbers(step_time_s: float | None, peak_memory_bytes: float | None) -> Numbers:
    """What the cost model says; None where it knows nothing of the model."""
    if step_time_s is None or peak_memory_bytes is None:
        return Numbers(kind="none", lines=("Neither measured nor predicted: a model of your own",))
    return Numbers(
        kind="predicted",
        lines=(
            f"Predicted, not measured: step time {time_text(step_time_s)}",
            f"Predicted, not measured: {size_text(peak_memory_bytes)} at the peak of the fullest "
            "rank",
        ),
    )


def readme(subject: Subject, form: Format, numbers: Numbers) -> LaunchFile:
    """The page; pure."""
    text = "\n".join(
        [
            "# Emitted by paratune",
            "",
            f"{subject.origin}, as {form}.",
            "",
            f"{plan_words(subject.plan, subject.spec.num_ranks)}.",
            "",
            *(f"- {line}" for line in numbers.lines),
            "",
            BENCH_VALUES,
            _WHERE[form],
            "",
            "## Launch",
            "",
            *(line for paragraph in _HOW[form] for line in (paragraph, "")),
        ]
    )
    return LaunchFile(name=README, text=text)
