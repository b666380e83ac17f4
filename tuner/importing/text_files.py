"""JSON, YAML and TOML as users write them: a mistake is one sentence with its line."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from tuner.errors import UserError
from tuner.user_files import UnreadableError, check_depth, said_where_unparsable, text_of

_STRING = re.compile(r'"(?:\\.|[^"\\])*"')
_COMMENT = re.compile(r"//|/\*|#")
"""Once strings are gone: a path or an address may hold the same characters."""


def read_text(path: Path) -> str:
    """The file's text.

    Raises:
        UserError: it cannot be read, or is not text.
    """
    try:
        return text_of(path)
    except UnreadableError as error:
        raise UserError(f"{path} must be a file that can be read: {error}") from error


def json_values(text: str, path: Path) -> dict[str, Any]:
    """The object of a JSON file.

    Raises:
        UserError: it is no JSON, has comments, or a key twice.
    """
    duplicates: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        duplicates.extend(name for name in names if names.count(name) > 1)
        return dict(pairs)

    try:
        with said_where_unparsable(path):
            values = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise UserError(_json_sentence(text, path, error)) from error
    if duplicates:
        lines = [m.start() for m in re.finditer(rf'"{re.escape(duplicates[0])}"\s*:', text)]
        line = text.count("\n", 0, lines[1]) + 1
        raise UserError(
            f"{path}: line {line}: {duplicates[0]} must stand once, but it is there twice; "
            "remove one of them"
        )
    return _mapping(values, path)


def _json_sentence(text: str, path: Path, error: json.JSONDecodeError) -> str:
    lines = text.splitlines()
    bare = (_STRING.sub("", line) for line in lines)
    commented = next((n for n, line in enumerate(bare, 1) if _COMMENT.search(line)), None)
    if commented is not None and commented <= error.lineno + 1:
        return (
            f"{path}: line {commented}: JSON has no comments, got "
            f"{lines[commented - 1].strip()!r}; remove it"
        )
    trailing = re.search(r",\s*[}\]]", text)
    if trailing is not None and trailing.end() >= error.pos:
        return f"{path}: line {text.count(chr(10), 0, trailing.start()) + 1}: a comma must be \
followed by another key, got the end of the block; remove the comma"
    return f"{path}: line {error.lineno}: it must be JSON, but {error.msg.lower()}"


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML lets a later key silently replace an earlier one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key} must stand once, got it twice", key_node.start_mark
                )
            seen.add(str(key))
        return super().construct_mapping(node, deep)


def yaml_values(text: str, path: Path) -> dict[str, Any]:
    """The mapping of a YAML file.

    Raises:
        UserError: it is no YAML, or has a key twice.
    """
    try:
        with said_where_unparsable(path):
            values = yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        line = f": line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{path}{line}: it must be YAML, but {error.problem}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} must be YAML, but {' '.join(str(error).split())}") from error
    return _mapping(values, path)


def toml_values(text: str, path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        UserError: it is no TOML.
    """
    try:
        with said_where_unparsable(path):
            values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} must be TOML, but {str(error).lower()}") from error
    return _mapping(values, path)


def _mapping(values: Any, path: Path) -> dict[str, Any]:
    if not isinstance(values, dict):
        got = "nothing" if values is None else type(values).__name__
        raise UserError(f"{path} must hold keys with values, got {got}")
    check_depth(values, path)
    return values
