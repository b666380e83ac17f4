"""All rules, in the order in which plans meet them."""

from __future__ import annotations

from search_spaces.deepspeed_zero import DEEPSPEED_RULES
from search_spaces.general_rules import GENERAL_RULES
from search_spaces.megatron_core import MEGATRON_RULES
from search_spaces.pytorch_native import PYTORCH_RULES
from search_spaces.rule import Rule

RULES: tuple[Rule, ...] = (
    *GENERAL_RULES,
    *PYTORCH_RULES,
    *DEEPSPEED_RULES,
    *MEGATRON_RULES,
)
