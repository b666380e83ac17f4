"""The study over a runner that only computes: budget, resume, history, interruption."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_spaces.enumeration import search_space
from tests.tiny_job import cpu_cluster, setting, tiny_workload
from tests.tuner.computed_study import (
    SPACE,
    ComputedRunner,
    measured,
    outcome_of,
    step_time_s,
    study,
)
from tuner.errors import UserError
from tuner.outcome import Failed, Measured, Outcome, Phase
from tuner.plan import Backend, ParallelPlan, PlanValue
from tuner.samplers.registry import SAMPLERS
from tuner.study import Budget, StudyEnd, StudyListener


def run(tmp_path: Path, runner: ComputedRunner, trials: int, *, sampler: str = "plan") -> StudyEnd:
    return study(tmp_path, runner, sampler=sampler).run(Budget(trials=trials), StudyListener())


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_tries_only_legal_plans_and_none_twice(tmp_path: Path, sampler: str) -> None:
    if sampler == "gp":
        pytest.importorskip("scipy")
    runner = ComputedRunner(outcome_of)
    end = run(tmp_path, runner, 12, sampler=sampler)
    assert len(end.trials) == 12
    assert len(set(runner.plans)) == 12
    assert set(runner.plans) <= set(SPACE.plans)


def test_the_defaults_of_the_frameworks_come_first(tmp_path: Path) -> None:
    end = run(tmp_path, ComputedRunner(outcome_of), 3)
    assert [trial.plan.backend for trial in end.trials] == list(Backend)
    assert all(trial.plan.zero_stage == 0 and trial.plan.tp == 1 for trial in end.trials)


def test_the_plan_sampler_comes_within_a_twentieth_of_the_best_in_thirty_trials(
    tmp_path: Path,
) -> None:
    best = min(o.step_time_s for p in SPACE.plans if isinstance(o := outcome_of(p), Measured))
    end = run(tmp_path, ComputedRunner(outcome_of), 30)
    found = min(t.outcome.step_time_s for t in end.trials if isinstance(t.outcome, Measured))
    assert found <= best * 1.05


def test_early_trials_vary_every_knob_that_has_options(tmp_path: Path) -> None:
    end = run(tmp_path, ComputedRunner(outcome_of), 15)
    for knob in ("zero_stage", "tp", "pp", "micro_batch", "recompute", "sequence_parallel"):
        assert len({trial.plan.to_dict()[knob] for trial in end.trials}) > 1, knob


def test_running_again_goes_on_where_it_stopped(tmp_path: Path) -> None:
    first, second = ComputedRunner(outcome_of), ComputedRunner(outcome_of)
    run(tmp_path, first, 5)
    end = run(tmp_path, second, 9)
    assert len(second.plans) == 4
    assert [trial.number for trial in end.trials] == list(range(9))
    assert not set(first.plans) & set(second.plans)


def test_a_lost_journal_is_made_again_from_the_folder(tmp_path: Path) -> None:
    first, second = ComputedRunner(outcome_of), ComputedRunner(outcome_of)
    run(tmp_path, first, 5)
    (tmp_path / "study" / "journal.log").unlink()
    run(tmp_path, second, 9)
    assert len(second.plans) == 4
    assert not set(first.plans) & set(second.plans)


def test_an_interruption_keeps_what_was_tried_and_the_trial_is_tried_again(tmp_path: Path) -> None:
    def interrupted(plan: ParallelPlan) -> Outcome:
        if len(runner.plans) == 4:
            raise KeyboardInterrupt
        return outcome_of(plan)

    runner = ComputedRunner(interrupted)
    end = run(tmp_path, runner, 10)
    assert end.interrupted
    assert len(end.trials) == 3
    again = ComputedRunner(outcome_of)
    assert len(run(tmp_path, again, 10).trials) == 10


def test_a_space_that_is_used_up_ends_the_study_and_says_so(tmp_path: Path) -> None:
    asked: dict[str, tuple[PlanValue, ...]] = {
        "backend": ("pytorch",),
        "precision": ("fp32",),
        "tp": (1,),
        "pp": (1,),
    }
    small = search_space(
        setting(tiny_workload(), cpu_cluster(4)),
        {**asked, "recompute": ("none",), "micro_batch": (1,)},
    )
    runner = ComputedRunner(lambda plan: measured(step_time_s(plan)))
    end = study(tmp_path, runner, space=small).run(Budget(trials=50), StudyListener())
    assert len(end.trials) == len(small.plans)
    assert "every legal plan" in end.reason


def test_failures_do_not_stop_the_study(tmp_path: Path) -> None:
    failed = Failed(rank=1, phase=Phase.MODEL, error="ValueError", message="no")
    end = run(tmp_path, ComputedRunner(lambda _: failed), 6)
    assert [trial.outcome.kind for trial in end.trials] == ["failed"] * 6


def test_a_storage_of_another_search_space_is_refused(tmp_path: Path) -> None:
    run(tmp_path, ComputedRunner(outcome_of), 3)
    pinned = search_space(
        setting(tiny_workload(), cpu_cluster(4)), {"precision": ("fp32",), "tp": (1, 2)}
    )
    with pytest.raises(UserError, match=r"its knob tp was 1/2/4 and is now 1/2;.*--warm-start"):
        study(tmp_path, ComputedRunner(outcome_of), space=pinned).run(
            Budget(trials=5), StudyListener()
        )


def test_a_study_ends_when_no_plan_is_expected_to_gain(tmp_path: Path) -> None:
    """Of one framework: a sampler that has more plans to rule out takes longer to, the same way."""
    asked: dict[str, tuple[PlanValue, ...]] = {"backend": ("pytorch",), "precision": ("fp32",)}
    space = search_space(setting(tiny_workload(), cpu_cluster(4)), asked)
    runner = ComputedRunner(lambda _: measured(1.0))
    end = study(tmp_path, runner, space=space).run(Budget(trials=len(space.plans)), StudyListener())
    assert "no untried plan is expected to gain more than 1%" in end.reason
    assert len(end.trials) < len(space.plans)


def test_a_default_that_cannot_fit_is_not_tried_first(tmp_path: Path) -> None:
    def peak_bytes(plan: ParallelPlan) -> float:
        return 1000.0 if plan.tp == 1 else 10.0

    one = study(tmp_path, ComputedRunner(outcome_of), peak_bytes=peak_bytes)
    end = one.run(Budget(trials=1), StudyListener())
    assert "default" not in end.trials[0].reason
