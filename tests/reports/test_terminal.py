from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from reports.terminal import answer_panel, trials_table
from tests.reports.a_study import measured, study_folder, summary_of, trial, trials
from tuner.outcome import OutOfMemory, Phase, Source
from tuner.plan import Backend, ParallelPlan, Recompute
from tuner.trial import Trial

LONG_PLAN = ParallelPlan(
    backend=Backend.MEGATRON,
    zero_stage=1,
    micro_batch=8,
    tp=2,
    pp=2,
    vpp=2,
    sequence_parallel=True,
    recompute=Recompute.SELECTIVE,
)


def _shown(path: Path, width: int, *tried: Trial) -> str:
    folder, summary = study_folder(path, tried), summary_of(*tried)
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(trials_table(summary))
        console.print(answer_panel(summary, folder))
    return capture.get()


@pytest.mark.parametrize("width", [80, 100])
def test_nothing_is_wider_than_the_terminal_and_every_number_is_whole(
    tmp_path: Path, width: int
) -> None:
    long_one = trial(6, LONG_PLAN, measured(123.4))
    shown = _shown(tmp_path / "study", width, *trials(), long_one)
    assert max(len(line) for line in shown.splitlines()) <= width
    for number in ("1.00 s", "4,096", "200.00 MiB", "2m 03s", "123.40x", "1.50x", "2.00x"):
        assert number in shown
    for word in LONG_PLAN.label().split():
        assert word in shown


def test_the_fastest_plan_is_first_and_those_that_did_not_train_are_last(tmp_path: Path) -> None:
    lines = _shown(tmp_path, 100, *trials()).splitlines()
    numbers = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
    rows = [number for number in numbers if number.isdecimal()]
    assert rows == ["3", "4", "0", "1", "2", "5"]


def test_a_reason_is_one_line_and_is_no_markup(tmp_path: Path) -> None:
    shown = _shown(tmp_path, 200, *trials())
    assert "sizes [4] | [5] differ" in shown
    assert "you tried 64 MiB" not in shown


def test_the_panel_names_the_defaults_the_tie_and_the_command(tmp_path: Path) -> None:
    close = trial(6, LONG_PLAN, measured(1.005))
    shown = _shown(tmp_path, 300, *trials(), close)
    assert "DeepSpeed's default (deepspeed zero0 mb1 bf16) ran out of memory" in shown
    assert "trial 6" in shown
    assert "the two intervals overlap" in shown
    command = "torchrun --standalone --nproc-per-node=4 -m runners.bench --launch"
    pasted = " ".join(shown.replace("\\\n", "").split())
    assert f"OMP_NUM_THREADS=1 NOTE='a b' {command} {tmp_path / 'best'}" in pasted


def test_simulated_numbers_are_labelled_in_the_table_and_in_the_panel(tmp_path: Path) -> None:
    plan = ParallelPlan(backend=Backend.PYTORCH)
    shown = _shown(tmp_path, 100, trial(0, plan, measured(1.0, source=Source.SIMULATED)))
    assert "Plans that trained (simulated)" in shown
    assert "The fastest plan that fits (simulated)" in shown
    assert "step time (simulated)" in shown


def test_nothing_trained_is_said(tmp_path: Path) -> None:
    assert "No plan has trained so far (1 out of memory)" in _shown(tmp_path, 80, trials()[1])


def test_the_reason_of_a_cpu_allocator_starts_with_what_it_could_not_allocate(
    tmp_path: Path,
) -> None:
    said = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate"
    oom = OutOfMemory(rank=3, phase=Phase.STEPS, message=said)
    shown = _shown(tmp_path, 200, trial(0, LONG_PLAN, oom))
    assert "out of memory (rank 3, steps): DefaultCPUAllocator: can't allocate" in shown
