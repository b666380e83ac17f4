"""torchtitan: a TOML of its own configuration classes, and the module that loads it.

torchtitan 0.3 is configured by Python functions, not files: ``torchtitan_plan.py`` is such a
function, which puts the TOML's tables over one of torchtitan's own models.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from reports.emit.scripts import LAUNCH_SCRIPT, script, torchrun_words
from reports.emit.subject import Need, Subject, check, only, unsaid_settings
from reports.wording import BENCH_VALUES
from tuner.launch import PYTORCH_FILE, LaunchFile
from tuner.plan import Backend, Offload, ParallelPlan, Precision, Recompute

TITAN_FILE = "torchtitan.toml"
TITAN_MODULE = "torchtitan_plan"
_BASES: Mapping[tuple[Any, Any, Any], str] = {
    ("llama", 32, 4096): "torchtitan.models.llama3.config_registry:llama3_8b",
    ("llama", 80, 8192): "torchtitan.models.llama3.config_registry:llama3_70b",
    ("llama", 126, 16384): "torchtitan.models.llama3.config_registry:llama3_405b",
    ("qwen3", 28, 1024): "torchtitan.models.qwen3.config_registry:qwen3_0_6b",
    ("qwen3", 28, 2048): "torchtitan.models.qwen3.config_registry:qwen3_1_7b",
    ("qwen3", 40, 5120): "torchtitan.models.qwen3.config_registry:qwen3_14b",
    ("qwen3", 64, 5120): "torchtitan.models.qwen3.config_registry:qwen3_32b",
}
"""torchtitan's own models by Hugging Face family, layers and hidden size (0.3.0)."""

_SETTING_DEFAULTS: Mapping[str, bool | int | None] = {
    "ddp_bucket_cap_mb": None,
    "ddp_gradient_as_bucket_view": True,
    "ddp_static_graph": False,
    "fsdp_forward_prefetch": 0,
    "fsdp_backward_prefetch": 0,
    "fsdp_reshard_last_layer": True,
}

_MODULE_TEXT = '''"""{origin}

{start}
"""

import os
import tomllib
from importlib import import_module
from pathlib import Path

from torchtitan.components.optimizer import default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC

BASE = os.environ.get("TORCHTITAN_BASE", "{base}")
"""The model, its data and its schedule: module:function of a torchtitan config_registry."""


def plan():
    """The base with the plan's degrees, batch, precision, recomputation and optimizer."""
    tables = tomllib.loads((Path(__file__).parent / "{toml}").read_text())
    module, colon, function = BASE.partition(":")
    if not colon:
        raise SystemExit("TORCHTITAN_BASE must be module:function of a torchtitan config_registry")
    config = getattr(import_module(module), function)()
    steps = config.training.steps
    config.training = TrainingConfig(steps=steps, **tables["training"])
    config.parallelism = ParallelismConfig(**tables["parallelism"])
    recomputes = tables["activation_checkpoint"]["mode"] == "full"
    config.activation_checkpoint = FullAC.Config() if recomputes else None
    config.optimizer = default_adamw(**tables["optimizer"])
    config.compile.enable = False
    return config
'''


def torchtitan_files(subject: Subject) -> tuple[LaunchFile, ...]:
    """The trial's own words, with torchtitan's for what it would else choose by itself.

    Raises:
        UserError: torchtitan has no words for the plan; the knob is named.
    """
    # A configuration of another framework's plan has no table to begin with.
    backend = only(subject.plan, Backend.PYTORCH, "torchrun")
    check("torchtitan", subject, (backend,))
    layers = subject.model.get("num_hidden_layers", subject.model.get("n_layer", 0))
    check("torchtitan", subject, (*_needs(subject.plan, layers), *_setting_needs(subject)))
    tables = titan_tables(tomllib.loads(subject.text(PYTORCH_FILE)), subject.plan, layers)
    head = f"# {subject.origin}\n# The tables of torchtitan 0.3's configuration classes.\n"
    head += f"# {BENCH_VALUES}\n# But the schedule: it is the base's.\n"
    return (
        LaunchFile(name=TITAN_FILE, text=head + _toml_text(tables)),
        LaunchFile(name=f"{TITAN_MODULE}.py", text=_module_text(subject)),
        _launch(subject),
    )


