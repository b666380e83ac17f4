from __future__ import annotations

import csv
import io

from reports.trials_csv import COLUMNS, trials_csv
from tests.reports.a_study import NUM_GPUS, measured, summary_of, trial, trials
from tuner.outcome import Failed, Phase, Source
from tuner.plan import KNOB_NAMES, Backend, ParallelPlan
from tuner.trial import Trial


def rows_of(*tried: Trial) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(trials_csv(summary_of(*tried)))))


def test_there_is_a_row_for_every_trial_by_number() -> None:
    rows = rows_of(*reversed(trials()))

    assert [row["trial"] for row in rows] == ["0", "1", "2", "3", "4", "5"]


def test_every_knob_is_a_column_of_which_the_plan_can_be_made_again() -> None:
    plan = ParallelPlan(backend=Backend.MEGATRON, tp=2, sequence_parallel=True, micro_batch=4)

    (row,) = rows_of(trial(0, plan, measured(1.0)))

    knobs = {name: row[name] for name in KNOB_NAMES}
    assert knobs["sequence_parallel"] == "true"
    assert {name: int(text) if text.isdecimal() else text for name, text in knobs.items()} == {
        **plan.to_dict(),
        "sequence_parallel": "true",
    }


def test_numbers_are_in_base_units_with_their_source() -> None:
    row = rows_of(*trials())[3]

    assert float(row["step_time_s"]) == 1.0
    assert (float(row["step_time_ci_low_s"]), float(row["step_time_ci_high_s"])) == (0.99, 1.01)
    assert float(row["tokens_per_s_per_gpu"]) == 4096 / NUM_GPUS
    assert int(row["peak_memory_bytes"]) == 200 * 2**20
    assert float(row["wall_s"]) == 10.0
    assert row["source"] == "measured"


def test_what_did_not_train_has_no_numbers_and_says_why() -> None:
    row = rows_of(*trials())[1]

    assert row["outcome"] == "out_of_memory"
    assert (row["step_time_s"], row["peak_memory_bytes"]) == ("", "")
    assert "can't allocate memory" in row["message"]


def test_simulated_numbers_say_so() -> None:
    plan = ParallelPlan(backend=Backend.PYTORCH)

    (row,) = rows_of(trial(0, plan, measured(1.0, source=Source.SIMULATED)))

    assert row["source"] == "simulated"


def test_a_text_that_a_spreadsheet_would_compute_stays_text() -> None:
    failed = Failed(rank=0, phase=Phase.MODEL, error="E", message='a "quoted", line\nnext')
    (row,) = rows_of(
        trial(0, ParallelPlan(backend=Backend.PYTORCH), failed, '=HYPERLINK("http://x")')
    )

    assert row["reason"] == '\'=HYPERLINK("http://x")'
    assert 'a "quoted", line' in row["message"]


def test_a_study_without_trials_has_only_the_header() -> None:
    assert trials_csv(summary_of()) == ",".join(COLUMNS) + "\n"
