"""The kernel's counters of processes that it killed for memory, as files of a made-up machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.oom_counters import oom_kills, risen


def machine(root: Path, cgroup: str, events: dict[str, str], vmstat: str | None) -> Path:
    files = {"proc/self/cgroup": cgroup, **events}
    if vmstat is not None:
        files["proc/vmstat"] = vmstat
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


EVENTS = "low 0\nhigh 3\nmax 9\noom 2\noom_kill {}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


@pytest.mark.parametrize(
    ("cgroup", "file", "text"),
    [
        ("0::/jobs/7\n", "sys/fs/cgroup/jobs/7/memory.events", EVENTS),
        ("0::/\n", "sys/fs/cgroup/memory.events", EVENTS),
        ("0::/of/the/host\n", "sys/fs/cgroup/memory.events", EVENTS),
        (
            "4:memory:/jobs/7\n3:cpuset:/\n0::/\n",
            "sys/fs/cgroup/memory/jobs/7/memory.oom_control",
            CONTROL,
        ),
    ],
)
def test_a_kill_in_a_container_is_told_by_its_limit(
    tmp_path: Path, cgroup: str, file: str, text: str
) -> None:
    root = machine(tmp_path, cgroup, {file: text.format(1)}, "pgfault 5\noom_kill 1\n")
    before = oom_kills(root)
    machine(tmp_path, cgroup, {file: text.format(2)}, "pgfault 6\noom_kill 2\n")
    said = risen(before, oom_kills(root))
    assert said is not None
    assert "container" in said


def test_a_kill_of_the_machine_is_told_where_the_container_counted_none(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\n", {}, "oom_kill 4\n")
    before = oom_kills(root)
    machine(tmp_path, "0::/\n", {}, "oom_kill 5\n")
    assert risen(before, oom_kills(root)) == "the memory of the machine was full"


def test_counters_that_stand_still_or_are_missing_tell_of_no_kill(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\n", {}, "oom_kill 4\n")
    assert risen(oom_kills(root), oom_kills(root)) is None
    nothing = machine(tmp_path / "bare", "0::/\n", {}, None)
    assert oom_kills(nothing) == {}
    assert risen({}, oom_kills(root)) is None


def test_this_machine_can_be_asked() -> None:
    assert all(count >= 0 for count in oom_kills().values())
