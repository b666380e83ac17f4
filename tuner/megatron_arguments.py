"""Megatron-LM arguments, or a launch script that holds them, as options with typed values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.shell_filling import Filling
from tuner.units import MOST_COUNT, MOST_LAYERS
from tuner.user_files import UnreadableError, text_of

_SUFFIXES = (".sh", ".args", ".txt")
_NAME = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")


def is_megatron_file(path: Path) -> bool:
    """The file is a script or an argument list, by its name or by what it says."""
    if path.suffix in _SUFFIXES:
        return True
    try:
        return path.suffix != ".json" and "--num-layers" in text_of(path)
    except UnreadableError:
        return False


def megatron_options(text: str) -> dict[str, str]:
    """Every ``--option`` with its first value; a flag has an empty one, the last one given wins.

    Raises:
        ValueError: variables that hold one another grow without end.
    """
    joined = re.sub(r"\\\s*\n", " ", text)
    code = [re.sub(r"(^|\s)#.*$", "", line) for line in joined.splitlines()]
    lines = [statement for line in code for statement in line.split(";")]
    variables: dict[str, str] = {}
    filling = Filling()
    tokens: list[str] = []
    for line in lines:
        match = re.match(r"\s*(?:export\s+)?(\w+)=(\"[^\"]*\"|'[^']*'|[^\s(;&|]*)\s*$", line)
        if match:
            variables[match[1]] = _filled(match[2].strip("\"'"), variables, filling)
            if "--" not in match[2]:
                continue
        tokens += _words(_filled(line, variables, filling))
    # A quoted list of arguments over several lines is met line by line: quotes are only noise.
    options: dict[str, str] = {}
    for token, following in zip(tokens, [*tokens[1:], "--"], strict=True):
        option, equals, value = token.partition("=")
        if option.startswith("--") and len(option) > 2:
            options[option] = value if equals else "" if following.startswith("--") else following
    return options


def _filled(text: str, variables: Mapping[str, str], filling: Filling) -> str:
    def value_of(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        return variables.get(name, default if default is not None else match[0])

    return filling.filled(_NAME, value_of, text)


def _words(line: str) -> list[str]:
    bare = re.sub(r"[\"'()]", " ", line)
    bare = re.sub(r"^\s*(?:export\s+)?\w+\+?=", " ", bare)
    try:
        return shlex.split(bare)
    except ValueError:
        return bare.split()


@dataclass(frozen=True, slots=True)
class MegatronArguments:
    """Typed access to options; a wrong one is a ValueError that names it."""

    options: Mapping[str, str]

    def has(self, option: str) -> bool:
        """Whether it is given, with a value or without."""
        return option in self.options

    def whole(self, option: str, default: int | None = None) -> int:
        """A whole number of at least 1.

        Raises:
            ValueError: it is something else, out of all bounds, or missing without a default.
        """
        text = self.options.get(option)
        if text is None:
            if default is None:
                raise ValueError(f"{option} must be given, but it is missing; add it")
            return default
        if not text.isdecimal() or len(text) > 4000 or int(text) < 1:
            raise ValueError(f"{option} must be a whole number of at least 1, got {text!r}")
        most = MOST_LAYERS if option == "--num-layers" else MOST_COUNT
        if int(text) > most:
            raise ValueError(f"{option} must be at most {most}, got {text}")
        return int(text)

    def number(self, option: str, default: float) -> float:
        """A number.

        Raises:
            ValueError: it is something else.
        """
        text = self.options.get(option)
        try:
            return default if text is None else float(text)
        except ValueError:
            raise ValueError(f"{option} must be a number, got {text!r}") from None

    def word(self, option: str, default: str) -> str:
        """A value as it is written."""
        return self.options.get(option) or default
