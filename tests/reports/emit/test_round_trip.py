"""Plan, file, the framework's own loader, plan: any legal plan that a format says comes back."""

from __future__ import annotations

import importlib.util
from itertools import islice
from pathlib import Path

import pytest

from reports.emit.formats import Format, emitted
from reports.emit.subject import Subject
from tests.reports.emit.legal_plans import drawn
from tests.reports.emit.read_back import read_back
from tuner.errors import UserError
from tuner.launch import LaunchFile
from tuner.plan import KNOB_NAMES

pytestmark = pytest.mark.slow

NUM_PLANS = 500
ALL = ("pytorch", "deepspeed", "megatron")
BACKENDS = {
    Format.DEEPSPEED: ("deepspeed",),
    Format.HF_DEEPSPEED: ("deepspeed",),
    Format.MEGATRON: ("megatron",),
    Format.MEGATRON_BRIDGE: ("megatron",),
    Format.TORCHTITAN: ("pytorch",),
}
needs_torchtitan = pytest.mark.skipif(
    importlib.util.find_spec("torchtitan") is None
    or importlib.util.find_spec("spmd_types") is None,
    reason="torchtitan is installed without its dependencies: see constraints.txt",
)


@pytest.mark.parametrize(
    "form",
    [pytest.param(f, marks=needs_torchtitan if f is Format.TORCHTITAN else ()) for f in Format],
)
def test_a_plan_comes_back_as_it_was_through_the_frameworks_own_loader(
    form: Format, tmp_path: Path
) -> None:
    num_said = num_with_settings = 0
    refused_knobs = set()
    for subject in islice(drawn(BACKENDS.get(form, ALL), seed=0), 20 * NUM_PLANS):
        said = _said(subject, form)
        if isinstance(said, str):
            named = [name for name in KNOB_NAMES if f"{name} must be" in said]
            settings = [name for name, _ in subject.spec.settings if f"{name} must be" in said]
            assert (
                named
                or settings
                or "workload.model must be" in said
                or "cluster.gpu must be" in said
            )
            assert "use --format" in said
            refused_knobs.update(named)
            continue
        plan, values = read_back(form, said, subject.spec.num_ranks, tmp_path)
        assert plan == subject.plan
        assert {name: values[name] for name, _ in subject.spec.settings} == dict(
            subject.spec.settings
        )
        num_said += 1
        num_with_settings += bool(subject.spec.settings)
        if num_said == NUM_PLANS:
            break
    assert num_said == NUM_PLANS
    assert num_with_settings > NUM_PLANS // 10
    assert refused_knobs == {
        Format.HF_DEEPSPEED: {"pp", "recompute"},
        Format.ACCELERATE: {
            *("zero_stage", "dp_replicate", "pp", "sequence_parallel", "recompute", "vpp"),
            "precision",
        },
        Format.MEGATRON_BRIDGE: {"precision"},
        Format.TORCHTITAN: {"zero_stage", "precision", "recompute"},
    }.get(form, set())


def _said(subject: Subject, form: Format) -> tuple[LaunchFile, ...] | str:
    try:
        return emitted(subject, form)
    except UserError as error:
        return str(error)
