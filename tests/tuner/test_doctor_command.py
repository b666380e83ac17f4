"""A doctor names what stands in the way of a study, and what to do; the rest it only notes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runners.machine_facts import Imported, MachineFacts, RayFacts, machine_facts
from runners.nvidia_devices import DeviceProcess, NvidiaDevice, NvidiaDriver
from tuner.cli import doctor_command
from tuner.cli.doctor_checks import Check, Status, can_run
from tuner.cli.doctor_command import findings
from tuner.cli.main import main

GIB = 1024**3
H100 = NvidiaDevice(
    index=0,
    uuid="GPU-0",
    product="NVIDIA H100 80GB HBM3",
    memory_bytes=81559 * 1024**2,
    free_bytes=81000 * 1024**2,
    split=False,
    processes=(),
)
TORCH_GPU: dict[str, Any] = {
    "import_s": 3.0,
    "cuda": "12.8",
    "hip": "",
    "cuda_available": True,
    "num_gpus": 1,
    "capabilities": [[9, 0]],
    "architectures": ["sm_80", "sm_90", "sm_100"],
    "nccl": "2.27.3",
    "gloo": True,
}
TORCH_CPU = TORCH_GPU | {
    "cuda": "",
    "cuda_available": False,
    "num_gpus": 0,
    "capabilities": [],
    "architectures": [],
    "nccl": "",
}
OTHERS = {
    "deepspeed": Imported(error=None, facts={"import_s": 4.0, "cpu_adam": True}),
    "megatron-core": Imported(
        error=None, facts={"import_s": 8.0, "gradient_fusion": False, "grouped_gemm": False}
    ),
}
LAPTOP = MachineFacts(
    python="3.11.7",
    platform="Linux",
    num_cores=4,
    memory_bytes=32 * GIB,
    available_bytes=30 * GIB,
    versions={
        "paratune": "0.1.0",
        "torch": "2.9.0",
        "deepspeed": "0.19.8",
        "megatron-core": "0.16.1",
        "ray": "2.60.0",
        "optuna": "5.0.0",
        "transformers": "5.0.0",
        "transformer-engine": None,
    },
    own_packages_error=None,
    imports={"torch": Imported(error=None, facts=TORCH_CPU), **OTHERS},
    driver=None,
    visible=(),
    visible_error=None,
    processes={},
    compilers={"g++": "/usr/bin/g++", "nvcc": None, "ninja": "/usr/bin/ninja"},
    env={},
    ray=None,
    shm_bytes=16 * GIB,
    limits={
        "open files": 65536,
        "processes": None,
        "locked memory": None,
        "data": None,
        "address space": None,
    },
    folder="/home/user",
    folder_error=None,
    disk_free_bytes=100 * GIB,
)


def with_gpu(device: NvidiaDevice = H100, torch: dict[str, Any] = TORCH_GPU) -> MachineFacts:
    return replace(
        LAPTOP,
        driver=NvidiaDriver(version="570.1", cuda="12.8", devices=(device,)),
        visible=(device,),
        imports={"torch": Imported(error=None, facts=torch), **OTHERS},
        compilers={"g++": "/usr/bin/g++", "nvcc": "/usr/bin/nvcc", "ninja": "/usr/bin/ninja"},
    )


GPU_BOX = with_gpu()


def held_by(*process_ids: int) -> tuple[DeviceProcess, ...]:
    return tuple(DeviceProcess(process_id=number, memory_bytes=None) for number in process_ids)


def named(facts: MachineFacts, name: str) -> Check:
    (check,) = (check for check in findings(facts) if check.name == name)
    return check


@pytest.mark.parametrize("facts", [LAPTOP, GPU_BOX], ids=["laptop", "GPU"])
def test_a_right_machine_can_run_a_study(facts: MachineFacts) -> None:
    assert can_run(findings(facts))


IMPOSSIBLE: list[tuple[str, MachineFacts, str, str]] = [
    (
        "torch does not load",
        replace(LAPTOP, imports={**LAPTOP.imports, "torch": Imported(error="no libc", facts={})}),
        "torch",
        "no libc",
    ),
    ("torch of the CPU", with_gpu(torch=TORCH_CPU), "torch on GPU", "CPU only"),
    (
        "torch of a newer CUDA",
        with_gpu(torch=TORCH_GPU | {"cuda_available": False}),
        "torch on GPU",
        "finds no GPU",
    ),
    (
        "torch for older GPUs",
        with_gpu(torch=TORCH_GPU | {"architectures": ["sm_80", "sm_86"]}),
        "torch on GPU",
        "not for sm_90",
    ),
    (
        "several GPUs without NCCL",
        with_gpu(torch=TORCH_GPU | {"nccl": "", "num_gpus": 2}),
        "torch on GPU",
        "NCCL missing",
    ),
    (
        "foreign packages",
        replace(LAPTOP, own_packages_error="reports is not ours"),
        "paratune",
        "reports is not ours",
    ),
    (
        "no optuna",
        replace(LAPTOP, versions={**LAPTOP.versions, "optuna": None}),
        "optuna",
        "pip install",
    ),
    ("wrong choice", replace(GPU_BOX, visible=(), visible_error="no GPU 7"), "visible GPUs", "7"),
    ("read-only folder", replace(LAPTOP, folder_error="Read-only"), "folder", "Read-only"),
    (
        "no Ray there",
        replace(LAPTOP, ray=RayFacts(address="a:1", nodes=(), error="nothing listens")),
        "ray at a:1",
        "nothing listens",
    ),
]


@pytest.mark.parametrize(
    ("_name", "facts", "name", "words"), IMPOSSIBLE, ids=[case[0] for case in IMPOSSIBLE]
)
def test_what_makes_a_study_impossible_is_a_problem(
    _name: str, facts: MachineFacts, name: str, words: str
) -> None:
    check = named(facts, name)
    assert check.status is Status.PROBLEM
    assert words in f"{check.found} {check.advice}"
    assert check.advice
    assert not can_run(findings(facts))


def test_code_for_an_older_gpu_of_the_same_generation_runs() -> None:
    ada = TORCH_GPU | {"capabilities": [[8, 9]], "architectures": ["sm_80"]}
    assert named(with_gpu(torch=ada), "torch on GPU").status is Status.OK
    compiled_later = TORCH_GPU | {"architectures": ["sm_80", "compute_80"]}
    assert named(with_gpu(torch=compiled_later), "torch on GPU").status is Status.OK
    newer = TORCH_GPU | {"architectures": ["sm_100"]}
    assert named(with_gpu(torch=newer), "torch on GPU").status is Status.PROBLEM


NOTED: list[tuple[str, MachineFacts, str, str]] = [
    (
        "a GPU in use",
        replace(
            with_gpu(replace(H100, free_bytes=40 * GIB, processes=held_by(17, 18))),
            processes={17: "python of root"},
        ),
        "GPU 0",
        "17 (python of root), 18 (name not known)",
    ),
    (
        "a GPU without a preset",
        with_gpu(replace(H100, product="NVIDIA X1")),
        "GPU 0",
        "docs/clusters.md",
    ),
    (
        "no compiler",
        replace(LAPTOP, compilers={"g++": None, "nvcc": None, "ninja": None}),
        "g++",
        "DeepSpeed",
    ),
    ("small shared memory", replace(LAPTOP, shm_bytes=64 * 1024**2), "/dev/shm", "--shm-size"),
    (
        "few open files",
        replace(LAPTOP, limits={**LAPTOP.limits, "open files": 1024}),
        "open files",
        "ulimit -n",
    ),
    (
        "a limit on data",
        replace(LAPTOP, limits={**LAPTOP.limits, "data": GIB}),
        "limit of data",
        "inherit",
    ),
    ("full disk", replace(LAPTOP, disk_free_bytes=GIB), "folder", "disk"),
    ("little memory", replace(LAPTOP, available_bytes=GIB), "memory", "too little"),
    (
        "no peer-to-peer",
        replace(GPU_BOX, env={"NCCL_P2P_DISABLE": "1"}),
        "NCCL_P2P_DISABLE",
        "slower",
    ),
    ("no fp8", GPU_BOX, "fp8", "transformer-engine"),
    ("no CP", GPU_BOX, "context parallelism", "transformer-engine"),
    (
        "old GPU",
        with_gpu(torch=TORCH_GPU | {"capabilities": [[7, 0]], "architectures": ["sm_70"]}),
        "bf16",
        "fp16",
    ),
    (
        "offload without ninja",
        replace(GPU_BOX, compilers={**GPU_BOX.compilers, "ninja": None}),
        "offload",
        "ninja",
    ),
    (
        "deepspeed does not load",
        replace(
            LAPTOP, imports={**LAPTOP.imports, "deepspeed": Imported(error="no nvcc", facts={})}
        ),
        "deepspeed",
        "search.backend",
    ),
]


@pytest.mark.parametrize(("_name", "facts", "name", "words"), NOTED, ids=[c[0] for c in NOTED])
def test_what_only_slows_or_narrows_is_a_note(
    _name: str, facts: MachineFacts, name: str, words: str
) -> None:
    check = named(facts, name)
    assert check.status is Status.NOTE
    assert words in f"{check.found} {check.advice}"
    assert can_run(findings(facts))


def test_what_the_stack_can_do_is_said_too() -> None:
    versions = {**GPU_BOX.versions, "transformer-engine": "2.11"}
    facts = replace(GPU_BOX, versions=versions)
    for name in ("bf16", "fp8", "context parallelism", "fused kernels", "offload"):
        assert named(facts, name).status is Status.OK, name


def test_a_variable_that_is_off_is_not_worth_a_note() -> None:
    facts = replace(GPU_BOX, env={"NCCL_P2P_DISABLE": "0"})
    assert "NCCL_P2P_DISABLE" not in {check.name for check in findings(facts)}


@pytest.mark.parametrize(("facts", "code"), [(GPU_BOX, 0), (IMPOSSIBLE[0][1], 1)])
def test_json_is_one_document_and_the_exit_code_says_whether(
    facts: MachineFacts,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(doctor_command, "machine_facts", lambda folder, address: facts)
    assert main(["doctor", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["can_run"] is (code == 0)
    assert {frozenset(check) for check in document["checks"]} == {
        frozenset(("name", "status", "found", "advice"))
    }
    assert main(["doctor"]) == code
    said = capsys.readouterr().out
    assert "can run here" in said if code == 0 else "cannot run here" in said


@pytest.mark.slow
def test_this_machine_is_looked_at_and_secrets_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("TORCH_HUB_TOKEN", "secret")
    facts = machine_facts(tmp_path, "127.0.0.1:1")
    assert facts.env["NCCL_DEBUG"] == "INFO"
    assert "TORCH_HUB_TOKEN" not in facts.env
    assert facts.imports["torch"].error is None
    assert facts.folder_error is None
    assert facts.ray is not None
    assert facts.ray.error is not None
    assert not can_run(findings(facts))
    assert can_run(findings(replace(facts, ray=None)))
