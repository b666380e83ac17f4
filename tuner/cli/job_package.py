"""What a study needs on another machine: the files that job and options name, as one zip."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePosixPath

import yaml

from tuner.errors import UserError
from tuner.job import Job
from tuner.job_model import model_file
from tuner.launch import TRAINING_FILE
from tuner.units import size_text
from tuner.workload import FactoryModel

LIMIT_BYTES = 50 * 2**20
"""Ray keeps a package in the memory of the head, and refuses 500 MiB."""
_FIRST_DATE = (1980, 1, 1, 0, 0, 0)
"""Of every file, so that equal contents make an equal zip, which Ray then has already."""
_SKIPPED = ("__pycache__", ".git", ".venv", "node_modules")


@dataclass(slots=True)
class JobPackage:
    """Files, and where they lie in the package, which is the current folder there."""

    files: dict[str, Path] = field(default_factory=dict)
    """By their path in the package."""

    def add(self, path: Path, name: str) -> str:
        """Puts a file in; its path there.

        Raises:
            UserError: it is no file that can be read.
        """
        if not (path.is_file() and os.access(path, os.R_OK)):
            raise UserError(f"{path} must be a file that can be read, to be sent to the cluster")
        self.files[name] = path
        return name

    @property
    def num_bytes(self) -> int:
        """Of all files, before they are compressed."""
        return sum(path.stat().st_size for path in self.files.values())

    def text(self) -> str:
        """What is packed, in a line; a folder of many files once."""
        names = dict.fromkeys(_shown(PurePosixPath(name)) for name in self.files)
        files = f"{len(self.files)} file{'s' if len(self.files) > 1 else ''}"
        return f"{files}, {size_text(self.num_bytes)}: {', '.join(names)}"

    def write(self, path: Path) -> None:
        """Writes the zip; the same bytes for the same files.

        Raises:
            UserError: it would be too large to be sent.
        """
        if self.num_bytes > LIMIT_BYTES:
            largest = sorted(self.files.values(), key=lambda file: -file.stat().st_size)[:3]
            each = ", ".join(f"{file} ({size_text(file.stat().st_size)})" for file in largest)
            raise UserError(
                f"what is sent to the cluster must be at most {size_text(LIMIT_BYTES)}, got "
                f"{size_text(self.num_bytes)}, most of it {each}; move data out of the package of "
                "the model, or install the package on every node"
            )
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, file in sorted(self.files.items()):
                entry = zipfile.ZipInfo(name, date_time=_FIRST_DATE)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, file.read_bytes())


def _shown(name: PurePosixPath) -> str:
    return str(name) if len(name.parts) == 1 else f"{name.parts[0]}/"


def pack_job(package: JobPackage, path: Path, job: Job) -> str:
    """Puts the job file and its model in, as they lie to each other; the job's path there.

    Raises:
        UserError: the model cannot be found, or its path leads nowhere on another machine.
    """
    model = job.workload.model
    if isinstance(model, FactoryModel):
        _pack_module(package, model.factory.partition(":")[0].partition(".")[0], path)
    given = job.resolved["workload"]["model"]
    file = model_file(given, path)
    if file is None:
        return package.add(path, path.name)
    if Path(str(given)).is_absolute():
        raise UserError(
            f"{path}: workload.model must be a path relative to the job file to be sent to a "
            f"cluster, got {given}"
        )
    job_path, file = _absolute(path), _absolute(file)
    above = Path(os.path.commonpath([job_path.parent, file.parent]))
    package.add(file, file.relative_to(above).as_posix())
    return package.add(path, job_path.relative_to(above).as_posix())


def _absolute(path: Path) -> Path:
    """Without ``..``, but with links as they are: the job names the file by them."""
    return Path(os.path.abspath(path))


def _pack_module(package: JobPackage, name: str, job: Path) -> None:
    """The user's package where it is a folder of his; an installed one must be on every node."""
    here = os.getcwd()
    spec = PathFinder.find_spec(name, [here]) or importlib.util.find_spec(name)
    if spec is None:
        raise UserError(
            f"{job}: workload.model must name a package that can be imported, but there is no "
            f"{name} in {here} nor installed; submit from the folder that holds it"
        )
    for folder in _own_folders(spec):
        for file in _sources(folder):
            package.add(file, f"{name}/{file.relative_to(folder).as_posix()}")
    if spec.submodule_search_locations is None and spec.origin and _is_own(spec.origin):
        package.add(Path(spec.origin), Path(spec.origin).name)


def _own_folders(spec: ModuleSpec) -> Iterator[Path]:
    for folder in spec.submodule_search_locations or ():
        if _is_own(folder):
            yield Path(folder)


def _is_own(origin: str) -> bool:
    installed = {sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")}
    inside = any(Path(origin).is_relative_to(folder) for folder in installed)
    return not inside and origin not in ("built-in", "frozen")


def _sources(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not set(path.relative_to(folder).parts) & set(_SKIPPED):
            yield path


def pack_baseline(package: JobPackage, file: Path) -> str:
    """Puts a baseline in, with what it is read together with; its path there.

    Raises:
        UserError: a file that it names lies elsewhere.
    """
    if file.is_dir():
        for path in sorted(file.iterdir()):
            if path.is_file():
                package.add(path, f"baseline/{path.name}")
        return "baseline"
    beside = file.with_name(TRAINING_FILE)
    if beside.is_file():
        package.add(beside, f"baseline/{TRAINING_FILE}")
    if (named := _named_by_accelerate(file)) is not None:
        inside = PurePosixPath(named)
        if inside.is_absolute() or ".." in inside.parts:
            raise UserError(
                f"{file}: deepspeed_config.deepspeed_config_file must lie beside the file or below "
                f"to be sent to a cluster, got {named}"
            )
        found = next((p for p in (file.parent / named, Path(named)) if p.is_file()), None)
        if found is not None:
            package.add(found, f"baseline/{inside}")
    return package.add(file, f"baseline/{file.name}")


def _named_by_accelerate(file: Path) -> str | None:
    if file.suffix not in (".yaml", ".yml"):
        return None
    try:
        values = yaml.safe_load(file.read_text())
        return str(values["deepspeed_config"]["deepspeed_config_file"])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        return None  # whatever is wrong with it is said where it is read


def pack_warm_starts(package: JobPackage, paths: Sequence[Path]) -> Iterable[str]:
    """Puts tables and studies in; of a study what the search learns from. Their paths there."""
    for number, path in enumerate(paths):
        if not path.is_dir():
            yield package.add(path, f"warm-start-{number}/{path.name}")
            continue
        name = f"warm-start-{number}"
        package.add(path / "job.json", f"{name}/job.json")
        for trial in sorted(path.glob("trials/*/trial.json")):
            package.add(trial, f"{name}/{trial.relative_to(path).as_posix()}")
        yield name
