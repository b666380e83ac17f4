"""DeepSpeed under the Hugging Face Trainer: "auto" where it resolves it, and its arguments."""

from __future__ import annotations

import json
from typing import Any

from reports.emit.scripts import LAUNCH_SCRIPT, script, torchrun_words
from reports.emit.subject import Need, Subject, check, json_file, only
from reports.emit.training_arguments import TRAINING_ARGUMENTS_FILE, training_arguments
from tuner.launch import DEEPSPEED_FILE, MODEL_FILE, LaunchFile
from tuner.plan import Backend, ParallelPlan, Recompute

_AUTO = (
    ("train_micro_batch_size_per_gpu",),
    ("gradient_accumulation_steps",),
    ("gradient_clipping",),
    ("optimizer", "params", "lr"),
    ("optimizer", "params", "betas"),
    ("optimizer", "params", "eps"),
    ("optimizer", "params", "weight_decay"),
    ("bf16", "enabled"),
    ("fp16", "enabled"),
)
"""What the Trainer fills from its arguments (transformers/integrations/deepspeed.py). Not the
buckets, which it would make another size than was measured, nor ``train_batch_size``, which is
checked against one rank before torch.distributed is up (rule DS-03)."""


def hf_deepspeed_files(subject: Subject) -> tuple[LaunchFile, ...]:
    """``ds_config.json`` with "auto" and the ``TrainingArguments`` that it is filled from.

    Raises:
        UserError: the Trainer cannot carry the plan out; the knob is named.
    """
    check("hf-deepspeed", subject, _needs(subject.plan))
    arguments = training_arguments(subject) | {"deepspeed": DEEPSPEED_FILE}
    return (
        json_file(DEEPSPEED_FILE, trainer_config(json.loads(subject.text(DEEPSPEED_FILE)))),
        json_file(TRAINING_ARGUMENTS_FILE, arguments),
        *(file for file in subject.spec.files if file.name == MODEL_FILE),
        _launch(subject),
    )


def trainer_config(config: dict[str, Any]) -> dict[str, Any]:
    """A complete DeepSpeed configuration with "auto" exactly where the Trainer resolves it."""
    copied: dict[str, Any] = json.loads(json.dumps(config))
    for *blocks, key in _AUTO:
        block: Any = copied
        for name in blocks:
            block = block.get(name, {})
        if key in block:
            block[key] = "auto"
    return copied


def trainer_needs(plan: ParallelPlan, instead: str) -> tuple[Need, ...]:
    """What the Trainer and Accelerator's loop over DeepSpeed cannot do; ``instead`` is a format."""
    return (
        Need(
            knob="pp",
            holds=plan.pp == 1,
            allowed="1",
            why="a pipeline of DeepSpeed is a PipelineModule, which the Trainer does not build",
            instead=f"use --format {instead}, or a plan with pp=1",
        ),
        Need(
            knob="recompute",
            holds=plan.recompute is not Recompute.SELECTIVE,
            allowed="none or full",
            why="gradient_checkpointing recomputes whole layers",
            instead=f"use --format {instead}, or a plan with recompute=full",
        ),
    )


def _needs(plan: ParallelPlan) -> tuple[Need, ...]:
    backend = only(plan, Backend.DEEPSPEED, "accelerate")
    return (backend, *trainer_needs(plan, "deepspeed"))


def _launch(subject: Subject) -> LaunchFile:
    return script(
        LAUNCH_SCRIPT,
        subject,
        comments=(
            f"./{LAUNCH_SCRIPT} train.py, a script whose HfArgumentParser reads a JSON file:",
            "HfArgumentParser(TrainingArguments).parse_json_file(sys.argv[1])",
        ),
        lines=(
            ': "${1:?the training script that takes ' + TRAINING_ARGUMENTS_FILE + '}"',
            'program=$(cd "$(dirname "$1")" && pwd)/$(basename "$1"); shift',
            'cd "$here"  # where ' + DEEPSPEED_FILE + " is looked for",
            f'exec {torchrun_words(subject)} "$program" {TRAINING_ARGUMENTS_FILE} "$@"',
        ),
    )
