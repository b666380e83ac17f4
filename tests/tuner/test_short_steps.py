"""Which counts short steps have, what they say of a full step, and when they have said enough."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.extrapolated import documented, recorded
from tests.tiny_job import LLAMA_CONFIG, cpu_cluster
from tuner.job import read_job
from tuner.outcome import StepsEnd
from tuner.plan import Backend, ParallelPlan
from tuner.short_steps import ShortSteps, short_steps_end, short_steps_for
from tuner.step_statistics import StepsRule, step_statistics

RULE = StepsRule(warmup_steps=1, steps=5, max_steps=25, relative_half_width=0.02)
SHORT = ShortSteps(low=1, high=4, full=32)
RECORDED = Path(__file__).parents[2] / "benchmarks" / "short_and_full_steps.json"


def plan(pp: int = 1, vpp: int = 1) -> ParallelPlan:
    return ParallelPlan(backend=Backend.MEGATRON, pp=pp, vpp=vpp)


def pairs(
    num: int, *, each_s: float = 1.0, once_s: float = 2.0, noise: float = 0.0, seed: int = 0
) -> list[tuple[float, float]]:
    """The first pair three times as long: it is warm-up."""
    rng = np.random.default_rng(seed)

    def step_s(microbatches: int, number: int) -> float:
        slow = 3.0 if number == 0 else 1.0
        return (once_s + each_s * microbatches) * slow * float(np.exp(noise * rng.normal()))

    return [(step_s(SHORT.low, n), step_s(SHORT.high, n)) for n in range(num)]


def ended(rule: StepsRule = RULE, **of_pairs: float) -> tuple[StepsEnd, int, int]:
    """Why, the first pair that counts, and how many ran."""
    for num in count(1):
        if (end := short_steps_end(pairs(num, **of_pairs), SHORT, rule)) is not None:  # type: ignore[arg-type]  # floats by name
            return (*end, num)
    raise AssertionError


@given(
    st.integers(1, 8), st.integers(1, 4), st.integers(1, 512), st.floats(1e-3, 9), st.floats(0, 9)
)
def test_a_time_that_is_affine_is_extrapolated_exactly(
    pp: int, vpp: int, full: int, each_s: float, once_s: float
) -> None:
    short = short_steps_for(plan(pp, vpp), full)
    if short is None:
        return
    low_s, high_s = once_s + each_s * short.low, once_s + each_s * short.high
    assert short.full_step_s(low_s, high_s) == pytest.approx(once_s + each_s * full)


@given(st.integers(1, 16), st.integers(1, 4), st.integers(1, 2048))
def test_counts_fit_the_pipeline_reach_the_peak_of_memory_and_pay(
    pp: int, vpp: int, full: int
) -> None:
    short = short_steps_for(plan(pp, vpp), full)
    if short is None:
        return
    assert short.low >= pp
    assert short.high >= max(2, 2 * pp if vpp > 1 else pp)
    if vpp > 1:
        assert short.low % pp == short.high % pp == 0
    assert 4 * (short.low + short.high) <= 6 * full / 4
    assert short.full == full


@pytest.mark.parametrize("full", [1, 2, 4, 8])
def test_few_microbatches_run_full_steps(full: int) -> None:
    assert short_steps_for(plan(), full) is None


@pytest.mark.parametrize(
    ("of", "full", "counts"),
    [
        (plan(), 16, (1, 4)),
        (plan(), 64, (1, 8)),
        (plan(pp=2), 32, (2, 5)),
        (plan(pp=2, vpp=2), 32, (2, 6)),
        (plan(pp=8), 16, None),
        (plan(pp=8), 128, (8, 16)),
    ],
)
def test_counts_by_the_book(of: ParallelPlan, full: int, counts: tuple[int, int] | None) -> None:
    short = short_steps_for(of, full)
    assert (None if short is None else (short.low, short.high)) == counts


def test_noise_never_makes_a_full_step_shorter_than_a_short_one() -> None:
    assert SHORT.full_step_s(5.0, 1.0) == 1.0


def test_the_warmup_does_not_count_and_steady_steps_end_at_once() -> None:
    assert ended() == (StepsEnd.PRECISE, 1, 4)


def spent_s(num: int, noise: float) -> float:
    return sum(sum(pair) for pair in pairs(num, noise=noise, once_s=0.1))


def test_steps_that_stay_noisy_end_at_a_share_of_the_most_full_steps() -> None:
    why, start, num = ended(noise=0.3, once_s=0.1)
    assert why is StepsEnd.MAX_STEPS
    assert start <= 4
    counted = [SHORT.full_step_s(*pair) for pair in pairs(num, noise=0.3, once_s=0.1)[start:]]
    limit_s = (1 + 25) * 0.18 * step_statistics(counted).level_s
    assert spent_s(num - 1, 0.3) < 1.1 * limit_s
    assert spent_s(num, 0.3) >= limit_s


def test_longer_steps_that_are_alike_by_luck_do_not_end_a_noisy_trial() -> None:
    alike = [(0.9, 4.0), (1.4, 4.01), (1.1, 3.99)] * 2
    assert short_steps_end([(9.0, 12.0), *alike], SHORT, RULE) is None


def test_short_steps_take_a_share_of_the_time_that_full_ones_may_take() -> None:
    why, _, num = ended(replace(RULE, time_s=320.0), noise=0.3, once_s=0.1)
    assert why is StepsEnd.TIME
    assert spent_s(num - 1, 0.3) < 0.18 * 320 <= spent_s(num, 0.3)


def test_what_was_measured_on_two_noisy_cores_is_extrapolated_well_for_a_fifth() -> None:
    """20 plans, both kinds of steps; full steps scatter by 4 % to 20 %."""
    found = documented(recorded(RECORDED))
    assert found["plans"] == 20
    assert found["fewest_microbatches"] == 16
    assert found["median_error"] <= 0.03
    assert found["p90_error"] <= 0.06
    assert found["share_of_full"] <= 0.2
    assert found["winner"] == found["winner_by_full_steps"]


def test_a_plan_that_is_slower_for_certain_ends_early() -> None:
    rule = StepsRule(
        warmup_steps=1,
        steps=5,
        max_steps=25,
        relative_half_width=1e-9,
        incumbent_step_time_s=20.0,
    )
    assert ended(rule, noise=0.001)[0] is StepsEnd.SLOWER


def test_counts_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="low < high < full"):
        ShortSteps(low=2, high=2, full=8)


@pytest.mark.parametrize(("text", "short"), [("auto", True), ("off", False), ("'off'", False)])
def test_a_job_may_switch_them_off(tmp_path: Path, text: str, short: bool) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    job = tmp_path / "job.yaml"
    job.write_text(
        "workload: {model: config.json, seq_len: 16, global_batch: 32}\n"
        f"measure: {{short_steps: {text}}}\n"
    )
    assert read_job(job, lambda: cpu_cluster(2)).measurement.short_steps is short
