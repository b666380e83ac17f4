"""What a trial is launched with reads back as the plan that it was launched for."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from runners.backends.launch import launch_for
from search_spaces.enumeration import search_space
from search_spaces.rule import Setting
from tests.some_settings import some_settings
from tests.tiny_job import CPU_STACK, cpu_cluster, tiny_workload
from tests.tuner.importing.test_real_shapes import STACK
from tests.tuner.importing.the_job import TWO_NODES, WORKLOAD
from tuner.cluster import Cluster
from tuner.framework_settings.setting import SettingCase
from tuner.framework_settings.table import settled
from tuner.importing.formats import imported_plan
from tuner.launch import ENVIRONMENT_FILE, Measurement
from tuner.launch_files import write_launch_files
from tuner.plan import Backend
from tuner.stack import Stack
from tuner.workload import Workload

JOBS: dict[str, tuple[Workload, Cluster, Stack]] = {
    "4 CPU ranks": (tiny_workload(), cpu_cluster(4), CPU_STACK),
    "2 x 4 H100": (WORKLOAD, TWO_NODES, STACK),
}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("backend", Backend)
def test_random_legal_plans_come_back_from_their_launch_files(
    tmp_path: Path, backend: Backend, job: str
) -> None:
    workload, cluster, stack = JOBS[job]
    setting = Setting(workload=workload, cluster=cluster, stack=stack)
    plans = search_space(setting, {"backend": (str(backend),)}).plans
    rows = random.Random(0).sample(range(len(plans)), min(60, len(plans)))
    assert rows
    turns = random.Random(1)
    for row in rows:
        plan = plans[row]
        case = SettingCase(plan=plan, workload=workload, cluster=cluster)
        asked = some_settings(case, turns)
        spec = launch_for(plan, workload, cluster, Measurement(), asked)
        folder = tmp_path / str(row)
        write_launch_files(spec, folder)
        (folder / ENVIRONMENT_FILE).write_text(json.dumps(dict(spec.env)))
        found = imported_plan(folder, cluster=cluster, workload=workload)
        assert found.plan == plan
        assert settled(case, found.settings) == settled(case, asked)
        assert found.unknown_keys == ()
        assert not [note for note in found.notes if "batch" in note]
