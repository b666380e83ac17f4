"""Every legal plan can be described as a launch: a study never meets one that cannot."""

from __future__ import annotations

import dataclasses

import pytest

from runners.backends.launch import launch_for
from search_spaces.enumeration import search_space
from tests.tiny_job import cpu_cluster, setting, tiny_workload
from tuner.cluster import Cluster
from tuner.launch import TRAINING_FILE, Measurement
from tuner.presets import gpu_named
from tuner.workload import FactoryModel, HfModel, Workload

H100 = gpu_named("h100-sxm-80gb")
assert H100 is not None
CLUSTERS = {
    "4 CPU ranks": cpu_cluster(4),
    "one H100": Cluster(gpu=H100),
    "2 x 4 H100": Cluster(gpu=H100, num_nodes=2, gpus_per_node=4),
}


def family(name: str) -> Workload:
    tiny = tiny_workload()
    assert isinstance(tiny.model, HfModel)
    text = tiny.model.config_text.replace('"llama"', f'"{name}"')
    shape = dataclasses.replace(tiny.model.shape, family=name)
    return dataclasses.replace(
        tiny, model=dataclasses.replace(tiny.model, config_text=text, shape=shape)
    )


WORKLOADS = {
    "llama": tiny_workload(),
    "tied llama": tiny_workload(tie_word_embeddings=True),
    "qwen2": family("qwen2"),
    "mistral": family("mistral"),
    "own module": Workload(
        model=FactoryModel(factory="pkg:make", vocab=64), seq_len=16, global_batch_sequences=8
    ),
}


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_legal_plan_has_a_launch(workload: str, cluster: str) -> None:
    space = search_space(setting(WORKLOADS[workload], CLUSTERS[cluster]), {})
    assert space.plans
    for plan in space.plans:
        spec = launch_for(plan, WORKLOADS[workload], CLUSTERS[cluster], Measurement())
        assert spec.num_ranks == CLUSTERS[cluster].num_gpus
        assert TRAINING_FILE in {file.name for file in spec.files}
