"""What a forked test rank runs to count the tokens that reach each of its experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.runners.forked_rank import run_forked_rank


def run_counting_rank(
    launch: Path, folder: Path, rank: int, env: dict[str, str], mistake: str = ""
) -> None:
    """The bench; its report has, besides, tokens by expert and the norm of each router's gradient.

    Tokens are in the order in which layers got them.
    """
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    from runners.bench.megatron_training import MegatronTraining

    received: list[list[int]] = []
    arrived = MoEAlltoAllTokenDispatcher.dispatch_postprocess

    def counted(dispatcher: Any, *args: Any, **kwargs: Any) -> Any:
        result = arrived(dispatcher, *args, **kwargs)
        received.append(result[1].tolist())
        return result

    effective = MegatronTraining.effective

    def with_counts(training: MegatronTraining) -> dict[str, Any]:
        gradients = [
            float(parameter.main_grad.norm())
            for chunk in training._chunks
            for name, parameter in chunk.named_parameters()
            if name.endswith("router.weight")
        ]
        return effective(training) | {"received": received, "router_gradients": gradients}

    MoEAlltoAllTokenDispatcher.dispatch_postprocess = counted
    MegatronTraining.effective = with_counts  # type: ignore[assignment,method-assign]
    run_forked_rank(launch, folder, rank, env, mistake)
