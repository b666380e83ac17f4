"""The second pass: framework settings of the winner, one after another, each by real trials; pure.

Every option of a setting is run once. The fastest of those that look faster than what there is
then runs against it in turns, as in the finals, and is kept only where the interval of the
difference leaves out zero.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from enum import StrEnum

from tuner.finals import Finalist, FinalRun, Finals, next_runs, standings
from tuner.framework_settings.setting import SettingCase
from tuner.framework_settings.table import applying, differing, other_options, settled
from tuner.launch import Settings, SettingValue
from tuner.outcome import Measured, Outcome
from tuner.plan import ParallelPlan

ALL_TOGETHER = "all of them"
"""In place of a setting's name: everything that was kept, against the plan without it."""
_CURRENT, _OTHER = 0, 1
_ROUNDS = 5
"""More looks at noise would find a difference in it more often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRun:
    """One run of the winner's plan with some settings."""

    setting: str
    """The one that it is run for; empty for the winner itself."""
    settings: Settings
    """All that were asked for."""
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRun:
    """What is to be run next."""

    setting: str
    settings: Settings
    incumbent_step_time_s: float | None
    """Of the best so far, for a run that may end early; None: in turns, and to the end."""


class Verdict(StrEnum):
    """What became of an option."""

    KEPT = "kept"
    SLOWER = "not faster"
    UNCLEAR = "no difference to be sure of"
    UNFOLLOWED = "not followed by the framework"
    FAILED = "did not train"
    OPEN = "not decided"
    """The runs were over before it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedOption:
    """One option of a setting, and what came of it."""

    changes: Settings
    """What differs from the settings so far: the option, and what must change with it."""
    verdict: Verdict
    outcome: Outcome
    """Of its own run, or of its runs in turns taken together."""
    gain: tuple[float, float] | None = None
    """95 % interval of how much longer the step takes without it, as a part of that with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One setting, tried out."""

    setting: str
    was: SettingValue
    """Before; of ``ALL_TOGETHER``, how many settings were kept."""
    tried: tuple[TriedOption, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondPass:
    """All runs of the second pass so far, and what follows from them."""

    trial: int
    """Of the study, whose plan it is."""
    plan: ParallelPlan
    start: Settings
    """Framework settings that the trial had been asked to run with."""
    runs: tuple[PassRun, ...] = ()
    decisions: tuple[Decision, ...] = ()
    settings: Settings = ()
    """What is best to ask for, by these decisions."""
    measured: Measured | None = None
    """With those settings; None: nothing was kept."""
    run: int | None = None
    """A run whose launch files say those settings; None: nothing was kept."""
    is_over: bool = False

    @property
    def changes_kept(self) -> Settings:
        """What was changed for good, in the order in which it was."""
        kept = [option.changes for name, option in self._kept if name != ALL_TOGETHER]
        return tuple(dict(change for changes in kept for change in changes).items())

    @property
    def gain(self) -> tuple[float, float] | None:
        """Of all that was kept, against the plan without it.

        None where nothing was kept, or several settings were and not yet held against it together.
        """
        kept = dict(self._kept)
        if len(kept) == 1 or ALL_TOGETHER in kept:
            return list(kept.values())[-1].gain
        return None

    @property
    def _kept(self) -> tuple[tuple[str, TriedOption], ...]:
        if self.measured is None:
            return ()
        return tuple(
            (decision.setting, option)
            for decision in self.decisions
            for option in decision.tried
            if option.verdict is Verdict.KEPT
        )


def settled_pass(second_pass: SecondPass, case: SettingCase) -> tuple[SecondPass, NextRun | None]:
    """The pass with what follows from its runs, and the run that is next; None when it is over.

    The runs are gone through from the first: kept runs that are not those that would be asked for
    now (another version of the settings) are left out, with all that came after them.
    """
    walk = _Walk(case, second_pass.start)
    asked = walk.steps()
    wanted: NextRun | None = next(asked, None)
    runs = []
    for run in second_pass.runs:
        if wanted is None or (run.setting, run.settings) != (wanted.setting, wanted.settings):
            break
        runs.append(run)
        try:
            wanted = asked.send(run.outcome)
        except StopIteration:
            wanted = None
    found = replace(
        second_pass,
        runs=tuple(runs),
        decisions=walk.all_decisions(),
        settings=walk.settings,
        measured=walk.measured if walk.num_kept else None,
        run=_run_with(walk.settings, runs) if walk.num_kept else None,
        is_over=wanted is None,
    )
    return found, wanted


def _run_with(settings: Settings, runs: list[PassRun]) -> int | None:
    """The last that trained with these settings."""
    numbers = [
        number
        for number, run in enumerate(runs)
        if run.settings == settings and isinstance(run.outcome, Measured)
    ]
    return numbers[-1] if numbers else None


class _Walk:
    """Goes through the settings, asking for runs and taking their outcomes."""

    def __init__(self, case: SettingCase, start: Settings) -> None:
        self._case = case
        self._start = start
        self.settings = start
        self.measured: Measured | None = None
        self.num_kept = 0
        self._decisions: list[Decision] = []
        self._open: Decision | None = None
        self._tried_options: list[TriedOption] = []

    def all_decisions(self) -> tuple[Decision, ...]:
        """Those made, and the one that is being made."""
        return (*self._decisions, *self._open_decision())

    def steps(self) -> Generator[NextRun, Outcome, None]:
        """Each run that is wanted; its outcome is sent back."""
        settings = applying(self._case)
        if not any(other_options(self._case, self._start, one.name) for one in settings):
            return
        outcome = yield NextRun(setting="", settings=self._start, incumbent_step_time_s=None)
        if not isinstance(outcome, Measured):
            return
        self.measured = outcome
        for setting in settings:
            yield from self._tried(setting.name)
        if self.num_kept > 1:
            yield from self._all_together()

    def _tried(self, name: str) -> Generator[NextRun, Outcome, None]:
        options = other_options(self._case, self.settings, name)
        tried = self._opened(name, was=settled(self._case, self.settings)[name])
        promising: list[tuple[float, int, Settings]] = []
        for settings in options:
            assert self.measured is not None, "the winner ran first"
            best_s = self.measured.step_time_s
            outcome = yield NextRun(setting=name, settings=settings, incumbent_step_time_s=best_s)
            changes = tuple(differing(self._case, self.settings, settings).items())
            verdict = _first_verdict(outcome, best_s)
            if verdict is Verdict.OPEN and isinstance(outcome, Measured):
                promising.append((outcome.step_time_s, len(tried), settings))
            tried.append(TriedOption(changes=changes, verdict=verdict, outcome=outcome))
        if promising:
            _, place, settings = min(promising)
            for _, other, _ in promising:
                if other != place:
                    tried[other] = replace(tried[other], verdict=Verdict.SLOWER)
            yield from self._duel(name, settings, tried, place)
        self._close()

    def _duel(
        self, name: str, settings: Settings, tried: list[TriedOption], place: int
    ) -> Generator[NextRun, Outcome, None]:
        """The two in turns, until they are told apart or the rounds are over."""
        current = self.settings
        finals = yield from self._in_turns(name, current, settings)
        standing = {one.trial: one for one in standings(finals, self._plans)}
        own, other = standing.get(_CURRENT), standing.get(_OTHER)
        if own is not None:
            self.measured = own.measured
        if other is None:
            failed = [r.outcome for r in finals.runs if not isinstance(r.outcome, Measured)]
            tried[place] = replace(tried[place], verdict=Verdict.FAILED, outcome=failed[-1])
            return
        gain = _gain(own, other)
        faster = gain is not None and gain[0] > 0
        if faster:
            self.settings, self.measured = settings, other.measured
            self.num_kept += 1
        tried[place] = replace(
            tried[place],
            verdict=Verdict.KEPT if faster else _not_kept(gain),
            outcome=other.measured,
            gain=gain,
        )

    def _all_together(self) -> Generator[NextRun, Outcome, None]:
        """What was kept one by one need not add up: it is held against the plan without it."""
        kept = self.settings
        changes = tuple(differing(self._case, self._start, kept).items())
        assert self.measured is not None, "the winner ran first"
        option = TriedOption(changes=changes, verdict=Verdict.OPEN, outcome=self.measured)
        tried = self._opened(ALL_TOGETHER, was=len(changes))
        tried.append(option)
        finals = yield from self._in_turns(ALL_TOGETHER, self._start, kept)
        standing = {one.trial: one for one in standings(finals, self._plans)}
        own, other = standing.get(_CURRENT), standing.get(_OTHER)
        gain = _gain(own, other)
        if gain is not None and gain[0] > 0 and other is not None:
            self.measured = other.measured
            tried[0] = replace(option, verdict=Verdict.KEPT, outcome=other.measured, gain=gain)
        else:
            self.settings, self.num_kept = self._start, 0
            self.measured = None if own is None else own.measured
            tried[0] = replace(option, verdict=_not_kept(gain), gain=gain)
        self._close()

    def _in_turns(
        self, name: str, current: Settings, other: Settings
    ) -> Generator[NextRun, Outcome, Finals]:
        finals = Finals(trials=(_CURRENT, _OTHER), most=2, max_rounds=_ROUNDS, equal_enough=0.0)
        while numbers := next_runs(finals, self._plans):
            for number in numbers:
                settings = current if number == _CURRENT else other
                outcome = yield NextRun(setting=name, settings=settings, incumbent_step_time_s=None)
                done = sum(run.trial == number for run in finals.runs)
                run = FinalRun(round=done, trial=number, outcome=outcome)
                finals = replace(finals, runs=(*finals.runs, run))
        return finals

    @property
    def _plans(self) -> dict[int, ParallelPlan]:
        return {_CURRENT: self._case.plan, _OTHER: self._case.plan}

    def _opened(self, name: str, *, was: SettingValue) -> list[TriedOption]:
        """A list for what will be tried of this setting."""
        self._open = Decision(setting=name, was=was, tried=())
        self._tried_options = []
        return self._tried_options

    def _open_decision(self) -> tuple[Decision, ...]:
        if self._open is None or not self._tried_options:
            return ()
        return (replace(self._open, tried=tuple(self._tried_options)),)

    def _close(self) -> None:
        self._decisions += self._open_decision()
        self._open = None


def _first_verdict(outcome: Outcome, best_s: float) -> Verdict:
    """Of an option's first run: open where it looks faster."""
    if not isinstance(outcome, Measured):
        return Verdict.FAILED
    if outcome.unfollowed:
        return Verdict.UNFOLLOWED
    return Verdict.OPEN if outcome.step_time_s < best_s else Verdict.SLOWER


def _gain(own: Finalist | None, other: Finalist | None) -> tuple[float, float] | None:
    """How much longer the step takes without the change; None where that cannot be said."""
    if own is None or other is None:
        return None
    if own.behind is not None:
        return own.behind
    assert other.behind is not None, "one of the two is behind the other"
    low, high = other.behind
    return (1 / (1 + high) - 1, 1 / (1 + low) - 1)


def _not_kept(gain: tuple[float, float] | None) -> Verdict:
    return Verdict.SLOWER if gain is not None and gain[1] < 0 else Verdict.UNCLEAR
