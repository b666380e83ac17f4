"""A script's arithmetic is done as the shell would, and nothing is run."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.importing.shell_script import arithmetic, computed_script, unknown_part


def last_word(script: str) -> str:
    return computed_script(script).splitlines()[-1].split()[-1]


@pytest.mark.parametrize(
    ("assignments", "value"),
    [
        ("A=2\nX=$((A * 4))", "8"),
        ("A=2\nX=$(( $A+${A} ))", "4"),
        ("A=9; X=$((A/2))", "4"),
        ("A=2\nB=$((A*3))\nX=$((B-A))", "4"),
        ("A=3\nX=$[A*2]", "6"),
        ("A=3\nX=`expr $A + 1`", "4"),
        ("A=3\nX=$(expr $A \\* 2)", "6"),
        ("A=3\nlet X=A*5", "15"),
        ("A=3\n((X = A + 4))", "7"),
        ('X="${UNSET:-6}"', "6"),
        ("A=${UNSET:-6}\nX=$((A * 2))", "12"),
        ("X=5\nif [ -z $X ]; then X=5; fi", "5"),
        ("if [ -z $X ]; then X=3; fi", "3"),
        ("export X=7", "7"),
        ("X=$(( (1 + 2) * 3 ))", "9"),
    ],
)
def test_a_variable_has_the_value_that_the_script_gives_it(assignments: str, value: str) -> None:
    assert last_word(f"{assignments}\nrun --n ${{X}}") == value


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("X=$((NNODES * 2))\nrun $X", "line 1 computes it from NNODES"),
        ("X=$((1/0))\nrun $X", "line 1"),
        ("A=$((NNODES))\nX=$((A * 2))\nrun $X", "line 1 computes it from NNODES"),
        ("X=`nproc`\nrun $X", "line 1 computes it from a command"),
        ("run $NNODES", "it depends on $NNODES"),
        ("run ${NNODES}", "it depends on $NNODES"),
    ],
)
def test_what_the_environment_decides_is_said_to_be_unknown(script: str, why: str) -> None:
    assert why in (unknown_part(last_word(script)) or "")


def test_lines_keep_their_numbers() -> None:
    script = "A=1\n\nrun --a $A \\\n  --b $((A+1))\n"
    assert computed_script(script).splitlines()[3].strip() == "--b 2"


_EXPRESSIONS = st.recursive(
    st.integers(min_value=0, max_value=64).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+*-"), inner).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
    ),
    max_leaves=6,
)


@settings(max_examples=15, deadline=None)
@given(_EXPRESSIONS)
def test_sums_are_those_of_a_real_shell(expression: str) -> None:
    told = subprocess.run(
        ["bash", "-c", f"echo $(({expression}))"], capture_output=True, text=True, check=True
    )
    assert arithmetic(expression, {}) == told.stdout.strip()


@pytest.mark.parametrize("text", ["__import__('os')", "open('x')", "2 ** 10000", "a.b", "1; 2", ""])
def test_nothing_but_sums_is_computed(text: str) -> None:
    assert arithmetic(text, {}) is None
