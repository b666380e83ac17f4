"""All legal plans of a job: knob by knob, each rule applied as soon as its knobs are chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from search_spaces.options import knob_options
from search_spaces.rule import Rule, Setting, backend_mask
from search_spaces.rule_table import RULES
from tuner.plan import KNOB_NAMES, ParallelPlan, PlanValue
from tuner.plan_arrays import PlanArrays
from tuner.search_space import Removal, SearchSpace

_ORDER = (
    "backend",
    "precision",
    "tp",
    "pp",
    "cp",
    "ep",
    "micro_batch",
    "vpp",
    "zero_stage",
    "dp_replicate",
    "sequence_parallel",
    "offload",
    "recompute",
)
"""The knobs that most rules look at come first, so that few plans are ever kept at once."""
assert set(_ORDER) == set(KNOB_NAMES)


def search_space(setting: Setting, asked: Mapping[str, tuple[PlanValue, ...]]) -> SearchSpace:
    """The legal plans of a workload on a cluster.

    A removed partial plan counts for all the combinations that it would have led to, so the
    waterfall and the legal plans add up to all combinations.

    Args:
        setting: what is trained, on what, with which versions.
        asked: options per knob as the user gave them; a missing knob is automatic.
    """
    return _left(setting, knob_options(setting, asked), RULES)


def binding_removals(
    setting: Setting, asked: Mapping[str, tuple[PlanValue, ...]]
) -> tuple[Removal, ...]:
    """Where no plan is legal: the rules without any one of which some would be.

    Each with the numbers of a plan that breaks it alone. Empty where several stand in the way.
    """
    options = knob_options(setting, asked)
    binding = []
    for removal in _left(setting, options, RULES).waterfall:
        rule = next(rule for rule in RULES if rule.id == removal.rule)
        without = _left(setting, options, [other for other in RULES if other is not rule])
        if len(without.plans):
            says = rule.says(without.plans[0], setting)
            binding.append(replace(removal, removed=len(without.plans), example=says))
    return tuple(binding)


def _left(
    setting: Setting, options: Mapping[str, tuple[PlanValue, ...]], rules: Sequence[Rule]
) -> SearchSpace:
    bound = [rule for rule in rules if rule.binds(setting.stack)]
    arrays = PlanArrays(columns={})
    waterfall = []
    for position, name in enumerate(_ORDER):
        arrays = arrays.crossed(name, options[name])
        left_open = prod(len(options[later]) for later in _ORDER[position + 1 :])
        for rule in (rule for rule in bound if _last_knob(rule) == name):
            broken = backend_mask(arrays, rule.backends) & rule.breaks(arrays, setting)
            removed = int(broken.sum()) * left_open
            if removed:
                says = rule.says(arrays[int(broken.argmax())], setting)
                waterfall.append(
                    Removal(rule=rule.id, removed=removed, sentence=rule.summary, example=says)
                )
                arrays = arrays.kept(~broken)
    return SearchSpace(
        knobs=tuple(options.items()),
        plans=arrays,
        waterfall=tuple(waterfall),
        num_combinations=prod(len(values) for values in options.values()),
    )


def _last_knob(rule: Rule) -> str:
    return max(("backend", *rule.knobs), key=_ORDER.index)


def rejections(plan: ParallelPlan, setting: Setting) -> tuple[tuple[str, str], ...]:
    """Every rule that a plan breaks, as (rule id, sentence with the numbers); empty if legal."""
    arrays = PlanArrays.of_plans([plan])
    return tuple(
        (rule.id, rule.says(plan, setting))
        for rule in RULES
        if plan.backend in rule.backends
        and rule.binds(setting.stack)
        and rule.breaks(arrays, setting)[0]
    )
