"""Studies in a real PostgreSQL: shared by folders, resumed, and no password anywhere."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from socket import create_server
from typing import Any
from urllib.parse import quote

import optuna
import pytest
import yaml

from tests.postgresql_server import PASSWORD, Server, postgresql_server
from tests.tiny_job import LLAMA_CONFIG
from tests.tuner.computed_study import ComputedRunner, outcome_of, study
from tuner import database_storage
from tuner.cli.main import main
from tuner.database_storage import Database
from tuner.errors import UserError
from tuner.plan import ParallelPlan
from tuner.study import Budget, StudyListener
from tuner.study_folder import StudyFolder

SPELLINGS = (PASSWORD, quote(PASSWORD), quote(PASSWORD, safe=""), "Xyzzy")
WRONG = "Xyzzy:not it"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgresql_server() as running:
        yield running


def run(tmp_path: Path, trials: int, url: str) -> list[ParallelPlan]:
    one = study(tmp_path, ComputedRunner(outcome_of), storage_url=url)
    return [trial.plan for trial in one.run(Budget(trials=trials), StudyListener()).trials]


def stored(tmp_path: Path, url: str) -> list[optuna.trial.FrozenTrial]:
    name = StudyFolder(tmp_path / "study").study_name
    return optuna.load_study(study_name=name, storage=url).trials


def tune(tmp_path: Path, url: str | None, *options: str) -> int:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    values: dict[str, Any] = {
        "workload": {"model": "config.json", "seq_len": 16, "global_batch": 4},
        "cluster": {"gpu": "cpu", "gpus_per_node": 2},
        "search": {"precision": ["fp32"], "micro_batch": [1, 2]},
        "memory": {"limit": "1GiB"},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(values))
    words = ["tune", str(tmp_path / "job.yaml"), "--study", str(tmp_path / "study")]
    words += ["--runner", "simulated", "--trials", "4", *options]
    return main([*words, *(["--storage", url] if url is not None else [])])


def assert_no_secret(text: str) -> None:
    for spelled in SPELLINGS:
        assert spelled not in text


def test_a_study_is_kept_in_the_database_and_goes_on_with_it(
    tmp_path: Path, server: Server
) -> None:
    url = server.url(PASSWORD)
    undisturbed = run(tmp_path / "journal", 9, f"sqlite:///{tmp_path / 'other.db'}")
    run(tmp_path, 5, url)
    assert run(tmp_path, 9, url) == undisturbed
    found = stored(tmp_path, url)
    assert [trial.user_attrs["paratune_trial"] for trial in found] == list(range(9))
    assert all(trial.state.is_finished() for trial in found)
    assert not (tmp_path / "study" / "journal.log").exists()


def test_two_folders_of_one_name_are_two_studies_of_one_database(
    tmp_path: Path, server: Server
) -> None:
    url = server.url(PASSWORD)
    run(tmp_path / "a", 3, url)
    run(tmp_path / "b", 5, url)
    assert len(stored(tmp_path / "a", url)) == 3
    assert len(stored(tmp_path / "b", url)) == 5


def test_a_copy_of_a_folder_takes_the_study_over_and_the_first_driver_is_told(
    tmp_path: Path, server: Server
) -> None:
    url = server.url(PASSWORD)
    run(tmp_path / "a", 3, url)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    first = Database.opened(url, StudyFolder(tmp_path / "a" / "study").study_name)
    first._driver = "process 1 on another machine"
    first._study.set_user_attr("paratune_driver", first._driver)
    run(tmp_path / "b", 4, url)
    with pytest.raises(UserError, match=r"must have one driver, but process .* has taken it over"):
        first.add(stored(tmp_path / "b", url)[0])


def test_no_password_in_the_folder_the_output_or_the_log(
    tmp_path: Path,
    server: Server,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert tune(tmp_path, server.url(PASSWORD), "--json") == 0
    captured = capfd.readouterr()
    assert len(json.loads(captured.out)["trials"]) == 4
    assert_no_secret(captured.out + captured.err + caplog.text)
    files = [path for path in (tmp_path / "study").rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        assert_no_secret(path.read_text(errors="replace"))
    assert len(stored(tmp_path, server.url(PASSWORD))) == 4


def test_the_url_may_come_from_the_environment_and_the_password_from_pgpassword(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARATUNE_STORAGE", server.url(None))
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    assert tune(tmp_path, None) == 0
    assert len(stored(tmp_path, server.url(PASSWORD))) == 4


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql//tuner:Xyzzy@host/x", "but what was given is none"),
        ("postgresql://tuner:Xyzzy@host:port/x", "must be percent-encoded"),
        ("nosuch://tuner:Xyzzy@host/x", "one that begins with nosuch://"),
        ("postgresql+asdf://tuner:Xyzzy@host/x", "no driver is called asdf"),
        ("postgresql://tuner:Xyzzy@host", "must name a database"),
        ("mssql+pymssql://tuner:Xyzzy@host/x", "pip install 'pymssql'"),
        ("postgresql://127.0.0.1:1/x?password=Xyzzy", "Connection refused"),
        ("sqlite:////nowhere/at/all.db", "unable to open database file"),
    ],
)
def test_a_wrong_url_is_a_sentence_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, said: str
) -> None:
    assert tune(tmp_path, url) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert_no_secret(told)


def test_a_wrong_password_and_a_wrong_database_are_named(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(tmp_path, server.url(WRONG)) == 2
    told = capsys.readouterr().err
    assert 'password authentication failed for user "tuner"' in told
    assert_no_secret(told)
    assert tune(tmp_path, server.url(PASSWORD).replace("/postgres", "/nothing")) == 2
    assert 'database "nothing" does not exist' in capsys.readouterr().err


def test_a_host_that_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(database_storage, "CONNECT_LIMIT_S", 2)
    with create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert tune(tmp_path, f"postgresql://tuner:Xyzzy@127.0.0.1:{port}/x") == 2
    told = capsys.readouterr().err
    assert "timeout" in told
    assert_no_secret(told)


def test_trials_go_on_while_the_database_is_away_and_are_added_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "trials.db"
    url = f"sqlite:///{file}"
    runner = ComputedRunner(outcome_of)

    class Away(StudyListener):
        def trial_started(self, number: int, plan: ParallelPlan, reason: str) -> None:
            if number == 2:
                file.rename(file.with_suffix(".away"))
                file.mkdir()

    one = study(tmp_path, runner, storage_url=url)
    with caplog.at_level(logging.WARNING):
        end = one.run(Budget(trials=5), Away())
    assert len(end.trials) == 5
    assert caplog.text.count("does not answer") == 1
    file.rmdir()
    file.with_suffix(".away").rename(file)
    run(tmp_path, 6, url)
    found = [trial.user_attrs["paratune_trial"] for trial in stored(tmp_path, url)]
    assert found == list(range(6))
