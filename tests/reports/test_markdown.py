from __future__ import annotations

from pathlib import Path

from reports.markdown import report_text
from reports.study_facts import StudyFacts
from reports.summary import summarize
from tests.reports.a_study import measured, study_folder, summary_of, trial, trials
from tuner.outcome import Source
from tuner.plan import Backend, ParallelPlan
from tuner.trial import Trial


def _report(path: Path, *tried: Trial) -> str:
    return report_text(summary_of(*tried), StudyFacts.read(study_folder(path, tried)))


def test_the_answer_comes_before_everything_else(tmp_path: Path) -> None:
    answer, *rest = _report(tmp_path, *trials()).split("\n## ")
    assert "`pytorch zero2 mb4 bf16`" in answer
    assert "4,096 tokens/s, 1,024 of each rank" in answer
    assert "1.00 s (95 % interval 990.0 ms to 1.01 s), trial 3" in answer
    assert "1.50x as fast as the median of the 3 plans that trained" in answer
    assert "2.00x as fast as PyTorch's default" in answer
    assert "DeepSpeed's default (deepspeed zero0 mb1 bf16) ran out of memory" in answer
    assert "100.00 MiB (33%) below the limit of 300.00 MiB" in answer
    assert len(rest) == 7


def test_every_trial_is_a_row_and_every_failure_names_its_log(tmp_path: Path) -> None:
    report = _report(tmp_path, *trials())
    for one in trials():
        assert f"| {one.number} | `{one.plan.label()}` |" in report
    assert "RuntimeError: sizes [4] | [5] differ" in report
    assert "trials/0001/rank-2.log" in report
    assert "trials/0002/rank-1.log" in report
    assert "trials/0005/rank-0.log" in report
    assert "you tried 64 MiB" not in report


def test_the_waterfall_and_the_environment_are_there(tmp_path: Path) -> None:
    report = _report(tmp_path, *trials())
    assert "Of 1,200 combinations of options 60 are legal" in report
    assert "| TP-1 | 40 | tp must divide num_heads (16) |" in report
    assert "1 x 4 ranks of h100-sxm-80gb, each with at most 300.00 MiB" in report
    for row in ("versions.torch | 2.13.0", "versions.apex | none", "host.memory | 16.00 GiB"):
        assert f"| {row} |" in report


def test_a_bar_in_a_reason_does_not_end_its_cell(tmp_path: Path) -> None:
    plan = ParallelPlan(backend=Backend.PYTORCH)
    report = _report(tmp_path, trial(0, plan, measured(1.0), "gain | loss"))
    assert "gain \\| loss |" in report


def test_simulated_numbers_are_never_called_measured(tmp_path: Path) -> None:
    plan = ParallelPlan(backend=Backend.PYTORCH)
    simulated = measured(1.0, source=Source.SIMULATED)
    report = _report(tmp_path, trial(0, plan, simulated))
    assert "step time (simulated)" in report
    assert "are simulated" in report
    assert "measured" not in report.lower()


def test_nothing_measured_is_said_in_the_first_lines(tmp_path: Path) -> None:
    report = _report(tmp_path, trials()[1], trials()[2])
    assert "no plan has trained (1 out of memory, 1 failed)" in report.split("\n## ")[0]


def test_a_study_with_nothing_to_compare_with_has_no_comparison(tmp_path: Path) -> None:
    tried = (trial(0, ParallelPlan(backend=Backend.PYTORCH), measured(1.0)),)
    alone = summarize(tried, num_gpus=4, defaults={})
    report = report_text(alone, StudyFacts.read(study_folder(tmp_path, tried)))
    assert "Step time" in report
    assert "Compared" not in report


def test_any_trial_can_be_launched_again_with_its_own_environment(tmp_path: Path) -> None:
    report = _report(tmp_path, *trials())
    assert "`trials/NNNN/launch/env.json` set" in report
    assert "--nproc-per-node=4 -m runners.bench --launch trials/NNNN/launch`" in report
