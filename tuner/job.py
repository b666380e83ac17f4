"""The job file: a strict schema, and what it says as a workload, a cluster and a search."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, ValidationError

from tuner.cluster import Cluster, Device
from tuner.errors import UserError
from tuner.job_cluster import EXAMPLE_TEXT, ClusterSection, described_cluster, section_of_text
from tuner.job_fields import Degree, Degrees, Listed, Seconds, Size, Spelled, Strict
from tuner.job_measure import MeasureSection, measurement_of
from tuner.job_model import given_model, job_model
from tuner.job_stack import StackSection, planned_stack
from tuner.launch import Measurement
from tuner.outcome import Phase
from tuner.plan import Backend, Offload, PlanValue, Precision, Recompute
from tuner.stack import Stack
from tuner.units import MOST_COUNT, size_text
from tuner.user_files import (
    JOB_BYTES,
    UnreadableError,
    check_depth,
    said_where_unparsable,
    text_of,
)
from tuner.workload import Model, Workload


class WorkloadSection(Strict):
    """``workload``: what is trained."""

    model: Annotated[
        str | dict[str, Any],
        PlainValidator(given_model),
        Spelled("a path, a preset name, Megatron-LM arguments, `package.module:factory` or sizes"),
    ]
    """The model; nothing is fetched from the network. See [models](models.md)."""
    seq_len: Degree
    """Tokens of a sequence."""
    global_batch: Degree
    """Sequences of an optimizer step, over all GPUs; the same for every plan."""
    optimizer: Literal["adamw"] = "adamw"
    """What takes the step; its states are part of the memory."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    """Of the trials' steps; no plan depends on it."""
    vocab_size: Degree | None = None
    """Only with ``package.module:factory``: token ids are below it."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Of the weights and the tokens that trials train on."""


class SearchSection(Strict):
    """``search``: a list, one value, or auto for every knob."""

    backend: Annotated[list[Backend] | None, Listed, Field(min_length=1)] = None
    """The framework that trains."""
    zero_stage: Annotated[
        list[Annotated[int, Field(ge=0, le=3, strict=True)]] | None,
        Listed,
        Field(min_length=1),
    ] = None
    """What the data-parallel ranks share out: 0 nothing, 1 optimizer states, 2 also gradients, 3
    also parameters."""
    dp_replicate: Degrees = None
    """Replicas of the sharded states: shared out inside a replica, not between replicas."""
    micro_batch: Degrees = None
    """Sequences that a data-parallel rank computes at once; accumulation follows from the batch."""
    tp: Degrees = None
    """Tensor-parallel degree: GPUs that split every layer."""
    pp: Degrees = None
    """Pipeline-parallel degree: stages that share out the layers."""
    vpp: Degrees = None
    """Virtual stages of a pipeline stage (interleaving)."""
    cp: Degrees = None
    """Context-parallel degree: GPUs that split every sequence."""
    ep: Degrees = None
    """Expert-parallel degree: GPUs that share out the experts of a mixture."""
    sequence_parallel: Annotated[
        list[Annotated[bool, Field(strict=True)]] | None,
        Listed,
        Field(min_length=1),
    ] = None
    """Whether the tensor-parallel ranks split the sequence between the split layers."""
    precision: Annotated[list[Precision] | None, Listed, Field(min_length=1)] = None
    """What the matrix products are computed in."""
    recompute: Annotated[list[Recompute] | None, Listed, Field(min_length=1)] = None
    """What the backward pass computes again rather than keeps: nothing, attention, all layers."""
    offload: Annotated[list[Offload] | None, Listed, Field(min_length=1)] = None
    """What is kept in the host's memory."""


class SecondPassSection(Strict):
    """``budget.second_pass``: framework settings of the winner, tried at the end."""

    trials: Annotated[int, Field(ge=0, le=MOST_COUNT, strict=True)] = 0
    """Runs of the winner's plan with other settings, at most; 0 = none are tried."""


class BudgetSection(Strict):
    """``budget``: when the study stops."""

    trials: Degree = 30
    """Trials in all, over all runs of the study; it ends earlier when nothing is to be gained."""
    time: Seconds | None = None
    """Of one run of the command; a trial that is running is finished."""
    second_pass: SecondPassSection = SecondPassSection()
    """Runs at the end that try framework settings of the winner."""


class MemorySection(Strict):
    """``memory``: what a rank may allocate; a margin or a limit."""

    margin: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the GPU's memory that is left free."""
    limit: Size | None = None
    """Bytes instead of a share; enforced."""


