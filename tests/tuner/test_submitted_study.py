"""A study that is submitted as a user does it, to a real Ray of two nodes with a token."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import TOKEN
from tests.ray_nodes import TwoNodes
from tests.tiny_job import job_file
from tuner.cli.main import main

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

BATCH = {"seq_len": 16, "global_batch": 12}
SEARCH = {"backend": "pytorch", "tp": 1, "pp": 1, "precision": "fp32"}
OWN_MODEL = """
from torch import nn

class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 32)
        self.head = nn.Linear(32, 64)

    def forward(self, tokens):
        return self.head(self.table(tokens))
"""


def job_of_own_model(folder: Path, **sections: object) -> None:
    """``mine.yaml``; its model needs no config.json, which takes seconds to read at both ends."""
    package = folder / "own_paratune_model"
    package.mkdir()
    (package / "__init__.py").write_text(OWN_MODEL)
    workload = {"model": "own_paratune_model:Bigram", "vocab_size": 64} | BATCH
    job_file(folder, name="mine.yaml", workload=workload, **sections)


@contextmanager
def submitting(
    cluster: TwoNodes, folder: Path, *options: str, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Submits as from another machine: in a process that knows the address and the token alone."""
    command = [sys.executable, "-m", "tuner", "submit", "--address", cluster.dashboard, *options]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **(cluster.client_env if env is None else env)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def submit(
    cluster: TwoNodes, folder: Path, *options: str, env: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    with submitting(cluster, folder, *options, env=env) as process:
        out, said = process.communicate()  # pytest-timeout bounds it
        return process.returncode, out, said


def test_a_study_is_sent_run_and_brought_back_and_goes_on(
    two_nodes: TwoNodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The entry there refuses any version but its own (tests/runners/test_ray_job_entry.py)."""
    job_file(tmp_path, name="mine.yaml")
    command = ["mine.yaml", "--runner", "simulated", "--json", "--trials"]
    code, out, said = submit(two_nodes, tmp_path, *command, "3")
    assert code == 0, said
    document = json.loads(out)
    assert document["study"] == "studies/mine"
    assert len(document["trials"]) == 3
    assert document["submitted"]["remote_study"] == "~/paratune-studies/mine"
    assert re.search(r"Sent 2 files, .*config.json.*mine.yaml", said)
    assert "trial 0 (1 of 3)  pytorch" in said  # the lines that tune says
    study = tmp_path / "studies" / "mine"
    assert main(["report", str(study)]) == 0
    assert (study / "best" / "README.md").exists()
    code, out, said = submit(two_nodes, tmp_path, *command, "5")
    assert code == 0, said
    assert len(json.loads(out)["trials"]) == 5  # three of them were there
    assert "trial 2 " not in said
    assert "trial 3 (4 of 5)" in said
    nobody_learned(TOKEN, tmp_path, two_nodes.folder)


def nobody_learned(token: str, *folders: Path) -> None:
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                assert token.encode() not in path.read_bytes(), path


def interrupted_in_the_first_trial(
    cluster: TwoNodes, folder: Path, *options: str
) -> tuple[int, str]:
    """Exit code and what was said by a study that is followed until Ctrl-C."""
    said = ""
    with submitting(cluster, folder, *options) as process:
        assert process.stderr is not None
        for line in process.stderr:  # pytest-timeout bounds it
            said += line
            if line.startswith("trial 0 "):
                process.send_signal(signal.SIGINT)
        return process.wait(), said


def test_ctrl_c_leaves_it_running_and_attach_brings_it_back(
    two_nodes: TwoNodes, tmp_path: Path
) -> None:
    # Steps enough that the study is still going on when the interrupt arrives.
    measure = {"warmup_steps": 1, "steps": 300, "max_steps": 300}
    job_of_own_model(tmp_path, cluster="auto", search=SEARCH, measure=measure)
    code, said = interrupted_in_the_first_trial(
        two_nodes, tmp_path, "mine.yaml", "--remote-study", "~/own", "--no-verify"
    )
    assert code == 130, said
    assert "own_paratune_model/" in said
    found = re.search(r"Follow it with: paratune submit --address \S+ --attach (\S+)", said)
    assert found is not None, said
    job = found[1]
    code, _, said = submit(two_nodes, tmp_path, "mine.yaml", "--remote-study", "~/own")
    assert code == 2
    assert f"must have one driver, but job {job} is running it" in said
    assert not (tmp_path / "studies").exists()
    code, out, said = submit(two_nodes, tmp_path, "--attach", job)
    assert code == 0, said
    assert "trial 0 (1 of 3)" in said  # from the beginning
    assert "studies/mine" in out
    trials = sorted((tmp_path / "studies" / "mine" / "trials").iterdir())
    kinds = [json.loads((trial / "trial.json").read_text())["outcome"]["kind"] for trial in trials]
    assert kinds == ["measured"] * 3


def test_what_the_cluster_says_of_a_mistake_is_passed_on(
    two_nodes: TwoNodes, tmp_path: Path
) -> None:
    job_of_own_model(tmp_path, cluster={"gpu": "cpu", "num_nodes": 3, "gpus_per_node": 1})
    code, out, said = submit(two_nodes, tmp_path, "mine.yaml")
    assert code == 2
    assert "paratune: mine.yaml: cluster must fit the Ray: it needs 3 nodes" in said
    assert "what would fit is cluster: 2x1 cpu" in said
    assert out == ""
    code, _, said = submit(two_nodes, tmp_path, "--attach", "no-such-job")
    assert code == 2
    assert "must have the job, got no-such-job; it has paratune-mine-" in said


def test_a_wrong_token_is_named_and_not_said(two_nodes: TwoNodes, tmp_path: Path) -> None:
    job_of_own_model(tmp_path)
    wrong = {**two_nodes.client_env, "RAY_AUTH_TOKEN": "f" * 64}
    code, _, said = submit(two_nodes, tmp_path, "mine.yaml", env=wrong)
    assert code == 2
    assert "must be given its own token, got another" in said
    assert "f" * 64 not in said
    none = {"RAY_AUTH_MODE": "token", "HOME": str(tmp_path)}
    code, _, said = submit(two_nodes, tmp_path, "mine.yaml", env=none)
    assert code == 2
    assert "must be given Ray's token, but none was found" in said
