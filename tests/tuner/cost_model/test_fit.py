"""Whether a predicted peak fits, and how sure that is."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tuner.cost_model.a_model import GIB, h100
from tuner.cost_model.fit import FitZone, fit_probability, fit_zone, fits, usable_bytes
from tuner.presets import cpu_rank


def test_context_and_fragmentation_leave_about_nine_tenths_of_a_gpu() -> None:
    assert 0.85 < usable_bytes(h100()) / h100().memory_bytes < 0.92


def test_a_cpu_rank_may_use_all_of_its_budget() -> None:
    assert usable_bytes(cpu_rank(GIB)) == GIB


def test_a_plan_at_the_limit_is_as_likely_to_fit_as_not() -> None:
    limit = usable_bytes(h100())
    chances = fit_probability(np.array([0.5 * limit, limit, 2 * limit]), 0.1, h100())
    assert chances == pytest.approx([1, 0.5, 0], abs=1e-6)
    assert fits(np.array([0.9, 1.1]) * limit, h100()).tolist() == [True, False]


def test_one_standard_deviation_below_the_limit_is_84_percent() -> None:
    need = np.array([usable_bytes(h100()) * np.exp(-0.1)])
    assert fit_probability(need, 0.1, h100())[0] == pytest.approx(0.8413, abs=1e-4)


def test_zones_are_sure_only_at_the_ends() -> None:
    assert [fit_zone(p) for p in (0.99, 0.5, 0.01)] == [
        FitZone.FITS,
        FitZone.UNCERTAIN,
        FitZone.TOO_LARGE,
    ]
