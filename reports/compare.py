"""Two studies beside each other: the workload, both winners, plans measured in both; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reports.markdown_table import markdown_table
from reports.study_facts import StudyFacts
from reports.summary import MeasuredTrial, Summary
from reports.wording import interval_words, source_mark
from tuner.plan import ParallelPlan
from tuner.units import size_text, time_text


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStudy:
    """One side of a comparison."""

    name: str
    summary: Summary
    facts: StudyFacts
    identity: Mapping[str, Any]
    """Workload, cluster and measurement, as ``job.json`` keeps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredInBoth:
    """A plan that trained in both studies."""

    plan: ParallelPlan
    first: MeasuredTrial
    second: MeasuredTrial

    @property
    def speed_ratio(self) -> float:
        """How many times as fast it was in the second study."""
        return self.first.measured.step_time_s / self.second.measured.step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What two studies have to say to each other."""

    first: ComparedStudy
    second: ComparedStudy
    workload_differences: tuple[tuple[str, str, str], ...]
    """Key of the workload and both values; empty: it is the same."""
    other_differences: tuple[tuple[str, str, str], ...]
    """The same of cluster, memory limit, measurement and versions."""
    in_both: tuple[MeasuredInBoth, ...]
    """The fastest of the first study first; empty where step times cannot be compared."""

    @property
    def is_comparable(self) -> bool:
        """Step times are of the same work, and of the same source."""
        return not self.workload_differences and self.same_source

    @property
    def same_source(self) -> bool:
        """Measured and simulated numbers have no ratio."""
        return self.first.summary.source is self.second.summary.source

    @property
    def speed_ratio(self) -> float | None:
        """How many times as fast the second study's winner is; None: not comparable."""
        first, second = self.first.summary.best, self.second.summary.best
        if first is None or second is None or not self.is_comparable:
            return None
        return first.measured.step_time_s / second.measured.step_time_s

    @property
    def is_tie(self) -> bool:
        """Whether the intervals of both winners overlap."""
        first, second = self.first.summary.best, self.second.summary.best
        if first is None or second is None or not self.is_comparable:
            return False
        (low, high), (other_low, other_high) = (
            first.measured.step_time_ci_s,
            second.measured.step_time_ci_s,
        )
        return low <= other_high and other_low <= high


def comparison(first: ComparedStudy, second: ComparedStudy) -> Comparison:
    """The comparison of two studies."""
    keys = ("workload",)
    workload = _differences(first.identity, second.identity, keys)
    rest = sorted({*first.identity, *second.identity} - {*keys, "simulated"})
    one, two = ({"versions": s.facts.environment.get("versions", {})} for s in (first, second))
    result = Comparison(
        first=first,
        second=second,
        workload_differences=workload,
        other_differences=(
            *_differences(first.identity, second.identity, tuple(rest)),
            *_differences(one, two, ("versions",)),
        ),
        in_both=_in_both(first.summary, second.summary),
    )
    if result.is_comparable:
        return result
    return Comparison(
        first=first,
        second=second,
        workload_differences=workload,
        other_differences=result.other_differences,
        in_both=(),
    )


def _in_both(first: Summary, second: Summary) -> tuple[MeasuredInBoth, ...]:
    others = {ranked.plan: ranked for ranked in reversed(second.ranking)}
    return tuple(
        MeasuredInBoth(plan=ranked.plan, first=ranked, second=others[ranked.plan])
        for ranked in first.ranking
        if ranked.plan in others
    )


def _differences(
    first: Mapping[str, Any], second: Mapping[str, Any], keys: tuple[str, ...]
) -> tuple[tuple[str, str, str], ...]:
    found = []
    for key in keys:
        one, other = first.get(key), second.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            names = tuple(dict.fromkeys((*one, *other)))
            found += [(f"{key}.{n}", a, b) for n, a, b in _differences(one, other, names)]
        elif one != other:
            found.append((key, _value(key, one), _value(key, other)))
    return tuple(found)


def _value(key: str, value: Any) -> str:
    if key.endswith("_bytes") and isinstance(value, int):
        return size_text(value)
    return "none" if value is None else str(value)


