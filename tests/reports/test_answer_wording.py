"""The lines of the answer: each in every report, and none surer than the measurements are."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from reports.answer_wording import answer_lines
from reports.json_summary import study_document
from reports.markdown import report_text
from reports.study_facts import StudyFacts
from reports.summary import AfterTrials, Summary, summarize
from reports.terminal import answer_panel
from reports.wording import comparison_words, doubt_words, tie_words
from reports.write import write_reports
from tests.reports.a_study import (
    DEFAULTS,
    NUM_GPUS,
    measured,
    study_folder,
    summary_of,
    trial,
)
from tests.reports.test_baseline import GIVEN, OWN, WINNER
from tuner.plan import Backend, ParallelPlan
from tuner.study_folder import StudyFolder
from tuner.verification import Verdict, Verification

NAMES = ["Speed", "Step time", "Memory", "Experts", "Yours", "Compared", "Runner-up", "A tie"]
UNSURE = trial(2, ParallelPlan(backend=Backend.MEGATRON), measured(1.1, spread=0.9))
BEST = trial(1, WINNER, replace(measured(1.0), attempts=2, marks=("other load was there",)))
TRIALS = (trial(0, OWN, measured(2.0)), BEST, UNSURE)


def _summary() -> Summary:
    found = Verification(plan=WINNER, verdict=Verdict.RIGHT, sentence="losses agree")
    return summarize(
        TRIALS,
        num_gpus=NUM_GPUS,
        defaults=DEFAULTS,
        baseline=GIVEN,
        after=AfterTrials(verification=found),
    )


def _with(folder: StudyFolder, *, experts: bool = False, **identity: Any) -> None:
    job = folder.read_json(folder.job_file)
    shape = {"experts": {"num_experts": 8} if experts else None}
    document = job | {"identity": job["identity"] | identity, "shape": shape}
    folder.write_json(folder.job_file, document)


def _squeezed(text: str) -> str:
    return " ".join(text.split())


def test_every_line_of_the_answer_is_in_every_report(tmp_path: Path) -> None:
    summary, folder = _summary(), study_folder(tmp_path, TRIALS)
    _with(folder, measure={"routing": "worst"})
    lines = answer_lines(summary, StudyFacts.read(folder))
    assert [line.name for line in lines] == [*NAMES, "Verified", "Beware"]
    assert len(lines[-1].sentences) == 2
    console = Console(width=600, force_terminal=False)
    with console.capture() as capture:
        console.print(answer_panel(summary, folder))
    write_reports(folder, summary)
    page = (folder.path / "report.html").read_text()
    card = page[page.index('class="answer"') : page.index('id="yours"')]
    reports = {
        "terminal": _squeezed(capture.get()),
        "report.md": _squeezed(report_text(summary, StudyFacts.read(folder)).split("\n## ")[0]),
        "report.html": _squeezed(unescape(re.sub("<[^>]*>", " ", card))),
    }
    for name, text in reports.items():
        for line in lines:
            for sentence in line.sentences:
                assert sentence in text, f"{name} leaves out {line.name}: {sentence}"


@pytest.mark.parametrize(
    ("experts", "identity", "routing", "said"),
    [
        (False, {}, None, None),
        (True, {}, "learned", "where the router sent them (measure.routing: learned)"),
        (True, {"measure": {"routing": "worst"}}, "worst", "to the same experts of each layer"),
    ],
    ids=["dense", "experts", "worst"],
)
def test_the_routing_is_said_of_a_model_with_experts_and_of_no_other(
    experts: bool, identity: dict[str, Any], routing: str | None, said: str | None, tmp_path: Path
) -> None:
    folder = study_folder(tmp_path, TRIALS)
    _with(folder, experts=experts, **identity)
    lines = answer_lines(_summary(), StudyFacts.read(folder))
    found = [line.sentences[0] for line in lines if line.name == "Experts"]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
    assert study_document(folder, _summary())["best"]["routing"] == routing


def test_a_plan_whose_interval_overlaps_is_a_tie_and_one_too_wide_to_tell_is_called_so() -> None:
    (said,) = tie_words(_summary())
    assert said == (
        "trial 2 (megatron zero0 mb1 bf16; its interval, 110.0 ms to 2.09 s, is too wide to "
        "tell) may be as fast: the two intervals overlap"
    )
    assert any("too wide to tell" in doubt for doubt in doubt_words(measured(1.1, spread=0.9)))
    assert not doubt_words(measured(1.0, spread=0.2))


def test_steps_that_the_step_time_leaves_out_are_said() -> None:
    one_far = replace(measured(1.0), step_times_s=(1.0, 1.0, 1.0, 9.0), outlier_steps=(3,))
    assert doubt_words(one_far) == (
        "1 of 4 steps lie far from the others: the step time leaves them out",
    )


def test_all_ties_are_named_or_counted_not_the_runner_up_alone() -> None:
    plans = [ParallelPlan(backend=Backend.PYTORCH, micro_batch=n + 1) for n in range(9)]
    tried = [trial(n, plan, measured(1.0 + n / 1000)) for n, plan in enumerate(plans[:8])]
    slow = trial(8, plans[8], measured(3.0))
    summary = summary_of(*tried, slow)
    assert [ranked.number for ranked in summary.ties] == [1, 2, 3, 4, 5, 6, 7]
    (said,) = tie_words(summary)
    assert "trial 5" in said
    assert said.endswith(" and 2 more may be as fast: the intervals overlap")


def test_a_ratio_within_the_noise_is_marked_and_a_clear_one_is_not() -> None:
    lines = comparison_words(_summary())
    noisy = [line for line in lines if "within the noise" in line]
    assert noisy == [
        "1.10x as fast as Megatron-Core's default (megatron zero0 mb1 bf16), "
        "which is within the noise of the measurements"
    ]
    assert any(line.startswith("2.00x as fast as PyTorch's default") for line in lines)
