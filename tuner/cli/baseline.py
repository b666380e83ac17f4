"""The plan that the user has: read, held to the rules, and made trial 0 of a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from runners.backends.launch import launch_for
from search_spaces.enumeration import rejections
from search_spaces.rule_table import RULES
from tuner.cli.advice import nearest_plans
from tuner.cli.setting import Planned, job_setting, planned_job
from tuner.errors import UserError
from tuner.framework_settings.table import settings_text
from tuner.importing.formats import imported_plan
from tuner.importing.imported import Imported
from tuner.launch import Settings
from tuner.plan import ParallelPlan, PlanValue
from tuner.plan_arrays import PlanArrays
from tuner.study_folder import StudyFolder

Document = Mapping[str, Any]
"""``Imported.document()``, as the study folder keeps it."""


def given_baseline(file: Path | None, arguments: Path | None, job: Planned) -> Document | None:
    """What ``--baseline FILE`` comes to; None without it.

    Raises:
        UserError: the file is wrong, or its plan breaks rules and cannot be measured as it is.
    """
    if file is None:
        if arguments is not None:
            raise UserError("--baseline-arguments needs --baseline FILE, got none")
        return None
    imported = imported_plan(
        file, cluster=job.job.cluster, workload=job.job.workload, arguments=arguments
    )
    broken = rejections(imported.plan, job_setting(job.job))
    if broken:
        raise UserError(_illegal(imported, broken, job))
    launch_for(
        imported.plan, job.job.workload, job.job.cluster, job.job.measurement, imported.settings
    )
    return imported.document()


def _illegal(imported: Imported, broken: tuple[tuple[str, str], ...], job: Planned) -> str:
    lines = [
        f"{imported.file}: {_keys(imported, rule)} breaks rule {rule}, so it cannot be measured "
        f"as it is: {sentence}"
        for rule, sentence in broken
    ]
    if (near := _nearest(imported.plan, job)) is not None:
        was = imported.plan.to_dict()
        changes = [f"{k} {was[k]} -> {v}" for k, v in near.to_dict().items() if was[k] != v]
        lines.append(f"the nearest legal plan is {near.label()} ({', '.join(changes)})")
    return "\n".join(lines)


def _keys(imported: Imported, rule_id: str) -> str:
    """The keys of the file that a rule looks at."""
    rule = next(rule for rule in RULES if rule.id == rule_id)
    keys = [imported.key_of_knob[knob] for knob in rule.knobs if knob in imported.key_of_knob]
    return " with ".join(dict.fromkeys(keys)) or f"its {' and '.join(rule.knobs)}"


def _nearest(plan: ParallelPlan, job: Planned) -> ParallelPlan | None:
    """Of the same precision where some legal plan has it."""
    for asked in ({"precision": (str(plan.precision),)}, {}):
        free = planned_job(replace(job.job, asked=asked))
        if len(free.space.plans):
            return nearest_plans(plan, free)[0]
    return None


def settled_baseline(folder: StudyFolder, given: Document | None, job: Planned) -> Document | None:
    """The baseline of this study, which it keeps when it goes on.

    Raises:
        UserError: the study has another, or was begun without one that its search leaves out.
    """
    if not folder.job_file.exists():
        return given
    kept: Document | None = folder.read_json(folder.job_file).get("baseline")
    if given is None:
        return kept
    if kept is not None and _said(kept) != _said(given):
        raise UserError(
            f"the study folder {folder.path} must have one baseline, but it was "
            f"{_said(kept)} ({kept['file']}) and is now {_said(given)}; give another folder with "
            "--study"
        )
    outside = baseline_plan(given) not in job.space.plans
    if kept is None and outside and folder.trials():
        raise UserError(
            f"the study folder {folder.path} was begun without a baseline, and its search leaves "
            f"out {baseline_plan(given).label()}; give another folder with --study"
        )
    return given


def what_is_left_out(document: Document) -> tuple[str, ...]:
    """Of the user's file: keys that are not known, and those that the plan does not carry."""
    file = document["file"]
    pinned = [f"{key}: {value or 'given'}" for key, value in document["pinned"].items()]
    ignored = [f"{one['key']}: {one['reason']}" for one in document["ignored_keys"]]
    lines = [f"a key that the framework does not know: {key}" for key in document["unknown_keys"]]
    lines += [f"not carried over, and it may change the speed: {key}" for key in pinned]
    lines += [f"not needed by the plan: {key}" for key in ignored]
    return tuple(f"{file}: {line}" for line in [*lines, *document["notes"]])


def baseline_plan(document: Document) -> ParallelPlan:
    """The plan of what was kept."""
    return ParallelPlan.from_dict(document["plan"])


def baseline_settings(document: Document | None) -> Settings:
    """Framework settings that the user's file says: every plan that can takes them."""
    return () if document is None else tuple(document.get("settings", {}).items())


def _said(document: Document) -> str:
    settings = baseline_settings(document)
    also = f" with {settings_text(settings)}" if settings else ""
    return f"{baseline_plan(document).label()}{also}"


def with_baseline(job: Planned, baseline: Document | None) -> Planned:
    """The job with one more legal plan, where its search leaves the user's out.

    Only this plan is added: other combinations of its options stay left out.
    """
    plan = None if baseline is None else baseline_plan(baseline)
    if plan is None or plan in job.space.plans:
        return job
    own = PlanArrays.of_plans([plan]).columns
    columns = {
        name: np.concatenate([array, own[name]]) for name, array in job.space.plans.columns.items()
    }
    space = replace(
        job.space,
        knobs=_knobs(job, plan),
        plans=PlanArrays(columns=columns),
        num_combinations=job.space.num_combinations + 1,
    )
    return replace(job, space=space)


def _knobs(job: Planned, plan: ParallelPlan) -> tuple[tuple[str, tuple[PlanValue, ...]], ...]:
    values = plan.to_dict()
    return tuple(
        (name, tuple(dict.fromkeys([*options, values[name]]))) for name, options in job.space.knobs
    )
