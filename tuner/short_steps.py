"""Steps of few micro-batches that tell how long a full step takes; pure.

The time of a step is affine in the number of its micro-batches: each takes the same once the
pipeline is full; its fill and drain, the reduction and the optimizer are the constant. Two counts
in turn tell both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.outcome import StepsEnd
from tuner.plan import ParallelPlan
from tuner.step_statistics import (
    StepsRule,
    first_counted,
    is_slower,
    step_statistics,
)

_FEWEST_PAIRS = 3
"""Behind the warm-up; fewer say nothing of their scatter."""
_SHARE = 0.18
"""Of the time that full steps may take at most, short ones may take so much where noise stays too
large for them: a fifth with the full steps of who leads then."""
_WIDER = 2.0
"""Their interval need not be as narrow: who is near the best is measured again with full steps."""
_HIGH_SHARE = 1 / 8
"""Of all micro-batches: the more the longer step has, the less its noise is multiplied."""
_LOW_TO_HIGH = 3
"""So many micro-batches, at least, lie between the two counts, for the same reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortSteps:
    """How many micro-batches a rank runs in the two kinds of short steps, and in a full one."""

    low: int
    high: int
    full: int

    def __post_init__(self) -> None:
        if not 1 <= self.low < self.high < self.full:
            raise ValueError(
                "short steps must have 1 <= low < high < full micro-batches, got "
                f"{self.low}, {self.high}, {self.full}"
            )

    def full_step_s(self, low_s: float, high_s: float) -> float:
        """What a full step takes by two short ones: at least as long as the longer of them."""
        each_s = (high_s - low_s) / (self.high - self.low)
        return max(high_s, high_s + (self.full - self.high) * each_s)


def short_steps_for(plan: ParallelPlan, num_microbatches: int) -> ShortSteps | None:
    """The two counts for a plan; None where full steps cost little more.

    A pipeline is filled by ``pp`` micro-batches, an interleaved one takes multiples of ``pp``. The
    longer step reaches the peak of memory: with a second micro-batch gradients are there during
    the forward pass; 1F1B holds at most ``pp`` micro-batches at once, interleaved less than
    ``2 pp``.

    Args:
        plan: a legal one.
        num_microbatches: of a full step, of one rank.
    """
    unit = plan.pp if plan.vpp > 1 else 1
    low = plan.pp
    at_least = max(2 * low, low + _LOW_TO_HIGH, round(num_microbatches * _HIGH_SHARE))
    high = -(-at_least // unit) * unit
    # The warm-up and the fewest pairs must cost less than the fewest full steps would.
    if (1 + _FEWEST_PAIRS) * (low + high) * 2 > 3 * num_microbatches:
        return None
    return ShortSteps(low=low, high=high, full=num_microbatches)


def short_steps_end(
    pairs: Sequence[tuple[float, float]], short: ShortSteps, rule: StepsRule
) -> tuple[StepsEnd, int] | None:
    """Why short steps may stop now, and the first pair that counts; None = they go on.

    Args:
        pairs: seconds of the shorter and the longer step, warm-up included.
        short: their counts.
        rule: of full steps.
    """
    # The extrapolation multiplies noise: the longer steps themselves show best what is warm-up.
    start = first_counted([high_s for _, high_s in pairs], rule)
    # Of so few that scatter so much, a later change is the machine's, and leaves too few behind.
    start = min(start, rule.warmup_steps + _FEWEST_PAIRS)
    counted = [short.full_step_s(low_s, high_s) for low_s, high_s in pairs[start:]]
    if len(counted) < _FEWEST_PAIRS:
        return None
    if is_slower(counted, rule):
        return StepsEnd.SLOWER, start
    # The interval is looked at after each pair, hence 99 %: of few, some are alike by luck.
    known = step_statistics(counted, 0.99)
    if known.relative_half_width <= _WIDER * rule.relative_half_width:
        return StepsEnd.PRECISE, start
    full_s = (rule.warmup_steps + rule.max_steps) * known.level_s
    if sum(low_s + high_s for low_s, high_s in pairs) < _SHARE * min(full_s, rule.time_s):
        return None
    return StepsEnd.MAX_STEPS if full_s <= rule.time_s else StepsEnd.TIME, start
