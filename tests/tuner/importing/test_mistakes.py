"""A file that cannot be a baseline is refused in one sentence, with its line or key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tuner.importing.the_job import FIXTURES, NODE, imported
from tuner.errors import UserError

MICRO = '"train_micro_batch_size_per_gpu": 2'
FSDP = "distributed_type: FSDP\n"
DEGREES = "--tensor-model-parallel-size {} --micro-batch-size 1"

CASES: list[tuple[str, str, list[str]]] = [
    # name of the file, its text, what the sentence says
    (
        "comment.json",
        f"{{\n  // the usual\n  {MICRO}\n}}",
        ["line 2: JSON has no comments", "'// the usual'"],
    ),
    ("last.json", f"{{\n  {MICRO} // last\n}}", ["line 2: JSON has no comments", "// last"]),
    (
        "null.json",
        f'{{\n  {MICRO},\n  "amp": null\n}}',
        ["line 3: amp was removed from DeepSpeed", "DS-08"],
    ),
    (
        "auto-train.json",
        '{\n  "bf16": {},\n  "train_batch_size": "auto"\n}',
        ['line 3: train_batch_size is "auto"', "per_device_train_batch_size"],
    ),
    (
        "odd.json",
        f'{{{MICRO}, "zero_optimization": {{"stage": 2,\n "allgather_bucket_size": 5001}}}}',
        ["line 2: zero_optimization.allgather_bucket_size", "DS-33", "got 5001"],
    ),
    (
        "text.json",
        f'{{{MICRO}, "zero_optimization": {{"stage": 2,\n "reduce_bucket_size": "5e8"}}}}',
        ["line 2: zero_optimization.reduce_bucket_size must be a whole number, got '5e8'"],
    ),
    ("hash.json", f'{{\n  {MICRO},\n  # here\n  "bf16": {{}}}}', ["line 3: JSON has no comments"]),
    ("comma.json", f"{{\n  {MICRO},\n}}", ["line 2: a comma must be followed by another key"]),
    ("broken.json", f'{{\n  {MICRO}\n  "bf16": {{}}\n}}', ["line 3: it must be JSON"]),
    (
        "twice.json",
        f'{{\n  {MICRO},\n  "bf16": {{}},\n  "bf16": {{"enabled": true}}\n}}',
        ["line 4: bf16 must stand once"],
    ),
    (
        "removed.json",
        f'{{\n  {MICRO},\n  "amp": {{"enabled": true}}\n}}',
        ["line 3: amp was removed from DeepSpeed", "DS-08"],
    ),
    (
        "removed-zero.json",
        f'{{{MICRO},\n "zero_optimization": {{"stage": 3,\n "mics_shard_size": 4}}}}',
        ["line 3: zero_optimization.mics_shard_size was removed", "DS-08"],
    ),
    (
        "auto.json",
        '{\n  "bf16": {"enabled": true},\n  "train_micro_batch_size_per_gpu": "auto"\n}',
        [
            'line 3: train_micro_batch_size_per_gpu is "auto"',
            "per_device_train_batch_size",
            "--baseline-arguments",
        ],
    ),
    (
        "auto-stage.json",
        f'{{{MICRO}, "zero_optimization": {{"stage": "auto"}}}}',
        ["zero_optimization.stage must be said", "DS-06"],
    ),
    (
        "block.json",
        f'{{{MICRO}, "zero_optimization": {{"stage": 2, "overlap_com": true}}}}',
        ["zero_optimization.overlap_com is not a key", "DS-09", "did you mean overlap_comm?"],
    ),
    (
        "triple.json",
        f'{{{MICRO}, "gradient_accumulation_steps": 4,\n "train_batch_size": 128}}',
        ["line 2: train_batch_size", "2 * 4 * 8 = 64", "DS-01", "got 128", "right on 16"],
    ),
    (
        "double.json",
        f'{{{MICRO}, "train_batch_size": 24}}',
        ["train_batch_size must be a multiple", "(2 * 8; rule DS-02)", "got 24"],
    ),
    (
        "floor.json",
        '{"train_batch_size": 100, "gradient_accumulation_steps": 3}',
        ["train_batch_size must be a multiple", "(3 * 8; rule DS-02)", "got 100"],
    ),
    ("sizes.json", '{"bf16": {"enabled": true}}', ["DS-05", "got neither"]),
    (
        "both.json",
        f'{{{MICRO}, "bf16": {{"enabled": true}},\n "fp16": {{"enabled": true}}}}',
        ["line 2: fp16.enabled and bf16.enabled", "DS-10"],
    ),
    (
        "nvme.json",
        f'{{{MICRO}, "zero_optimization": {{"stage": 3, "offload_param": {{"device": "nvme"}}}}}}',
        ["zero_optimization.offload_param.device", "cpu or none", "got nvme"],
    ),
    (
        "word.json",
        '{"train_micro_batch_size_per_gpu": "four"}',
        ["train_micro_batch_size_per_gpu must be a whole number", "'four'"],
    ),
    (
        "stage.json",
        f'{{{MICRO}, "zero_optimization": {{"stage": 4}}}}',
        ["zero_optimization.stage must be 0, 1, 2 or 3, got 4"],
    ),
    (
        "config.json",
        '{"model_type": "llama", "hidden_size": 64}',
        ["not recognised", "DeepSpeed JSON", "accelerate YAML", "Megatron-LM", "torchtitan"],
    ),
    ("notes.md", "some words", ["not recognised"]),
    (
        "four.yaml",
        FSDP + "num_processes: 4\n",
        ["line 2: num_processes must be the job's GPUs (8), got 4"],
    ),
    (
        "machines.yaml",
        FSDP + "num_processes: 8\nnum_machines: 2\n",
        ["num_machines must be the job's nodes (1), got 2"],
    ),
    ("micro.yaml", FSDP, ["the micro-batch must be given", "--baseline-arguments"]),
    (
        "strategy.yaml",
        FSDP + "fsdp_config:\n  fsdp_sharding_strategy: FULL\n",
        ["line 3: fsdp_config.fsdp_sharding_strategy", "FULL_SHARD", "'FULL'"],
    ),
    ("twice.yaml", FSDP + "debug: no\n" + FSDP, ["line 3", "distributed_type must stand once"]),
    (
        "nowhere.yaml",
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: nowhere.json\n",
        ["line 3: deepspeed_config.deepspeed_config_file", "nowhere.json"],
    ),
    (
        "world.toml",
        "[parallelism]\ndata_parallel_shard_degree = 4\ntensor_parallel_degree = 4\n",
        ["line 2: parallelism.data_parallel_shard_degree", "(8; rule PT-06), got 16"],
    ),
    ("broken.toml", "[parallelism\n", ["must be TOML", "line 1"]),
    (
        "mode.toml",
        '[activation_checkpoint]\nmode = "memory_budget"\n',
        ["line 2: activation_checkpoint.mode", "got memory_budget"],
    ),
    (
        "environment.sh",
        "#!/bin/bash\nTP=$((SLURM_NNODES * 2))\nrun " + DEGREES.format("$TP"),
        ["line 3: --tensor-model-parallel-size", "line 2 computes it from SLURM_NNODES"],
    ),
    (
        "positional.sh",
        "TP=$1\nrun " + DEGREES.format("$TP"),
        ["line 2: --tensor-model-parallel-size", "it depends on $1"],
    ),
    (
        "command.sh",
        "TP=$(nvidia-smi -L | wc -l)\nrun " + DEGREES.format("$TP"),
        ["line 1 computes it from a command"],
    ),
    (
        "condition.sh",
        'if [ "$SIZE" = 8b ]; then\n  TP=1\nelse\n  TP=4\nfi\nrun ' + DEGREES.format("$TP"),
        ["line 6: --tensor-model-parallel-size", "line 4 computes it from TP"],
    ),
    (
        "case.sh",
        "case $SIZE in\n8b) TP=1 ;;\n70b) TP=8 ;;\nesac\nrun " + DEGREES.format("${TP}"),
        ["line 5: --tensor-model-parallel-size", "line 3 computes it from TP"],
    ),
    ("negative.sh", "run " + DEGREES.format("-2"), ["must be a whole number", "'-2'"]),
    (
        "missing.sh",
        "run --tensor-model-parallel-size 2",
        ["--micro-batch-size must be given, but it is missing"],
    ),
    (
        "gpus.sh",
        "torchrun --nnodes 2 \\\n --nproc_per_node 8 x.py " + DEGREES.format(1),
        ["line 2: --nproc_per_node times the nodes must be the job's GPUs (8)", "8 * 2 = 16"],
    ),
    (
        "three.sh",
        "run " + DEGREES.format(3),
        ["--tensor-model-parallel-size", "must divide the job's GPUs (8), got 3"],
    ),
    (
        "precisions.sh",
        "run " + DEGREES.format(1) + " --bf16 --fp16",
        ["--fp16 and --bf16", "MC-10"],
    ),
    (
        "gather.sh",
        f"run {DEGREES.format(1)} --use-distributed-optimizer \\\n --overlap-param-gather",
        ["line 2: --overlap-param-gather needs --overlap-grad-reduce", "MC-60"],
    ),
    (
        "lots.sh",
        f"run {DEGREES.format(1)} \\\n --ddp-bucket-size lots",
        ["line 2: --ddp-bucket-size must be a whole number of at least 1, got 'lots'"],
    ),
    (
        "fork.sh",
        "deepspeed x.py --deepspeed " + DEGREES.format(1),
        ["--deepspeed is of the Megatron-DeepSpeed fork"],
    ),
    (
        "launch.sh",
        "accelerate launch --config_file fsdp.yaml train.py",
        ["got a script that names one", "--baseline-arguments"],
    ),
]


@pytest.mark.parametrize(("name", "text", "said"), CASES, ids=[case[0] for case in CASES])
def test_a_mistake_is_one_sentence_with_its_place(
    tmp_path: Path, name: str, text: str, said: list[str]
) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UserError) as raised:
        imported(file)
    sentence = str(raised.value)
    assert str(file) in sentence
    assert "\n" not in sentence
    for words in said:
        assert words in sentence


def test_a_missing_file_and_a_folder_without_launch_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.json must be a file that can be read"):
        imported(tmp_path / "nowhere.json")
    with pytest.raises(UserError, match=r"must hold ds_config\.json, megatron\.args or"):
        imported(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"per_device_train_batch_size": 0}', "must be a whole number of at least 1, got 0"),
        ('{"per_device_train_batch_size": "x"}', "got 'x'"),
        ('{"learning": 1}', "must hold TrainingArguments"),
        ('{"per_device_train_batch_size": 1, "world_size": 16}', r"job's GPUs \(8\), got 16"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, arguments: str, said: str) -> None:
    file = tmp_path / "arguments.json"
    file.write_text(arguments)
    with pytest.raises(UserError, match=said) as raised:
        imported(FIXTURES / "hf-auto.json", arguments=file)
    assert str(file) in str(raised.value)


def test_a_json_that_differs_from_its_arguments_is_refused_as_the_trainer_does() -> None:
    beside = FIXTURES / "training-arguments.json"
    with pytest.raises(UserError, match=r"must equal gradient_accumulation_steps of .*4.*got 8"):
        imported(FIXTURES / "zero3.json", arguments=beside)


def test_arguments_are_refused_where_they_say_nothing() -> None:
    beside = FIXTURES / "training-arguments.json"
    for name in ("gpt.sh", "llama3.toml"):
        with pytest.raises(UserError, match="--baseline-arguments must be for a DeepSpeed or"):
            imported(FIXTURES / name, arguments=beside)


def test_an_unknown_key_at_the_top_is_listed_and_said_to_be_ignored_in_silence(
    tmp_path: Path,
) -> None:
    file = tmp_path / "ds.json"
    file.write_text(f'{{{MICRO}, "zero_optimisation": {{"stage": 3, "x": 1}}}}')
    found = imported(file)
    assert found.unknown_keys == ("zero_optimisation",)
    assert found.plan.zero_stage == 0
    assert any("in silence: zero_optimisation; did you mean" in note for note in found.notes)


def test_settings_without_effect_are_ignored_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(
        f'{{{MICRO}, "zero_optimization": {{"stage": 2, "stage3_prefetch_bucket_size": 5, '
        '"offload_param": {"device": "cpu"}}}'
    )
    found = imported(file)
    assert str(found.plan.offload) == "none"
    reasons = {one.key: one.reason for one in found.ignored_keys}
    assert "stage 2" in reasons["zero_optimization.stage3_prefetch_bucket_size"]
    assert "DS-35" in reasons["zero_optimization.offload_param.device"]


def test_an_unknown_megatron_option_is_listed_with_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text("run --micro-batch-size 1 --overlap-grad-reduces --sequence-parallel")
    found = imported(file)
    assert found.unknown_keys == ("--overlap-grad-reduces",)
    assert any("did you mean --overlap-grad-reduce?" in note for note in found.notes)
    reasons = {one.key: one.reason for one in found.ignored_keys}
    assert "MC-16" in reasons["--sequence-parallel"]


def test_sharding_over_one_rank_is_the_same_as_none(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"run {DEGREES.format(8)} --use-distributed-optimizer")
    found = imported(file, cluster=NODE)
    assert found.plan.zero_stage == 0
    assert any("same as zero_stage 0" in note for note in found.notes)
