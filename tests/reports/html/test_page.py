from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from reports.baseline import Baseline
from reports.html.rendering import script_json
from reports.report_facts import ReportExtras
from reports.study_files import TAIL_LINES, log_end
from reports.summary import summarize
from reports.write import write_reports
from tests.reports.a_study import (
    DEFAULTS,
    LIMIT_BYTES,
    NUM_GPUS,
    measured,
    study_folder,
    trial,
    trials,
)
from tests.reports.html.studies import (
    HOSTILE,
    LOG_LINE,
    all_out_of_memory,
    extras_of,
    hostile_trials,
    many_trials,
    remade,
    written,
)
from tuner.outcome import Source
from tuner.plan import Backend, ParallelPlan


class Page(HTMLParser):
    """The text that a reader sees, and what the page would load."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []
        self._inside: list[str] = []
        self.raw = path.read_text(encoding="utf-8")
        self.feed(self.raw)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "srcset", "data")]
        self.loads += [v or "" for n, v in attrs if n == "href" and tag == "link"]
        self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._inside):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def test_the_answer_stands_first_with_its_interval_its_headroom_and_its_command(
    tmp_path: Path,
) -> None:
    text = Page(written(tmp_path / "s", trials())).text

    answer = text[: text.index("Speed against memory", text.index("Launch it"))]
    assert "pytorch zero2 mb4 bf16" in answer
    assert "PyTorch on 4 ranks: data parallel 4" in answer
    assert "95 % interval 990.0 ms to 1.01 s" in answer
    assert "33% below the limit of 300.00 MiB" in answer
    assert "2.00x as fast as PyTorch's default" in answer
    assert "torchrun --standalone --nproc-per-node=4" in answer


def test_plotly_is_embedded_once_and_nothing_is_loaded(tmp_path: Path) -> None:
    page = Page(written(tmp_path / "s", trials(), extras_of(trials())))

    assert page.raw.count("plotly.js v") == 1
    assert page.loads == []
    assert "default-src 'none'" in page.raw


def test_every_section_has_a_heading_and_every_table_a_caption(tmp_path: Path) -> None:
    page = Page(written(tmp_path / "s", trials(), extras_of(trials())))

    assert page.tags.count("table") == page.tags.count("caption")
    for heading in (
        "Speed against memory",
        "The frameworks side by side",
        "What each knob is worth",
        "Predicted against measured",
        "Where time and memory go",
        "The order of trials",
        "What was refused before a trial",
        "All 6 trials",
        "Environment",
        "Go on, or do it again",
    ):
        assert heading in page.text


def test_nothing_is_shown_of_a_cost_model_that_was_not_asked(tmp_path: Path) -> None:
    text = Page(written(tmp_path / "s", trials())).text

    assert "What the cost model says" not in text
    assert "predicted" not in text


def test_predictions_are_called_so_and_stand_apart(tmp_path: Path) -> None:
    text = Page(written(tmp_path / "s", trials(), extras_of(trials()))).text

    assert "its median error is" in text
    assert "Time of a step by term, predicted" in text
    assert "The same from predictions, not measured" in text


def test_simulated_numbers_are_marked_everywhere(tmp_path: Path) -> None:
    plan = ParallelPlan(backend=Backend.PYTORCH)
    tried = (trial(0, plan, measured(1.0, source=Source.SIMULATED)),)

    text = Page(written(tmp_path / "s", tried, extras_of(tried))).text

    assert "Simulated: every time, speed and memory peak on this page" in text
    assert "a step (simulated)" in text
    assert "are measured" not in text
    assert "Predicted against measured" not in text


def test_hostile_names_and_logs_stay_text(tmp_path: Path) -> None:
    path = written(tmp_path / "<img src=x onerror=1>", hostile_trials(), log=HOSTILE)

    page = Page(path)

    assert page.raw.count("<script") == 3  # figures, plotly, ours, and none of theirs
    assert "img" not in page.tags
    assert HOSTILE.split("{{")[0] in page.text
    assert "{{7*7}}" in page.text


def test_json_in_a_script_can_neither_end_it_nor_open_a_comment() -> None:
    text = json.dumps({"a": "</script><!-- \u2028 &"}, ensure_ascii=False)

    escaped = str(script_json(text))

    assert not re.search("[<>&\u2028]", escaped)
    assert json.loads(escaped) == json.loads(text)


def test_a_name_that_is_no_character_does_not_end_the_report(tmp_path: Path) -> None:
    folder = study_folder(tmp_path / "s", trials())
    job = folder.read_json(folder.job_file)
    identity = job["identity"] | {"workload": {"model": "a\ud800b"}}
    folder.write_json(folder.job_file, job | {"identity": identity})

    assert "a?b, sequences of" in Page(remade(folder, trials())).text


def test_a_thousand_trials_stay_below_ten_megabytes(tmp_path: Path) -> None:
    tried = many_trials(1000)
    log = "\n".join("x" * 400 for _ in range(200))

    path = written(tmp_path / "s", tried, extras_of(tried), log)

    assert len(tried) == 1000
    assert path.stat().st_size < 10e6


def test_where_everything_ran_out_of_memory_the_page_says_what_to_do(tmp_path: Path) -> None:
    page = Page(written(tmp_path / "s", all_out_of_memory()))

    assert "No answer yet" in page.text
    assert "No plan has trained so far (5 out of memory)" in page.text
    assert "Raise memory.limit" in page.text
    assert "Launch it" not in page.text


def test_a_study_without_trials_has_a_page(tmp_path: Path) -> None:
    page = Page(written(tmp_path / "s", ()))

    assert "No trial has ended yet." in page.text
    assert "plotly.js v" not in page.raw


def test_an_interrupted_study_says_what_is_left(tmp_path: Path) -> None:
    folder = study_folder(tmp_path / "s", trials())
    job = folder.read_json(folder.job_file)
    folder.write_json(folder.job_file, job | {"job": {"budget": {"trials": 30}}})

    text = Page(remade(folder, trials())).text

    assert "Not finished: 6 trials so far; the job's budget is 30" in text


def test_the_log_of_the_guilty_rank_is_shown_from_its_end(tmp_path: Path) -> None:
    folder = study_folder(tmp_path / "s", trials())
    lines = [LOG_LINE.format(n=n) for n in range(100)]
    (folder.trial_folder(1) / "rank-2.log").write_text("\n".join(lines))
    (folder.trial_folder(1) / "rank-0.log").write_text("innocent")

    text = Page(remade(folder, trials())).text

    assert lines[-1] in text
    assert lines[-TAIL_LINES] in text
    assert lines[-TAIL_LINES - 1] not in text
    assert "innocent" not in text


def test_a_log_is_shown_without_colours_and_control_characters(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"\x1b[31mred\x1b[0m\x00\xff end\n")

    assert log_end(log, 1000) == "red\ufffd end"
    assert log_end(tmp_path / "none.log", 1000) == ""


def test_the_configuration_of_the_best_plan_is_counted_without_blank_lines(
    tmp_path: Path,
) -> None:
    folder = study_folder(tmp_path / "s", trials())
    (folder.launch_folder(3) / "pytorch.toml").write_text("a = 1\n\nb = 2\n")

    assert "2 lines (pytorch.toml)" in Page(remade(folder, trials())).text


def test_what_a_framework_alone_refused_is_in_its_column(tmp_path: Path) -> None:
    folder = study_folder(tmp_path / "s", trials())
    removed = [
        {"rule": "DS-20", "removed": 7, "sentence": "stage 0 or 1 with pp > 1"},
        {"rule": "PT-15", "removed": 0, "sentence": "removed nothing"},
    ]
    waterfall = folder.read_json(folder.waterfall_file)
    folder.write_json(folder.waterfall_file, waterfall | {"removed": removed})

    text = Page(remade(folder, trials())).text

    row = text[text.index("not possible with it here") : text.index("trials 2 tried")]
    assert "stage 0 or 1 with pp > 1 (" in row
    assert "removed nothing" not in row


def test_the_users_own_configuration_is_set_against_the_best(tmp_path: Path) -> None:
    folder = study_folder(tmp_path / "s", trials())
    given = Baseline(
        plan=ParallelPlan(backend=Backend.PYTORCH),
        file="mine<b>.toml",
        format="torchtitan",
        unknown_keys=("paralelism",),
        ignored_keys=(),
        settings=(),
        pinned=(),
        notes=(),
    )
    summary = summarize(trials(), num_gpus=NUM_GPUS, defaults=DEFAULTS, baseline=given)

    write_reports(folder, summary)

    text = Page(folder.path / "report.html").text
    assert "Yours: 2,048 tokens/s; best: 4,096 (2.00x)" in text
    assert "mine<b>.toml (torchtitan) is pytorch zero0 mb1 bf16" in text
    assert "Keys that the framework does not know: paralelism" in text


@pytest.mark.parametrize("number", [1, 2, 3])
def test_small_studies_have_a_page(tmp_path: Path, number: int) -> None:
    page = Page(written(tmp_path / "s", trials()[:number], ReportExtras()))

    assert f"All {number} trials" in page.text
    assert str(LIMIT_BYTES) not in page.text
