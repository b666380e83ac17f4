"""Real trials on one CUDA GPU; ``benchmarks/gpu_check.sh`` runs them on a machine that has one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from runners.bench.memory import CudaMemoryMeter, memory_meter
from runners.bench.rank_report import raised_chain
from runners.failure_kinds import FailureKind, Raised, failure_kind
from runners.local_runner import LocalRunner
from tests.tiny_job import tiny_workload
from tuner.cluster import Cluster, Device, Gpu
from tuner.launch import Measurement
from tuner.outcome import Measured, OutOfMemory, Phase
from tuner.plan import Backend, ParallelPlan, Precision, Recompute
from tuner.workload import Workload

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

MIB = 2**20
LIMITS_S = dict.fromkeys(Phase, 60.0)


@pytest.fixture
def device() -> Iterator[torch.device]:
    yield torch.device("cuda", 0)
    torch.cuda.set_per_process_memory_fraction(1.0, 0)
    torch.cuda.empty_cache()


def one_gpu() -> Cluster:
    gpu = Gpu(
        name="cuda",
        device=Device.CUDA,
        memory_bytes=torch.cuda.get_device_properties(0).total_memory,
        flops_per_s={"fp32": 1e13, "bf16": 1e14, "fp16": 1e14},
        memory_bytes_per_s=1e12,
        link_bytes_per_s=1e11,
    )
    return Cluster(gpu=gpu)


def runner(workload: Workload, *, memory_limit_bytes: int | None = None) -> LocalRunner:
    measurement = Measurement(warmup_steps=1, steps=4, memory_limit_bytes=memory_limit_bytes)
    return LocalRunner(workload, one_gpu(), measurement, LIMITS_S)


def test_the_meter_keeps_the_peak_after_the_memory_is_given_back(device: torch.device) -> None:
    meter = memory_meter(device, None)
    assert isinstance(meter, CudaMemoryMeter)
    block = torch.zeros(64 * MIB, dtype=torch.uint8, device=device)
    del block
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(device) < 64 * MIB
    assert 64 * MIB <= meter.peak_bytes() < 128 * MIB
    details = meter.details()
    assert details["peak_allocated_bytes"] >= 64 * MIB
    assert details["device_free_at_start_bytes"] > 0
    assert details["device_used_bytes"] > 0


def test_the_limit_makes_a_larger_allocation_fail(device: torch.device) -> None:
    memory_meter(device, 256 * MIB)
    kept = torch.zeros(128 * MIB, dtype=torch.uint8, device=device)
    with pytest.raises(torch.OutOfMemoryError) as failed:
        torch.zeros(256 * MIB, dtype=torch.uint8, device=device)
    assert kept.is_cuda
    chain = [Raised.from_record(record) for record in raised_chain(failed.value)]
    assert failure_kind(chain, None) is FailureKind.OUT_OF_MEMORY


@pytest.mark.parametrize("backend", Backend)
def test_a_plan_of_every_backend_trains_on_the_gpu(backend: Backend, tmp_path: Path) -> None:
    plan = ParallelPlan(
        backend=backend, micro_batch=4, precision=Precision.BF16, recompute=Recompute.FULL
    )
    measured = runner(tiny_workload()).run(plan, tmp_path / "0", lambda _: None)
    assert isinstance(measured, Measured), measured
    assert len(measured.step_times_s) == 4
    assert measured.losses[-1] < measured.losses[0]
    assert measured.peak_memory_bytes > 0


def test_a_micro_batch_whose_logits_do_not_fit_is_out_of_memory(tmp_path: Path) -> None:
    # 4 million weights take 70 MiB with gradients and moments; the logits of 64 sequences 1 GiB.
    workload = replace(tiny_workload(vocab_size=32000), seq_len=128, global_batch_sequences=64)
    plan = ParallelPlan(backend=Backend.PYTORCH, micro_batch=64, precision=Precision.FP32)
    small = runner(workload, memory_limit_bytes=512 * MIB)
    out = small.run(plan, tmp_path / "0", lambda _: None)
    assert isinstance(out, OutOfMemory), out
    assert out.phase is Phase.FIRST_STEP
