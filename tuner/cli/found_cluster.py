"""``cluster: auto``: the GPUs of a running Ray, or of this machine, else its CPU cores."""

from __future__ import annotations

from runners.nvidia_devices import nvidia_driver, visible_devices
from runners.ray_cluster import RayNode, ray_nodes
from tuner.cluster import Cluster, Gpu
from tuner.errors import UserError
from tuner.job_cluster import DOCS, cpu_cluster_of_this_machine
from tuner.presets import cpu_rank, gpu_of_device
from tuner.units import size_text

_DESCRIBE = "or describe the cluster in the job file"


def found_cluster(ray_address: str | None = None) -> Cluster:
    """The nodes of the Ray at the address; without one, this machine as one node.

    Raises:
        UserError: no Ray answers, or the nodes or GPUs differ, or the GPU is not known here.
    """
    if ray_address is not None:
        return cluster_of_nodes(ray_nodes(ray_address))
    driver = nvidia_driver()
    devices = visible_devices(driver.devices) if driver is not None else ()
    if not devices:
        return cpu_cluster_of_this_machine()
    products = [(device.product, device.memory_bytes) for device in devices]
    if len(set(products)) > 1:
        raise UserError(
            f"cluster: auto needs equal GPUs, but this machine has {_kinds(products)}; make one "
            f"kind visible with CUDA_VISIBLE_DEVICES, {_DESCRIBE}"
        )
    return Cluster(gpu=_known(products), gpus_per_node=len(products))


def cluster_of_nodes(nodes: tuple[RayNode, ...]) -> Cluster:
    """The nodes with GPUs, or all of them as CPU ranks where none has any.

    Raises:
        UserError: their counts or GPUs differ, or a GPU is divided or not known here.
    """
    with_gpus = tuple(node for node in nodes if node.num_gpus)
    if not with_gpus:
        return _cpu_nodes(nodes)
    for node in with_gpus:
        if node.split:
            raise UserError(
                f"cluster: auto needs whole GPUs, but {node.host} has some that are divided into "
                "MIG instances; take the node out of Ray, or have MIG switched off there"
            )
        if len(node.products) < node.num_gpus:
            raise UserError(
                f"cluster: auto needs NVIDIA's driver to show the GPUs, but {node.host} has "
                f"{node.num_gpus} in Ray and {len(node.products)} in the driver; {_DESCRIBE[3:]}"
            )
    _refuse_uneven(with_gpus, [node.num_gpus for node in with_gpus], "GPUs")
    products = [product for node in with_gpus for product in node.products]
    if len(set(products)) > 1:
        each = "; ".join(f"{node.host} has {_kinds(list(node.products))}" for node in with_gpus)
        raise UserError(
            f"cluster: auto needs equal GPUs, but {each}; start Ray on nodes of one kind, "
            f"{_DESCRIBE}"
        )
    return Cluster(
        gpu=_known(products[: with_gpus[0].num_gpus]),
        num_nodes=len(with_gpus),
        gpus_per_node=with_gpus[0].num_gpus,
    )


def _cpu_nodes(nodes: tuple[RayNode, ...]) -> Cluster:
    _refuse_uneven(nodes, [node.num_cpus for node in nodes], "CPUs")
    ranks = max(1, nodes[0].num_cpus)
    memory_bytes = min(node.memory_bytes for node in nodes)
    share_bytes = int(memory_bytes * 0.8 / ranks)  # as on one machine: the rest is the system's
    return Cluster(gpu=cpu_rank(share_bytes), num_nodes=len(nodes), gpus_per_node=ranks)


def _refuse_uneven(nodes: tuple[RayNode, ...], numbers: list[int], what: str) -> None:
    if len(set(numbers)) < 2:
        return
    each = ", ".join(f"{node.host} ({number})" for node, number in zip(nodes, numbers, strict=True))
    most = max(set(numbers), key=numbers.count)
    raise UserError(
        f"cluster: auto needs nodes with equal {what}, but this Ray has {each}; describe the equal "
        f"ones in the job file: num_nodes: {numbers.count(most)}, gpus_per_node: {most}"
    )


def _kinds(products: list[tuple[str, int]]) -> str:
    """``4 x NVIDIA L4 (22.49 GiB) and 4 x ...``."""
    return " and ".join(
        f"{products.count(kind)} x {kind[0]} ({size_text(kind[1])})"
        for kind in dict.fromkeys(products)
    )


def _known(products: list[tuple[str, int]]) -> Gpu:
    gpu = gpu_of_device(*products[0])
    if gpu is None:
        raise UserError(
            f"cluster: auto found {_kinds(products)}, which is not known here; describe the "
            f"cluster in the job file with the GPU's numbers, see {DOCS}"
        )
    return gpu
