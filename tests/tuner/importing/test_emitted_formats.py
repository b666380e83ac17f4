"""What ``paratune emit`` writes for other tools is read as the plan that it was written for."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from reports.emit.formats import Format, emitted
from reports.emit.subject import Subject
from tests.reports.emit.legal_plans import drawn, setting
from tests.tiny_job import cpu_cluster
from tuner.cluster import Cluster
from tuner.errors import UserError
from tuner.importing.formats import imported_plan
from tuner.plan import ParallelPlan

READABLE = {
    Format.DEEPSPEED: ("ds_config.json", None, ("deepspeed",)),
    Format.HF_DEEPSPEED: ("ds_config.json", "training_arguments.json", ("deepspeed",)),
    Format.ACCELERATE: (
        "accelerate.yaml",
        "training_arguments.json",
        ("pytorch", "deepspeed", "megatron"),
    ),
    Format.MEGATRON: ("megatron.args", None, ("megatron",)),
    Format.TORCHTITAN: ("torchtitan.toml", None, ("pytorch",)),
}
MODELS = {"llama": "llama-3-8b", "mixtral": "mixtral-8x7b", "gpt2": "gpt2"}
PLANS = 20
GPU = setting("llama-3-8b", "one node").cluster.gpu


def written(subject: Subject, form: Format, folder: Path) -> bool:
    """Whether the format has words for the plan; then its files are in the folder."""
    try:
        files = emitted(subject, form)
    except UserError:
        return False
    folder.mkdir()
    for one in files:
        (folder / one.name).write_text(one.text)
    return True


def read_back(subject: Subject, form: Format, folder: Path) -> ParallelPlan:
    file, arguments, _ = READABLE[form]
    spec = subject.spec
    on_gpus = Cluster(gpu=GPU, num_nodes=spec.num_nodes, gpus_per_node=spec.ranks_per_node)
    return imported_plan(
        folder / file,
        cluster=cpu_cluster(spec.num_ranks) if subject.on_cpu else on_gpus,
        workload=setting(MODELS[subject.model["model_type"]], "one node").workload,
        arguments=folder / arguments if arguments else None,
    ).plan


@pytest.mark.parametrize("form", READABLE)
def test_an_emitted_file_reads_as_the_plan_it_was_written_for(form: Format, tmp_path: Path) -> None:
    num_read = 0
    for number, subject in enumerate(islice(drawn(READABLE[form][2], 1), 20 * PLANS)):
        folder = tmp_path / str(number)
        if not written(subject, form, folder):
            continue
        assert read_back(subject, form, folder) == subject.plan
        num_read += 1
        if num_read == PLANS:
            break
    assert num_read == PLANS
