"""What a forked test rank runs to write down its gradients of one global batch."""

from __future__ import annotations

import json
import os
from pathlib import Path


def write_gradient_norms(launch: Path, folder: Path, rank: int, env: dict[str, str]) -> None:
    """``gradients-N.json``: the norm of each whole gradient that this rank has a part of."""
    os.environ.update(env)
    import torch
    from torch.distributed.tensor import DTensor

    from runners.bench.launch_folder import LaunchFolder
    from runners.bench.pytorch_training import pytorch_layout, pytorch_training
    from runners.bench.ranks import RankPlace, rank_device, start_process_group

    torch.set_num_threads(1)
    place = RankPlace.from_environment()
    device = rank_device(place)
    start_process_group(place, device)
    files = LaunchFolder.read(launch)
    training = pytorch_training(files, pytorch_layout(files, device))
    training._accumulate(0)
    norms = {}
    for model in training._models:
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            assert gradient is not None, name
            if isinstance(gradient, DTensor):
                gradient = gradient.full_tensor()
            for wrapping in ("module.", "whole.", "_checkpoint_wrapped_module."):
                name = name.replace(wrapping, "")
            norms[name] = gradient.norm().item()
    (folder / f"gradients-{rank}.json").write_text(json.dumps(norms))
    os._exit(0)
