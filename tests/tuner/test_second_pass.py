"""The second pass: which runs it asks for, what it keeps, and how it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.framework_settings.setting import SettingCase
from tuner.framework_settings.table import settled
from tuner.launch import Settings
from tuner.outcome import Measured, Outcome, OutOfMemory, Phase
from tuner.plan import Backend, ParallelPlan, Precision
from tuner.second_pass import (
    ALL_TOGETHER,
    Decision,
    NextRun,
    PassRun,
    SecondPass,
    Verdict,
    settled_pass,
)

PLAN = ParallelPlan(backend=Backend.PYTORCH, zero_stage=3, precision=Precision.FP32)
CASE = SettingCase(plan=PLAN, workload=tiny_workload(), cluster=cpu_cluster(4))
BEGUN = SecondPass(trial=7, plan=PLAN, start=())


def measured(seconds: float, *, unfollowed: tuple[str, ...] = ()) -> Measured:
    return Measured(
        step_times_s=(seconds,),
        step_time_s=seconds,
        step_time_ci_s=(seconds * 0.99, seconds * 1.01),
        tokens_per_s=1 / seconds,
        peak_memory_bytes=100,
        peak_memory_bytes_by_rank=(100,),
        unfollowed=unfollowed,
    )


def ran(
    outcome_of: Callable[[NextRun, int], Outcome], most: int = 200, begun: SecondPass = BEGUN
) -> SecondPass:
    """The pass run to its end, or for so many runs."""
    found, wanted = settled_pass(begun, CASE)
    while wanted is not None and len(found.runs) < most:
        outcome = outcome_of(wanted, len(found.runs))
        run = PassRun(setting=wanted.setting, settings=wanted.settings, outcome=outcome)
        found, wanted = settled_pass(replace(found, runs=(*found.runs, run)), CASE)
    return found


def by_setting(found: SecondPass) -> dict[str, Decision]:
    return {decision.setting: decision for decision in found.decisions}


def faster_with(
    factors: dict[str, float], noise: float = 0.003, seed: int = 0
) -> Callable[[NextRun, int], Outcome]:
    """Steps of a second, times the factor of every setting that is not at its default."""
    rng = np.random.default_rng(seed)
    plain = settled(CASE, ())

    def outcome_of(wanted: NextRun, number: int) -> Outcome:
        seconds = float(np.exp(noise * rng.normal()))
        for name, value in wanted.settings:
            if value != plain[name]:
                seconds *= factors.get(name, 1.0)
        return measured(seconds)

    return outcome_of


def test_the_winner_runs_again_first_under_the_same_conditions() -> None:
    found, wanted = settled_pass(BEGUN, CASE)
    assert wanted == NextRun(setting="", settings=(), incumbent_step_time_s=None)
    assert not found.is_over


def test_a_setting_that_is_faster_for_certain_is_kept_with_its_interval() -> None:
    found = ran(faster_with({"fsdp_reshard_last_layer": 0.9}))
    assert found.is_over
    assert found.settings == found.changes_kept == (("fsdp_reshard_last_layer", False),)
    assert found.gain is not None
    assert found.gain[0] < 1 / 0.9 - 1 < found.gain[1]
    assert found.gain[0] > 0.05
    assert found.measured is not None
    assert abs(found.measured.step_time_s - 0.9) < 0.02
    assert found.run is not None
    assert found.runs[found.run].settings == found.settings
    decided = by_setting(found)["fsdp_reshard_last_layer"]
    assert Verdict.KEPT in [option.verdict for option in decided.tried]
    assert decided.was is True


def test_noise_alone_keeps_nothing() -> None:
    for seed in range(20):
        found = ran(faster_with({}, noise=0.02, seed=seed))
        assert found.is_over
        assert found.changes_kept == ()
        assert found.measured is None
        assert found.run is None


def test_what_looks_slower_at_once_takes_no_turns() -> None:
    found = ran(faster_with({name: 1.2 for name in settled(CASE, ())}))
    assert {o.verdict for d in found.decisions for o in d.tried} == {Verdict.SLOWER}
    assert len(found.runs) == 1 + sum(len(decision.tried) for decision in found.decisions)


def test_an_option_may_end_early_and_the_turns_run_to_their_end() -> None:
    wanted_runs: list[NextRun] = []
    outcome_of = faster_with({"fsdp_reshard_last_layer": 0.9})

    def noted(wanted: NextRun, number: int) -> Outcome:
        wanted_runs.append(wanted)
        return outcome_of(wanted, number)

    ran(noted)
    options = [run for run in wanted_runs if run.setting == "fsdp_forward_prefetch"][:2]
    assert [run.incumbent_step_time_s is None for run in options] == [False, False]
    turns = [run for run in wanted_runs if run.setting == "fsdp_reshard_last_layer"][1:]
    assert all(run.incumbent_step_time_s is None for run in turns)
    kept: Settings = (("fsdp_reshard_last_layer", False),)
    assert [run.settings for run in turns[:4]] == [(), kept, kept, ()]


def test_what_is_kept_one_by_one_is_held_against_the_winner_together() -> None:
    found = ran(faster_with({"fsdp_reshard_last_layer": 0.9, "fsdp_backward_prefetch": 0.9}))
    assert dict(found.settings) == {
        "fsdp_reshard_last_layer": False,
        "fsdp_backward_prefetch": 2,
    }
    together = found.decisions[-1]
    assert together.setting == ALL_TOGETHER
    assert Verdict.KEPT in [option.verdict for option in together.tried]
    assert found.gain == together.tried[0].gain
    assert found.gain is not None
    assert found.gain[0] < 1 / 0.81 - 1 < found.gain[1]


def test_what_is_worth_nothing_together_is_given_up() -> None:
    """Each is faster alone, and the two at once are not."""
    plain = faster_with({"fsdp_reshard_last_layer": 0.9, "fsdp_backward_prefetch": 0.9})

    def outcome_of(wanted: NextRun, number: int) -> Outcome:
        outcome = plain(wanted, number)
        if wanted.setting == ALL_TOGETHER and wanted.settings:
            return measured(1.1)
        return outcome

    found = ran(outcome_of)
    assert found.is_over
    assert found.settings == ()
    assert found.changes_kept == ()
    assert found.measured is None
    assert found.gain is None


def test_out_of_memory_and_settings_that_are_not_followed_are_not_kept() -> None:
    full = OutOfMemory(rank=0, phase=Phase.STEPS, message="full")

    def outcome_of(wanted: NextRun, number: int) -> Outcome:
        asked = dict(wanted.settings)
        if asked.get("fsdp_forward_prefetch"):
            return full
        if "fsdp_reshard_last_layer" in asked:
            return measured(0.5, unfollowed=("it runs true",))
        return measured(1.0)

    verdicts = {
        name: {option.verdict for option in decision.tried}
        for name, decision in by_setting(ran(outcome_of)).items()
    }
    assert verdicts["fsdp_forward_prefetch"] == {Verdict.FAILED}
    assert verdicts["fsdp_reshard_last_layer"] == {Verdict.UNFOLLOWED}


def test_a_winner_that_does_not_run_again_has_no_second_pass() -> None:
    found = ran(lambda *_: OutOfMemory(rank=0, phase=Phase.STEPS, message="full"))
    assert found.is_over
    assert len(found.runs) == 1
    assert found.decisions == ()


def test_a_plan_without_settings_to_turn_runs_nothing() -> None:
    plan = ParallelPlan(backend=Backend.DEEPSPEED, precision=Precision.FP32)
    case = SettingCase(plan=plan, workload=tiny_workload(), cluster=cpu_cluster(4))
    found, wanted = settled_pass(SecondPass(trial=0, plan=plan, start=()), case)
    assert wanted is None
    assert found.is_over


def test_runs_that_are_over_leave_the_decision_open_and_more_go_on_from_there() -> None:
    whole = ran(faster_with({"fsdp_reshard_last_layer": 0.9}))
    for most in range(1, len(whole.runs)):
        part = ran(faster_with({"fsdp_reshard_last_layer": 0.9}), most=most)
        assert not part.is_over
        assert part.runs == whole.runs[:most]
        again = ran(lambda _, number: whole.runs[number].outcome, begun=part)
        assert again == whole
    open_ones = [o.verdict for d in part.decisions for o in d.tried]
    assert Verdict.OPEN in open_ones


def test_runs_of_other_settings_than_would_be_asked_for_now_are_left_out() -> None:
    whole = ran(faster_with({}))
    other = replace(whole.runs[2], settings=(("fsdp_forward_prefetch", 99),))
    found, wanted = settled_pass(
        replace(whole, runs=(*whole.runs[:2], other, *whole.runs[3:])), CASE
    )
    assert found.runs == whole.runs[:2]
    assert wanted is not None
    assert not found.is_over
