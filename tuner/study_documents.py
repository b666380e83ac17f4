"""What the JSON files of a study folder must hold: a folder may come from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, field_validator

from tuner.launch import Routing
from tuner.plan import ParallelPlan


class _Document(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _ClusterIdentity(_Document):
    gpu: str


class _WorkloadIdentity(_Document):
    seq_len: PositiveInt | None = None
    global_batch: PositiveInt | None = None


class _MeasureIdentity(_Document):
    routing: Routing = "learned"


class _Identity(_Document):
    cluster: _ClusterIdentity
    workload: _WorkloadIdentity = _WorkloadIdentity()
    measure: _MeasureIdentity = _MeasureIdentity()


class _Job(_Document):
    identity: _Identity
    shape: dict[str, Any] | None = None
    num_nodes: PositiveInt
    gpus_per_node: PositiveInt
    memory_limit_bytes: PositiveInt
    defaults: dict[str, dict[str, Any]]
    job: dict[str, Any]

    @field_validator("defaults")
    @classmethod
    def _are_plans(cls, defaults: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for plan in defaults.values():
            ParallelPlan.from_dict(plan)
        return defaults


class _Removal(_Document):
    rule: str
    removed: NonNegativeInt
    sentence: str


class _Waterfall(_Document):
    num_combinations: NonNegativeInt
    num_legal: NonNegativeInt
    removed: list[_Removal]


_DOCUMENTS: Mapping[str, type[_Document]] = {"job.json": _Job, "waterfall.json": _Waterfall}


def check_document(name: str, value: object) -> None:
    """Makes sure that a file of this name can be read on; others are taken as they are.

    Raises:
        pydantic.ValidationError: something is missing, or is of another kind.
    """
    if name in _DOCUMENTS:
        _DOCUMENTS[name].model_validate(value)
