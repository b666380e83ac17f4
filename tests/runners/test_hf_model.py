"""The model to train: its weights by name, its buffers, and models of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.runners.bench_ranks import trained
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.launch import Measurement
from tuner.plan import Backend, ParallelPlan, Precision, Recompute
from tuner.workload import FactoryModel, Workload

torch = pytest.importorskip("torch")


def folder_of(workload: Workload, path: Path) -> Any:
    from runners.backends.pytorch_native import pytorch_launch
    from runners.bench.launch_folder import LaunchFolder
    from tuner.launch_files import write_launch_files

    plan = ParallelPlan(backend=Backend.PYTORCH)
    write_launch_files(pytorch_launch(plan, workload, cpu_cluster(1), Measurement()), path)
    return LaunchFolder.read(path)


def test_weights_are_those_of_their_names(tmp_path: Path) -> None:
    from runners.bench.hf_model import built_model
    from runners.bench.weights import initial_weight

    model = built_model(folder_of(tiny_workload(), tmp_path), torch.device("cpu"))
    for name, parameter in model.named_parameters():
        expected = initial_weight(name, parameter.shape, seed=0, device=torch.device("cpu"))
        assert torch.equal(parameter, expected), name
    assert not any(buffer.is_meta for buffer in model.buffers())


def test_tied_embeddings_stay_tied(tmp_path: Path) -> None:
    from runners.bench.hf_model import built_model

    folder = folder_of(tiny_workload(tie_word_embeddings=True), tmp_path)
    model: Any = built_model(folder, torch.device("cpu"))
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_model_on_meta_holds_no_parameter_bytes(tmp_path: Path) -> None:
    from runners.bench.hf_model import decoder_layers, model_on_meta

    model = model_on_meta(folder_of(tiny_workload(), tmp_path))
    assert all(parameter.is_meta for parameter in model.parameters())
    assert list(decoder_layers(model)) == [f"model.layers.{index}" for index in range(4)]


@pytest.mark.parametrize("factory", ["nowhere.to.be:found", "tests.runners.own_model:missing"])
def test_a_factory_that_cannot_be_imported_is_named(factory: str, tmp_path: Path) -> None:
    from runners.bench.hf_model import model_on_meta

    model = FactoryModel(factory=factory, vocab=64)
    folder = folder_of(Workload(model=model, seq_len=8, global_batch_sequences=8), tmp_path)
    with pytest.raises(ValueError, match=f"can be imported, got {factory}"):
        model_on_meta(folder)


@pytest.mark.ranks
def test_a_model_of_the_users_own_is_sharded_and_recomputed(tmp_path: Path) -> None:
    workload = Workload(
        model=FactoryModel(factory="tests.runners.own_model:make", vocab=64),
        seq_len=16,
        global_batch_sequences=8,
        learning_rate=1e-2,
    )
    plans = (
        (1, ParallelPlan(backend=Backend.PYTORCH, micro_batch=8, precision=Precision.FP32)),
        (
            2,
            ParallelPlan(
                backend=Backend.PYTORCH,
                zero_stage=3,
                precision=Precision.FP32,
                recompute=Recompute.SELECTIVE,
            ),
        ),
    )
    one, sharded = (
        trained(plan, tmp_path / str(num_ranks), num_ranks=num_ranks, workload=workload)[0]
        for num_ranks, plan in plans
    )
    assert sharded["losses"] == pytest.approx(one["losses"], rel=1e-4)
    assert one["losses"][2] < one["losses"][0]
