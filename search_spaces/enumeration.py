"""All legal plans of a job: the product of the options, less what the rules remove."""

from __future__ import annotations

from collections.abc import Mapping

from search_spaces.options import knob_options
from search_spaces.plan_arrays import PlanArrays
from search_spaces.rule import Setting, backend_mask
from search_spaces.rule_table import RULES
from tuner.cluster import Cluster
from tuner.plan import ParallelPlan, PlanValue
from tuner.search_space import Removal, SearchSpace
from tuner.workload import Workload


def search_space(
    workload: Workload, cluster: Cluster, asked: Mapping[str, tuple[PlanValue, ...]]
) -> SearchSpace:
    """The legal plans of a workload on a cluster.

    Args:
        workload: what is trained.
        cluster: on what.
        asked: options per knob as the user gave them; a missing knob is automatic.
    """
    options = knob_options(workload, cluster, asked)
    arrays = PlanArrays.product(options)
    num_combinations = len(arrays)
    setting = Setting(workload=workload, cluster=cluster)
    waterfall = []
    for rule in RULES:
        broken = backend_mask(arrays, rule.backends) & rule.breaks(arrays, setting)
        removed = int(broken.sum())
        if removed:
            waterfall.append(Removal(rule=rule.id, removed=removed, sentence=rule.summary))
            arrays = arrays.kept(~broken)
    return SearchSpace(
        knobs=tuple(options.items()),
        plans=arrays.plans(),
        waterfall=tuple(waterfall),
        num_combinations=num_combinations,
    )


def rejections(
    plan: ParallelPlan, workload: Workload, cluster: Cluster
) -> tuple[tuple[str, str], ...]:
    """Every rule that a plan breaks, as (rule id, sentence with the numbers); empty if legal."""
    setting = Setting(workload=workload, cluster=cluster)
    arrays = PlanArrays.of_plan(plan)
    return tuple(
        (rule.id, rule.says(plan, setting))
        for rule in RULES
        if plan.backend in rule.backends and rule.breaks(arrays, setting)[0]
    )
