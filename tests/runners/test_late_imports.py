"""Code is no part of a plan's memory: what a rank imports is there before that is counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runners.backends.launch import launch_for
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.launch import Measurement
from tuner.launch_files import write_launch_files
from tuner.plan import Backend, ParallelPlan, Precision

pytestmark = pytest.mark.ranks

PROGRAM = """
import json, sys
from pathlib import Path
from runners.bench import rank

original = rank.memory_meter
known = set()

def meter(device, limit_bytes):
    known.update(sys.modules)
    return original(device, limit_bytes)

rank.memory_meter = meter
assert rank.run_rank(Path(sys.argv[1]), None) == 0
print(json.dumps(sorted(set(sys.modules) - known)))
"""
LAST_STAGE = {Backend.PYTORCH: 3, Backend.DEEPSPEED: 3, Backend.MEGATRON: 1}
NEGLIGIBLE = {"torch.profiler._cupti_monitor", "torch._subclasses.schema_check_mode"}
"""A few hundred lines of torch's own."""


@pytest.mark.parametrize("backend", Backend)
def test_nothing_is_imported_once_memory_is_counted(backend: Backend, tmp_path: Path) -> None:
    """ZeRO-3, for of DeepSpeed's engines that one imports most."""
    plan = ParallelPlan(backend=backend, precision=Precision.FP32, zero_stage=LAST_STAGE[backend])
    measurement = Measurement(warmup_steps=1, steps=2)
    spec = launch_for(plan, tiny_workload(), cpu_cluster(1), measurement, ())
    write_launch_files(spec, tmp_path)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    env = {**os.environ, **dict(spec.env), "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    assert set(json.loads(done.stdout.splitlines()[-1])) <= NEGLIGIBLE
