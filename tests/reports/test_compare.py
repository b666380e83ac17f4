from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from reports.compare import (
    ComparedStudy,
    Comparison,
    comparison,
    comparison_document,
    comparison_text,
    verdict,
)
from reports.html.page import comparison_page
from reports.study_facts import StudyFacts
from tests.reports.a_study import measured, study_folder, summary_of, trial, trials
from tests.reports.html.studies import HOSTILE
from tuner.outcome import Source
from tuner.plan import Backend, ParallelPlan
from tuner.trial import Trial

PLAN = ParallelPlan(backend=Backend.PYTORCH)
OTHER = ParallelPlan(backend=Backend.DEEPSPEED, zero_stage=2)


def side(path: Path, *tried: Trial, name: str = "", **workload: Any) -> ComparedStudy:
    folder = study_folder(path, tried)
    return ComparedStudy(
        name=name or path.name,
        summary=summary_of(*tried),
        facts=StudyFacts.read(folder),
        identity={"workload": {"model": "llama", "seq_len": 128, **workload}, "simulated": False},
    )


def of_two(tmp_path: Path, second_s: float = 1.0, **workload: Any) -> Comparison:
    first = side(tmp_path / "a", trial(0, PLAN, measured(2.0)), trial(1, OTHER, measured(3.0)))
    second = side(tmp_path / "b", trial(0, PLAN, measured(second_s)), **workload)
    return comparison(first, second)


def test_the_winners_of_the_same_workload_have_a_ratio(tmp_path: Path) -> None:
    compared = of_two(tmp_path)

    assert compared.speed_ratio == 2.0
    assert not compared.is_tie
    assert verdict(compared) == "The best plan of b is 2.00x as fast as that of a."


def test_winners_whose_intervals_overlap_are_a_tie(tmp_path: Path) -> None:
    assert "that is a tie" in verdict(of_two(tmp_path, 1.99))


def test_another_workload_has_no_ratio_and_is_named(tmp_path: Path) -> None:
    compared = of_two(tmp_path, seq_len=256)

    assert compared.speed_ratio is None
    assert compared.in_both == ()
    assert compared.workload_differences == (("workload.seq_len", "128", "256"),)
    assert "The workloads differ (workload.seq_len)" in verdict(compared)


def test_measured_and_simulated_numbers_have_no_ratio(tmp_path: Path) -> None:
    simulated = side(tmp_path / "b", trial(0, PLAN, measured(1.0, source=Source.SIMULATED)))
    compared = comparison(side(tmp_path / "a", *trials()), simulated)

    assert compared.speed_ratio is None
    assert compared.in_both == ()
    assert "they have no ratio" in verdict(compared)


def test_plans_measured_in_both_are_set_beside_each_other(tmp_path: Path) -> None:
    document = comparison_document(of_two(tmp_path))

    (both,) = document["plans_in_both"]
    assert both["plan"] == PLAN.to_dict()
    assert (both["step_time_s"], both["speed_ratio"], both["source"]) == (
        [2.0, 1.0],
        2.0,
        "measured",
    )
    assert document["same_workload"]


def test_a_study_without_a_winner_is_named(tmp_path: Path) -> None:
    compared = comparison(side(tmp_path / "a", *trials()), side(tmp_path / "b", trials()[1]))

    assert verdict(compared) == "No plan has trained in b, so there is no winner to compare."
    assert "none trained" in comparison_text(compared)


def test_versions_that_differ_are_said(tmp_path: Path) -> None:
    first, second = side(tmp_path / "a", *trials()), side(tmp_path / "b", *trials())
    newer = replace(second.facts, environment={"versions": {"torch": "3.0", "apex": None}})

    compared = comparison(first, replace(second, facts=newer))

    assert ("versions.torch", "2.13.0", "3.0") in compared.other_differences
    assert "| versions.torch | 2.13.0 | 3.0 |" in comparison_text(compared)


def test_hostile_names_stay_text_in_the_page_and_in_markdown(tmp_path: Path) -> None:
    first = side(tmp_path / "a", *trials(), name=HOSTILE)
    compared = comparison(first, side(tmp_path / "b", *trials(), name="x | y"))

    page = comparison_page(compared).decode()

    assert page.count("<script") == 1
    assert "<img" not in page
    assert "x \\| y" in comparison_text(compared)
