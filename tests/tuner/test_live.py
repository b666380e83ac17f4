"""What is seen while a study runs, on a terminal and in a log."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from tests.reports.a_study import measured, trial
from tuner.cli.live import LiveView
from tuner.outcome import OutOfMemory, Phase
from tuner.plan import Backend, ParallelPlan
from tuner.study import Budget

PYTORCH = ParallelPlan(backend=Backend.PYTORCH)
MEGATRON = ParallelPlan(backend=Backend.MEGATRON, tp=2)
OOM = OutOfMemory(rank=1, phase=Phase.FIRST_STEP, message="can't allocate")
WHY = "expected 1.20 s a step, give or take 15%, faster than the best (1.30 s)"


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def console(*, terminal: bool) -> Console:
    """One that writes to memory."""
    return Console(
        file=io.StringIO(), force_terminal=terminal, width=140, highlight=False, record=True
    )


def view(shown: Console, clock: Clock, budget: Budget | None = None) -> LiveView:
    return LiveView(
        budget or Budget(trials=10),
        quiet=False,
        num_refused=1234,
        console=shown,
        clock=clock,
    )


def living(seen: LiveView) -> str:
    """The lines at the bottom of the terminal as they are now."""
    page = Console(width=140, file=io.StringIO(), record=True)
    page.print(seen.lines())
    return page.export_text()


def test_a_terminal_shows_every_running_trial_with_its_phase_its_time_and_its_reason() -> None:
    clock = Clock()
    seen = view(console(terminal=True), clock)
    seen.trial_started(0, PYTORCH, "pytorch's default")
    seen.trial_started(1, MEGATRON, WHY)
    seen.phase_entered(1, Phase.FIRST_STEP)
    clock.now = 7.0
    try:
        text = living(seen)
    finally:
        seen.stop()
    assert "trial 0 (1 of 10)  pytorch zero0 mb1" in text
    assert "trial 1 (2 of 10)  megatron zero0 mb1 tp2" in text
    assert "first step  7 s" in text
    assert WHY in text
    assert "nothing measured yet" in text


def test_the_best_so_far_has_its_interval_and_every_kind_of_end_is_counted() -> None:
    clock = Clock()
    seen = view(console(terminal=True), clock)
    tried = [trial(0, PYTORCH, measured(2.0)), trial(1, MEGATRON, OOM)]
    for number, one in enumerate(tried):
        seen.trial_started(one.number, one.plan, "")
        seen.trial_ended(one, tried[: number + 1])
    text = living(seen)
    assert "2.00 s a step (1.98 s to 2.02 s): pytorch" in text
    assert "2 of at most 10 trials: 1 measured, 1 out of memory; 1,234 refused by rules" in text


@pytest.mark.parametrize(
    ("budget", "left"),
    [
        (Budget(trials=10), "about 4m 30s"),
        (Budget(trials=10, time_s=90.0), "about 60 s"),
    ],
)
def test_the_time_left_is_that_of_the_trials_or_of_the_budget(budget: Budget, left: str) -> None:
    clock = Clock()
    seen = view(console(terminal=False), clock, budget)
    seen.trial_started(0, PYTORCH, "")
    clock.now = 30.0
    seen.trial_ended(trial(0, PYTORCH, measured(2.0)), [trial(0, PYTORCH, measured(2.0))])
    assert left in living(seen)


def test_trials_of_an_earlier_run_do_not_count_in_the_time_left() -> None:
    clock = Clock()
    seen = view(console(terminal=False), clock)
    tried = [trial(number, PYTORCH, measured(2.0)) for number in range(5)]
    seen.trial_started(4, PYTORCH, "")
    clock.now = 30.0
    seen.trial_ended(tried[4], tried)
    assert "5 of at most 10 trials" in living(seen)
    assert "about 2m 30s" in living(seen)


def test_ended_trials_stay_as_lines_and_the_living_ones_go() -> None:
    shown = console(terminal=True)
    seen = view(shown, Clock())
    seen.trial_started(0, PYTORCH, WHY)
    seen.trial_ended(trial(0, PYTORCH, OOM), [trial(0, PYTORCH, OOM)])
    assert "running" not in living(seen)
    assert "out of memory on rank 1 in phase first_step  (10.00 s)" in shown.export_text()


def test_a_log_gets_plain_lines_with_the_reason_and_no_control_codes() -> None:
    shown = console(terminal=False)
    seen = view(shown, Clock())
    seen.trial_started(0, PYTORCH, WHY)
    seen.phase_entered(0, Phase.STEPS)
    seen.trial_ended(trial(0, PYTORCH, measured(2.0)), [trial(0, PYTORCH, measured(2.0))])
    lines = shown.export_text().splitlines()
    assert lines[0].startswith("trial 0 (1 of 10)  pytorch zero0 mb1")
    assert lines[0].endswith(f"(why: {WHY})")
    assert lines[1].startswith("trial 0 (1 of 10)  pytorch")
    assert lines[2].startswith("        best: 2.00 s a step (1.98 s to 2.02 s)")
    assert len(lines) == 3
    assert "\x1b" not in shown.file.getvalue()  # type: ignore[attr-defined]  # a StringIO


def test_the_news_of_trials_may_come_from_any_thread() -> None:
    shown = console(terminal=True)
    seen = view(shown, Clock())
    tried = [trial(number, PYTORCH, measured(2.0)) for number in range(8)]

    def live(number: int) -> None:
        seen.phase_entered(number, Phase.STEPS)
        seen.trial_ended(tried[number], tried[: number + 1])

    for one in tried:
        seen.trial_started(one.number, one.plan, WHY)
    threads = [threading.Thread(target=live, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    seen.stop()
    assert "running" not in living(seen)
    assert shown.export_text().count("a step, 2,048 tokens/s") == 8


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    seen = LiveView(Budget(trials=2), quiet=True)
    seen.trial_started(0, PYTORCH, WHY)
    seen.trial_ended(trial(0, PYTORCH, OOM), [trial(0, PYTORCH, OOM)])
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_a_log_says_once_that_the_finals_and_the_second_pass_begin() -> None:
    shown = console(terminal=False)
    seen = view(shown, Clock())
    for number in range(2):
        seen.final_run(number, PYTORCH, None)
        seen.final_run(number, PYTORCH, measured(2.0))
    text = shown.export_text()
    assert text.splitlines()[0] == "the finals: the best plans run again"
    assert text.count("the finals:") == 1


def test_a_trial_beyond_the_budget_is_not_one_of_it() -> None:
    shown = console(terminal=False)
    seen = view(shown, Clock())
    seen.trial_started(10, PYTORCH, "")
    assert shown.export_text().startswith("trial 10  pytorch")


def test_the_finals_are_shown_while_they_run() -> None:
    shown = console(terminal=True)
    seen = view(shown, Clock())
    seen.final_run(0, PYTORCH, None)
    assert "finals, round 1  pytorch zero0 mb1" in living(seen)
    seen.final_run(0, PYTORCH, measured(2.0))
    assert "finals, round 1  pytorch" in shown.export_text()
    assert "finals" not in living(seen)
