"""Which layers stages hold, and pipelines that are deeper than there is work."""

from __future__ import annotations

from dataclasses import replace

from tests.tuner.cost_model.a_model import llama_7b, megatron, subject
from tuner.cost_model.case import case_of
from tuner.cost_model.software import Software
from tuner.cost_model.stages import has_work_for_all
from tuner.plan_arrays import PlanArrays


def layers_of(depth: int, software: Software, vocab: int = 32000) -> list[float]:
    shape = replace(llama_7b(), vocab=vocab)
    case = case_of(
        replace(subject(software=software), shape=shape),
        PlanArrays.of_plans([megatron(pp=depth)]),
    )
    return [float(count) for count in case.table.layers[depth, :depth]]


def test_stages_get_equal_layers_unless_the_program_weighs_them() -> None:
    assert layers_of(4, Software()) == [8, 8, 8, 8]


def test_a_weighed_pipeline_spares_the_stage_of_a_large_output_layer() -> None:
    counts = layers_of(8, Software(layers_weighed=True), vocab=131072)
    assert sum(counts) == 32
    assert counts[-1] < counts[0]


def test_a_pipeline_deeper_than_its_layers_has_stages_without_work() -> None:
    assert has_work_for_all(llama_7b(), Software(), 32)
    assert not has_work_for_all(llama_7b(), Software(), 64)


def test_a_heavy_output_layer_leaves_weighed_stages_empty_sooner() -> None:
    heavy = replace(llama_7b(), num_layers=16, vocab=600_000)
    heavy = replace(heavy, params=replace(heavy.params, layers=heavy.params.layers[:16]))
    assert not has_work_for_all(heavy, Software(layers_weighed=True), 16)
    assert has_work_for_all(heavy, Software(), 16)
