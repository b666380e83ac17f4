"""``measure`` in the job file: how many steps of a trial count, and where tokens go in them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tuner.errors import UserError
from tuner.job_fields import Degree, Strict
from tuner.launch import AdaptiveSteps, Measurement, Routing
from tuner.units import MOST_COUNT
from tuner.workload import Workload


def _switch(value: Any) -> Any:
    """YAML reads a bare ``off`` as False."""
    return {True: "auto", False: "off"}[value] if isinstance(value, bool) else value


class MeasureSection(Strict):
    """``measure``: whole optimizer steps of a trial."""

    warmup_steps: Degree = 1
    """At least so many do not count; times must have settled, too."""
    steps: Annotated[int, Field(ge=2, le=MOST_COUNT, strict=True)] = 5
    """At least so many count, unless a plan is clearly slower than the best so far."""
    max_steps: Annotated[int, Field(ge=2, le=MOST_COUNT, strict=True)] = 25
    """At most so many; equal to ``steps``: exactly so many, whatever they say."""
    precision: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Half of the 99 % interval of the step time, as a part of it, that is narrow enough."""
    short_steps: Annotated[Literal["auto", "off"], BeforeValidator(_switch)] = "off"
    """auto: plans of many micro-batches a step run few and their step time is extrapolated, which
    costs a fifth and was wrong by 2 % at the median, 12 % at most, on noisy CPU ranks; who leads by
    that runs full steps."""
    finals: Annotated[int, Field(ge=0, le=MOST_COUNT, strict=True)] = 0
    """So many of the best are measured again, side by side, where noise leaves it open; 0 = none.
    Every round of them costs as many trials."""
    routing: Routing = "learned"
    """Where tokens go in a model with experts. worst: all to the same few experts of each layer, so
    that the expert-parallel rank that holds them gets every token; only Megatron-Core has such
    ranks, and there memory and time are those of a collapsed router."""


def measurement_of(
    section: MeasureSection,
    workload: Workload,
    *,
    memory_limit_bytes: int,
    steps_limit_s: float,
    named: str,
) -> Measurement:
    """What the section says of this workload's trials.

    Args:
        section: as the file has it.
        workload: that is measured.
        memory_limit_bytes: what a rank may allocate.
        steps_limit_s: of the phase of all steps but the first.
        named: the job file, for messages.

    Raises:
        UserError: its keys contradict each other or the workload.
    """
    if section.max_steps < section.steps:
        raise UserError(
            f"{named}: measure.max_steps must be at least measure.steps ({section.steps}), got "
            f"{section.max_steps}; raise it, or lower measure.steps"
        )
    if section.routing == "worst" and (workload.shape is None or workload.shape.experts is None):
        raise UserError(
            f"{named}: measure.routing must be learned for a model that is not known to have "
            f"experts, got {section.routing}; remove it"
        )
    adaptive = AdaptiveSteps(
        max_steps=section.max_steps,
        relative_half_width=section.precision,
        # The steps phase is limited as a whole: half of it is left for the step that is running.
        time_s=steps_limit_s / 2,
    )
    return Measurement(
        warmup_steps=section.warmup_steps,
        steps=section.steps,
        memory_limit_bytes=memory_limit_bytes,
        adaptive=adaptive if section.max_steps > section.steps else None,
        short_steps=section.short_steps == "auto",
        routing=section.routing,
    )
