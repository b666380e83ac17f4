"""A cluster is described by what people have; what cannot be one is refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from runners.nvidia_devices import NvidiaDevice, visible_devices
from runners.ray_cluster import RayNode, ray_nodes
from tests.tiny_job import LLAMA_CONFIG, cpu_cluster
from tuner.cli.found_cluster import cluster_of_nodes, found_cluster
from tuner.cluster import Cluster
from tuner.errors import UserError
from tuner.job import Job, read_job
from tuner.job_fields import parsed_bytes_per_s
from tuner.presets import GPUS, gpu_named
from tuner.stack import installed_stack

H100 = "h100-sxm-80gb"
OWN_GPU = {
    "name": "my-gpu",
    "memory": "96GiB",
    "memory_bandwidth": "3TB/s",
    "link": "200GB/s",
    "fp32_tflops": 40,
    "bf16_tflops": 400,
}


def job(folder: Path, **sections: Any) -> Job:
    (folder / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    workload = {"model": "config.json", "seq_len": 32, "global_batch": 8}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({"workload": workload, **sections}))
    return read_job(path, lambda: cpu_cluster(2))


def cluster(folder: Path, section: Any) -> Cluster:
    return job(folder, cluster=section).cluster


def complaint(folder: Path, **sections: Any) -> str:
    with pytest.raises(UserError) as refused:
        job(folder, **sections)
    said = str(refused.value)
    assert len(said.splitlines()) == 1, said
    assert said.startswith(str(folder / "job.yaml"))
    return said


@pytest.mark.parametrize(
    ("text", "num_nodes", "gpus_per_node"),
    [
        ("2x8 h100-sxm-80gb", 2, 8),
        ("8x H100 80GB SXM", 1, 8),
        ("1 h100 sxm5 80gb", 1, 1),
        ("16 x 8 x h100-sxm-80gb", 16, 8),
        ("7xh100-sxm-80gb", 1, 7),
    ],
)
def test_a_text_stands_for_a_cluster(
    tmp_path: Path, text: str, num_nodes: int, gpus_per_node: int
) -> None:
    got = cluster(tmp_path, text)
    assert (got.gpu, got.num_nodes, got.gpus_per_node) == (
        gpu_named(H100),
        num_nodes,
        gpus_per_node,
    )


def test_the_network_of_a_gpu_is_its_share_of_the_cards_of_its_node(tmp_path: Path) -> None:
    section = {"gpu": H100, "num_nodes": 2, "gpus_per_node": 8}
    assert cluster(tmp_path, section).network_bytes_per_s == 50e9
    rails = section | {"network": "200Gb/s", "rails": 8}
    assert cluster(tmp_path, rails).network_bytes_per_s == 25e9
    one_card = section | {"network": "100Gb/s"}
    assert cluster(tmp_path, one_card).network_bytes_per_s == 12.5e9 / 8


def test_links_and_nvlink_domains_are_those_given(tmp_path: Path) -> None:
    section = {
        "gpu": "gb200",
        "num_nodes": 18,
        "gpus_per_node": 4,
        "nodes_per_nvlink_domain": 18,
        "link": "800GB/s",
    }
    got = cluster(tmp_path, section)
    assert got.gpus_per_nvlink_domain == 72
    assert got.gpu.link_bytes_per_s == 800e9


def test_a_gpu_without_a_preset_is_taken_by_its_numbers(tmp_path: Path) -> None:
    gpu = cluster(tmp_path, {"gpu": OWN_GPU, "gpus_per_node": 4}).gpu
    assert gpu.name == "my-gpu"
    assert gpu.memory_bytes == 96 * 1024**3
    assert gpu.flops_per_s == {"fp32": 40e12, "bf16": 400e12}
    assert (gpu.memory_bytes_per_s, gpu.link_bytes_per_s) == (3e12, 200e9)
    assert gpu.source == "the job file"


@pytest.mark.parametrize("key", sorted(set(OWN_GPU) - {"name"}))
def test_each_missing_number_of_an_unknown_gpu_is_named(tmp_path: Path, key: str) -> None:
    gpu = {name: value for name, value in OWN_GPU.items() if name != key}
    said = complaint(tmp_path, cluster={"gpu": gpu, "gpus_per_node": 4})
    missing = said.partition("missing are ")[2].partition(";")[0]
    assert missing.startswith(key)
    assert "," not in missing


def test_numbers_replace_those_of_a_preset(tmp_path: Path) -> None:
    slower = {"name": H100, "bf16_tflops": 700, "compute_capability": 9.0}
    gpu = cluster(tmp_path, {"gpu": slower, "gpus_per_node": 8}).gpu
    known = gpu_named(H100)
    assert known is not None
    assert gpu.flops_per_s == {**known.flops_per_s, "bf16": 700e12}
    assert gpu.memory_bytes == known.memory_bytes
    assert "changed by the job file" in gpu.source


MISTAKES: list[tuple[str, Any, list[str]]] = [
    ("ambiguous", {"gpu": "A100", "gpus_per_node": 8}, ["a100-sxm-40gb or", "a100-pcie-80gb"]),
    (
        "unknown",
        {"gpu": "h900", "gpus_per_node": 8},
        ["the nearest are h100-sxm-80gb", "docs/clusters.md"],
    ),
    ("uneven nodes", {"gpu": H100, "gpus_per_node": [8, 8, 4]}, ["8, 8, 4", "num_nodes: 2"]),
    ("two kinds", {"gpu": [H100, "a100"], "gpus_per_node": 8}, ["equal", "one name"]),
    ("no nodes", {"gpu": H100, "num_nodes": 0, "gpus_per_node": 8}, ["num_nodes", "0"]),
    ("no GPUs in text", f"2x0 {H100}", ["gpus_per_node", "0"]),
    ("text of nothing", "all of them", ["auto", "'2x8 h100-sxm-80gb'"]),
    ("rate without unit", {"gpu": H100, "gpus_per_node": 8, "network": 400}, ["400Gb/s", "50GB/s"]),
    ("no rate", {"gpu": H100, "gpus_per_node": 8, "link": "0GB/s"}, ["link", "above 0"]),
    ("rails alone", {"gpu": H100, "gpus_per_node": 8, "rails": 8}, ["network must be given"]),
    ("too much memory", {"gpu": H100, "gpus_per_node": 8, "memory": "90GiB"}, ["79.65 GiB", "90"]),
    ("misspelt", {"gpu": {"name": "x", "bf16_tflop": 1}, "gpus_per_node": 8}, ["bf16_tflops?"]),
    ("bad capability", {"gpu": {"name": H100, "compute_capability": 9}, "gpus_per_node": 1}, ["9"]),
]


@pytest.mark.parametrize(("_name", "section", "words"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_what_is_no_cluster_is_refused(
    tmp_path: Path, _name: str, section: Any, words: list[str]
) -> None:
    said = complaint(tmp_path, cluster=section)
    for word in ["cluster", *words]:
        assert word in said


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("400Gb/s", 50e9), ("400Gbps", 50e9), ("400 Gbit/s", 50e9), ("50GB/s", 50e9), ("3TB/s", 3e12)],
)
def test_bits_and_bytes_are_told_apart(text: str, bytes_per_s: float) -> None:
    assert parsed_bytes_per_s(text) == bytes_per_s


def test_another_stack_replaces_what_is_installed_one_by_one(tmp_path: Path) -> None:
    given = {"megatron-core": "0.18.0", "transformer_engine": "2.11", "deepspeed": "none"}
    stack = job(tmp_path, stack=given).stack
    assert stack.has("megatron-core", ">=0.18")
    assert stack.has("transformer-engine", ">=2.6")
    assert not stack.has("deepspeed")
    assert stack.versions["torch"] == installed_stack().versions["torch"]
    assert job(tmp_path).stack == installed_stack()


@pytest.mark.parametrize(
    ("stack", "words"),
    [
        ({"torch": "new"}, ["stack.torch", "'new'"]),
        ({"torch": 2.9}, ["stack.torch", "quotes", '"2.9"']),
        ({"torch": None}, ["stack.torch", "none"]),
        ({"pytorch": "2.9"}, ["stack.pytorch", "torch"]),
        ({"flash-attn": "2", "flash_attn": "2"}, ["stack", "once"]),
        ([], ["stack", "section"]),
    ],
)
def test_what_is_no_stack_is_refused(tmp_path: Path, stack: Any, words: list[str]) -> None:
    said = complaint(tmp_path, stack=stack)
    for word in words:
        assert word in said


def devices(*products: str) -> tuple[NvidiaDevice, ...]:
    return tuple(
        NvidiaDevice(
            index=index,
            uuid=f"GPU-{index}{index}{index}{index}-0",
            product=product,
            memory_bytes=81559 * 1024**2,
            free_bytes=81559 * 1024**2,
            split=False,
            processes=(),
        )
        for index, product in enumerate(products)
    )


FOUR = devices(*["NVIDIA H100 80GB HBM3"] * 4)


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        ("0,1,2,3", [0, 1, 2, 3]),
        ("2", [2]),
        ("3, 1", [3, 1]),
        ("GPU-1111,GPU-2222-0", [1, 2]),
        ("", []),
        ("NoDevFiles", []),
        ("-1", []),
        ("1,-1,2", [1]),
    ],
)
def test_cuda_visible_devices_chooses_as_cuda_does(visible: str, indices: list[int]) -> None:
    assert [device.index for device in visible_devices(FOUR, visible)] == indices


@pytest.mark.parametrize(
    ("visible", "word"),
    [
        ("4", "'4'"),
        ("0,x", "'x'"),
        ("GPU-9", "'GPU-9'"),
        ("GPU-", "'GPU-'"),
        ("0,0", "once"),
        ("MIG-1/2", "whole"),
        ("0,,1", "''"),
    ],
)
def test_what_cuda_visible_devices_cannot_mean_is_refused(visible: str, word: str) -> None:
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES must name") as refused:
        visible_devices(FOUR, visible)
    assert word in str(refused.value)


def test_a_divided_gpu_is_refused_unless_it_is_left_out() -> None:
    divided = (replace(FOUR[0], split=True), *FOUR[1:])
    with pytest.raises(UserError, match=r"GPU 0 .* must be whole"):
        visible_devices(divided, "0,1")
    assert len(visible_devices(divided, "1,2")) == 2


def test_numbers_of_unlike_gpus_need_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    unlike = devices("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    with pytest.raises(UserError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        visible_devices(unlike, "0")
    assert len(visible_devices(unlike, "GPU-0000")) == 1
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert len(visible_devices(unlike, "0")) == 1


def node(host: str, num_gpus: int, product: str = "NVIDIA H100 80GB HBM3") -> RayNode:
    return RayNode(
        host=host,
        num_gpus=num_gpus,
        num_cpus=4,
        memory_bytes=10 * 1024**3,
        products=((product, 81559 * 1024**2),) * num_gpus,
        split=False,
    )


def test_a_ray_is_its_equal_nodes_with_gpus() -> None:
    got = cluster_of_nodes((node("head", 0), node("a", 8), node("b", 8)))
    assert (got.gpu.name, got.num_nodes, got.gpus_per_node) == (H100, 2, 8)


def test_a_ray_without_gpus_is_cpu_ranks() -> None:
    got = cluster_of_nodes((node("a", 0), node("b", 0)))
    assert (got.gpu.name, got.num_nodes, got.gpus_per_node) == ("cpu", 2, 4)
    assert got.gpu.memory_bytes == 2 * 1024**3


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ((node("a", 8), node("b", 8), node("c", 4)), ["a (8), b (8), c (4)", "num_nodes: 2"]),
        ((node("a", 8), node("b", 8, "NVIDIA A100-SXM4-80GB")), ["b has 8 x NVIDIA A100"]),
        ((replace(node("a", 8), split=True),), ["a has", "MIG"]),
        ((replace(node("a", 8), products=()),), ["a has 8 in Ray and 0 in the driver"]),
        ((node("a", 8, "NVIDIA X1000"),), ["8 x NVIDIA X1000 (79.65 GiB)", "not known"]),
    ],
)
def test_a_ray_that_is_no_cluster_is_refused(nodes: tuple[RayNode, ...], words: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        cluster_of_nodes(nodes)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_without_a_ray_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT of a running Ray") as refused:
        found_cluster(address)
    assert address in str(refused.value)


@pytest.fixture(scope="module")
def running_ray() -> Iterator[str]:
    import ray

    context = ray.init(address="local", num_cpus=3, num_gpus=0, include_dashboard=False)
    yield context.address_info["gcs_address"]
    ray.shutdown()


@pytest.mark.ray
def test_a_running_ray_says_what_its_nodes_are(running_ray: str) -> None:
    (found,) = ray_nodes(running_ray)
    assert (found.num_cpus, found.num_gpus) == (3, 0)
    assert found.memory_bytes > 0
    assert found_cluster(running_ray).gpus_per_node == 3


def preset_table() -> str:
    """The table of the documentation, as the presets have it."""
    lines = [
        "| name | memory, GiB | memory, TB/s | link, GB/s | host, GB/s | fp32 | fp16 | bf16 | fp8 "
        "| CUDA | source |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    for gpu in GPUS:
        rates = [
            f"{gpu.flops_per_s[name] / 1e12:.4g}" if name in gpu.flops_per_s else "-"
            for name in ("fp32", "fp16", "bf16", "fp8")
        ]
        major, minor = gpu.compute_capability
        cells = [
            f"`{gpu.name}`",
            f"{gpu.memory_bytes / 1024**3:.2f}",
            f"{gpu.memory_bytes_per_s / 1e12:.4g}",
            f"{gpu.link_bytes_per_s / 1e9:.4g}",
            f"{gpu.pcie_bytes_per_s / 1e9:.4g}",
            *rates,
            f"{major}.{minor}" if major else "-",
            gpu.source,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_table_of_the_documentation_is_that_of_the_presets() -> None:
    docs = Path(__file__).parents[2] / "docs/clusters.md"
    assert preset_table() in docs.read_text(), f"the table is now:\n{preset_table()}"


@pytest.mark.parametrize("number", range(3))
def test_the_clusters_of_the_documentation_are_clusters(tmp_path: Path, number: int) -> None:
    docs = Path(__file__).parents[2] / "docs/clusters.md"
    examples = docs.read_text().split("```yaml\n")[1:]
    assert len(examples) == 4  # the fourth is the stack
    section = yaml.safe_load(examples[number].partition("```")[0])
    assert cluster(tmp_path, section["cluster"]).num_gpus > 0
