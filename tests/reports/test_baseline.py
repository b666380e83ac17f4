"""The user's own plan against the best: in numbers and in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reports.baseline import Baseline, BaselineChanges, PredictedChange
from reports.baseline_markdown import baseline_section
from reports.baseline_wording import baseline_line, baseline_record
from reports.html.baseline_view import baseline_view
from reports.summary import Summary, summarize
from tests.reports.a_study import DEFAULTS, NUM_GPUS, measured, trial, trials
from tuner.outcome import Failed, Phase
from tuner.plan import Backend, ParallelPlan
from tuner.trial import Trial

OWN = ParallelPlan(backend=Backend.PYTORCH)
BETWEEN = replace(OWN, zero_stage=2)
WINNER = replace(BETWEEN, micro_batch=4)
CHANGES = BaselineChanges(
    winner=WINNER,
    predicted_step_time_s=3.0,
    steps=(
        PredictedChange(knobs=(("zero_stage", "0", "2"),), plan=BETWEEN, predicted_step_time_s=2.0),
        PredictedChange(knobs=(("micro_batch", "1", "4"),), plan=WINNER, predicted_step_time_s=1.6),
    ),
)
GIVEN = Baseline(
    plan=OWN,
    file="mine.toml",
    format="torchtitan",
    unknown_keys=("training.sede",),
    ignored_keys=(("metrics.log_freq", "it logs"),),
    settings=(("fsdp_forward_prefetch", 2),),
    pinned=(("compile.enable", "true"),),
    notes=("a note",),
    changes=CHANGES,
)


def summary_with(given: Baseline, *tried: Trial) -> Summary:
    return summarize(tried, num_gpus=NUM_GPUS, defaults=DEFAULTS, baseline=given)


def line_of(given: Baseline, *tried: Trial) -> str:
    line = baseline_line(summary_with(given, *tried))
    assert line is not None
    return line


def test_the_line_has_both_speeds_their_ratio_and_the_largest_change_first() -> None:
    assert line_of(GIVEN, *trials()) == (
        "yours: 2,048 tokens/s; best: 4,096 (2.00x), because zero_stage 0 -> 2 (predicted 1.50x); "
        "micro_batch 1 -> 4 (predicted 1.25x)"
    )


def test_a_change_is_confirmed_only_where_the_plans_on_both_sides_were_measured() -> None:
    between = trial(6, BETWEEN, measured(1.25))
    assert "(predicted 1.50x; measured 1.60x)" in line_of(GIVEN, *trials(), between)
    alone = replace(CHANGES, steps=(replace(CHANGES.steps[1], knobs=(("micro_batch", "1", "4"),)),))
    assert "measured" not in line_of(replace(GIVEN, changes=alone), *trials())


def test_changes_towards_an_older_winner_are_not_shown() -> None:
    faster = trial(6, replace(OWN, tp=2), measured(0.5))
    line = line_of(GIVEN, *trials(), faster)
    assert line == "yours: 2,048 tokens/s; best: 8,192 (4.00x)"


def test_intervals_that_overlap_may_be_no_difference() -> None:
    own = trial(0, OWN, measured(1.015))
    best = trial(1, WINNER, measured(1.0))
    line = line_of(GIVEN, own, best)
    assert line.endswith("which may be no difference: within the noise of the measurements")


def test_a_change_that_makes_it_slower_is_no_reason_and_the_largest_gain_is_named() -> None:
    steps = (
        replace(CHANGES.steps[0], predicted_step_time_s=3.1),
        replace(CHANGES.steps[1], predicted_step_time_s=1.6),
    )
    given = replace(GIVEN, changes=replace(CHANGES, steps=steps))
    gain = "micro_batch 1 -> 4 (predicted 1.94x)"
    assert line_of(given, *trials()).endswith(f", because {gain}")
    summary = summary_with(given, *trials())
    text = "\n".join(baseline_section(summary))
    assert (
        f"in the order of the path from your plan to the best; the largest gain is {gain}" in text
    )
    assert "| zero_stage 0 -> 2 | 3.10 s | 0.97x (slower) |" in text
    view = baseline_view(summary)
    assert view is not None
    assert view.path in text


def test_a_change_predicted_faster_and_measured_slower_is_no_reason() -> None:
    between = trial(6, BETWEEN, measured(2.5))
    line = line_of(GIVEN, *trials(), between)
    assert line.endswith("because micro_batch 1 -> 4 (predicted 1.25x; measured 2.50x)")


def test_the_fastest_may_be_the_users_own() -> None:
    own = trial(0, OWN, measured(0.9))
    other = trial(1, WINNER, measured(1.0))
    line = line_of(GIVEN, own, other)
    assert line == "yours: 4,551 tokens/s, the fastest of the 2 plans that trained"


def test_one_that_did_not_train_has_no_speed_and_says_why() -> None:
    failed = Failed(rank=0, phase=Phase.MODEL, error="ValueError", message="no")
    best = trial(1, WINNER, measured(1.0))
    line = line_of(GIVEN, trial(0, OWN, failed), best)
    assert line.startswith("yours (pytorch zero0 mb1 bf16) did not run here (trial 0: failed")
    assert line.endswith("no speed to compare; best: 4,096 tokens/s")
    oom = trials()[1]
    gone = replace(GIVEN, plan=oom.plan)
    assert "ran out of memory here (trial 1)" in line_of(gone, *trials())
    untried = replace(GIVEN, plan=replace(OWN, tp=4))
    assert "has not been tried yet" in line_of(untried, *trials())


def test_the_report_keeps_predicted_and_measured_in_columns_of_their_own() -> None:
    between = trial(6, BETWEEN, measured(1.25))
    text = "\n".join(baseline_section(summary_with(GIVEN, *trials(), between)))
    assert "step time after it (predicted) | speed-up (predicted) | speed-up (measured)" in text
    assert "| zero_stage 0 -> 2 | 2.00 s | 1.50x | 1.60x |" in text
    assert "Settings carried into every plan of pytorch:\n\n- fsdp_forward_prefetch=2" in text
    for said in ("training.sede", "`compile.enable`: true", "`metrics.log_freq`: it logs"):
        assert said in text


def test_the_record_is_complete_and_none_without_a_baseline() -> None:
    record = baseline_record(summary_with(GIVEN, *trials()))
    assert record is not None
    assert record["speedup"] == pytest.approx(2.0)
    assert record["changes"][0]["knobs"] == {"zero_stage": ["0", "2"]}
    assert record["settings"] == {"fsdp_forward_prefetch": 2}
    assert record["pinned"] == {"compile.enable": "true"}
    without = summarize(trials(), num_gpus=NUM_GPUS, defaults=DEFAULTS)
    assert baseline_record(without) is None
    assert baseline_section(without) == []
