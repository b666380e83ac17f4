"""paratune from Python: studies, legal plans and predictions as typed objects and data frames."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from reports.summary import MeasuredTrial, Summary
from reports.trials_csv import COLUMNS, trials_csv
from tuner.cli.advice import helpful_changes, nothing_legal
from tuner.cli.explain_command import explanation
from tuner.cli.folder_summary import folder_summary
from tuner.cli.found_cluster import found_cluster
from tuner.cli.main import parser
from tuner.cli.plans_command import ranked
from tuner.cli.predict_command import answers, calibrations
from tuner.cli.setting import Planned, planned, planned_job
from tuner.cli.tune_command import tuned
from tuner.errors import UserError
from tuner.job import Job, job_of, read_job
from tuner.plan import KNOB_NAMES, ParallelPlan, PlanValue
from tuner.search_space import Removal
from tuner.study_folder import StudyFolder
from tuner.sweep_table import read_sweep
from tuner.trial import Trial

JobLike: TypeAlias = str | Path | Mapping[str, Any]
"""A job file, or the same as a mapping; paths in a mapping are relative to the working folder."""
DataFrame: TypeAlias = Any
"""A ``pandas.DataFrame``; pandas is optional and has no types of its own."""
_IN_PYTHON = Path("job")
"""What messages call a job that is given as a mapping."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StudyResult:
    """A study as its folder holds it: what ``tune`` and ``read_study`` give back."""

    folder: Path
    summary: Summary
    """Everything that the reports say, in numbers."""

    @property
    def best(self) -> MeasuredTrial | None:
        """The fastest plan that trained, with its numbers; None where none did."""
        return self.summary.best

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials, by number."""
        return self.summary.trials

    @property
    def report(self) -> Path:
        """``report.html``, to be opened in a browser."""
        return StudyFolder(self.folder).html_report_file

    def frame(self) -> DataFrame:
        """One row a trial, the columns of ``trials.csv``; of the numbers, seconds and bytes."""
        text = StringIO(trials_csv(self.summary))
        return _pandas().read_csv(text, index_col=COLUMNS[0], keep_default_na=False, na_values=[""])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LegalPlans:
    """The legal plans of a job, those that fit and are fast by prediction first."""

    job: Job
    planned: Planned
    order: NDArray[np.int64]
    """Positions in ``planned.space.plans``."""

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, rank: int) -> ParallelPlan:
        return self.planned.space.plans[int(self.order[rank])]

    @property
    def num_fitting(self) -> int:
        """Plans that are predicted to fit; they come first."""
        return self.planned.num_fitting

    @property
    def waterfall(self) -> tuple[Removal, ...]:
        """What each rule removed, in the order in which they were applied."""
        return self.planned.space.waterfall

    def frame(self) -> DataFrame:
        """One row a plan: its knobs and what is predicted of it; nothing here is measured."""
        plans = self.planned.space.plans.kept(self.order)
        columns = {name: plans.options(name) for name in KNOB_NAMES}
        predicted = self.planned.predicted
        if predicted is not None:
            seconds = predicted.step_time_s[self.order]
            columns |= {
                "predicted_step_time_s": seconds,
                "predicted_tokens_per_s": self.job.workload.tokens_per_step / seconds,
                "predicted_peak_memory_bytes": predicted.peak_memory_bytes[self.order],
                "fits": predicted.fits[self.order],
            }
        return _pandas().DataFrame(columns)

    def waterfall_frame(self) -> DataFrame:
        """One row a rule: its id, how many combinations it removed, what must hold."""
        rows = [(removal.rule, removal.removed, removal.sentence) for removal in self.waterfall]
        return _pandas().DataFrame(rows, columns=["rule", "removed", "must_hold"])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanPrediction:
    """What is predicted of one plan, term by term, or the rules that it breaks."""

    plan: ParallelPlan
    broken_rules: tuple[tuple[str, str], ...]
    """Id and sentence of each; empty for a legal plan."""
    fits: bool | None
    """None where nothing is predicted: the plan is illegal, or the model's shape unknown."""
    memory_bytes: Mapping[str, int]
    """Of the fullest rank, by term."""
    memory_bytes_by_stage: tuple[int, ...]
    time_s: Mapping[str, float]
    """Of an optimizer step, by term."""

    @property
    def is_legal(self) -> bool:
        """Whether it breaks no rule."""
        return not self.broken_rules

    @property
    def peak_memory_bytes(self) -> int:
        """Of the fullest rank."""
        return sum(self.memory_bytes.values())

    @property
    def step_time_s(self) -> float:
        """Of an optimizer step."""
        return sum(self.time_s.values())

    def frame(self) -> DataFrame:
        """One row a term: ``kind`` memory_bytes or time_s, ``term``, ``predicted``."""
        kinds = (("memory_bytes", self.memory_bytes), ("time_s", self.time_s))
        rows = [(kind, term, value) for kind, terms in kinds for term, value in terms.items()]
        return _pandas().DataFrame(rows, columns=["kind", "term", "predicted"])


