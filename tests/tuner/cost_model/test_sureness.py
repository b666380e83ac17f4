"""How far off a prediction may be, and in which cases a fit is certain."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tuner.cost_model.a_model import megatron, subject
from tests.tuner.cost_model.test_calibration import PLANS, SLOW_HOST, measured
from tuner.cost_model.calibration import calibrated
from tuner.cost_model.prediction import needed_memory
from tuner.cost_model.sureness import FitZone, Sureness, sureness
from tuner.plan_arrays import PlanArrays

PLAN = PlanArrays.of_plans([megatron(tp=8, micro_batch=1, zero_stage=1)])
OURS = subject(num_nodes=4)
BEFORE = calibrated(())
NEEDED_BYTES = float(needed_memory(OURS, PLAN, BEFORE.coefficients.memory)[0])


def sure(usable_bytes: float) -> Sureness:
    (found,) = sureness(BEFORE, OURS, PLAN, usable_bytes)
    return found


def test_measuring_makes_predictions_surer() -> None:
    told = calibrated([measured(SLOW_HOST)])
    before, after = sureness(BEFORE, OURS, PLANS, 1e9), sureness(told, OURS, PLANS, 1e9)
    assert all(a.time_factor < b.time_factor for a, b in zip(after, before, strict=True))
    assert all(a.memory_factor < b.memory_factor for a, b in zip(after, before, strict=True))


def test_a_plan_at_the_limit_is_as_likely_to_fit_as_not() -> None:
    assert sure(NEEDED_BYTES).fit_probability == pytest.approx(0.5)


def test_room_for_one_standard_deviation_more_fits_with_84_percent() -> None:
    deviation = float(BEFORE.memory_log_std(OURS, PLAN)[0])
    found = sure(NEEDED_BYTES * float(np.exp(deviation)))
    assert found.fit_probability == pytest.approx(0.8413, abs=1e-4)
    assert found.memory_factor == pytest.approx(np.exp(1.96 * deviation), rel=1e-4)


@pytest.mark.parametrize(
    ("room", "zone"),
    [(4.0, FitZone.FITS), (1.0, FitZone.UNCERTAIN), (0.25, FitZone.TOO_LARGE)],
)
def test_zones_are_sure_only_at_the_ends(room: float, zone: FitZone) -> None:
    assert sure(room * NEEDED_BYTES).zone is zone
