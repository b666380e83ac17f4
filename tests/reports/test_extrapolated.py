"""Extrapolated numbers in every report: marked, and never in a column with measured ones."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from reports.charts import memory_chart, order_chart
from reports.html.trial_view import trial_rows
from reports.json_summary import study_document
from reports.markdown import report_text
from reports.report_facts import ReportExtras
from reports.study_facts import StudyFacts
from reports.study_files import StudyFiles
from reports.summary import AfterTrials, Summary, summarize
from reports.terminal import answer_panel, trials_table
from reports.trials_csv import trials_csv
from reports.write import write_reports
from tests.reports.a_study import (
    DEFAULTS,
    LIMIT_BYTES,
    NUM_GPUS,
    measured,
    study_folder,
    trial,
)
from tuner.finals import FinalRun, Finals
from tuner.outcome import Measured, Source
from tuner.plan import Backend, ParallelPlan
from tuner.study_folder import StudyFolder

LEADER = ParallelPlan(backend=Backend.PYTORCH, zero_stage=2)
SECOND = ParallelPlan(backend=Backend.DEEPSPEED, zero_stage=3)
FEW = ParallelPlan(backend=Backend.PYTORCH, micro_batch=8)
EXTRAPOLATED = "(extrapolated)"


def short(seconds: float) -> Measured:
    extrapolated = measured(seconds, source=Source.EXTRAPOLATED)
    return replace(extrapolated, short_microbatches=(1, 4, 32))


TRIALS = (
    trial(0, LEADER, short(1.03)),
    trial(1, SECOND, short(1.23)),
    trial(2, FEW, measured(1.53)),
)
CONFIRMED = Finals(trials=(0,), most=1, runs=(FinalRun(round=0, trial=0, outcome=measured(1.07)),))


def summary() -> Summary:
    return summarize(
        TRIALS, num_gpus=NUM_GPUS, defaults=DEFAULTS, after=AfterTrials(finals=CONFIRMED)
    )


def folder_at(path: Path) -> StudyFolder:
    return study_folder(path, TRIALS)


def test_the_ranking_begins_with_full_steps() -> None:
    assert [ranked.number for ranked in summary().ranking] == [0, 2, 1]
    assert summary().source is Source.MEASURED
    best, second = summary().best, summary().runner_up
    assert best is not None
    assert best.measured.source is Source.MEASURED
    assert second is not None
    assert second.number == 1


def test_the_terminal_has_a_table_of_each(tmp_path: Path) -> None:
    console = Console(width=100, force_terminal=False)
    with console.capture() as capture:
        console.print(trials_table(summary()))
        console.print(answer_panel(summary(), folder_at(tmp_path)))
    ours, theirs = capture.get().split(f"Plans that trained {EXTRAPOLATED}")
    theirs, panel = theirs.split("The fastest plan that fits")
    assert "1.07 s" in ours
    assert "1.53 s" in ours
    assert "1.23 s" in theirs
    assert "1.23 s" not in ours
    assert "1.07 s" not in theirs
    assert EXTRAPOLATED in panel, "the runner-up's margin says it"


def test_report_md_has_columns_of_each_and_says_what_they_are(tmp_path: Path) -> None:
    text = report_text(summary(), StudyFacts.read(folder_at(tmp_path)))
    table = text[text.index("## All 3 trials") :]
    header, _, first, *_ = [line for line in table.splitlines() if line.startswith("|")]
    columns = [cell.strip() for cell in header.split("|")]
    cells = [cell.strip() for cell in first.split("|")]
    row = dict(zip(columns, cells, strict=True))
    assert row["step time"] == "1.07 s"
    assert row[f"step time {EXTRAPOLATED}"] == ""
    assert "steps of few micro-batches" in text
    assert "extrapolated to a step of 32 micro-batches from steps of 1 and 4" in text


def test_trials_csv_has_columns_of_each() -> None:
    rows = list(csv.DictReader(io.StringIO(trials_csv(summary()))))
    leader, second, few = rows
    assert (leader["step_time_s"], leader["extrapolated_step_time_s"]) == ("1.07", "1.03")
    assert (second["step_time_s"], second["extrapolated_step_time_s"]) == ("", "1.23")
    assert (few["step_time_s"], few["extrapolated_step_time_s"]) == ("1.53", "")
    assert [row["source"] for row in rows] == ["measured", "extrapolated", "measured"]


def test_json_has_keys_of_each(tmp_path: Path) -> None:
    document = study_document(folder_at(tmp_path), summary())
    assert document["best"]["source"] == "measured"
    found = [(t["step_time_s"], t["extrapolated_step_time_s"]) for t in document["trials"]]
    assert found == [(1.07, 1.03), (None, 1.23), (1.53, None)]
    assert document["by_backend"]["deepspeed"]["source"] == "extrapolated"


def test_report_html_has_columns_of_each_and_hollow_points(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    rows = {row.number: row for row in trial_rows(summary(), StudyFiles.read(folder, summary()))}
    assert rows[0].step_time.value == 1.07
    assert rows[0].extrapolated_step_time.value == 1.03
    assert rows[1].step_time.value is None
    for figure in (memory_chart(summary(), LIMIT_BYTES), order_chart(summary())):
        hollow = [trace for trace in figure.data if EXTRAPOLATED in (trace.name or "")]
        assert [len(trace.x) for trace in hollow] == [0, 1, 0]
    write_reports(folder, summary(), ReportExtras())
    page = (folder.path / "report.html").read_text()
    assert f"step time {EXTRAPOLATED}" in page


def test_best_holds_the_files_of_the_full_steps(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    again = folder.final_folder(0, 0) / "launch"
    again.mkdir(parents=True)
    (again / "training.json").write_text('{"short_steps": null}')
    write_reports(folder, summary(), ReportExtras())
    assert (folder.best_folder / "training.json").read_text() == '{"short_steps": null}'


def test_a_study_without_short_steps_has_no_such_columns(tmp_path: Path) -> None:
    plain = summarize(TRIALS[2:], num_gpus=NUM_GPUS, defaults={})
    text = report_text(plain, StudyFacts.read(folder_at(tmp_path)))
    assert "extrapolated" not in text
