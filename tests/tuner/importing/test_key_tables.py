"""The tables of keys are those of the frameworks that are installed."""

from __future__ import annotations

import re

import pytest

from tuner.importing.accelerate_keys import KNOWN_KEYS as ACCELERATE_KEYS
from tuner.importing.deepspeed_keys import BLOCK_KEYS, REMOVED_KEYS
from tuner.importing.megatron_keys import known_flags, reason_ignored


def test_deepspeeds_blocks_have_the_keys_of_its_models() -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime import config, precision_config
    from deepspeed.runtime.zero import config as zero_config
    from deepspeed.runtime.zero import offload_config as offload

    def names(model: object) -> set[str]:
        fields = model.model_fields  # type: ignore[attr-defined]  # pydantic models
        return {field.alias or name for name, field in fields.items()}

    removed = {key.split(".")[1] for key in REMOVED_KEYS if "." in key}
    assert names(zero_config.DeepSpeedZeroConfig) | removed == BLOCK_KEYS["zero_optimization"]
    assert (
        names(offload.DeepSpeedZeroOffloadOptimizerConfig)
        == BLOCK_KEYS["zero_optimization.offload_optimizer"]
    )
    assert (
        names(offload.DeepSpeedZeroOffloadParamConfig)
        == BLOCK_KEYS["zero_optimization.offload_param"]
    )
    assert names(precision_config.DeepSpeedFP16Config) == BLOCK_KEYS["fp16"]
    assert names(precision_config.DeepSpeedBF16Config) == BLOCK_KEYS["bf16"]
    assert set(config._REMOVED_TOP_LEVEL_CONFIG_KEYS) == {k for k in REMOVED_KEYS if "." not in k}


def test_accelerates_top_level_keys_are_known() -> None:
    arguments = pytest.importorskip("accelerate.commands.config.config_args")
    read = {"num_processes", "num_machines", "mixed_precision", "distributed_type"}
    blocks = {"fsdp_config", "deepspeed_config", "megatron_lm_config"}
    known = {key.split(".")[0] for key in ACCELERATE_KEYS}
    assert set(arguments.ClusterConfig.__dataclass_fields__) <= known | read | blocks


def test_the_options_that_trials_are_launched_with_are_megatrons() -> None:
    flags = known_flags()
    assert len(flags) > 600
    assert {"--tensor-model-parallel-size", "--micro-batch-size", "--bf16"} <= flags
    assert all(re.fullmatch(r"--[\w-]+", flag) for flag in flags)


@pytest.mark.parametrize(
    ("option", "pinned"),
    [
        ("--overlap-grad-reduce", True),
        ("--tp-comm-overlap", True),
        ("--moe-token-dispatcher-type", True),
        ("--cuda-graph-impl", True),
        ("--save-interval", False),
        ("--num-layers", False),
        ("--lr", False),
        ("--log-interval", False),
        ("--async-save", False),
    ],
)
def test_an_option_is_pinned_where_it_may_change_the_speed(option: str, pinned: bool) -> None:
    assert (reason_ignored(option) is None) is pinned