def titan_tables(ran: dict[str, Any], plan: ParallelPlan, layers: int) -> dict[str, dict[str, Any]]:
    """The tables of ``pytorch.toml`` without ours, and what torchtitan must be told besides."""
    parallelism = dict(ran["parallelism"])
    if plan.pp > 1:
        # It would count the embedding and the head as a layer each; the trial did not.
        parallelism |= {
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
            "pipeline_parallel_layers_per_stage": layers // (plan.pp * plan.vpp),
        }
    return {
        "parallelism": parallelism,
        # The trial clips nothing and captures no graphs, which torchtitan does unless told.
        "training": {
            **ran["training"],
            "max_norm": float("inf"),
            "disable_cuda_graphs": True,
        },
        "activation_checkpoint": {"mode": ran["activation_checkpoint"]["mode"]},
        "optimizer": {
            "lr": ran["optimizer"]["lr"],
            "betas": [0.9, 0.999],
            "eps": 1e-8,
            "weight_decay": 0.01,
        },
    }


def _setting_needs(subject: Subject) -> tuple[Need, ...]:
    why = "torchtitan sets up DDP and FSDP by itself, without a word for it"
    return unsaid_settings(subject, _SETTING_DEFAULTS, why, "torchrun")


def _needs(plan: ParallelPlan, layers: int) -> tuple[Need, ...]:
    ours = "use --format torchrun, or a plan with"
    stages = plan.pp * plan.vpp
    return (
        Need(
            knob="zero_stage",
            holds=plan.zero_stage != 1,
            allowed="0, 2 or 3",
            why="torchtitan has no optimizer that alone is sharded",
            instead=f"{ours} zero_stage=2",
        ),
        Need(
            knob="precision",
            holds=plan.precision in (Precision.FP32, Precision.BF16),
            allowed="fp32 or bf16",
            why="torchtitan's mixed_precision_param is float32 or bfloat16",
            instead=f"{ours} precision=bf16",
        ),
        Need(
            knob="recompute",
            holds=plan.recompute is not Recompute.SELECTIVE,
            allowed="none or full",
            why="torchtitan's selective keeps other operations than the bench does",
            instead=f"{ours} recompute=full",
        ),
        Need(
            knob="offload",
            holds=plan.offload is not Offload.OPTIMIZER,
            allowed="none or params",
            why="enable_cpu_offload moves parameters, gradients and optimizer together",
            instead=f"{ours} offload=params",
        ),
        Need(
            knob="pp",
            holds=stages == 1 or layers % stages == 0,
            allowed=f"such that pp * vpp divides the layers ({layers})",
            why="torchtitan would cut uneven stages elsewhere than the bench does",
            instead=f"{ours} another pp",
        ),
    )


def _module_text(subject: Subject) -> str:
    model = subject.model
    size = (model.get("model_type"), model.get("num_hidden_layers"), model.get("hidden_size"))
    base = _BASES.get(size, "")
    start = f"torchtitan 0.3: python -m torchtitan.train --module {TITAN_MODULE} --config plan"
    return _MODULE_TEXT.format(origin=subject.origin, start=start, base=base, toml=TITAN_FILE)


def _launch(subject: Subject) -> LaunchFile:
    return script(
        LAUNCH_SCRIPT,
        subject,
        comments=(
            f"./{LAUNCH_SCRIPT} --training.steps 100 ...: further options of torchtitan's.",
            "TORCHTITAN_BASE is the model where torchtitan_plan.py names none.",
        ),
        lines=(
            'export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"',
            f"exec {torchrun_words(subject)} -m torchtitan.train --module {TITAN_MODULE} "
            '--config plan "$@"',
        ),
    )


def _toml_text(tables: dict[str, dict[str, Any]]) -> str:
    return "\n".join(
        f"[{name}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in table.items())
        for name, table in tables.items()
    )


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