def verdict(compared: Comparison) -> str:
    """The comparison in a sentence."""
    first, second = compared.first, compared.second
    for side in (first, second):
        if side.summary.best is None:
            return f"No plan has trained in {side.name}, so there is no winner to compare."
    if not compared.same_source:
        return (
            f"The numbers of {first.name} are {first.summary.source}, those of {second.name} "
            f"{second.summary.source}: they have no ratio."
        )
    if compared.workload_differences:
        names = ", ".join(key for key, _, _ in compared.workload_differences)
        return f"The workloads differ ({names}), so step times have no ratio."
    ratio = compared.speed_ratio
    assert ratio is not None, "both have a winner, of the same workload and source"
    words = f"The best plan of {second.name} is {ratio:.2f}x as fast as that of {first.name}"
    if compared.is_tie:
        return f"{words}; that is a tie: their intervals overlap."
    return f"{words}."


def winner_rows(compared: Comparison) -> tuple[tuple[str, str, str], ...]:
    """What is said of both winners: name, and the words of each study."""
    sides = (compared.first, compared.second)
    rows = [
        ("best plan", *(_of_best(side, lambda s, r: r.plan.label()) for side in sides)),
        ("numbers are", *(str(side.summary.source) for side in sides)),
        ("step time", *(_of_best(side, lambda s, r: interval_words(r.measured)) for side in sides)),
        (
            "tokens/s of a rank",
            *(_of_best(side, lambda s, r: f"{s.tokens_per_s_per_gpu(r):,.0f}") for side in sides),
        ),
        (
            "peak memory",
            *(
                _of_best(side, lambda s, r: size_text(r.measured.peak_memory_bytes))
                for side in sides
            ),
        ),
        ("trials", *(str(len(side.summary.trials)) for side in sides)),
        (
            "on",
            *(side.facts.ranks_text for side in sides),
        ),
    ]
    return tuple((name, first, second) for name, first, second in rows)


def _of_best(side: ComparedStudy, words: Any) -> str:
    best = side.summary.best
    return "none trained" if best is None else str(words(side.summary, best))


def shared_rows(compared: Comparison) -> tuple[tuple[str, str, str, str], ...]:
    """Plans measured in both: label, both step times, and how many times as fast the second was."""
    return tuple(
        (
            both.plan.label(),
            time_text(both.first.measured.step_time_s),
            time_text(both.second.measured.step_time_s),
            f"{both.speed_ratio:.2f}x",
        )
        for both in compared.in_both
    )


def comparison_document(compared: Comparison) -> dict[str, Any]:
    """The comparison as JSON values: times in seconds, ratios of speeds."""
    return {
        "same_workload": not compared.workload_differences,
        "workload_differences": [_difference(d) for d in compared.workload_differences],
        "other_differences": [_difference(d) for d in compared.other_differences],
        "comparable": compared.is_comparable,
        "speed_ratio": compared.speed_ratio,
        "tie": compared.is_tie,
        "sentence": verdict(compared),
        "plans_in_both": [
            {
                "plan": both.plan.to_dict(),
                "trials": [both.first.number, both.second.number],
                "step_time_s": [
                    both.first.measured.step_time_s,
                    both.second.measured.step_time_s,
                ],
                "speed_ratio": both.speed_ratio,
                "source": str(both.first.measured.source),
            }
            for both in compared.in_both
        ],
    }


def _difference(difference: tuple[str, str, str]) -> dict[str, str]:
    key, first, second = difference
    return {"key": key, "first": first, "second": second}


def comparison_text(compared: Comparison) -> str:
    """The comparison as Markdown."""
    first, second = compared.first.name, compared.second.name
    mark = source_mark(compared.first.summary.source)
    sections = [
        [f"# {first} and {second}", "", verdict(compared)],
        ["## The winners", "", *markdown_table(("", first, second), winner_rows(compared))],
    ]
    if differing := (*compared.workload_differences, *compared.other_differences):
        sections.append(
            ["## What differs", "", *markdown_table(("what", first, second), differing)]
        )
    if rows := shared_rows(compared):
        names = ("plan", f"step time in {first}{mark}", f"in {second}{mark}", f"{second} is")
        title = f"## {len(rows)} plans in both"
        sections.append([title, "", *markdown_table(names, rows)])
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"
