"""A YAML for ``accelerate launch``: FSDP2 or DDP of PyTorch, DeepSpeed, or the Megatron plugin."""

from __future__ import annotations

from typing import Any, assert_never

import yaml

from reports.emit.accelerate_megatron import MEGATRON_MODELS, megatron_needs, megatron_section
from reports.emit.hf_deepspeed import trainer_needs
from reports.emit.scripts import LAUNCH_SCRIPT, script
from reports.emit.subject import Need, Subject, Unsayable, check, json_file, unsaid_settings
from reports.emit.training_arguments import TRAINING_ARGUMENTS_FILE, training_arguments
from reports.wording import BENCH_VALUES
from tuner.launch import DEEPSPEED_FILE, MODEL_FILE, LaunchFile
from tuner.plan import Backend, Offload, ParallelPlan, Precision, Recompute

ACCELERATE_FILE = "accelerate.yaml"
_FSDP_DEFAULTS = {
    "fsdp_forward_prefetch": 0,
    "fsdp_backward_prefetch": 0,
    "fsdp_reshard_last_layer": True,
}
_NO_PREFETCH = "accelerate leaves FSDP 2's gathering to torch"
_MIXED = {Precision.FP32: "no", Precision.FP16: "fp16", Precision.BF16: "bf16"}


def accelerate_files(subject: Subject) -> tuple[LaunchFile, ...]:
    """The YAML, what else it reads, and the arguments that the training script must take.

    Raises:
        Unsayable: accelerate has no words for the plan; the knob is named.
    """
    plan = subject.plan
    check("accelerate", subject, _needs(subject))
    _check_rest(subject)
    text = f"# {subject.origin}\n# {BENCH_VALUES}\n" + yaml.safe_dump(
        _config(subject), sort_keys=False
    )
    kept = {MODEL_FILE, DEEPSPEED_FILE}
    by_script = plan.backend is Backend.DEEPSPEED or _is_replicated(plan)
    arguments = training_arguments(subject, recomputes=by_script)
    return (
        LaunchFile(name=ACCELERATE_FILE, text=text),
        json_file(TRAINING_ARGUMENTS_FILE, arguments),
        *(file for file in subject.spec.files if file.name in kept),
        _launch(subject),
    )


def _check_rest(subject: Subject) -> None:
    if subject.on_cpu:
        raise Unsayable(
            "--format accelerate: cluster.gpu must be a GPU, got cpu: accelerate launch starts "
            "several CPU ranks only through mpirun, and leaves DeepSpeed and FSDP out there; "
            "use --format torchrun"
        )
    family = subject.model.get("model_type")
    if subject.plan.backend is Backend.MEGATRON and family not in MEGATRON_MODELS:
        raise Unsayable(
            "--format accelerate: workload.model must be of a family that accelerate's Megatron "
            f"plugin builds ({', '.join(MEGATRON_MODELS)}), got {family}; use --format megatron"
        )


def _config(subject: Subject) -> dict[str, Any]:
    spec, plan = subject.spec, subject.plan
    common: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "num_machines": spec.num_nodes,
        "num_processes": spec.num_ranks,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static" if spec.num_nodes == 1 else "c10d",
        "use_cpu": False,
    }
    match plan.backend:
        case Backend.PYTORCH:
            return common | {"mixed_precision": _MIXED[plan.precision]} | _pytorch(subject)
        case Backend.DEEPSPEED:
            # Nothing but the file: accelerate refuses what stands in both (mixed_precision too).
            deepspeed = {
                "deepspeed_config_file": DEEPSPEED_FILE,
                "zero3_init_flag": plan.zero_stage == 3,
            }
            return common | {"distributed_type": "DEEPSPEED", "deepspeed_config": deepspeed}
        case Backend.MEGATRON:
            section = megatron_section(plan, subject.num_microbatches)
            mixed = {"mixed_precision": _MIXED[plan.precision]}
            return common | mixed | {"distributed_type": "MEGATRON_LM"} | section
        case _:
            assert_never(plan.backend)


def _is_replicated(plan: ParallelPlan) -> bool:
    """Whether accelerate takes DDP, which recomputes nothing by itself."""
    return plan.backend is Backend.PYTORCH and plan.zero_stage == 0


