"""Whatever ranks do, the trial has a typed outcome and nothing of it is left alive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from runners.rank_process import ColdRanks, RankSource, RankStarter
from runners.rank_processes import NodeRanks, free_port
from runners.supervisor import NodeEnd, Supervisor, was_not_started
from tuner.outcome import Failed, Measured, Outcome, OutOfMemory, Phase, TimedOut

FAKE_RANK = Path(__file__).with_name("fake_rank.py")
NO_LIMITS = dict.fromkeys(Phase, 60.0)
WAIT_S = 20


def supervisor(
    folder: Path,
    *behaviours: str,
    limits_s: dict[Phase, float] | None = None,
    source: RankSource | None = None,
) -> Supervisor:
    ranks = NodeRanks(
        ranks_per_node=len(behaviours),
        num_ranks=len(behaviours),
        master_address="127.0.0.1",
        master_port=free_port("127.0.0.1"),
    )
    return Supervisor(
        folder,
        ranks,
        env={},
        limits_s=limits_s or NO_LIMITS,
        source=source
        or ColdRanks(command=(sys.executable, str(FAKE_RANK), str(folder), *behaviours)),
    )


def ended(folder: Path, *behaviours: str, limits_s: dict[Phase, float] | None = None) -> NodeEnd:
    return supervisor(folder, *behaviours, limits_s=limits_s).run(lambda _: None)


def outcome(folder: Path, *behaviours: str, limits_s: dict[Phase, float] | None = None) -> Outcome:
    return ended(folder, *behaviours, limits_s=limits_s).outcome()


def processes_of(folder: Path) -> list[psutil.Process]:
    """Ranks of this folder, and what they have left behind."""
    kept = {int(path.read_text()) for path in folder.glob("grandchild-*.pid")}
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in process.cmdline()[2:3] or process.pid in kept:
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert processes_of(tmp_path) == []


def test_ranks_that_all_succeed_are_measured_by_the_fullest(tmp_path: Path) -> None:
    measured = outcome(tmp_path, "succeed", "succeed")
    assert isinstance(measured, Measured)
    assert measured.step_time_s == pytest.approx(0.2)
    assert measured.peak_memory_bytes_by_rank == (1000, 1001)
    assert measured.peak_memory_bytes == 1001


def test_a_rank_that_raises_fails_the_trial_in_its_own_words(tmp_path: Path) -> None:
    failed = outcome(tmp_path, "hang", "first_step:raise")
    assert failed == Failed(
        rank=1, phase=Phase.FIRST_STEP, error="RuntimeError", message="the shapes do not fit"
    )


def test_the_earliest_error_is_the_root_cause(tmp_path: Path) -> None:
    failed = outcome(tmp_path, "raise", "outlive-rank-0+lose-peer")
    assert isinstance(failed, Failed)
    assert (failed.rank, failed.message) == (0, "the shapes do not fit")


def test_an_allocation_that_failed_is_out_of_memory(tmp_path: Path) -> None:
    out = outcome(tmp_path, "hang", "out-of-memory")
    assert out == OutOfMemory(rank=1, phase=Phase.MODEL, message="CUDA out of memory")


@pytest.mark.parametrize(("behaviour", "name"), [("kill", "SIGKILL"), ("segfault", "SIGSEGV")])
def test_a_rank_that_dies_without_a_word_is_named_by_its_signal(
    tmp_path: Path, behaviour: str, name: str
) -> None:
    failed = outcome(tmp_path, "hang", behaviour)
    assert isinstance(failed, Failed)
    assert (failed.rank, failed.error) == (1, name)


def test_a_killed_rank_is_the_cause_though_its_peer_complains(tmp_path: Path) -> None:
    failed = outcome(tmp_path, "kill", "outlive-rank-0+lose-peer")
    assert isinstance(failed, Failed)
    assert (failed.rank, failed.error) == (0, "SIGKILL")


def test_a_peer_that_aborts_after_an_error_is_not_the_cause(tmp_path: Path) -> None:
    failed = outcome(tmp_path, "raise", "outlive-rank-0+abort")
    assert isinstance(failed, Failed)
    assert (failed.rank, failed.error) == (0, "RuntimeError")


def test_an_allocation_that_failed_below_python_is_out_of_memory(tmp_path: Path) -> None:
    out = outcome(tmp_path, "hang", "say-bad-alloc+abort")
    assert isinstance(out, OutOfMemory)
    assert out.rank == 1


def test_a_rank_that_leaves_without_a_result_fails(tmp_path: Path) -> None:
    failed = outcome(tmp_path, "succeed", "exit")
    assert isinstance(failed, Failed)
    assert (failed.rank, failed.error) == (1, "no result")


@pytest.mark.parametrize("behaviours", [("exit", "hang"), ("hang", "exit")])
def test_a_rank_that_leaves_without_a_result_ends_the_peers_that_wait_for_it(
    tmp_path: Path, behaviours: tuple[str, str]
) -> None:
    failed = outcome(tmp_path, *behaviours, limits_s=NO_LIMITS | {Phase.MODEL: 15.0})
    assert isinstance(failed, Failed)
    assert (failed.rank, failed.error) == (behaviours.index("exit"), "no result")


def test_a_failed_allocation_below_python_is_the_cause_though_a_peer_complains(
    tmp_path: Path,
) -> None:
    out = outcome(tmp_path, "say-bad-alloc+abort", "outlive-rank-0+lose-peer")
    assert isinstance(out, OutOfMemory)
    assert out.rank == 0


def test_a_rank_that_is_done_but_does_not_end_is_timed_out(tmp_path: Path) -> None:
    limits_s = {Phase.MODEL: 60.0, Phase.DONE: 0.5}
    timed_out = outcome(tmp_path, "done:hang", limits_s=limits_s)
    assert timed_out == TimedOut(ranks=(0,), phase=Phase.DONE, limit_s=0.5)


def test_a_rank_that_is_stopped_is_named_at_once(tmp_path: Path) -> None:
    limits_s = NO_LIMITS | {Phase.MODEL: 15.0}
    failed = outcome(tmp_path, "hang", "stop", limits_s=limits_s)
    assert isinstance(failed, Failed)
    assert (failed.rank, failed.error, failed.infrastructure) == (1, "SIGSTOP", True)


def test_a_hang_is_named_by_the_rank_that_is_furthest_behind(tmp_path: Path) -> None:
    limits_s = NO_LIMITS | {Phase.STEPS: 0.5, Phase.FIRST_STEP: 0.5}
    timed_out = outcome(tmp_path, "steps:hang", "first_step:hang", limits_s=limits_s)
    assert timed_out == TimedOut(ranks=(1,), phase=Phase.FIRST_STEP, limit_s=0.5)


@pytest.mark.parametrize("behaviour", ["orphan+kill", "orphan+succeed"])
def test_what_a_rank_started_in_another_session_is_ended(tmp_path: Path, behaviour: str) -> None:
    ended(tmp_path, behaviour)
    pid = int((tmp_path / "grandchild-0.pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_an_interrupt_ends_the_ranks_and_is_passed_on(tmp_path: Path) -> None:
    def interrupt(phase: Phase) -> None:
        assert len(processes_of(tmp_path)) == 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervisor(tmp_path, "hang", "hang").run(interrupt)


def test_stopping_from_another_thread_ends_the_ranks(tmp_path: Path) -> None:
    trial = supervisor(tmp_path, "hang", "hang")
    ends: list[NodeEnd] = []
    started = threading.Event()
    thread = threading.Thread(target=lambda: ends.append(trial.run(lambda _: started.set())))
    thread.start()
    assert started.wait(WAIT_S)
    trial.stop()
    thread.join(WAIT_S)
    assert [end.exit_code for end in ends[0].ends] == [None, None]


def test_a_failure_on_another_node_ends_ranks_that_are_well(tmp_path: Path) -> None:
    trial = supervisor(tmp_path, "hang", "hang")
    began: list[float] = []

    def fail(phase: Phase) -> None:
        began.append(time.monotonic())
        trial.fail()

    end = trial.run(fail)
    assert time.monotonic() - began[0] < WAIT_S
    assert not trial.is_failing
    assert [rank.exit_code for rank in end.ends] == [None, None]


def test_a_node_says_at_once_that_a_rank_of_it_has_failed(tmp_path: Path) -> None:
    trial = supervisor(tmp_path, "hang", "raise")
    trial.run(lambda _: None)
    assert trial.is_failing


def test_a_report_of_an_earlier_attempt_is_not_taken_for_the_ranks_own(tmp_path: Path) -> None:
    (tmp_path / "rank-0.json").write_text('{"phase": "steps", "status": "ok", "pid": 1}')
    phases: list[Phase] = []
    supervisor(tmp_path, "succeed").run(phases.append)
    assert Phase.STEPS not in phases


DRIVER = """
import sys
from pathlib import Path
from tests.runners.test_supervisor import supervisor
supervisor(Path(sys.argv[1]), "hang", "hang").run(lambda phase: print(phase, flush=True))
"""


def test_ranks_vanish_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DRIVER, str(tmp_path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "model\n"
        ranks = processes_of(tmp_path)
        os.kill(driver.pid, signal.SIGKILL)
    assert len(ranks) == 2
    _, alive = psutil.wait_procs(ranks, timeout=WAIT_S)
    assert alive == []


def test_nothing_is_started_on_gpus_that_somebody_else_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "python3 of alice (pid 71) holds 39.00 GiB of GPU 3"
    monkeypatch.setattr("runners.supervisor.devices_free", lambda *_: said)
    failed = outcome(tmp_path, "succeed", "succeed")
    assert was_not_started(failed)
    assert (failed.message, failed.infrastructure) == (said, True)
    assert list(tmp_path.iterdir()) == []


def test_imports_are_not_waited_for_once_another_node_has_failed(tmp_path: Path) -> None:
    class Importing:
        def ready(
            self,
            trial_folder: Path,
            env: Mapping[str, str],
            limit_s: float,
            stopped: Callable[[], bool],
        ) -> RankStarter:
            assert not stopped()
            over.append(stopped)
            watching.fail()
            return ranks.ready(trial_folder, env, limit_s, stopped)

    over: list[Callable[[], bool]] = []
    ranks = ColdRanks(command=(sys.executable, str(FAKE_RANK), str(tmp_path), "hang"))
    watching = supervisor(tmp_path, "hang", source=Importing())
    assert watching.run(lambda _: None).timed_out is None
    assert over[0]()
