"""What torch itself demands, and our layout keeps to by the way it is built: seen to hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.frameworks.fake_torch_ranks import fake_ranks


@pytest.fixture(autouse=True)
def eight_ranks() -> Iterator[None]:
    with fake_ranks(8):
        yield


def mesh(*sizes: int) -> DeviceMesh:
    names = ("a", "b", "c")[: len(sizes)]
    return init_device_mesh("cpu", sizes, mesh_dim_names=names)


def resharding(model: Any) -> set[bool]:
    groups = model._get_fsdp_state()._fsdp_param_groups
    return {group._reshard_after_forward for group in groups}


def test_f2_01_fsdp_takes_a_mesh_of_one_or_two_axes() -> None:
    fully_shard(nn.Linear(8, 8), mesh=mesh(8))
    fully_shard(nn.Linear(8, 8), mesh=mesh(2, 4))
    with pytest.raises(ValueError, match="1D or 2D"):
        fully_shard(nn.Linear(8, 8), mesh=mesh(2, 2, 2))


def test_f2_02_resharding_to_one_rank_or_to_all_is_rewritten() -> None:
    for asked, got in ((1, False), (8, True), (True, True), (False, False)):
        model = nn.Linear(8, 8)
        fully_shard(model, mesh=mesh(8), reshard_after_forward=asked)
        assert resharding(model) == {got}
    with pytest.raises(ValueError, match="factor"):
        fully_shard(nn.Linear(8, 8), mesh=mesh(8), reshard_after_forward=3)


def test_f2_03_a_bare_list_and_a_scalar_are_not_sharded() -> None:
    with pytest.raises(ValueError, match="ModuleList"):
        fully_shard(nn.ModuleList([nn.Linear(8, 8)]), mesh=mesh(8))
    scalar = nn.Module()
    scalar.scale = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(ValueError, match="scalar"):
        fully_shard(scalar, mesh=mesh(8))


def test_f2_04_a_group_has_one_type_and_whole_parameters() -> None:
    mixed = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).bfloat16())
    fully_shard(mixed, mesh=mesh(8))
    with pytest.raises(AssertionError, match="uniform"):
        mixed(torch.zeros(1, 8))
    turned = nn.Module()
    turned.weight = nn.Parameter(torch.zeros(8, 4).t())
    with pytest.raises(NotImplementedError, match="contiguous"):
        fully_shard(turned, mesh=mesh(8))


def test_f2_05_parameters_are_filled_before_the_first_step() -> None:
    model = nn.Linear(8, 8, device="meta")
    fully_shard(model, mesh=mesh(8))
    with pytest.raises(RuntimeError, match="meta"):
        model(torch.zeros(1, 8))


def test_pt_05_ddp_wants_something_to_train() -> None:
    frozen = nn.Linear(8, 8).requires_grad_(False)
    with pytest.raises(RuntimeError, match="any parameter that requires a gradient"):
        DistributedDataParallel(frozen)


def test_pt_06_the_mesh_has_all_ranks() -> None:
    with pytest.raises(RuntimeError, match="Mesh should not be bigger"):
        mesh(4, 4)
    assert dist.get_world_size() == 8
