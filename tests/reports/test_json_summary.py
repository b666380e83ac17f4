from __future__ import annotations

import json
from pathlib import Path

from reports.json_summary import study_document
from tests.reports.a_study import study_folder, summary_of, trials
from tuner.plan import ParallelPlan

BEST_KEYS = {
    "plan",
    "step_time_s",
    "step_time_ci_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "peak_memory_bytes",
    "trial",
    "source",
    "speedup_over_median",
    "speedup_over_default",
}


def test_the_document_is_json_and_holds_the_best_plan_and_every_trial(tmp_path: Path) -> None:
    folder = study_folder(tmp_path / "study", trials())
    document = json.loads(json.dumps(study_document(folder, summary_of(*trials()))))
    best = document["best"]
    assert best.keys() >= BEST_KEYS
    assert ParallelPlan.from_dict(best["plan"]) == trials()[3].plan
    assert best["step_time_ci_s"] == [0.99, 1.01]
    assert best["tokens_per_s_per_gpu"] == 1024
    assert best["speedup_over_default"] == {"pytorch": 2.0, "deepspeed": None, "megatron": None}
    assert best["source"] == "measured"
    assert document["waterfall"]["num_legal"] == 60
    assert document["study"] == str(tmp_path / "study")
    assert document["by_backend"]["deepspeed"]["trial"] == 4
    assert document["by_backend"]["megatron"] is None
    assert [t["number"] for t in document["trials"]] == [0, 1, 2, 3, 4, 5]


def test_a_trial_has_a_time_or_a_message(tmp_path: Path) -> None:
    folder = study_folder(tmp_path, trials())
    records = study_document(folder, summary_of(*trials()))["trials"]
    assert records[0]["step_time_s"] == 2.0
    assert records[0]["message"] is None
    assert records[1]["outcome"] == "out_of_memory"
    assert records[1]["step_time_s"] is None
    assert records[1]["peak_memory_bytes"] is None
    assert "can't allocate memory" in records[1]["message"]


def test_nothing_measured_has_no_best(tmp_path: Path) -> None:
    failed = trials()[1:3]
    folder = study_folder(tmp_path, failed)
    assert study_document(folder, summary_of(*failed))["best"] is None
