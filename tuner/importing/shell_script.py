"""A launch script as text without arithmetic: what it computes from its own variables is done.

Nothing is run. What depends on the environment, a command or a condition becomes a mark that says
so, and only an option that decides the plan is refused for it.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tuner.shell_filling import Filling

_MARK = re.compile(r"@unknown\.(\d+)\.(\w*)@")
_NAME = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
_ASSIGNMENT = re.compile(
    r"^\s*(?:(?:export|local|readonly)\s+)?(\w+)=(\"[^\"]*\"|'[^']*'|[^\s(;&|]*)\s*$"
)
_ARITHMETIC = re.compile(
    r"\$\(\((.*?)\)\)|\$\[([^\]]*)\]|\$\(\s*expr\s+([^()]*)\)|`\s*expr ([^`]*)`"
)
_LET = re.compile(r"^\s*(?:let\s+[\"']?|\(\(\s*)(\w+)\s*=\s*([^=][^\"']*?)(?:\)\)|[\"'])?\s*$")
_COMMAND = re.compile(r"\$\([^()]*\)|`[^`]*`")
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def computed_script(text: str) -> str:
    """The script with its arithmetic done and what cannot be known marked.

    Lines keep their numbers: a continued line stays continued.

    Raises:
        ValueError: variables that hold one another grow without end; with the line.
    """
    variables: dict[str, str] = {}
    filling = Filling()
    depth = 0
    assigned: dict[str, list[tuple[int, str, bool]]] = {}
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r"(^|\s)#.*$", "", line)
        depth += _depth_change(code)
        for name, value in _assignments(code):
            computed = _computed(value, variables, number)
            with _line_named(number):
                known = _with_defaults(computed, variables, filling)
            assigned.setdefault(name, []).append((number, known, depth > 0))
            variables[name] = known
        lines.append(_computed(_without_let(code, variables), variables, number))
    settled = _settled(assigned)
    filled = []
    for number, line in enumerate(lines, 1):
        with _line_named(number):
            filled.append(_filled(line, settled, filling))
    return "\n".join(filled)


@contextmanager
def _line_named(number: int) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from error


def unknown_part(value: str) -> str | None:
    """Why a value cannot be known: the line and what it depends on; None where it can."""
    mark = _MARK.search(value)
    if mark is not None:
        cause = f"{mark[2]}, which" if mark[2] else "a command or a condition, which"
        return f"line {mark[1]} computes it from {cause} the script does not set to one number"
    name = re.search(r"\$\{?([\w@*]+)", value)
    if name is not None:
        return f"it depends on ${name[1]}, which the script does not set"
    return None


def _assignments(code: str) -> Iterator[tuple[str, str]]:
    for statement in re.split(r";(?![^(]*\)\))|\bthen\b|\belse\b|\bdo\b|\)\s(?=\w+=)", code):
        if match := (_ASSIGNMENT.match(statement) or _whole_arithmetic(statement)):
            yield match[1], match[2].strip("\"'")
        elif match := _LET.match(statement):
            yield match[1], f"$(({match[2]}))"


def _whole_arithmetic(statement: str) -> re.Match[str] | None:
    """An assignment of arithmetic alone, whose parentheses the plain pattern refuses."""
    return re.match(
        r"^\s*(?:(?:export|local|readonly)\s+)?(\w+)=[\"']?"
        r"(\$\(\(.*\)\)|\$\[.*\]|\$\([^()]*\)|`[^`]*`)[\"']?\s*$",
        statement,
    )


def _without_let(code: str, variables: Mapping[str, str]) -> str:
    match = _LET.match(code)
    return f"{match[1]}={variables.get(match[1], '')}" if match else code


def _depth_change(code: str) -> int:
    opened = len(re.findall(r"(?:^|[;\s])(?:if|case)\s", code))
    return opened - len(re.findall(r"(?:^|[;\s])(?:fi|esac)\b", code))


def _settled(assigned: Mapping[str, list[tuple[int, str, bool]]]) -> dict[str, str]:
    """Variables with the one word that they have, or a mark where a condition decides."""
    settled = {}
    for name, values in assigned.items():
        distinct = {value for _, value, _ in values}
        if len(distinct) > 1 and any(inside for _, _, inside in values):
            settled[name] = f"@unknown.{values[-1][0]}.{name}@"
        elif len(distinct) == 1 and re.fullmatch(r"[\w.@]+", values[-1][1]):
            settled[name] = values[-1][1]
    return settled


def _with_defaults(value: str, variables: Mapping[str, str], filling: Filling) -> str:
    """``${NAME:-default}`` as the script's own variables have it, else the default."""

    def value_of(match: re.Match[str]) -> str:
        default = match[2] if match[2] is not None else match[0]
        return variables.get(match[1] or match[3], default)

    return filling.filled(_NAME, value_of, value)


def _filled(line: str, settled: Mapping[str, str], filling: Filling) -> str:
    match = _ASSIGNMENT.match(line)
    if match and match[1] in settled:
        return f"{match[1]}={settled[match[1]]}"
    return filling.filled(_NAME, lambda m: settled.get(m[1] or m[3], m[0]), line)


def _computed(code: str, variables: Mapping[str, str], number: int) -> str:
    def value_of(match: re.Match[str]) -> str:
        expression = next(group for group in match.groups() if group is not None)
        return arithmetic(expression, variables) or _mark(expression, variables, number)

    done = _ARITHMETIC.sub(value_of, code)
    return _COMMAND.sub(f"@unknown.{number}.@", done)


def _mark(expression: str, variables: Mapping[str, str], number: int) -> str:
    for name in re.findall(r"[A-Za-z_]\w*|(?<=\$)\d+", expression):
        value = variables.get(name, "")
        if not value.isdecimal():
            inner = _MARK.search(value)
            return inner[0] if inner else f"@unknown.{number}.{name}@"
    return f"@unknown.{number}.@"


def arithmetic(expression: str, variables: Mapping[str, str]) -> str | None:
    """What a shell computes of whole numbers; None where a name is unknown or it is no sum."""

    def number_of(match: re.Match[str]) -> str:
        value = variables.get(match[1] or match[3], match[2] or "")
        return value if value.isdecimal() and len(value) < 20 else "?"

    filled = _NAME.sub(number_of, expression)
    filled = re.sub(r"[A-Za-z_]\w*", lambda m: variables.get(m[0], "?")[:64], filled)
    try:
        tree = ast.parse(filled.replace("\\*", "*").replace("/", "//").strip(), mode="eval")
        return str(_value(tree.body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow) and right > 64:
            raise ValueError("no degree is that large")
        value = _OPERATORS[type(node.op)](left, right)
        if abs(value) >= 2**63:
            raise ValueError("no shell counts that far")
        return value
    raise ValueError("not a sum of whole numbers")
