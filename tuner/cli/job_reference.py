"""The reference page of the job file, from its schema: every key, type, default and meaning."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tuner.job import JobFile
from tuner.job_fields import Spelled

_HEAD = """# The job file

<!-- Written by `python -m tuner.cli.references docs` from the schema of the job: do not edit. -->

A YAML file that says what is trained, on what, and what may be tried. It is strict: an unknown key
is an error that names the nearest known one. Paths in it are relative to its folder. `examples/`
has four. Times are in seconds and sizes in bytes where they have no unit.

```yaml
workload:
  model: llama-3-8b
  seq_len: 8192
  global_batch: 128
cluster: {gpu: h100-sxm-80gb, gpus_per_node: 8}
search:
  precision: [bf16]
budget: {trials: 30, time: 2h}
```
"""
_WORDS = {int: "whole number", float: "number", str: "text", bool: "`true`, `false`"}


def job_reference() -> str:
    """The page, in Markdown."""
    return "\n".join([_HEAD, *_sections("", JobFile)])


def _sections(prefix: str, model: type[BaseModel]) -> Iterator[str]:
    """The table of a section, then those of the sections in it."""
    if prefix:
        yield f"## `{prefix}`\n"
        yield _sentence(model.__doc__ or "") + "\n"
    else:
        yield "## Sections\n"
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for name, field in model.model_fields.items():
        meaning = " ".join((field.description or "").replace("``", "`").split())
        yield f"| `{name}` | {_kind(field)} | {_default(field)} | {meaning} |"
    yield ""
    for name, field in model.model_fields.items():
        for nested in _models(field.annotation):
            yield from _sections(f"{prefix}.{name}" if prefix else name, nested)


def _sentence(docstring: str) -> str:
    """The docstring without the key that it opens with, which the heading already says."""
    _, _, text = docstring.partition(": ")
    text = " ".join(text.replace("``", "`").split())
    return text[:1].upper() + text[1:]


def _default(field: FieldInfo) -> str:
    value = field.default
    if field.is_required():
        return "must be given"
    if isinstance(value, BaseModel):
        return "its defaults"
    if value is None:
        return "`auto`" if _is_list(field.annotation) else "not given"
    return f"`{value}`"


def _kind(field: FieldInfo) -> str:
    if (words := _spelled(field.metadata)) is not None:
        return words
    text = _kind_of(field.annotation, _bounds(field.metadata))
    return f"{text}; one, a list or `auto`" if _is_list(field.annotation) else text


def _kind_of(annotation: Any, bounds: str) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *metadata = get_args(annotation)
        return _spelled(metadata) or _kind_of(inner, _bounds(_flat(metadata)))
    if origin in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        return " or ".join(_kind_of(part, bounds) for part in parts)
    if origin is list:
        return _kind_of(get_args(annotation)[0], "")
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if issubclass(annotation, Enum):
        return ", ".join(f"`{member.value}`" for member in annotation)
    if issubclass(annotation, BaseModel):
        return "a section"
    return _WORDS[annotation] + bounds


def _spelled(metadata: list[Any]) -> str | None:
    return next((one.words for one in metadata if isinstance(one, Spelled)), None)


def _flat(metadata: list[Any]) -> list[Any]:
    """Bounds stand in the metadata, or in a field inside it."""
    flat = []
    for one in metadata:
        flat.extend(one.metadata if isinstance(one, FieldInfo) else [one])
    return flat


def _bounds(metadata: list[Any]) -> str:
    said: Mapping[type, str] = {Ge: "from {ge}", Gt: "above {gt}", Le: "to {le}", Lt: "below {lt}"}
    found = [
        said[type(one)].format(**{name: getattr(one, name) for name in one.__slots__})
        for one in metadata
        if type(one) in said
    ]
    return f" {' '.join(found)}" if found else ""


def _is_list(annotation: Any) -> bool:
    return any(get_origin(part) is list for part in (annotation, *get_args(annotation)))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield part
