"""With ``measure.routing: worst`` the rank that holds the first experts gets every token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from runners.bench.megatron_routing import with_lead_of_first
from tests.runners.bench_ranks import trained
from tests.runners.megatron_models import family_workload
from tests.runners.routed_rank import run_counting_rank
from tuner.launch import Measurement, Routing
from tuner.plan import ParallelPlan


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 1000.0])
def test_the_first_experts_lead_whatever_the_logits(dtype: torch.dtype, scale: float) -> None:
    drawn = torch.randn(200, 8, generator=torch.Generator().manual_seed(1))
    logits = (scale * (drawn - 3)).to(dtype).requires_grad_()
    changed = with_lead_of_first(logits, 2)
    assert changed.dtype == dtype
    assert set(changed.topk(2).indices.flatten().tolist()) == {0, 1}
    changed.sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert bool((logits.grad == 1).all())


def _reports(routing: Routing, folder: Path) -> list[dict[str, Any]]:
    plan = ParallelPlan.from_dict(
        {"backend": "megatron", "precision": "fp32", "ep": 2, "micro_batch": 4}
    )
    return trained(
        plan,
        folder / routing,
        num_ranks=2,
        workload=family_workload("mixtral"),
        measurement=Measurement(warmup_steps=1, steps=2, routing=routing),
        rank_program=run_counting_rank,
    )


@pytest.mark.ranks
def test_the_rank_of_the_first_experts_gets_every_token(tmp_path: Path) -> None:
    learned = _reports("learned", tmp_path)
    worst = _reports("worst", tmp_path)
    num_tokens = 2 * 4 * 32  # of both ranks; each goes to 2 of the 4 experts
    counts = {
        name: [report["effective"]["received"] for report in reports]
        for name, reports in (("learned", learned), ("worst", worst))
    }
    assert len(counts["worst"][0]) == len(counts["learned"][0]) == 3 * 4  # steps, layers
    for one, other in zip(*counts["learned"], strict=True):
        assert sum(one) + sum(other) == 2 * num_tokens
        assert sum(one) < 2 * num_tokens
    assert counts["worst"][0] == [[num_tokens, num_tokens]] * 12
    assert counts["worst"][1] == [[0, 0]] * 12
    assert all(norm > 0 for report in worst for norm in report["effective"]["router_gradients"])
    losses = worst[0]["losses"]
    assert losses[2] < losses[0] - 0.05