class LimitsSection(Strict):
    """``limits``: how long a trial may stay in each phase."""

    start: Seconds = 120
    """Until every rank's program has begun."""
    process_group: Seconds = 60
    """Until the ranks have found each other."""
    model: Seconds = 300
    """Until the model and the optimizer are built."""
    first_step: Seconds = 300
    """The first optimizer step, in which kernels are compiled."""
    steps: Seconds = 600
    """All other steps together."""


class JobFile(Strict):
    """The whole job file."""

    workload: WorkloadSection
    """What is trained."""
    cluster: Annotated[ClusterSection | Literal["auto"], BeforeValidator(section_of_text)] = "auto"
    """What it is trained on: a section, a line such as ``2x8 h100-sxm-80gb``, or ``auto``."""
    search: SearchSection = SearchSection()
    """What may be tried."""
    budget: BudgetSection = BudgetSection()
    """When the study stops."""
    memory: MemorySection = MemorySection()
    """What a rank may allocate."""
    measure: MeasureSection = MeasureSection()
    """How a trial is measured."""
    limits: LimitsSection = LimitsSection()
    """How long a trial may take."""
    stack: StackSection = StackSection()
    """Versions to plan for that are not installed here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job file, read, checked and resolved."""

    workload: Workload
    cluster: Cluster
    stack: Stack
    """Versions to plan for: installed here, except where the file names others."""
    asked: Mapping[str, tuple[PlanValue, ...]]
    """Options per knob that the user gave; a missing knob is automatic."""
    trials: int
    time_s: float | None
    memory_limit_bytes: int
    measurement: Measurement
    finals: int
    """Best plans that are measured again at the end; fewer than 2: none."""
    second_pass: int
    """Runs at the end that try framework settings of the winner, at most; 0: none."""
    phase_limits_s: Mapping[Phase, float]
    resolved: Mapping[str, Any]
    """The file as JSON with its defaults filled in, for the study folder."""


def read_job(path: Path, found: Callable[[], Cluster]) -> Job:
    """Reads a job file.

    Args:
        path: the YAML file; model paths in it are relative to its folder.
        found: gives the cluster of this machine; called only for ``cluster: auto``.

    Raises:
        UserError: anything that is wrong with it, with file, key, what was got and what to do.
    """
    return job_of(_yaml(path), path, found)


def job_of(values: Mapping[str, Any], path: Path, found: Callable[[], Cluster]) -> Job:
    """The job that these values describe; ``path`` is their file, or where it would stand.

    Raises:
        UserError: as ``read_job``.
    """
    file = _validated(path, values)
    cluster = _cluster(path, file, found)
    limit_bytes = _memory_limit_bytes(path, file, cluster)
    asked = {
        name: tuple(str(v) if isinstance(v, str) else v for v in options)
        for name, options in file.search
        if options is not None
    }
    workload = _workload(path, file.workload)
    return Job(
        workload=workload,
        cluster=cluster,
        stack=planned_stack(file.stack),
        asked=asked,
        trials=file.budget.trials,
        time_s=file.budget.time,
        memory_limit_bytes=limit_bytes,
        measurement=measurement_of(
            file.measure,
            workload,
            memory_limit_bytes=limit_bytes,
            steps_limit_s=file.limits.steps,
            named=str(path),
        ),
        finals=file.measure.finals,
        second_pass=file.budget.second_pass.trials,
        phase_limits_s={Phase(name): float(limit) for name, limit in file.limits},
        resolved=file.model_dump(mode="json"),
    )


def _yaml(path: Path) -> dict[str, Any]:
    try:
        text = text_of(path, JOB_BYTES)
    except UnreadableError as error:
        raise UserError(f"the job file {path} must be a file that can be read: {error}") from error
    try:
        with said_where_unparsable(path):
            value = yaml.load(text, Loader=_PlainLoader)
    except yaml.YAMLError as error:
        raise UserError(f"{path} must be YAML, but {' '.join(str(error).split())}") from error
    check_depth(value, path)
    if not isinstance(value, dict):
        got = "nothing" if value is None else type(value).__name__
        raise UserError(f"{path} must hold keys such as workload and cluster, got {got}")
    return value