def _pytorch(subject: Subject) -> dict[str, Any]:
    plan = subject.plan
    if _is_replicated(plan):
        return {"distributed_type": "MULTI_GPU"}
    fsdp = {
        "fsdp_version": 2,
        # The layers are those that the model itself names, its _no_split_modules.
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": plan.zero_stage == 3,
        "fsdp_offload_params": plan.offload is Offload.PARAMS,
        "fsdp_activation_checkpointing": plan.recompute is Recompute.FULL,
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    data_parallel = plan.data_parallel(subject.spec.num_ranks)
    degrees = {
        "parallelism_config_dp_replicate_size": plan.dp_replicate,
        "parallelism_config_dp_shard_size": data_parallel // plan.dp_replicate,
        "parallelism_config_tp_size": plan.tp,
        "parallelism_config_cp_size": plan.cp,
    }
    return {"distributed_type": "FSDP", "fsdp_config": fsdp, "parallelism_config": degrees}


def _needs(subject: Subject) -> tuple[Need, ...]:
    plan = subject.plan
    match plan.backend:
        case Backend.PYTORCH:
            return (
                *_pytorch_needs(plan, plan.data_parallel(subject.spec.num_ranks)),
                *unsaid_settings(subject, _FSDP_DEFAULTS, _NO_PREFETCH, "torchrun"),
            )
        case Backend.DEEPSPEED:
            return trainer_needs(plan, "deepspeed")
        case Backend.MEGATRON:
            return megatron_needs(subject)
        case _:
            assert_never(plan.backend)


def _pytorch_needs(plan: ParallelPlan, data_parallel: int) -> tuple[Need, ...]:
    titan = "use --format torchtitan, or a plan with"
    split = plan.tp * plan.cp > 1
    shards = data_parallel // plan.dp_replicate
    return (
        Need(
            knob="zero_stage",
            holds=plan.zero_stage != 1 and not (plan.zero_stage == 0 and split),
            allowed="2 or 3" if split else "0, 2 or 3",
            why="accelerate splits an optimizer only with FSDP, and DDP goes with no tp or cp",
            instead="use --format torchrun, or a plan with zero_stage=2",
        ),
        Need(
            knob="dp_replicate",
            holds=plan.dp_replicate == 1 or shards > 1,
            allowed=f"less than the data-parallel degree ({data_parallel})",
            why="accelerate's replicas must have shards inside",
            instead=f"{titan} zero_stage=0",
        ),
        Need(
            knob="pp",
            holds=plan.pp == 1,
            allowed="1",
            why="accelerate has no pipeline for training",
            instead=f"{titan} pp=1",
        ),
        Need(
            knob="ep",
            holds=plan.ep == 1,
            allowed="1",
            why="accelerate has no degree for experts",
            instead=f"{titan} ep=1",
        ),
        Need(
            knob="sequence_parallel",
            holds=not plan.sequence_parallel,
            allowed="false",
            why="the tensor-parallel plans of transformers keep whole sequences",
            instead=f"{titan} sequence_parallel=false",
        ),
        Need(
            knob="recompute",
            holds=plan.recompute is not Recompute.SELECTIVE,
            allowed="none or full",
            why="accelerate and transformers recompute whole layers",
            instead="use --format torchrun, or a plan with recompute=full",
        ),
    )


def _launch(subject: Subject) -> LaunchFile:
    where = "--main_process_port=0"
    comments: tuple[str, ...] = (f"./{LAUNCH_SCRIPT} train.py ...",)
    if subject.spec.num_nodes > 1:
        comments = (*comments, "On every node, MACHINE_RANK counting from 0.")
        where = (
            '--machine_rank="${MACHINE_RANK:?this node, from 0}" '
            '--main_process_ip="${MASTER_ADDR:?the first node}" '
            '--main_process_port="${MASTER_PORT:?a free port of the first node}"'
        )
    return script(
        LAUNCH_SCRIPT,
        subject,
        comments=comments,
        lines=(
            ': "${1:?the training script}"',
            'program=$(cd "$(dirname "$1")" && pwd)/$(basename "$1"); shift',
            'cd "$here"  # where the files that the YAML names are looked for',
            f"exec accelerate launch --config_file={ACCELERATE_FILE} {where} "
            f'"$program" {TRAINING_ARGUMENTS_FILE} "$@"',
        ),
    )
