"""A recorded sweep (CSV) as groups of plans per workload; what was measured is kept apart."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from tuner.cluster import Cluster, Gpu
from tuner.cost_model.case import Subject
from tuner.errors import UserError
from tuner.plan import Backend, ParallelPlan, Precision, Recompute
from tuner.plan_arrays import PlanArrays
from tuner.presets import gpus_spelled
from tuner.sweep_shape import (
    DEEPEST_PIPELINE,
    RowProblem,
    megatron_arguments,
    pipeline_layout,
    row_facts,
    whole,
    whole_argument,
)
from tuner.units import GIB
from tuner.user_files import TABLE_BYTES, UnreadableError, checked_file
from tuner.workload import HfModel, Workload

WORKLOAD_COLUMNS = ("model", "gpu", "gpus", "seq", "global_batch")
"""Rows that agree in these are of one workload."""
MEASURED_COLUMNS = frozenset(
    {"step_time_s", "tokens_per_s_per_gpu", "peak_mem_gb", "peak_reserved_gb", "outcome"}
)
"""Never read to predict; so are columns that end in ``_by_rank`` or start with ``mem_gb_``."""
REQUIRED_COLUMNS = ("gpu", "global_batch")
_SHAPE_COLUMNS = ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "params", "config")
_PLAN_COLUMNS = frozenset(
    {"micro_batch", "tp", "pp", "vpp", "cp", "ep", "dp", "zero", "precision", "recompute"}
    | {"seq_parallel", "backend"}
)
_CLUSTER_COLUMNS = frozenset({"gpu_mem_gb", "gpus_per_node"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMeasurement:
    """What a row says came of its plan."""

    outcome: str
    """``measured``, ``out_of_memory`` or ``failed``."""
    step_time_s: float | None
    peak_memory_bytes: float | None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SweepGroup:
    """The rows of one workload: what was laid out how, not what came of it."""

    key: Mapping[str, str]
    """The cells of ``WORKLOAD_COLUMNS``."""
    rows: tuple[int, ...]
    """0-based data rows of the file, in order; all else here is in the same order."""
    plans: PlanArrays
    subjects: tuple[Subject, ...]
    """Of each row; equal ones are the same object."""
    memory_known: tuple[bool, ...]
    """Whether the row's GPU names one memory size."""
    knobs: Mapping[str, tuple[str, ...]]
    """Further categorical columns that vary within the group, cell by cell."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SweepTable:
    """A sweep, read once; the measured cells are looked at row by row, on demand."""

    path: Path
    groups: tuple[SweepGroup, ...]
    skipped: Mapping[str, tuple[int, ...]]
    """Rows that cannot be answered, by reason."""
    num_rows: int
    measures_all_ranks: bool
    """Whether a column tells ranks apart; otherwise a peak is likely that of the first rank."""
    measured_cells: tuple[Mapping[str, str], ...]

    def measurement(self, row: int) -> RowMeasurement:
        """What came of a row; the only way to it."""
        cells = self.measured_cells[row]
        peak = _number(cells.get("peak_mem_gb")) or _number(cells.get("mem_gb_last_rank_peak"))
        return RowMeasurement(
            outcome=(cells.get("outcome") or "").strip() or "measured",
            step_time_s=_number(cells.get("step_time_s")),
            peak_memory_bytes=peak * GIB if peak else None,
        )


def is_measured(column: str) -> bool:
    """Whether a column holds what was measured."""
    name = column.lower()
    return name in MEASURED_COLUMNS or name.endswith("_by_rank") or name.startswith("mem_gb_")


def read_sweep(path: Path) -> SweepTable:
    """Reads a table in the columns of the README's sweep format.

    Raises:
        UserError: not a readable CSV file with a header, or none of its rows can be answered.
    """
    rows = _read_rows(path)
    described = [{n: c for n, c in row.items() if not is_measured(n)} for row in rows]
    measured = tuple({n: c for n, c in row.items() if is_measured(n)} for row in rows)
    answered: dict[tuple[str, ...], list[tuple[int, _Row]]] = {}
    skipped: dict[str, list[int]] = {}
    known: dict[Subject, Subject] = {}
    for index, cells in enumerate(described):
        try:
            row = _row(cells, path.parent)
        except ValueError as problem:  # RowProblem, or a size that a shape or plan refuses
            skipped.setdefault(str(problem), []).append(index)
            continue
        row = replace(row, subject=known.setdefault(row.subject, row.subject))
        key = tuple(cells.get(name, "") for name in WORKLOAD_COLUMNS)
        answered.setdefault(key, []).append((index, row))
    if not answered:
        reasons = "; ".join(f"{why} ({len(of)} rows)" for why, of in skipped.items())
        raise UserError(f"{path}: no row can be answered: {reasons or 'the table has no rows'}")
    return SweepTable(
        path=path,
        groups=tuple(_group(key, members, described) for key, members in answered.items()),
        skipped={why: tuple(of) for why, of in skipped.items()},
        num_rows=len(rows),
        measures_all_ranks=any(name.endswith("_by_rank") for name in (measured or ({},))[0]),
        measured_cells=measured,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    plan: ParallelPlan
    subject: Subject
    memory_known: bool


def _read_rows(path: Path) -> list[dict[str, str]]:
    try:
        checked_file(path, TABLE_BYTES)
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restval="")
            rows = [{n: c for n, c in row.items() if isinstance(n, str)} for row in reader]
            columns = set(reader.fieldnames or ())
    except OSError as error:
        raise UserError(f"{path} must be a table that can be read: {error.strerror}") from error
    except UnreadableError as error:
        raise UserError(f"{path} must be a table that can be read: {error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} must be a CSV file in UTF-8, but {error}") from error
    missing = [name for name in REQUIRED_COLUMNS if name not in columns]
    if missing:
        raise UserError(
            f"{path} must have the columns {', '.join(REQUIRED_COLUMNS)}; "
            f"{', '.join(missing)} is missing; it has {', '.join(sorted(columns)) or 'none'}"
        )
    return rows


def _row(cells: Mapping[str, str], folder: Path) -> _Row:
    plan = _plan(cells)
    num_gpus = _num_gpus(cells, plan)
    facts = row_facts(cells, folder)
    gpu, memory_known = _gpu(cells)
    per_node = min(whole(cells, "gpus_per_node", 8) or 8, num_gpus)
    if num_gpus % per_node:
        raise RowProblem("gpus is not a multiple of gpus_per_node")
    batch = whole(cells, "global_batch")
    seq = whole(cells, "seq")
    if min(batch, seq) < 1:
        raise RowProblem("seq and global_batch must be at least 1")
    model = HfModel(name=cells.get("model") or "model", config_text="", shape=facts.shape)
    subject = Subject(
        shape=facts.shape,
        workload=Workload(model=model, seq_len=seq, global_batch_sequences=batch),
        cluster=_cluster(gpu, num_gpus, per_node),
        software=facts.software,
    )
    return _Row(plan=plan, subject=subject, memory_known=memory_known)


def _cluster(gpu: Gpu, num_gpus: int, per_node: int) -> Cluster:
    """With the network of the GPU's generation, a card a GPU.

    400 Gb/s with Hopper and later, 200 with A100, 100 with V100 (DGX H100, DGX A100, DGX-1).
    """
    family = gpu.name.split("-")[0]
    rate = {"a100": 25e9, "v100": 12.5e9}.get(family, 50e9)
    return Cluster(
        gpu=gpu,
        num_nodes=num_gpus // per_node,
        gpus_per_node=per_node,
        network_bytes_per_s=rate,
    )


def _plan(cells: Mapping[str, str]) -> ParallelPlan:
    """The plan; a blank degree is 1, a blank zero 0, a blank precision bf16."""
    degree = {name: whole(cells, name, 1) or 1 for name in ("tp", "pp", "vpp", "cp", "ep")}
    zero = whole(cells, "zero", 0)
    kernel = (cells.get("flash_attn") or "").strip().lower()
    split = (cells.get("seq_parallel") or "").strip().lower()
    # Sequence parallelism came with flash attention; older programs have neither.
    parallel = split in ("1", "true", "yes") if split else kernel in ("te", "fa2", "flash", "sdpa")
    if degree["pp"] > DEEPEST_PIPELINE:
        raise RowProblem(f"pp is above {DEEPEST_PIPELINE}")
    if zero > 3:
        raise RowProblem("zero must be 0, 1, 2 or 3")
    arguments = megatron_arguments(cells)
    chunks = len(pipeline_layout(arguments)) // degree["pp"]
    return ParallelPlan(
        dp_replicate=whole_argument(arguments, "num-distributed-optimizer-instances", 1),
        backend=_backend(cells, zero),
        zero_stage=zero,
        micro_batch=whole(cells, "micro_batch", 1) or 1,
        sequence_parallel=parallel and degree["tp"] > 1,
        precision=_precision((cells.get("precision") or "").lower()),
        recompute=_recompute((cells.get("recompute") or "").lower()),
        tp=degree["tp"],
        pp=degree["pp"],
        vpp=max(degree["vpp"], chunks),
        cp=degree["cp"],
        ep=degree["ep"],
    )


def _backend(cells: Mapping[str, str], zero: int) -> Backend:
    text = (cells.get("backend") or "").strip().lower()
    if text in set(Backend):
        return Backend(text)
    if (cells.get("megatron_args") or "").strip():
        return Backend.MEGATRON
    return Backend.PYTORCH if zero >= 2 else Backend.MEGATRON


def _precision(text: str) -> Precision:
    if "fp8" in text or "float8" in text:
        return Precision.FP8
    for word in (Precision.BF16, Precision.FP16, Precision.FP32):
        if word in text:
            return word
    return Precision.BF16


def _recompute(text: str) -> Recompute:
    for word in (Recompute.FULL, Recompute.SELECTIVE):
        if text.strip().startswith(word):
            return word
    return Recompute.NONE


def _num_gpus(cells: Mapping[str, str], plan: ParallelPlan) -> int:
    model_parallel = plan.tp * plan.pp * plan.cp
    dp = whole(cells, "dp", 0)
    num_gpus = whole(cells, "gpus", 0) or model_parallel * dp
    if not num_gpus:
        raise RowProblem("gpus is missing")
    if num_gpus % model_parallel or (dp and model_parallel * dp != num_gpus):
        raise RowProblem("tp * pp * cp * dp is not gpus")
    return num_gpus


def _gpu(cells: Mapping[str, str]) -> tuple[Gpu, bool]:
    """The row's GPU, and whether its memory is known: by its name or by ``gpu_mem_gb``."""
    name = (cells.get("gpu") or "").strip()
    candidates = gpus_spelled(name) if name else ()
    if not candidates:
        raise RowProblem(f"gpu {name!r} is not known" if name else "gpu is missing")
    gib = _number(cells.get("gpu_mem_gb"))
    if gib:
        near = min(candidates, key=lambda gpu: abs(gpu.memory_bytes / GIB - gib))
        if abs(near.memory_bytes / GIB / gib - 1) > 0.12:
            near = replace(near, memory_bytes=int(gib * GIB))
        return near, True
    sizes = {gpu.memory_bytes for gpu in candidates}
    return max(candidates, key=lambda gpu: gpu.memory_bytes), len(sizes) == 1


def _group(
    key: tuple[str, ...], members: list[tuple[int, _Row]], described: list[dict[str, str]]
) -> SweepGroup:
    fixed = {*WORKLOAD_COLUMNS, *_SHAPE_COLUMNS, *_PLAN_COLUMNS, *_CLUSTER_COLUMNS}
    rows = tuple(index for index, _ in members)
    columns = [name for name in described[rows[0]] if name not in fixed]
    knobs = {name: tuple(described[row].get(name, "") for row in rows) for name in columns}
    return SweepGroup(
        key=dict(zip(WORKLOAD_COLUMNS, key, strict=True)),
        rows=rows,
        plans=PlanArrays.of_plans([row.plan for _, row in members]),
        subjects=tuple(row.subject for _, row in members),
        memory_known=tuple(row.memory_known for _, row in members),
        knobs={name: cells for name, cells in knobs.items() if len(set(cells)) > 1},
    )


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if isfinite(value) and value > 0 else None
