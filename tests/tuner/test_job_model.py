"""``workload.model`` may be a file, a preset, a script, arguments, sizes or a factory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tiny_job import LLAMA_CONFIG, cpu_cluster
from tuner.errors import UserError
from tuner.hf_config import model_shape
from tuner.job import read_job
from tuner.job_model import job_model, sized_model
from tuner.model_shape import ModelShape
from tuner.workload import FactoryModel, HfModel

SIZES: dict[str, Any] = {
    "hidden": 4096,
    "layers": 32,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 14336,
    "vocab": 128256,
}
ARGUMENTS = """--num-layers 4 --hidden-size 64 --num-attention-heads 4 --group-query-attention
--num-query-groups 2 --ffn-hidden-size 128 --vocab-size 512 --max-position-embeddings 128
--swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope
--untie-embeddings-and-output-weights"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    (tmp_path / "train.sh").write_text(f"ARGS=({ARGUMENTS})\ntorchrun pretrain_gpt.py $ARGS\n")
    (tmp_path / "launch").write_text(ARGUMENTS)
    return tmp_path / "job.yaml"


def shape_of(model: str | dict[str, Any], job: Path) -> ModelShape:
    found = job_model(model, path=job)
    assert isinstance(found, HfModel)
    assert model_shape(json.loads(found.config_text)) == found.shape
    return found.shape


@pytest.mark.parametrize("model", ["config.json", ".", "train.sh", "launch", ARGUMENTS])
def test_the_same_model_is_read_from_whatever_describes_it(job: Path, model: str) -> None:
    assert shape_of(model, job) == model_shape(LLAMA_CONFIG)


def test_sizes_are_a_llama(job: Path) -> None:
    shape = shape_of(SIZES, job)
    assert shape.family == "llama"
    assert shape.num_params == 8_030_261_248  # Llama 3 8B, of which these are the sizes


def test_sizes_with_experts_are_a_mixtral(job: Path) -> None:
    experts = {"experts": 8, "experts_per_token": 2, "vocab": 32000}
    shape = shape_of(SIZES | experts, job)
    assert shape.family == "mixtral"
    assert shape.num_params == 46_702_792_704  # Mixtral 8x7B


def test_left_out_sizes_are_those_of_a_plain_llama(job: Path) -> None:
    least = {"hidden": 4096, "layers": 32, "heads": 32, "vocab": 32000}
    assert shape_of(least, job).num_params == 6_738_415_616  # Llama 7B


def test_values_of_a_config_may_stand_in_the_job_itself(job: Path) -> None:
    assert shape_of(LLAMA_CONFIG, job) == model_shape(LLAMA_CONFIG)


def test_a_preset_is_a_model(job: Path) -> None:
    assert shape_of("gpt2", job).num_params == 124_439_808


def test_a_factory_stays_a_factory(job: Path) -> None:
    found = job_model("pkg.models:make", path=job, vocab_size=9)
    assert found == FactoryModel(factory="pkg.models:make", vocab=9)


MISTAKES: list[tuple[Any, list[str]]] = [
    ({"hiden": 3} | SIZES, ["workload.model.hiden", "did you mean hidden?"]),
    ({"hidden": 64, "layers": 2, "heads": 4}, ["workload.model.vocab", "missing"]),
    (SIZES | {"layers": "many"}, ["workload.model.layers", "whole number", "'many'"]),
    (SIZES | {"layers": 0}, ["workload.model.layers", "at least 1", "0"]),
    (SIZES | {"layers": True}, ["workload.model.layers", "True"]),
    (SIZES | {"heads": 33}, ["33", "4096"]),
    (SIZES | {"kv_heads": 5}, ["5", "32"]),
    (SIZES | {"experts": 8}, ["experts_per_token"]),
    (SIZES | {"experts": 2, "experts_per_token": 3}, ["at most experts (2)", "3"]),
    (SIZES | {"tied_embeddings": "yes"}, ["tied_embeddings", "'yes'"]),
    ("llama-3-9b", ["'llama-3-9b'", "llama-3-8b"]),
    ("nowhere/config.json", ["nowhere/config.json", "No such file"]),
    ("nowhere.sh", ["nowhere.sh", "No such file"]),
    ("empty.sh", ["empty.sh", "--hidden-size", "missing"]),
]


@pytest.mark.parametrize(("model", "words"), MISTAKES, ids=[str(m[1]) for m in MISTAKES])
def test_a_mistake_is_one_sentence_with_its_key(job: Path, model: Any, words: list[str]) -> None:
    (job.parent / "empty.sh").write_text("echo nothing\n")
    with pytest.raises(UserError) as caught:
        job_model(model, path=job)
    said = str(caught.value)
    assert said.startswith(f"{job}: workload.model")
    assert "\n" not in said
    for word in words:
        assert word in said, said


def test_sizes_say_where_they_stand() -> None:
    with pytest.raises(UserError, match=r"^here\.vocab is missing"):
        sized_model({"hidden": 8, "layers": 1, "heads": 1}, named="here")


def read(job: Path, model: Any, seq_len: int) -> HfModel:
    workload = {"model": model, "seq_len": seq_len, "global_batch": 8}
    job.write_text(yaml.safe_dump({"workload": workload, "cluster": "auto"}))
    found = read_job(job, lambda: cpu_cluster(2)).workload.model
    assert isinstance(found, HfModel)
    return found


def test_a_job_file_takes_a_mapping(job: Path) -> None:
    assert read(job, SIZES, 8192).shape.hidden == 4096


def test_a_model_without_a_longest_sequence_takes_any(job: Path) -> None:
    assert read(job, "bloom-560m", 100_000).shape.max_positions == 0


def test_a_model_that_is_no_word_is_refused_once(job: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(job, [1], 8)
    assert "workload.model" in str(caught.value)
    assert "\n" not in str(caught.value)