class _PlainLoader(yaml.SafeLoader):
    """YAML lets a later key silently replace an earlier one, and reads 2:08 as 128; we do not."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    "merge keys (<<) are not supported; write the keys out",
                    key_node.start_mark,
                )
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """A whole number; not of base 60, nor of base 8 by a leading zero alone."""
        self._check_base(node)
        return super().construct_yaml_int(node)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        """A number; not of base 60."""
        self._check_base(node)
        return super().construct_yaml_float(node)

    def _check_base(self, node: yaml.ScalarNode) -> None:
        text = str(node.value)
        base = "60" if ":" in text else "8" if re.fullmatch(r"[-+]?0[0-7_]+", text) else None
        if base is not None:
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"YAML reads {text} in base {base}; write it in base 10 (a time as 90m)",
                node.start_mark,
            )


for _kind in ("int", "float"):  # SafeLoader's table holds its own functions
    _PlainLoader.add_constructor(
        f"tag:yaml.org,2002:{_kind}", getattr(_PlainLoader, f"construct_yaml_{_kind}")
    )


def _validated(path: Path, values: Mapping[str, Any]) -> JobFile:
    try:
        return JobFile.model_validate(values)
    except ValidationError as error:
        problems = [_sentence(problem, values) for problem in error.errors()]
        # A union (a section or "auto") reports once per member; the section's word is enough.
        unique = list(dict.fromkeys(problem for problem in problems if problem))
        raise UserError("\n".join(f"{path}: {problem}" for problem in unique)) from error


def _sentence(problem: Any, values: Mapping[str, Any]) -> str:
    place = [part for part in problem["loc"] if part not in ("ClusterSection", "literal['auto']")]
    key = _as_written(place, values)
    got = problem["input"]
    if "literal['auto']" in problem["loc"]:
        return "" if isinstance(got, dict) else _cluster_sentence(key, got)
    match problem["type"]:
        case "extra_forbidden":
            return _unknown_key([str(part) for part in place])
        case "missing":
            return f"{key} is missing; it must be given"
        case "model_type":
            return "" if key == "cluster" else f"{key} must be a section with keys, got {got!r}"
        case "too_short":
            return f"{key} must hold at least one option, got {got!r}; or leave it auto"
        case "value_error":
            return f"{key}: {problem['ctx']['error']}"
        case _:
            said = problem["msg"][0].lower() + problem["msg"][1:]
            return f"{key}: {said.replace('input should', 'it must')}, got {got!r}"


def _as_written(place: list[str | int], values: Any) -> str:
    """The key in the user's own terms: items of lists count from 1, one value is no list."""
    key = ""
    for part in place:
        if isinstance(part, str):
            key = f"{key}.{part}" if key else part
            values = values.get(part) if isinstance(values, Mapping) else None
        elif isinstance(values, list):
            key = f"{key}, item {part + 1}"
            values = values[part]
    return key


def _cluster_sentence(key: str, got: Any) -> str:
    return (
        f"{key} must be auto, a section, or nodes x GPUs of each and their name as in "
        f"'{EXAMPLE_TEXT}', got {got!r}"
    )


def _unknown_key(place: list[str]) -> str:
    known = _known_keys(place[:-1])
    near = difflib.get_close_matches(place[-1], known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(known)}"
    return f"{'.'.join(place)} is not a key; {hint}"


def _known_keys(sections: list[str]) -> list[str]:
    model: type[BaseModel] = JobFile
    for name in sections:
        annotation = model.model_fields[name].annotation
        model = ClusterSection if name == "cluster" else annotation  # type: ignore[assignment]  # sections are models
    return list(model.model_fields)


def _workload(path: Path, section: WorkloadSection) -> Workload:
    model = _model(path, section)
    workload = Workload(
        model=model,
        seq_len=section.seq_len,
        global_batch_sequences=section.global_batch,
        optimizer=section.optimizer,
        learning_rate=section.learning_rate,
        seed=section.seed,
    )
    shape = workload.shape
    if shape is not None and 0 < shape.max_positions < section.seq_len:
        raise UserError(
            f"{path}: workload.seq_len must be at most the model's max_position_embeddings "
            f"({shape.max_positions}), got {section.seq_len}"
        )
    return workload


def _model(path: Path, section: WorkloadSection) -> Model:
    return job_model(section.model, path=path, vocab_size=section.vocab_size)


def _cluster(path: Path, file: JobFile, found: Callable[[], Cluster]) -> Cluster:
    section = file.cluster
    if section == "auto":
        return found()
    return described_cluster(section, file.memory.limit, named=f"{path}: cluster")


def _memory_limit_bytes(path: Path, file: JobFile, cluster: Cluster) -> int:
    section = file.cluster
    given = section.memory if isinstance(section, ClusterSection) else None
    whole = given or cluster.gpu.memory_bytes
    if file.memory.limit is None:
        return int(whole * (1 - file.memory.margin))
    if "margin" in file.memory.model_fields_set:
        raise UserError(f"{path}: memory must have margin or limit, got both; remove one of them")
    if cluster.gpu.device is Device.CUDA and file.memory.limit > whole:
        raise UserError(
            f"{path}: memory.limit must be at most what a {cluster.gpu.name} has "
            f"({size_text(whole)}), got {size_text(file.memory.limit)}"
        )
    return file.memory.limit
