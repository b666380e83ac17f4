"""The meter of a CPU rank, in a process of its own: it changes that process's malloc and limit."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

MIB = 2**20
PROGRAM = """
import json
import resource
import torch
from runners.bench.memory import _proc_status_bytes, memory_meter

MIB = 2**20

def tensor(size_mib):
    return torch.ones(size_mib * MIB // 4)

meter = memory_meter(torch.device("cpu"), 200 * MIB)
start = _proc_status_bytes("VmRSS")
first = tensor(16)
del first  # from here on glibc would take tensors of this size out of a heap
kept = []
for _ in range(8):
    large = tensor(15)
    kept.append(torch.ones(4096))  # what would keep the heap below it
    del large
seen = {"held": _proc_status_bytes("VmRSS") - start, "peak": meter.peak_bytes()}
both = tensor(40), tensor(40)
seen["two"] = meter.peak_bytes()
del both
try:
    tensor(250)
except RuntimeError as error:
    seen["refusal"] = str(error)
meter.lift_limit()
seen["after"] = tensor(250).nbytes
most = _proc_status_bytes("VmData") + 100 * MIB
resource.setrlimit(resource.RLIMIT_DATA, (most, most))
memory_meter(torch.device("cpu"), 200 * MIB).lift_limit()
try:
    tensor(150)
except RuntimeError as error:
    seen["refusal of the system"] = str(error)
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen() -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
    )
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_freed_tensors_leave_nothing_behind(seen: dict[str, object]) -> None:
    assert seen["held"] < 4 * MIB  # type: ignore[operator]


def test_the_peak_is_what_lived_at_once(seen: dict[str, object]) -> None:
    assert 15 * MIB < seen["peak"] < 24 * MIB  # type: ignore[operator]
    assert 80 * MIB < seen["two"] < 90 * MIB  # type: ignore[operator]


def test_more_than_the_limit_cannot_be_allocated(seen: dict[str, object]) -> None:
    assert "can't allocate memory" in str(seen["refusal"])


def test_once_the_limit_is_lifted_it_can(seen: dict[str, object]) -> None:
    assert seen["after"] == 250 * MIB


def test_a_lower_limit_of_the_system_stays(seen: dict[str, object]) -> None:
    assert "can't allocate memory" in str(seen["refusal of the system"])
