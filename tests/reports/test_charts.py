from __future__ import annotations

from typing import Any

import pytest

from reports.charts import (
    knob_chart,
    memory_chart,
    memory_terms_chart,
    order_chart,
    prediction_chart,
    time_terms_chart,
)
from reports.report_facts import best_so_far, knob_effects, pareto_front
from tests.reports.a_study import LIMIT_BYTES, measured, summary_of, trial, trials
from tests.reports.html.studies import all_out_of_memory, extras_of
from tuner.outcome import Failed, Phase
from tuner.plan import Backend, ParallelPlan
from tuner.trial import Trial

MIB = 2**20


def trace(figure: Any, name: str) -> Any:
    return next(t for t in figure.data if t.name == name and t.x)


def sized(number: int, step_time_s: float, mebibytes: int, *, tp: int = 1, pp: int = 1) -> Trial:
    plan = ParallelPlan(backend=Backend.PYTORCH, tp=tp, pp=pp)
    return trial(number, plan, measured(step_time_s, peak_memory_bytes=mebibytes * MIB))


def test_the_pareto_front_holds_what_nothing_beats_in_speed_and_memory() -> None:
    summary = summary_of(
        sized(0, 2.0, 100),
        sized(1, 1.0, 200, tp=2),
        sized(2, 1.5, 250, tp=4),
        sized(3, 3.0, 100, pp=2),
        sized(4, 1.0, 300, pp=4),
    )

    assert [ranked.number for ranked in pareto_front(summary.ranking)] == [0, 1]


def test_the_best_so_far_starts_with_the_first_that_trained_and_never_rises() -> None:
    tried = trials()

    assert best_so_far(tried) == ((0, 2.0), (1, 2.0), (2, 2.0), (3, 1.0), (4, 1.0), (5, 1.0))
    assert best_so_far(tried[1:3]) == ()


def test_a_knob_is_judged_by_pairs_that_differ_in_it_alone() -> None:
    timed = [
        (ParallelPlan(backend=Backend.PYTORCH, micro_batch=1, tp=1), 4.0),
        (ParallelPlan(backend=Backend.PYTORCH, micro_batch=2, tp=1), 2.0),
        (ParallelPlan(backend=Backend.PYTORCH, micro_batch=1, tp=2), 8.0),
        (ParallelPlan(backend=Backend.PYTORCH, micro_batch=2, tp=2), 1.0),
        (ParallelPlan(backend=Backend.PYTORCH, micro_batch=2, tp=4), 9.0),
    ]

    effects = {effect.knob: effect for effect in knob_effects(timed)}

    assert set(effects) == {"micro_batch", "tp"}
    first, second = effects["micro_batch"].options
    assert (first.option, first.num_plans, first.median_s) == (1, 2, 6.0)
    assert second.num_pairs == 2
    assert second.pair_speedup == pytest.approx(4.0)
    assert second.fastest_s == 1.0


def test_an_option_that_was_never_tried_against_the_first_has_no_pair() -> None:
    timed = [
        (ParallelPlan(backend=Backend.PYTORCH, micro_batch=1), 4.0),
        (ParallelPlan(backend=Backend.DEEPSPEED, micro_batch=2), 2.0),
    ]

    for effect in knob_effects(timed):
        assert effect.options[1].pair_speedup is None


def test_throughput_is_drawn_against_memory_and_what_did_not_train_apart() -> None:
    figure = memory_chart(summary_of(*trials()), LIMIT_BYTES)

    pytorch = trace(figure, "PyTorch")
    assert (pytorch.x, pytorch.y) == ((200.0, 200.0), (1024.0, 512.0))
    lanes = [t for t in figure.data if t.yaxis == "y2"]
    assert {kind for t in lanes for kind in t.y} == {"out of memory", "failed", "timed out"}
    assert sorted(number for t in lanes for number in t.x) == [1, 2, 5]


def test_where_nothing_trained_there_is_no_empty_plane() -> None:
    figure = memory_chart(summary_of(*all_out_of_memory()), LIMIT_BYTES)

    assert {t.yaxis for t in figure.data} == {"y2"}
    assert not figure.layout.shapes


def test_the_order_shows_every_trial() -> None:
    figure = order_chart(summary_of(*trials()))

    assert trace(figure, "best so far").y == (2.0, 2.0, 2.0, 1.0, 1.0, 1.0)
    assert trace(figure, "did not train").x == (1, 2, 5)


def test_bars_are_stacked_terms_in_the_unit_of_the_axis() -> None:
    tried = trials()
    summary, extras = summary_of(*tried), extras_of(tried)

    times = time_terms_chart(summary.ranking, extras.terms)
    sizes = memory_terms_chart(summary.ranking, extras.terms)

    assert times.layout.barmode == "stack"
    assert trace(times, "data parallel").x == (0.2, 0.2, 0.2)
    assert times.layout.xaxis.title.text == "predicted step time, s"
    assert trace(sizes, "activations").x == (1e8 / MIB,) * 3
    assert "logits" not in {t.name for t in sizes.data}


def test_predicted_and_measured_have_an_axis_each() -> None:
    tried = trials()
    summary = summary_of(*tried)

    figure = prediction_chart(summary.ranking, extras_of(tried).predictions)

    assert trace(figure, "DeepSpeed").x == (pytest.approx(0.88),)
    assert trace(figure, "DeepSpeed").y == (1.5,)
    assert figure.layout.xaxis.title.text.startswith("predicted")
    assert figure.layout.yaxis.title.text.startswith("measured")


def test_text_is_escaped_since_plotly_reads_markup() -> None:
    failed = Failed(rank=0, phase=Phase.MODEL, error="E", message="<a href='http://x'>b</a>")
    summary = summary_of(trial(0, ParallelPlan(backend=Backend.PYTORCH), failed))

    (text,) = trace(memory_chart(summary, LIMIT_BYTES), "PyTorch").text

    assert "&lt;a href" in text
    assert "<a" not in text


def test_a_chart_of_knobs_has_a_row_for_every_option() -> None:
    summary = summary_of(*trials())
    effects = knob_effects([(r.plan, r.measured.step_time_s) for r in summary.ranking])

    figure = knob_chart(effects)

    assert "micro_batch 4" in trace(figure, "fastest plan").y
    assert len(trace(figure, "fastest plan").y) == sum(len(e.options) for e in effects)
