"""What a user meets before any command runs: help, mistakes, completion, version."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from tuner.cli.main import main, parser

ROOT = Path(__file__).parents[2]
COMMANDS = tuple(parser().commands)
LONG = {"tune", "verify", "soak", "doctor"}
"""Their examples start training ranks or ask the whole machine: tested elsewhere."""
NEEDS_A_RAY = {"submit"}


def example(command: str) -> list[str]:
    """The words of the example in a command's help."""
    text = parser().commands[command].format_help()
    line = text.partition("example:\n")[2].splitlines()[0]
    program, *words = shlex.split(line)
    assert program == "paratune"
    return words


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_says_what_it_does_with_an_example_and_the_exit_codes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert f"\n  paratune {command}" in said
    assert "130 interrupted" in said
    options = parser().parse_args(example(command))
    assert options.command == command


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_says_what_it_is(command: str) -> None:
    silent = [action.dest for action in parser().commands[command]._actions if not action.help]
    assert silent == []


def test_the_examples_of_the_help_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    simulated = ["tune", "examples/tiny-cpu.yaml", "--runner", "simulated", "--trials", "3"]
    assert main(simulated) == 0
    for command in COMMANDS:
        if command not in LONG | NEEDS_A_RAY:
            assert main(example(command)) == 0, command
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tun", "x"], "paratune: 'tun' is no command; did you mean tune?"),
        (["frobnicate"], "'frobnicate' is no command; known are tune,"),
        (["tune", "x", "--sampel", "tpe"], "'--sampel' is no option; did you mean --sampler?"),
        (["plans", "x", "--topp=3"], "'--topp' is no option; did you mean --top?"),
        (["tune", "x", "--sampler", "tpf"], "--sampler must be one of plan, tpe"),
        (["emit", "x", "--format", "megatrn"], "got 'megatrn'; did you mean megatron?"),
        (["plans", "x", "y"], "'y' is one argument too many"),
        (["tune"], "paratune: JOB.yaml must be given"),
        (["predict", "x", "--calibrate", "y"], "--calibrate must be a whole number, got 'y'"),
        (["tune", "x", "--trials", "0"], "--trials must be a whole number above 0, got '0'"),
    ],
)
def test_a_wrong_word_is_refused_with_the_nearest_right_one(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.rstrip().endswith("--help")
    assert captured.out == ""


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.strip() == f"paratune {version('paratune')}"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("paratune tune --sam", "--sampler"),
        ("paratune ver", "verify"),
        ("paratune tune --sampler t", "tpe"),
    ],
)
def test_bash_completes(typed: str, offered: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert offered in _completed(_script("bash", capsys), typed.split())


def test_bash_completes_files_where_a_file_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my-job.yaml").touch()
    script = _script("bash", capsys)
    monkeypatch.chdir(tmp_path)
    assert "my-job.yaml" in _completed(script, ["paratune", "plans", "my-"])


def test_the_script_for_zsh_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    script = _script("zsh", capsys)
    assert script.startswith("#compdef paratune")
    assert all(f'"{command}:' in script or f"{command})" in script for command in COMMANDS)


def _script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", shell])
    assert ended.value.code == 0
    return capsys.readouterr().out


def _completed(script: str, words: list[str]) -> list[str]:
    """What bash offers for the last word."""
    typed = " ".join(shlex.quote(word) for word in words)
    program = (
        f"{script}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; COMPREPLY=()\n"
        '$(complete -p paratune | sed "s/.*-F //;s/ .*//") paratune\n'
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", program], capture_output=True, text=True, timeout=20, check=True
    )
    return done.stdout.split()
