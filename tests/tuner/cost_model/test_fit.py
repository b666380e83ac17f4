"""What is usable of a GPU's memory."""

from __future__ import annotations

from tests.tuner.cost_model.a_model import GIB, h100
from tuner.cost_model.fit import usable_bytes
from tuner.presets import cpu_rank


def test_context_and_fragmentation_leave_about_nine_tenths_of_a_gpu() -> None:
    assert 0.85 < usable_bytes(h100()) / h100().memory_bytes < 0.92


def test_a_cpu_rank_may_use_all_of_its_budget() -> None:
    assert usable_bytes(cpu_rank(GIB)) == GIB
