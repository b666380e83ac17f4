"""What a forked test rank runs in place of Transformer Engine's attention over a split sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.runners.forked_rank import run_forked_rank


def run_context_parallel_rank(
    launch: Path, folder: Path, rank: int, env: dict[str, str], mistake: str = ""
) -> None:
    """The bench, its layers' attention replaced by one that gathers all keys and values.

    Its report has the norm of this rank's gradients besides: Adam would not mind their scale.
    """
    from runners.bench import megatron_model
    from runners.bench.megatron_training import MegatronTraining

    layers = megatron_model._layer_spec

    def with_stand_in(*args: Any) -> Any:
        block = layers(*args)
        for layer in block.layer_specs:
            layer.submodules.self_attention.submodules.core_attention = _attention()
        return block

    effective = MegatronTraining.effective

    def with_gradients(training: MegatronTraining) -> dict[str, Any]:
        parameters = [p for chunk in training._chunks for p in chunk.parameters()]
        squares = sum(float(p.main_grad.square().sum()) for p in parameters)
        return effective(training) | {"gradient_norm": squares**0.5}

    megatron_model._layer_spec = with_stand_in  # type: ignore[assignment]
    MegatronTraining.effective = with_gradients  # type: ignore[assignment,method-assign]
    run_forked_rank(launch, folder, rank, env, mistake)


def _attention() -> Any:
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state
    from torch.nn import functional

    class Gathered(torch.autograd.Function):
        """All ranks' parts, one after another; torch's own of gloo takes the wrong ranks."""

        @staticmethod
        def forward(ctx: Any, part: torch.Tensor, group: Any) -> torch.Tensor:
            ctx.group = group
            parts = [torch.empty_like(part).contiguous() for _ in range(group.size())]
            dist.all_gather(parts, part.contiguous(), group=group)
            return torch.cat(parts)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            whole = gradient.contiguous()
            dist.all_reduce(whole, group=ctx.group)
            return whole.chunk(ctx.group.size())[ctx.group.rank()], None

    class GatheringAttention(torch.nn.Module):
        """Causal, in the order of pieces that Megatron gives the ranks: early and late ones."""

        def __init__(self, *_args: Any, **_options: Any) -> None:
            super().__init__()
            self._group = parallel_state.get_context_parallel_group()

        def forward(
            self, query: Any, key: Any, value: Any, *_masks: Any, **_options: Any
        ) -> torch.Tensor:
            """Of shape (length, batch, heads, size) each; the result has heads and size in one."""
            num_ranks, length = self._group.size(), query.shape[0]
            key, value = (
                self._gathered(part).repeat_interleave(query.shape[2] // part.shape[2], dim=2)
                for part in (key, value)
            )
            at = [self._positions(rank, num_ranks, length) for rank in range(num_ranks)]
            sees = at[self._group.rank()][:, None] >= torch.cat(at)[None, :]
            query, key, value = (part.permute(1, 2, 0, 3) for part in (query, key, value))
            mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=sees)
            return mixed.permute(2, 0, 1, 3).flatten(2).contiguous()

        def _gathered(self, part: torch.Tensor) -> torch.Tensor:
            gathered: torch.Tensor = Gathered.apply(part, self._group)  # type: ignore[no-untyped-call]
            return gathered

        @staticmethod
        def _positions(rank: int, num_ranks: int, length: int) -> torch.Tensor:
            piece = torch.arange(length // 2)
            late = 2 * num_ranks - 1 - rank
            return torch.cat([piece + rank * len(piece), piece + late * len(piece)])

    return GatheringAttention
