"""Compares searches over recorded sweeps: `python benchmarks/search.py OUT TABLE.csv...`.

Ours (`paratune replay`), Optuna's TPE, GP and random over the same rows, and the model-based tuner
of DeepSpeed's autotuning: its own class where xgboost is installed, and the same method as
`--ranker SCRIPT` (a program with the command line of `paratune replay`). Prints a table of
trials until within 1 % and 5 % of a sweep's best, out of memory on the way and regret after 5;
writes OUT.svg, a picture of the regret over trials. Needs the tables only; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

KEY = ("model", "gpu", "gpus", "seq", "global_batch")
KNOBS = ("tp", "pp", "vpp", "cp", "ep", "micro_batch", "zero", "recompute", "flash_attn")
TOLERANCES = (0.01, 0.05)
MIN_RAN = 5
PICTURED_TRIALS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The rows of a workload and the seconds of each; infinite where it did not run."""

    rows: tuple[int, ...]
    seconds: Mapping[int, float]

    @property
    def best_s(self) -> float:
        return min(self.seconds.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one search over one workload."""

    until: tuple[int, ...]
    """Trials until within each tolerance; all rows where never."""
    lost_before: int
    regrets: tuple[float, ...]
    """After each trial; 1 while nothing ran."""


def sweeps_of(table: Sequence[Mapping[str, str]]) -> dict[tuple[str, ...], Sweep]:
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, row in enumerate(table):
        groups.setdefault(tuple(row.get(name) or "" for name in KEY), []).append(number)
    found = {}
    for key, rows in groups.items():
        seconds = {row: _seconds(table[row]) for row in rows}
        if sum(np.isfinite(list(seconds.values()))) >= MIN_RAN:
            found[key] = Sweep(rows=tuple(rows), seconds=seconds)
    return found


def _seconds(row: Mapping[str, str]) -> float:
    return float(row["step_time_s"]) if row["outcome"] == "measured" else float("inf")


def figures(sweep: Sweep, tried: Sequence[int]) -> Figures:
    seconds = np.array([sweep.seconds[row] for row in tried])
    so_far = np.minimum.accumulate(seconds)
    until = []
    for tolerance in TOLERANCES:
        hits = np.flatnonzero(seconds <= sweep.best_s * (1 + tolerance))
        until.append(int(hits[0]) + 1 if len(hits) else len(sweep.rows))
    return Figures(
        until=tuple(until),
        lost_before=int(np.isinf(seconds[: until[0]]).sum()),
        regrets=tuple((1 - sweep.best_s / so_far).tolist()),
    )


def orders(command: Sequence[str], table: Path, options: Sequence[str]) -> list[list[int]]:
    """The rows in the order in which a program tried them, one list a workload."""
    ended = subprocess.run(
        [*command, str(table), *options, "--json"], capture_output=True, text=True
    )
    if ended.returncode:
        raise SystemExit(f"{command} failed: {ended.stderr[-2000:]}")
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.strip()]
    return [[trial["row"] for trial in line["trials"]] for line in lines if line["trials"]]


def deepspeed_orders(
    table: Sequence[Mapping[str, str]], sweeps: Sequence[Sweep], trials: int, seed: int
) -> list[list[int]]:
    """DeepSpeed's own ModelBasedTuner, each experiment answered from the sweep."""
    from deepspeed.autotuning.tuner import ModelBasedTuner

    found = []
    for sweep in sweeps:
        knobs = [k for k in KNOBS if len({table[row].get(k) for row in sweep.rows}) > 1]
        np.random.seed(seed)
        with tempfile.TemporaryDirectory() as folder:
            experiments = [
                {
                    "name": str(row),
                    "ds_config": {k: _number(table[row].get(k)) for k in knobs}
                    | {"autotuning": {"metric_path": f"{folder}/{row}.metric"}},
                }
                for row in sweep.rows
            ]
            answers = _Answers(sweep, folder)
            tuner = ModelBasedTuner(experiments, answers, "throughput", {})
            tuner.tune(sample_size=1, n_trials=trials, early_stopping=None)
        found.append(list(dict.fromkeys(answers.tried)))
    return found


class _Answers:
    """Stands where DeepSpeed has its resource manager, which launches jobs."""

    def __init__(self, sweep: Sweep, folder: str) -> None:
        self.exps_dir = folder
        self.finished_experiments: dict[int, tuple[Any, str | None]] = {}
        self.tried: list[int] = []
        self._sweep = sweep

    def schedule_experiments(self, paths: Sequence[str]) -> None:
        for path in paths:
            experiment = json.loads(Path(path).read_text())
            row = int(experiment["name"])
            speed = 1 / self._sweep.seconds[row]
            metric = Path(experiment["ds_config"]["autotuning"]["metric_path"])
            metric.write_text(json.dumps({"throughput": speed}))
            error = None if speed > 0 else "out of memory"
            self.finished_experiments[row] = (experiment | {"result_dir": ""}, error)
            self.tried.append(row)

    def run(self) -> None:
        """Nothing to wait for."""

    def parse_results(self, metric: str) -> tuple[Any, float]:
        row = self.tried[-1]
        return self.finished_experiments[row][0], 1 / self._sweep.seconds[row]

    def clear(self) -> None:
        self.finished_experiments = {}


def _number(text: str | None) -> float:
    try:
        return float(text or -1)
    except ValueError:
        return float(sum(map(ord, text or "")))


def shown(name: str, all_figures: Sequence[Figures]) -> str:
    cells = []
    for at in range(len(TOLERANCES)):
        counts = [one.until[at] for one in all_figures]
        cells.append(f"{statistics.mean(counts):6.2f} / {statistics.median(counts):4.1f}")
    lost = statistics.mean(one.lost_before for one in all_figures)
    fifth = statistics.mean(one.regrets[min(4, len(one.regrets) - 1)] for one in all_figures)
    return f"| {name} | {' | '.join(cells)} | {lost:.2f} | {fifth:.1%} |"


COLOURS = ("#0072B2", "#D55E00", "#999999", "#009E73", "#CC79A7", "#E69F00")
PANEL = (420, 300)
"""Width and height of a panel of the picture."""


def picture(curves: Mapping[str, Mapping[str, Sequence[Figures]]], path: Path) -> None:
    """Mean regret over trials as SVG: a panel a table, a line a search."""
    width, height = PANEL
    parts = []
    for column, (table, searches) in enumerate(curves.items()):
        left = 60 + column * (width + 60)
        parts.append(_text(left, 20, table, "start", "bold"))
        for share in (0, 0.25, 0.5, 0.75, 1):
            y = 40 + height * (1 - share)
            parts.append(f'<path d="M{left} {y}h{width}" stroke="#ddd"/>')
            parts.append(_text(left - 6, y + 4, f"{share:.0%}", "end"))
        for trial in (1, 10, 20, PICTURED_TRIALS):
            x = left + width * (trial - 1) / (PICTURED_TRIALS - 1)
            parts.append(_text(x, height + 58, str(trial), "middle"))
        for number, (name, found) in enumerate(searches.items()):
            padded = [
                [*one.regrets, *[one.regrets[-1]] * PICTURED_TRIALS][:PICTURED_TRIALS]
                for one in found
            ]
            points = " ".join(
                f"{left + width * at / (PICTURED_TRIALS - 1):.1f},{40 + height * (1 - value):.1f}"
                for at, value in enumerate(np.mean(padded, axis=0).tolist())
            )
            line = f'fill="none" stroke="{COLOURS[number]}" stroke-width="2"'
            parts.append(f'<polyline points="{points}" {line}/>')
            label = _text(left + width - 6, 56 + 16 * number, name, "end")
            parts.append(label.replace("<text", f'<text fill="{COLOURS[number]}"'))
        parts.append(_text(left + width / 2, height + 76, "trials; mean regret", "middle"))
    size = f'width="{60 + len(curves) * (width + 60)}" height="{height + 90}"'
    style = 'font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>'
    background = '<rect width="100%" height="100%" fill="white"/>'
    path.write_text("\n".join([head, background, *parts, "</svg>", ""]))


def _text(x: float, y: float, text: str, anchor: str, weight: str = "normal") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {where}>{text}</text>"


def programs(options: argparse.Namespace) -> dict[str, tuple[list[str], str, int]]:
    """Of each search that is a program: its command, its sampler's name, how many seeds."""
    replay = [sys.executable, "-m", "tuner", "replay"]
    found = {
        "paratune": (replay, "plan", 1),
        "TPE": (replay, "tpe", options.seeds),
        "random": (replay, "random", options.seeds),
    }
    if find_spec("scipy"):
        found["GP"] = (replay, "gp", 1)
    else:
        print("GP is left out: it needs scipy")
    if options.ranker and find_spec("xgboost"):
        found["XGBoost"] = ([sys.executable, str(options.ranker)], "xgb", options.seeds)
    else:
        print("the XGBoost ranker is left out: it needs --ranker and xgboost")
    return {name: one for name, one in found.items() if name not in options.without}


def compared(path: Path, options: argparse.Namespace) -> dict[str, list[Figures]]:
    """Every search over one table; its line is printed as soon as it is known."""
    with path.open(newline="") as file:
        table = list(csv.DictReader(file))
    sweeps = list(sweeps_of(table).values())
    by_row = {row: sweep for sweep in sweeps for row in sweep.rows}
    print(f"\n{path.stem}, {len(sweeps)} workloads\n")
    print("| search | to 1 % mean / median | to 5 % | lost before | regret after 5 |")
    print("|---|---|---|---|---|")
    found: dict[str, list[Figures]] = {}
    for name, (command, sampler, num_seeds) in programs(options).items():
        given = ["--sampler", sampler, "--trials", str(options.trials)]
        found[name] = [
            figures(by_row[tried[0]], tried)
            for seed in range(num_seeds)
            for tried in orders(command, path, [*given, "--seed", str(seed)])
            if tried[0] in by_row
        ]
        print(shown(name, found[name]), flush=True)
    if find_spec("xgboost"):
        found["DeepSpeed"] = [
            figures(by_row[tried[0]], tried)
            for seed in range(options.seeds)
            for tried in deepspeed_orders(table, sweeps, options.trials, seed)
        ]
        print(shown("DeepSpeed's ModelBasedTuner", found["DeepSpeed"]), flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--ranker", type=Path, help="a program that offers --sampler xgb")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3, help="of the searches that draw lots")
    parser.add_argument("--without", action="append", default=[], help="a search to leave out")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    curves = {path.stem: compared(path, options) for path in options.tables}
    picture(curves, options.out.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
