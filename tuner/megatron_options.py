"""The options of Megatron-LM's ``pretrain_gpt.py``, as data: an argument list held against them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tuner.errors import UserError

EXCLUSIVE = (
    ("--bf16", "--fp16"),
    ("--mock-data", "--data-path"),
    ("--train-iters", "--train-samples"),
    ("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"),
    ("--lr-warmup-fraction", "--lr-warmup-iters"),
    ("--use-torch-fsdp2", "--use-distributed-optimizer"),
)
"""Pairs that ``validate_args`` refuses together (rules MC-10, MC-25 and MC-62 among them)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronOption:
    """One option: its spellings, and the values that it takes."""

    flags: tuple[str, ...]
    dest: str
    kind: str
    """``value``, or a switch: ``flag_true``, ``flag_false``, ``flag_optional``."""
    type: str | None
    nargs: str | int | None
    choices: tuple[Any, ...] | None
    default: Any
    versions: str
    """Of Megatron-Core that have it, PEP 440; the whole table's unless it says its own."""


@cache
def option_table(version: str = "0.16.1") -> Mapping[str, MegatronOption]:
    """The options of a version by every spelling.

    Raises:
        UserError: the version is one whose options are not known here.
    """
    table = json.loads((files("tuner") / "megatron_options.json").read_text())
    if Version(version) not in SpecifierSet(table["versions"]):
        raise UserError(
            f"Megatron-LM must be core {table['versions']}, whose options are known here, got "
            f"{version}; use a checkout of tag core_v0.16.1"
        )
    options = [_option(entry, table["versions"]) for entry in table["options"]]
    known = [one for one in options if Version(version) in SpecifierSet(one.versions)]
    return {flag: option for option in known for flag in option.flags}


def _option(entry: Mapping[str, Any], versions: str) -> MegatronOption:
    choices = entry["choices"]
    return MegatronOption(
        flags=tuple(entry["flags"]),
        dest=entry["dest"],
        kind=entry["kind"],
        type=entry["type"],
        nargs=entry["nargs"],
        choices=None if choices is None else tuple(choices),
        default=entry["default"],
        versions=entry.get("versions", versions),
    )


def read_arguments(text: str, *, named: str, version: str = "0.16.1") -> dict[str, Any]:
    """The values by Megatron-LM's own names, only of the options that the text gives.

    Args:
        text: an argument list; ``#`` starts a comment.
        named: what to call it where it is wrong.
        version: of Megatron-Core.

    Raises:
        UserError: an option is unknown, has a value that it cannot have, or excludes another.
    """
    options = option_table(version)
    values: dict[str, Any] = {}
    given = set()
    for flag, words in _clauses(shlex.split(text, comments=True), named):
        option = options.get(flag)
        if option is None:
            near = get_close_matches(flag, options, n=1)
            hint = f"did you mean {near[0]}?" if near else "see pretrain_gpt.py --help"
            raise UserError(f"{named}: {flag} is no option of pretrain_gpt.py; {hint}")
        values[option.dest] = _value(option, flag, words, named)
        given.add(option.flags[0])
    for one, other in EXCLUSIVE:
        if {one, other} <= given:
            raise UserError(f"{named} must have one of {one} and {other}, got both; remove one")
    return values


def _clauses(words: list[str], named: str) -> Iterator[tuple[str, list[str]]]:
    flag, values = "", list[str]()
    for word in words:
        if not word.startswith("--"):
            if not flag:
                raise UserError(f"{named} must start with an option such as --bf16, got {word!r}")
            values.append(word)
            continue
        if flag:
            yield flag, values
        flag, equals, value = word.partition("=")
        values = [value] if equals else []
    if flag:
        yield flag, values


def _value(option: MegatronOption, flag: str, words: list[str], named: str) -> Any:
    if option.kind in ("flag_true", "flag_false") or (option.kind == "flag_optional" and not words):
        if words:
            raise UserError(f"{named}: {flag} must have no value, got {' '.join(words)}")
        return option.kind != "flag_false"
    many = option.nargs in ("+", "*") or isinstance(option.nargs, int)
    if not words or (len(words) > 1 and not many):
        raise UserError(f"{named}: {flag} must have one value, got {' '.join(words) or 'none'}")
    converted = [_converted(option, flag, word, named) for word in words]
    return converted if many else converted[0]


def _converted(option: MegatronOption, flag: str, word: str, named: str) -> Any:
    kinds: Mapping[str | None, type] = {"int": int, "float": float}
    try:
        value = kinds.get(option.type, str)(word)
    except ValueError as error:
        raise UserError(f"{named}: {flag} must be of type {option.type}, got {word!r}") from error
    if option.choices is not None and value not in option.choices:
        known = ", ".join(str(choice) for choice in option.choices)
        raise UserError(f"{named}: {flag} must be one of {known}, got {word}")
    return value
