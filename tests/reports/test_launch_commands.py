from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from deepspeed.launcher import launch, runner

from reports.launch_commands import deepspeed_command, folded, torchrun_command


def test_a_folded_command_is_the_same_command() -> None:
    env = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NOTE": "a b"}
    words = torchrun_command("/a folder/" + "x" * 90, num_nodes=2, gpus_per_node=8, env=env)
    text = folded(words, 60)
    assert shlex.split(text.replace("\\\n", "")) == shlex.split(" ".join(words))
    assert len(text.splitlines()) > 2


def test_the_deepspeed_launcher_hands_the_folder_to_every_rank(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = shlex.split(
        " ".join(deepspeed_command(str(tmp_path), num_nodes=1, gpus_per_node=4, env={}))
    )
    front = runner.parse_args(words[1:])
    assert (front.module, front.no_local_rank, front.num_gpus) == (True, True, 4)
    rank_words = ["--world_info=x", "--module", front.user_script, *front.user_args]
    monkeypatch.setattr(sys, "argv", ["launch", *rank_words])
    per_node = launch.parse_args()
    assert per_node.training_script == "runners.bench"
    assert per_node.training_script_args == ["--launch-folder", str(tmp_path)]
