"""What each format promises besides the plan: bytes, "auto", options, scripts, refusals."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from reports.emit.formats import Format, emitted
from reports.emit.hf_deepspeed import trainer_config
from reports.emit.readme import predicted_numbers, readme
from reports.emit.scripts import DEEPSPEED_SCRIPT, HOSTFILE, LAUNCH_SCRIPT
from reports.emit.slurm import SLURM_SCRIPT
from reports.emit.subject import Subject
from reports.emit.training_arguments import TRAINING_ARGUMENTS_FILE
from reports.wording import BENCH_VALUES
from runners.bench.megatron_arguments import MegatronArguments
from search_spaces.enumeration import rejections
from search_spaces.rule import Setting
from tests.reports.emit.legal_plans import drawn, setting, subject_of
from tests.reports.emit.read_back import trainer_arguments
from tests.tiny_job import CPU_STACK, cpu_cluster, tiny_workload
from tuner.errors import UserError
from tuner.launch import DEEPSPEED_FILE, MEGATRON_FILE, MODEL_FILE, PYTORCH_FILE, TRAINING_FILE
from tuner.megatron_options import option_table, read_arguments
from tuner.plan import ParallelPlan


def subject(model: str = "llama-3-8b", on: str = "one node", **knobs: Any) -> Subject:
    plan, judged = ParallelPlan.from_dict(knobs), setting(model, on)
    assert not rejections(plan, judged)
    return subject_of(plan, judged)


def texts(of: Subject, form: Format) -> dict[str, str]:
    return {file.name: file.text for file in emitted(of, form)}


OWN = {
    Format.DEEPSPEED: ("deepspeed", DEEPSPEED_FILE),
    Format.MEGATRON: ("megatron", MEGATRON_FILE),
    Format.TORCHRUN: ("pytorch", PYTORCH_FILE),
    Format.SLURM: ("pytorch", PYTORCH_FILE),
}


@pytest.mark.parametrize("form", OWN)
def test_the_files_that_the_trial_ran_with_are_emitted_byte_for_byte(form: Format) -> None:
    backend, own = OWN[form]
    ran = subject(backend=backend)
    made = texts(ran, form)
    assert {own, TRAINING_FILE, MODEL_FILE} <= set(made)
    assert {file.name: made[file.name] for file in ran.spec.files} == {
        file.name: file.text for file in ran.spec.files
    }


@pytest.mark.parametrize("form", Format)
def test_every_format_says_what_is_the_benchs_and_claims_no_trial(form: Format) -> None:
    backend = {
        Format.MEGATRON: "megatron",
        Format.MEGATRON_BRIDGE: "megatron",
        Format.TORCHTITAN: "pytorch",
    }.get(form, "deepspeed")
    one = subject(backend=backend)
    ran = {file.name for file in one.spec.files}
    page = readme(one, form, predicted_numbers(1.0, 1)).text
    made = {name: text for name, text in texts(one, form).items() if name not in ran}
    assert BENCH_VALUES in page
    assert any(BENCH_VALUES in text for text in made.values())
    for text in (page, *made.values()):
        assert "the trial" not in text.replace("The trial clips", "")


def test_deepspeed_itself_is_given_no_auto() -> None:
    for one in islice(drawn(("deepspeed",), seed=1), 50):
        assert '"auto"' not in texts(one, Format.DEEPSPEED)[DEEPSPEED_FILE]


def test_what_the_trainer_fills_in_is_what_the_trial_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    num_checked = 0
    for one in islice(drawn(("deepspeed",), seed=2), 60):
        if one.plan.pp > 1 or one.plan.recompute == "selective":
            continue
        for file in emitted(one, Format.HF_DEEPSPEED):
            (tmp_path / file.name).write_text(file.text)
        filled = trainer_arguments().hf_deepspeed_config.config
        ran = json.loads(one.text(DEEPSPEED_FILE))
        assert filled | {"steps_per_print": 1_000_000_000} == ran
        num_checked += 1
    assert num_checked > 20


def test_auto_stands_only_where_the_trainer_resolves_it() -> None:
    made = trainer_config(
        json.loads(subject(backend="deepspeed", zero_stage=3).text(DEEPSPEED_FILE))
    )
    assert made["train_micro_batch_size_per_gpu"] == made["bf16"]["enabled"] == "auto"
    assert set(made["optimizer"]["params"].values()) == {"auto"}
    assert "auto" not in made["zero_optimization"].values()
    assert "train_batch_size" not in made


def test_a_deepspeed_file_with_other_numbers_than_the_arguments_is_refused_by_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in emitted(subject(backend="deepspeed", zero_stage=1), Format.HF_DEEPSPEED):
        (tmp_path / file.name).write_text(file.text)
    config = json.loads(Path(DEEPSPEED_FILE).read_text()) | {"gradient_accumulation_steps": 3}
    Path(DEEPSPEED_FILE).write_text(json.dumps(config))
    arguments = trainer_arguments()
    with pytest.raises(ValueError, match="gradient_accumulation_steps=3"):
        arguments.hf_deepspeed_config.trainer_config_finalize(arguments, None, 10)


def test_every_megatron_option_is_one_of_pretrain_gpt_with_a_value_that_it_takes() -> None:
    options = option_table()
    for one in islice(drawn(("megatron",), seed=3), 100):
        for line in one.text(MEGATRON_FILE).splitlines():
            assert line.split()[0] in options
        read_arguments(one.text(MEGATRON_FILE), named=MEGATRON_FILE)


def test_the_bench_read_from_the_arguments_what_pretrain_gpt_would(tmp_path: Path) -> None:
    """The same values and, for options that are not given, the same defaults."""
    defaults = {option.dest: option.default for option in option_table().values()}
    ours = {"num_virtual_stages_per_pipeline_rank": 1, "window_size": None}
    for one in islice(drawn(("megatron",), seed=4), 60):
        path = tmp_path / MEGATRON_FILE
        path.write_text(one.text(MEGATRON_FILE))
        bench = MegatronArguments.read(path)
        theirs = defaults | ours | read_arguments(path.read_text(), named="x")
        for field in fields(MegatronArguments):
            value = theirs[field.name]
            if isinstance(value, list):
                value = " ".join(value)
            if field.name == "window_size" and value is not None:
                value = tuple(int(side) for side in value.split(","))
            assert getattr(bench, field.name) == value, field.name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("--tensor-model-paralel-size 2", "did you mean --tensor-model-parallel-size"),
        ("--bf16 yes", "must have no value, got yes"),
        ("--lr", "must have one value, got none"),
        ("--lr fast", "must be of type float, got 'fast'"),
        ("--fp8-format e5m2", "must be one of e4m3, hybrid, got e5m2"),
        ("--bf16 --fp16", "one of --bf16 and --fp16, got both"),
        ("8 --bf16", "must start with an option"),
    ],
)
def test_an_argument_that_pretrain_gpt_refuses_is_named(text: str, says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        read_arguments(text, named="my.args")


def test_options_of_a_megatron_that_is_not_known_here_are_not_guessed() -> None:
    with pytest.raises(UserError, match=r"must be core >=0.16,<0.17.*got 0.15.0"):
        option_table("0.15.0")


REFUSED = [
    (Format.HF_DEEPSPEED, {"backend": "deepspeed", "zero_stage": 1, "pp": 2}, "pp", "deepspeed"),
    (Format.ACCELERATE, {"backend": "deepspeed", "zero_stage": 1, "pp": 2}, "pp", "deepspeed"),
    (Format.ACCELERATE, {"backend": "pytorch", "zero_stage": 1}, "zero_stage", "torchrun"),
    (
        Format.ACCELERATE,
        {"backend": "pytorch", "zero_stage": 2, "recompute": "selective"},
        "recompute",
        "torchrun",
    ),
    (Format.ACCELERATE, {"backend": "pytorch", "pp": 2, "zero_stage": 2}, "pp", "torchtitan"),
    (Format.ACCELERATE, {"backend": "megatron", "tp": 2}, "recompute", "megatron"),
    (Format.TORCHTITAN, {"backend": "pytorch", "zero_stage": 1}, "zero_stage", "torchrun"),
    (
        Format.TORCHTITAN,
        {"backend": "pytorch", "zero_stage": 2, "precision": "fp16"},
        "precision",
        "torchrun",
    ),
    (Format.TORCHTITAN, {"backend": "megatron"}, "backend", "torchrun"),
    (Format.MEGATRON, {"backend": "pytorch"}, "backend", "torchrun"),
]


@pytest.mark.parametrize(("form", "knobs", "knob", "instead"), REFUSED)
def test_what_a_format_cannot_say_is_refused_with_the_knob_and_another_way(
    form: Format, knobs: dict[str, Any], knob: str, instead: str
) -> None:
    one = subject(**knobs)
    got = one.plan.to_dict()[knob]
    pattern = rf"--format {form} cannot say.*{knob} must be .*, got {got}: .*--format {instead}"
    with pytest.raises(UserError, match=pattern):
        emitted(one, form)


def test_a_family_that_accelerates_megatron_plugin_does_not_build_is_refused() -> None:
    knobs: dict[str, Any] = {"backend": "megatron", "recompute": "full", "ep": 4}
    one = subject("mixtral-8x7b", "four nodes", **knobs)
    with pytest.raises(UserError, match=r"workload\.model must be .*gpt2, llama.*got mixtral"):
        emitted(one, Format.ACCELERATE)


def test_accelerate_is_not_asked_for_ranks_on_cpus_which_it_would_start_without_deepspeed() -> None:
    one = subject(on="ranks on CPUs", backend="deepspeed", zero_stage=2)
    with pytest.raises(UserError, match=r"cluster\.gpu must be a GPU, got cpu.*--format torchrun"):
        emitted(one, Format.ACCELERATE)


def test_stages_that_torchtitan_would_cut_elsewhere_are_refused() -> None:
    plan = ParallelPlan.from_dict({"backend": "pytorch", "zero_stage": 2, "pp": 2})
    uneven = Setting(
        workload=tiny_workload(num_hidden_layers=7), cluster=cpu_cluster(4), stack=CPU_STACK
    )
    with pytest.raises(UserError, match=r"pp must be such that .* layers \(7\), got 2"):
        emitted(subject_of(plan, uneven), Format.TORCHTITAN)


def test_launch_files_that_are_missing_are_named() -> None:
    one = subject(backend="deepspeed")
    bare = replace(one, spec=replace(one.spec, files=()))
    with pytest.raises(UserError, match=r"must hold ds_config\.json, got none"):
        emitted(bare, Format.DEEPSPEED)


# --- scripts, run with stand-ins for what they start ---------------------------------------------


def run_script(folder: Path, name: str, *words: str, **environment: str) -> list[str]:
    """The words that the launcher was started with, and ``MAX=...`` of its environment."""
    stand_ins = folder / "bin"
    stand_ins.mkdir(exist_ok=True)
    tells = 'printf "%s\\n" "$0" "$@"; echo "MAX=${CUDA_DEVICE_MAX_CONNECTIONS:-}"\n'
    for program in ("torchrun", "deepspeed", "accelerate"):
        (stand_ins / program).write_text(f"#!/bin/sh\n{tells}")
    (stand_ins / "srun").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (stand_ins / "scontrol").write_text("#!/bin/sh\nprintf 'node7\\nnode8\\n'\n")
    for program_file in stand_ins.iterdir():
        program_file.chmod(0o755)
    environment = {"PATH": f"{stand_ins}:{os.environ['PATH']}", **environment}
    shell = "bash" if name == SLURM_SCRIPT else "sh"
    done = subprocess.run(
        [shell, str(folder / name), *words],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Path(done.stdout.splitlines()[0]).name, *done.stdout.splitlines()[1:]]


def written(folder: Path, one: Subject, form: Format) -> Path:
    for name, text in texts(one, form).items():
        (folder / name).write_text(text)
    return folder


def test_launch_sh_repeats_the_trial_or_starts_what_it_is_given(tmp_path: Path) -> None:
    folder = written(tmp_path, subject(backend="pytorch"), Format.TORCHRUN)
    ranks = ["torchrun", "--standalone", "--nproc-per-node=8"]
    trial = ["-m", "runners.bench", "--launch", str(folder), "MAX="]
    assert run_script(folder, LAUNCH_SCRIPT) == [*ranks, *trial]
    own = run_script(folder, LAUNCH_SCRIPT, "train.py", "--name", "a b")
    assert own == [*ranks, "train.py", "--name", "a b", "MAX="]


def test_on_several_nodes_the_user_says_where_they_meet(tmp_path: Path) -> None:
    folder = written(tmp_path, subject(on="four nodes", backend="deepspeed"), Format.DEEPSPEED)
    words = run_script(folder, LAUNCH_SCRIPT, RDZV_ENDPOINT="node1:4242")
    assert "--nnodes=4" in words
    assert "--rdzv-endpoint=node1:4242" in words
    words = run_script(folder, DEEPSPEED_SCRIPT, "train.py")
    assert words[:4] == [
        "deepspeed",
        f"--hostfile={folder}/hostfile",
        "--num_nodes=4",
        "--num_gpus=8",
    ]
    assert (folder / HOSTFILE).read_text().splitlines()[0] == "node1 slots=8"


def test_no_script_has_a_port_of_its_own() -> None:
    for form in Format:
        for one in islice(drawn(("pytorch", "deepspeed", "megatron"), seed=5), 30):
            try:
                files = emitted(one, form)
            except UserError:
                continue
            for file in files:
                if file.name.endswith(".sh"):
                    assert not re.search(r"29500|port[= ]\d{4,}", file.text)


def test_deepspeeds_launcher_gets_a_port_that_is_free_each_time(tmp_path: Path) -> None:
    folder = written(tmp_path, subject(backend="deepspeed"), Format.DEEPSPEED)
    ports = {run_script(folder, DEEPSPEED_SCRIPT)[2] for _ in range(3)}
    assert all(re.fullmatch(r"--master_port=\d+", port) for port in ports)
    assert len(ports) > 1


def test_pretrain_gpt_is_given_the_file_and_then_data_that_is_marked_as_mock(
    tmp_path: Path,
) -> None:
    one = subject(backend="megatron", tp=2, sequence_parallel=True, zero_stage=1)
    folder = written(tmp_path, one, Format.MEGATRON)
    assert "MOCK DATA" in (folder / "mock_data.args").read_text().splitlines()[0]
    words = run_script(folder, "pretrain_gpt.sh", MEGATRON_LM="/lm")
    program = words.index("/lm/pretrain_gpt.py")
    given = read_arguments(" ".join(words[program + 1 : -1]), named="given")
    assert given["mock_data"]
    assert given["tensor_model_parallel_size"] == 2
    assert words[-1] == "MAX=1", "rule MC-64"
    words = run_script(folder, "pretrain_gpt.sh", "--data-path", "my", MEGATRON_LM="/lm")
    assert "--mock-data" not in words
    assert words[-3:] == ["--data-path", "my", "MAX=1"]


def test_slurm_starts_torchrun_on_every_node_and_meets_on_the_first(tmp_path: Path) -> None:
    one = subject(on="four nodes", backend="megatron", tp=2, zero_stage=1)
    folder = written(tmp_path, one, Format.SLURM)
    slurm = {
        "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NODELIST": "node[7-8]",
        "SLURM_SUBMIT_DIR": str(folder),
    }
    words = run_script(folder, SLURM_SCRIPT, **slurm)
    assert "--rdzv-endpoint=node7:23456" in words
    assert words[-5:] == ["-m", "runners.bench", "--launch", str(folder), "MAX=1"]
    text = (folder / SLURM_SCRIPT).read_text()
    assert "#SBATCH --nodes=4\n" in text
    assert "#SBATCH --gpus-per-node=8\n" in text
    assert (
        "gpus-per-node"
        not in texts(
            subject(on="ranks on CPUs", backend="pytorch", precision="fp32"), Format.SLURM
        )[SLURM_SCRIPT]
    )


@pytest.mark.parametrize("form", [Format.HF_DEEPSPEED, Format.ACCELERATE])
def test_a_script_of_the_users_is_given_the_training_arguments(
    form: Format, tmp_path: Path
) -> None:
    folder = written(tmp_path, subject(backend="deepspeed", zero_stage=3), form)
    words = run_script(folder, LAUNCH_SCRIPT, "train.py", "--x")
    assert words[-4:-1] == [f"{folder}/train.py", TRAINING_ARGUMENTS_FILE, "--x"]


def test_torchtitan_keeps_its_steps_and_takes_the_plans_optimizer(tmp_path: Path) -> None:
    pytest.importorskip("spmd_types")
    from tests.reports.emit.read_back import titan_config

    folder = written(tmp_path, subject(backend="pytorch", zero_stage=2), Format.TORCHTITAN)
    config = titan_config(folder)
    assert config.training.steps == 12
    assert config.training.disable_cuda_graphs, "the trial captured none; not with a pipeline"
    assert config.training.max_norm == float("inf"), "the trial clips nothing"
    (group,) = config.optimizer.param_groups
    assert group.optimizer_kwargs["lr"] == 3e-4
    assert tuple(group.optimizer_kwargs["betas"]) == (0.9, 0.999)
    assert "llama3_8b" in (folder / "torchtitan_plan.py").read_text()


def test_torchtitan_cuts_stages_of_equally_many_layers(tmp_path: Path) -> None:
    knobs: dict[str, Any] = {
        "backend": "pytorch",
        "zero_stage": 2,
        "pp": 2,
        "vpp": 2,
        "micro_batch": 1,
    }
    made = texts(subject(**knobs), Format.TORCHTITAN)["torchtitan.toml"]
    assert "pipeline_parallel_layers_per_stage = 8\n" in made
    assert "pipeline_parallel_first_stage_less_layers = 0\n" in made
