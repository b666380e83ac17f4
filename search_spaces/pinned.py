"""Rules of the commonest shape: in some case a knob has only these options."""

from __future__ import annotations

from collections.abc import Callable

from search_spaces.rule import Rule, Setting
from tuner.plan import Backend, ParallelPlan
from tuner.plan_arrays import BoolArray, PlanArrays


def simple_rule(  # one argument a column of the table
    rule_id: str,
    backend: Backend,
    knobs: tuple[str, ...],
    breaks: Callable[[PlanArrays, Setting], BoolArray],
    must: str,
    source: str,
) -> Rule:
    """A rule whose sentence is what must hold, followed by the plan that was got."""

    def says(plan: ParallelPlan, _: Setting) -> str:
        return f"{must}; got {plan.label()}"

    return Rule(
        id=rule_id,
        backends=(backend,),
        knobs=knobs,
        breaks=breaks,
        says=says,
        summary=must,
        source=source,
    )
