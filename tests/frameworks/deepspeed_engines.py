"""Builds DeepSpeed engines as the bench does, each in a fork of its own, without other ranks.

Run as a program, so that only it imports DeepSpeed: JSON cases in, JSON results out. The process
group is torch's fake one: every collective returns at once, so one rank stands for all.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runners.backends.deepspeed_zero import deepspeed_launch
from tests.tiny_job import cpu_cluster, tiny_workload
from tuner.launch import DEEPSPEED_FILE, Measurement
from tuner.launch_files import write_launch_files
from tuner.plan import Backend, ParallelPlan

_LIMIT_S = 60


def main(cases_path: Path, results_path: Path) -> None:
    os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1")
    from runners.bench.frameworks import import_framework

    import_framework(Backend.DEEPSPEED)  # once, before the forks

    cases = json.loads(cases_path.read_text())
    results = [_forked(case, results_path) for case in cases]
    results_path.write_text(json.dumps(results))


def _forked(case: Mapping[str, Any], results_path: Path) -> dict[str, Any]:
    own = results_path.with_suffix(".one")
    own.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(_LIMIT_S)
        try:
            result = _engine(case)
        except BaseException as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        own.write_text(json.dumps(result))
        os._exit(0)
    os.waitpid(child, 0)
    if not own.exists():
        return {"died": True}
    result = json.loads(own.read_text())
    assert isinstance(result, dict)
    return result


def _engine(case: Mapping[str, Any]) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from deepspeed.utils import groups
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from runners.bench.deepspeed_training import deepspeed_training, join_deepspeed
    from runners.bench.launch_folder import LaunchFolder

    num_ranks, rank = case["num_ranks"], case["rank"]
    place = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": num_ranks,
        "LOCAL_WORLD_SIZE": num_ranks,
    }
    os.environ.update({name: str(value) for name, value in place.items()})
    dist.init_process_group("fake", rank=rank, world_size=num_ranks, store=FakeStore())
    device = torch.device("cpu")
    join_deepspeed(device)
    with tempfile.TemporaryDirectory() as folder:
        training: Any = deepspeed_training(
            LaunchFolder.read(_launch_folder(case, Path(folder))), device
        )
        engine = training._engine
        return {
            "effective": training.effective(),
            "model_elements": sum(
                getattr(p, "ds_numel", p.numel()) for p in engine.module.parameters()
            ),
            "asked_overlap": bool(engine.zero_overlap_comm()),
            "hpz_ranks": _ranks(groups._get_zero_param_intra_parallel_group()),
            "tensor_ranks": _ranks(_tensor_group(engine)),
            "logits_width": _logits_width(engine) if case["forward"] else None,
        }


def _tensor_group(engine: Any) -> Any:
    from deepspeed.utils import groups

    return groups.get_tensor_model_parallel_group() if engine.autotp_size() > 1 else None


def _ranks(group: Any) -> list[int] | None:
    import torch.distributed as dist

    return None if group is None else list(dist.get_process_group_ranks(group))


def _logits_width(engine: Any) -> int:
    import torch

    engine.module._forward_pre_hooks.clear()  # AutoTP's compares tokens with ranks not here
    return int(engine.module(torch.zeros((1, 8), dtype=torch.int64)).logits.shape[-1])


def _launch_folder(case: Mapping[str, Any], folder: Path) -> Path:
    """The launch of the case's plan; ``edit`` replaces parts of the emitted ds_config.json."""
    plan = ParallelPlan.from_dict({"backend": "deepspeed", **case["knobs"]})
    spec = deepspeed_launch(
        plan, tiny_workload(**case["model"]), cpu_cluster(case["num_ranks"]), Measurement()
    )
    write_launch_files(spec, folder / "launch")
    path = folder / "launch" / DEEPSPEED_FILE
    config = json.loads(path.read_text())
    for block, values in case["edit"].items():
        config[block] = config.get(block, {}) | values
    path.write_text(json.dumps(config))
    return folder / "launch"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
