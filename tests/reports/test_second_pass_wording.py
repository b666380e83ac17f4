"""The second pass in a line."""

from __future__ import annotations

from dataclasses import replace

from reports.second_pass_wording import second_pass_line, second_pass_record, second_pass_rows
from reports.summary import AfterTrials, Summary, summarize
from tests.reports.a_study import NUM_GPUS, measured, trial
from tuner.outcome import OutOfMemory, Phase
from tuner.plan import Backend, ParallelPlan
from tuner.second_pass import Decision, PassRun, SecondPass, TriedOption, Verdict

PLAN = ParallelPlan(backend=Backend.DEEPSPEED, zero_stage=2)
FULL = OutOfMemory(rank=0, phase=Phase.STEPS, message="full")
BEGUN = SecondPass(trial=0, plan=PLAN, start=())
KEPT = TriedOption(
    changes=(("overlap_comm", False),),
    verdict=Verdict.KEPT,
    outcome=measured(0.9),
    gain=(0.05, 0.12),
)
SLOWER = TriedOption(
    changes=(("contiguous_gradients", False),), verdict=Verdict.FAILED, outcome=FULL
)
WHOLE = replace(
    BEGUN,
    runs=(PassRun(setting="", settings=(), outcome=measured(1.0)),),
    decisions=(
        Decision(setting="overlap_comm", was=True, tried=(KEPT,)),
        Decision(setting="contiguous_gradients", was=True, tried=(SLOWER,)),
    ),
    settings=(("overlap_comm", False),),
    measured=measured(0.9),
    run=0,
    is_over=True,
)


def summary(found: SecondPass | None) -> Summary:
    own = trial(0, PLAN, measured(1.0))
    return summarize((own,), num_gpus=NUM_GPUS, defaults={}, after=AfterTrials(second_pass=found))


def test_what_was_kept_stands_with_what_it_is_worth() -> None:
    line = second_pass_line(summary(WHOLE))
    assert line == "overlap_comm=false (a step without takes +5.0% to +12.0%)"
    best = summary(WHOLE).best
    assert best is not None
    assert best.label == "deepspeed zero2 mb1 bf16 with overlap_comm=false"
    assert best.measured.step_time_s == 0.9


def test_every_option_has_a_row_with_what_came_of_it() -> None:
    first, second = second_pass_rows(WHOLE)
    assert first[:3] == ("overlap_comm", "true", "overlap_comm=false")
    assert first[-2:] == ("+5.0% to +12.0%", "kept")
    assert second[-1].startswith("did not train: ")
    record = second_pass_record(summary(WHOLE))
    assert record is not None
    assert [one["kept"] for one in record["tried"]] == [True, False]


def test_nothing_kept_none_tried_and_not_finished_are_said() -> None:
    alone = replace(WHOLE, decisions=WHOLE.decisions[1:], measured=None, run=None)
    assert second_pass_line(summary(alone)) == (
        "as they were: of 1 option tried none is faster for certain"
    )
    unfinished = second_pass_line(summary(replace(alone, is_over=False)))
    assert unfinished is not None
    assert unfinished.endswith("; not finished after 1 runs")
    none = second_pass_line(summary(replace(BEGUN, is_over=True)))
    assert none == "none was tried: this plan has none to turn here"
    trained = (PassRun(setting="", settings=(), outcome=measured(1.0)),)
    assert second_pass_line(summary(replace(BEGUN, runs=trained, is_over=True))) == none
    failed = (PassRun(setting="", settings=(), outcome=FULL),)
    gone = second_pass_line(summary(replace(BEGUN, runs=failed, is_over=True)))
    assert gone is not None
    assert "run again, the plan did not train" in gone


def test_a_pass_of_another_plan_or_none_says_nothing() -> None:
    assert second_pass_line(summary(None)) is None
    other = replace(WHOLE, plan=replace(PLAN, zero_stage=3))
    assert second_pass_line(summary(other)) is None
    assert second_pass_record(summary(other)) is None
