"""Megatron-LM: the argument file, one option a line, and a script around ``pretrain_gpt.py``."""

from __future__ import annotations

from reports.emit.scripts import script, torchrun_script, torchrun_words
from reports.emit.subject import Subject, check, only
from tuner.launch import MEGATRON_FILE, LaunchFile
from tuner.megatron_options import read_arguments
from tuner.plan import Backend

PRETRAIN_SCRIPT = "pretrain_gpt.sh"
MOCK_DATA_FILE = "mock_data.args"


def megatron_files(subject: Subject) -> tuple[LaunchFile, ...]:
    """The trial's argument file byte for byte, data that is none, and the launch script.

    Raises:
        UserError: the plan is of another framework, or Megatron-LM has no such option.
    """
    check("megatron", subject, (only(subject.plan, Backend.MEGATRON, "torchrun"),))
    read_arguments(subject.text(MEGATRON_FILE), named=MEGATRON_FILE)
    return (
        *subject.spec.files,
        _mock_data(subject),
        _pretrain(subject),
        torchrun_script(subject),
    )


def _mock_data(subject: Subject) -> LaunchFile:
    lines = (
        "# MOCK DATA: random tokens and no tokenizer, as paratune's bench has. Not for training.",
        "--mock-data",
        "--tokenizer-type NullTokenizer",
        f"--train-iters {subject.training['warmup_steps'] + subject.training['steps']}",
        "--eval-iters 0",
        "--log-interval 1",
    )
    return LaunchFile(name=MOCK_DATA_FILE, text="\n".join(lines) + "\n")


def _pretrain(subject: Subject) -> LaunchFile:
    return script(
        PRETRAIN_SCRIPT,
        subject,
        comments=(
            "MEGATRON_LM is a checkout of https://github.com/NVIDIA/Megatron-LM, core_v0.16.1.",
            f"Your own data: ./{PRETRAIN_SCRIPT} --data-path ... --tokenizer-type ... (etc.)",
            f"Without arguments it takes {MOCK_DATA_FILE}: RANDOM TOKENS, to see the speed.",
        ),
        lines=(
            ': "${MEGATRON_LM:?the folder of a Megatron-LM checkout}"',
            "arguments() { grep -v '^#' \"$here/$1\"; }",
            f"[ $# -gt 0 ] || set -- $(arguments {MOCK_DATA_FILE})",
            f'exec {torchrun_words(subject)} "$MEGATRON_LM/pretrain_gpt.py" '
            f'$(arguments {MEGATRON_FILE}) "$@"',
        ),
    )
