"""Imports one framework and prints what only it can tell of itself; run as a module."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from typing import Any


def main() -> int:
    """Prints one JSON document as the last line; a failed import ends with its traceback."""
    start = time.monotonic()
    facts = {"torch": _torch, "deepspeed": _deepspeed, "megatron-core": _megatron}[sys.argv[1]]()
    sys.stdout.write(f"\n{json.dumps({**facts, 'import_s': time.monotonic() - start})}\n")
    return 0


def _torch() -> dict[str, Any]:
    import torch

    available = torch.cuda.is_available()
    return {
        "cuda": torch.version.cuda or "",
        "hip": torch.version.hip or "",
        "cuda_available": available,
        "num_gpus": torch.cuda.device_count() if available else 0,
        "capabilities": [
            list(torch.cuda.get_device_capability(index))
            for index in range(torch.cuda.device_count() if available else 0)
        ],
        "architectures": torch.cuda.get_arch_list() if available else [],
        "nccl": ".".join(str(part) for part in _nccl_version(torch)) if available else "",
        "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available(),
    }


def _nccl_version(torch: Any) -> tuple[int, ...]:
    try:
        return tuple(torch.cuda.nccl.version())
    except (AttributeError, RuntimeError):  # built without it
        return ()


def _deepspeed() -> dict[str, Any]:
    import deepspeed  # noqa: F401  # whether it imports is the question
    from deepspeed.ops.op_builder import CPUAdamBuilder

    return {"cpu_adam": bool(CPUAdamBuilder().is_compatible(verbose=False))}


def _megatron() -> dict[str, Any]:
    import megatron.core.models.gpt.gpt_model  # noqa: F401  # whether it imports is the question

    return {
        "gradient_fusion": importlib.util.find_spec("fused_weight_gradient_mlp_cuda") is not None,
        "grouped_gemm": importlib.util.find_spec("grouped_gemm") is not None,
    }


if __name__ == "__main__":
    sys.exit(main())
