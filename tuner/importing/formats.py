"""The front door: whichever file a user has, as a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tuner.cluster import Cluster
from tuner.errors import UserError
from tuner.importing.accelerate_file import accelerate_plan, is_accelerate
from tuner.importing.deepspeed_file import auto_notes, deepspeed_plan, is_deepspeed
from tuner.importing.imported import Imported, ImportTarget
from tuner.importing.megatron_file import megatron_plan
from tuner.importing.settings import Settings
from tuner.importing.text_files import json_values, read_text, toml_values, yaml_values
from tuner.importing.torchtitan_file import is_torchtitan, torchtitan_plan
from tuner.importing.trainer_arguments import read_arguments
from tuner.launch import DEEPSPEED_FILE, MEGATRON_FILE, PYTORCH_FILE
from tuner.workload import Workload

FORMATS = (
    "a DeepSpeed JSON, an accelerate YAML, a Megatron-LM script or argument list, a torchtitan "
    "TOML, or a launch folder of paratune"
)


def imported_plan(
    path: Path, *, cluster: Cluster, workload: Workload, arguments: Path | None = None
) -> Imported:
    """The plan of a user's own configuration, for the job's cluster and workload.

    Args:
        path: the file, or a folder of launch files that a study wrote.
        cluster: the job's; the file must be for as many GPUs.
        workload: the job's, which is trained whatever the file says of model and batch.
        arguments: Hugging Face TrainingArguments that belong to the file.

    Raises:
        UserError: what is wrong with it, with file and line or key.
    """
    path = _in_folder(path) if path.is_dir() else path
    target = ImportTarget(
        cluster=cluster,
        workload=workload,
        arguments={} if arguments is None else read_arguments(arguments),
        arguments_file=arguments,
    )
    text = read_text(path)
    if path.suffix == ".toml":
        values = toml_values(text, path)
        if is_torchtitan(values):
            _no_arguments(target, "torchtitan")
            return torchtitan_plan(Settings(values, file=path, text=text), target)
    elif path.suffix == ".json" or text.lstrip().startswith("{"):
        return _of_json(path, text, target)
    elif path.suffix in (".yaml", ".yml"):
        values = yaml_values(text, path)
        if is_accelerate(values):
            return accelerate_plan(Settings(values, file=path, text=text), target)
    elif any(option in text for option in ("--micro-batch-size", "-model-parallel-size")):
        _no_arguments(target, "Megatron-LM")
        return megatron_plan(text, path, target)
    elif "--deepspeed" in text or "accelerate launch" in text:
        raise UserError(
            f"{path} must be the configuration, got a script that names one; give the file after "
            "--deepspeed or --config_file, and this script with --baseline-arguments"
        )
    raise _not_recognised(path)


def _of_json(path: Path, text: str, target: ImportTarget) -> Imported:
    values = json_values(text, path)
    settings = Settings(values, file=path, text=text)
    if is_accelerate(values):
        return accelerate_plan(settings, target)
    if is_deepspeed(values):
        imported = deepspeed_plan(settings, values, target)
        return replace(imported, notes=(*imported.notes, *auto_notes(settings, target)))
    raise _not_recognised(path)


def _no_arguments(target: ImportTarget, framework: str) -> None:
    if target.arguments_file is not None:
        raise UserError(
            f"--baseline-arguments must be for a DeepSpeed or accelerate file, got one of "
            f"{framework}, which says all itself; leave it out"
        )


def _in_folder(folder: Path) -> Path:
    for name in (DEEPSPEED_FILE, MEGATRON_FILE, PYTORCH_FILE):
        if (folder / name).exists():
            return folder / name
    raise UserError(
        f"{folder} must hold {DEEPSPEED_FILE}, {MEGATRON_FILE} or {PYTORCH_FILE}, got none; give "
        "a file instead"
    )


def _not_recognised(path: Path) -> UserError:
    return UserError(f"the format of {path} is not recognised; it must be {FORMATS}")
