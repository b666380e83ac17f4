"""How often the kernel's out-of-memory killer has struck, by each counter that can be read here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

_MACHINE = "the memory of the machine was full"
_CGROUP = "the memory limit of its container (cgroup) was reached"


def oom_kills(root: Path = Path("/")) -> Mapping[str, int]:
    """Kills so far, by the sentence that says what was full; what cannot be read is missing.

    Args:
        root: of the file system, for tests.
    """
    found: dict[str, int] = {}
    for sentence, path in _counters(root):
        count = _count(path)
        if count is not None:
            found.setdefault(sentence, count)
    return found


def risen(before: Mapping[str, int], after: Mapping[str, int]) -> str | None:
    """What was full when the killer struck between two looks; None where it did not.

    A kill in a container counts as one of the machine too: the container is named first.
    """
    for sentence, count in after.items():
        if count > before.get(sentence, count):
            return sentence
    return None


def _counters(root: Path) -> Iterator[tuple[str, Path]]:
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        inside = group.strip().lstrip("/")
        if not controllers:  # cgroup v2; in a container the group is often its root
            for folder in (root / "sys/fs/cgroup" / inside, root / "sys/fs/cgroup"):
                yield _CGROUP, folder / "memory.events"
        elif "memory" in controllers.split(","):  # cgroup v1
            for folder in (root / "sys/fs/cgroup/memory" / inside, root / "sys/fs/cgroup/memory"):
                yield _CGROUP, folder / "memory.oom_control"
    yield _MACHINE, root / "proc/vmstat"


def _count(path: Path) -> int | None:
    for line in _text(path).splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