def tune(
    job: JobLike, study: str | Path | None = None, *, quiet: bool = True, **options: PlanValue
) -> StudyResult:
    """Runs a study, or goes on with it, as ``paratune tune`` does.

    Args:
        job: what is trained, on what, and what may be tried.
        study: the folder to keep it in; a job file's own name under ``studies/`` unless given.
        quiet: neither progress on stderr nor the answer on stdout.
        options: of ``paratune tune``, with underscores: ``trials=20``, ``runner="local"``,
            ``time="30m"``, ``no_verify=True``.

    Raises:
        UserError: the job is wrong, or no plan is legal; the message says what to do.
    """
    if study is None and isinstance(job, Mapping):
        raise UserError("tune must be given study=FOLDER with a job that is no file")
    path = _IN_PYTHON if isinstance(job, Mapping) else Path(job)
    words = ["tune", str(path), "--study", str(study or Path("studies") / path.stem)]
    parsed = _parsed([*words, *_flags(options), *(["--quiet", "--json"] if quiet else [])])
    found = _planned(job, parsed.ray_address)
    if not len(found.space.plans):
        raise UserError(f"{path}: {nothing_legal(found, helpful_changes(found.job))}")
    if quiet:
        with redirect_stdout(StringIO()):  # the document; frames and objects say the same
            tuned(found, parsed)
    else:
        tuned(found, parsed)
    return read_study(parsed.study)


def read_study(study: str | Path) -> StudyResult:
    """A study from its folder, finished or not.

    Raises:
        UserError: it is no study folder.
    """
    return StudyResult(folder=Path(study), summary=folder_summary(StudyFolder(Path(study))))


def plans(job: JobLike) -> LegalPlans:
    """All legal plans of a job, ranked by prediction; needs no GPU.

    Raises:
        UserError: the job is wrong.
    """
    found = _planned(job, None)
    return LegalPlans(job=found.job, planned=found, order=ranked(found))


def predict(job: JobLike, plan: ParallelPlan | Mapping[str, PlanValue]) -> PlanPrediction:
    """What is predicted of a plan of a job; knobs that are left out have their defaults.

    Raises:
        UserError: the job is wrong, or a knob is unknown.
    """
    try:
        asked = plan if isinstance(plan, ParallelPlan) else ParallelPlan.from_dict(plan)
    except ValueError as error:
        raise UserError(f"plan: {error}") from error
    document = explanation(_job(job, None), asked)
    return PlanPrediction(
        plan=asked,
        broken_rules=tuple((r["rule"], r["sentence"]) for r in document["rejections"]),
        fits=document["fits"],
        memory_bytes=document["memory_bytes"],
        memory_bytes_by_stage=tuple(document["memory_bytes_by_stage"]),
        time_s=document["time_s"],
    )


def predict_sweep(table: str | Path, *, calibrate: int = 0) -> DataFrame:
    """Predictions of the rows of a recorded sweep, as ``paratune predict``; one row each.

    Args:
        table: a CSV with the columns of a sweep.
        calibrate: rows of each workload to fit on, chosen before any is read; 0 = none.

    Raises:
        UserError: the table cannot be read.
    """
    fits = calibrations(read_sweep(Path(table)), calibrate)
    lines = [line for group, fit in fits for line in answers(group, fit)]
    return _pandas().DataFrame(lines).set_index("row").sort_index()


def _planned(job: JobLike, ray_address: str | None) -> Planned:
    if isinstance(job, Mapping):
        return planned_job(_job(job, ray_address))
    return planned(Path(job), ray_address)


def _job(job: JobLike, ray_address: str | None) -> Job:
    if isinstance(job, Mapping):
        return job_of(job, _IN_PYTHON, lambda: found_cluster(ray_address))
    return read_job(Path(job), lambda: found_cluster(ray_address))


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    return parser().parse_args(words)


def _flags(options: Mapping[str, PlanValue]) -> list[str]:
    words = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not False:
            words.append(f"{option}={value}")
    return words


def _pandas() -> Any:
    """Imported where a frame is asked for: everything else works without it.

    Raises:
        UserError: it is not installed.
    """
    try:
        return importlib.import_module("pandas")
    except ModuleNotFoundError as error:
        raise UserError(
            "a data frame needs pandas, which is not installed: pip install 'paratune[notebook]'"
        ) from error
