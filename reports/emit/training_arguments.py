"""``training_arguments.json``: what ``transformers.TrainingArguments`` must be given."""

from __future__ import annotations

from typing import Any

from reports.emit.subject import Subject
from tuner.plan import Precision, Recompute

_SETTINGS = ("ddp_bucket_cap_mb", "ddp_static_graph")
"""Framework settings that are arguments of the same name."""
TRAINING_ARGUMENTS_FILE = "training_arguments.json"


def training_arguments(subject: Subject, *, recomputes: bool = True) -> dict[str, Any]:
    """The arguments that follow from the plan and the workload; length and data are the user's.

    Args:
        subject: what is emitted.
        recomputes: false where another file says what is recomputed.
    """
    plan, training = subject.plan, subject.training
    full = recomputes and plan.recompute is Recompute.FULL
    arguments: dict[str, Any] = {
        "output_dir": "output",
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": subject.num_microbatches,
        "learning_rate": training["learning_rate"],
        "lr_scheduler_type": "constant",
        "optim": "adamw_torch",
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "weight_decay": 0.01,
        "max_grad_norm": 0.0,
        "bf16": plan.precision is Precision.BF16,
        "fp16": plan.precision is Precision.FP16,
        "gradient_checkpointing": full,
        "seed": training["seed"],
    }
    asked = dict(subject.spec.settings)
    arguments |= {name: asked[name] for name in _SETTINGS if name in asked}
    if full:
        arguments["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    if subject.on_cpu:
        arguments["use_cpu"] = True
    return arguments
