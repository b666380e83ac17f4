"""What torch's CUDA allocator was told, read back from it."""

from __future__ import annotations

import torch


def allocator_settings(device: torch.device) -> dict[str, bool | int]:
    """As the settings' values; CPU ranks have no such allocator."""
    if device.type != "cuda":
        return {}
    told = torch.cuda.memory._snapshot()["allocator_settings"]
    return {"expandable_segments": bool(told["expandable_segments"])}
