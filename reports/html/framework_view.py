"""The frameworks side by side: speed, memory, and what each asks of the team."""

from __future__ import annotations

from dataclasses import dataclass

from reports.framework_traits import code_demands, lost_features
from reports.study_facts import StudyFacts
from reports.study_files import CONFIGURATION_FILES, StudyFiles
from reports.summary import Summary
from reports.wording import BACKEND_NAMES, default_words, interval_words, outcome_words
from tuner.outcome import Measured, Source
from tuner.plan import Backend
from tuner.units import size_text

_MAX_LOST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkCard:
    """One framework on the user's own workload."""

    name: str
    label: str | None
    """Its best plan; None: none trained."""
    against_best: str
    """Its speed as a share of the fastest plan's."""
    share: float
    is_extrapolated: bool
    """Whether its numbers come from steps of few micro-batches."""
    step_time: str
    tokens_per_s: str
    peak_memory: str
    trials: str
    default: str
    configuration: str
    demands: tuple[str, ...]
    lost: tuple[tuple[str, str], ...]
    """Rule and sentence."""
    num_more_lost: int


def framework_cards(
    summary: Summary, facts: StudyFacts, study: StudyFiles
) -> tuple[FrameworkCard, ...]:
    """One of each framework, in the order of the words."""
    return tuple(_card(summary, facts, study, backend) for backend in Backend)


def _card(
    summary: Summary, facts: StudyFacts, study: StudyFiles, backend: Backend
) -> FrameworkCard:
    best, fastest = summary.best_of(backend), summary.best
    share = 0.0
    if best is not None and fastest is not None:
        share = fastest.measured.step_time_s / best.measured.step_time_s
    lost = lost_features(backend, facts.waterfall)
    return FrameworkCard(
        name=BACKEND_NAMES[backend],
        label=None if best is None else best.plan.label(),
        against_best="the fastest" if best is fastest else f"{share:.0%} of the fastest",
        share=share,
        is_extrapolated=best is not None and best.measured.source is Source.EXTRAPOLATED,
        step_time="" if best is None else interval_words(best.measured),
        tokens_per_s="" if best is None else f"{summary.tokens_per_s_per_gpu(best):,.0f}",
        peak_memory="" if best is None else size_text(best.measured.peak_memory_bytes),
        trials=_tried_words(summary, backend),
        default="; ".join(
            f"the best plan of all is {default_words(d)}"
            if d.speedup is not None
            else default_words(d)
            for d in summary.defaults
            if d.backend is backend
        ),
        configuration=_configuration_words(study, backend),
        demands=() if best is None else code_demands(best.plan),
        lost=lost[:_MAX_LOST],
        num_more_lost=max(0, len(lost) - _MAX_LOST),
    )


def _tried_words(summary: Summary, backend: Backend) -> str:
    tried = [trial for trial in summary.trials if trial.plan.backend is backend]
    if not tried:
        return "none tried"
    ran = sum(isinstance(trial.outcome, Measured) for trial in tried)
    words = f"{len(tried)} tried, {ran} trained"
    if not ran:
        words += f"; the last: {outcome_words(tried[-1].outcome)}"
    return words


def _configuration_words(study: StudyFiles, backend: Backend) -> str:
    num_lines = study.configuration_lines.get(backend)
    if num_lines is None:
        return ""
    unit = "argument line" if backend is Backend.MEGATRON else "line"
    plural = "" if num_lines == 1 else "s"
    return f"{num_lines} {unit}{plural} ({CONFIGURATION_FILES[backend]})"
