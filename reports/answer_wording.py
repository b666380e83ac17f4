"""What every report says of the answer, line by line: none leaves one of them out; pure."""

from __future__ import annotations

from dataclasses import dataclass

from reports.baseline_wording import baseline_line
from reports.second_pass_wording import second_pass_line
from reports.study_facts import StudyFacts
from reports.summary import Summary
from reports.wording import (
    comparison_words,
    doubt_words,
    headroom_words,
    interval_words,
    margin_words,
    routing_words,
    run_words,
    source_mark,
    throughput_words,
    tie_words,
    verification_words,
)
from tuner.outcome import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLine:
    """One thing to know of the fastest plan."""

    name: str
    """``Runner-up``; with the mark of numbers that are not measured."""
    sentences: tuple[str, ...]
    """Each without a full stop; at least one."""


def answer_lines(summary: Summary, facts: StudyFacts) -> tuple[AnswerLine, ...]:
    """The lines in the order of reading; none where nothing trained."""
    best = summary.best
    if best is None:
        return ()
    mark = source_mark(summary.source)
    is_real = summary.source is Source.MEASURED
    lines: tuple[tuple[str, tuple[str | None, ...]], ...] = (
        (f"Speed{mark}", (throughput_words(summary, best),)),
        (f"Step time{mark}", (f"{interval_words(best.measured)}, {run_words(best)}",)),
        (f"Memory{mark}", (headroom_words(best.measured, facts.memory_limit_bytes),)),
        ("Experts", (routing_words(facts.routing),)),
        ("Settings", (second_pass_line(summary),)),
        ("Yours", (_yours(summary),)),
        (f"Compared{mark}", comparison_words(summary)),
        (f"Runner-up{mark}", (margin_words(summary),)),
        ("A tie", tie_words(summary)),
        ("Verified", (verification_words(summary) if is_real else None,)),
        ("Beware", doubt_words(best.measured)),
    )
    kept = ((name, tuple(s for s in sentences if s is not None)) for name, sentences in lines)
    return tuple(AnswerLine(name=name, sentences=said) for name, said in kept if said)


def _yours(summary: Summary) -> str | None:
    line = baseline_line(summary)
    return None if line is None else line.removeprefix("yours").removeprefix(":").strip()
