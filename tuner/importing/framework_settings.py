"""The framework settings of a user's file: held to the rules, and to the plan that it says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from tuner.errors import UserError
from tuner.framework_settings.pytorch_settings import EXPANDABLE_SEGMENTS
from tuner.framework_settings.setting import SettingCase
from tuner.framework_settings.table import applied, broken
from tuner.importing.imported import Findings, IgnoredKey, ImportTarget
from tuner.importing.text_files import read_text
from tuner.launch import ENVIRONMENT_FILE, TRAINING_FILE, Settings
from tuner.plan import ParallelPlan

_ALLOCATOR = re.compile(r"PYTORCH_(?:CUDA_)?ALLOC_CONF\S*[=:]\s*\S*" + EXPANDABLE_SEGMENTS)


def carried_settings(
    plan: ParallelPlan,
    findings: Findings,
    target: ImportTarget,
    error: Callable[[str, str], UserError],
) -> tuple[Settings, tuple[IgnoredKey, ...]]:
    """What is carried into every plan of the framework, and keys that have no effect in this one.

    Raises:
        UserError: the framework refuses a value.
    """
    case = SettingCase(plan=plan, workload=target.workload, cluster=target.cluster)
    asked = tuple(findings.settings.items())
    for name, sentence in broken(case, asked):
        raise error(findings.setting_keys[name], sentence)
    carried = applied(case, asked)
    names = {name for name, _ in carried}
    idle = tuple(
        IgnoredKey(key=key, reason=f"it has no effect with {plan.label()} here")
        for name, key in findings.setting_keys.items()
        if name not in names
    )
    return carried, idle


def is_own_launch(file: Path) -> bool:
    """Whether a file stands in a folder of launch files that a study wrote."""
    try:
        return "paratune_version" in json.loads(file.with_name(TRAINING_FILE).read_text())
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def says_expandable_segments(text: str, path: Path) -> bool:
    """Whether a script, or what a launch folder keeps of its variables, sets torch's allocator."""
    beside = path.with_name(ENVIRONMENT_FILE)
    texts = [text, read_text(beside) if beside.is_file() else ""]
    return any(_ALLOCATOR.search(each) for each in texts)
