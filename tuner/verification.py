"""Whether a layout computes what one rank computes: the verdict on its losses; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tuner.launch import Settings
from tuner.plan import ParallelPlan, Precision

LOSS_TOLERANCE = {
    Precision.FP32: 2e-4,
    Precision.BF16: 4e-3,
    Precision.FP16: 4e-3,
    Precision.FP8: 2e-2,
}
"""Relative. Frameworks round differently in 16 bits, and DeepSpeed's stage 0 takes a smaller first
update there (its initialising step of zero gradients counts in Adam: 6.223 for 6.218)."""
_EXACT = 0.1
"""A suspect explains a loss when it is this much closer than the tolerance."""


class Verdict(StrEnum):
    """What came of it."""

    RIGHT = "right"
    WRONG = "wrong"
    UNKNOWN = "unknown"


SHIFTED = "labels are shifted by a token"
DOUBLED = "a micro-batch is seen twice, another not at all"
UNSYNCHRONISED = "gradients are not averaged over the data-parallel ranks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What one rank computed, in fp32, and what it would have with this or that mistake."""

    losses: tuple[float, ...]
    """Of the first steps."""
    is_deterministic: bool
    """Whether the same tokens gave the same loss twice."""
    first_losses: Mapping[str, Sequence[float]]
    """Per mistake, what the first loss might be with it."""
    later_losses: Mapping[str, Sequence[float]]
    """Per mistake, the losses of all steps with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The verdict on one plan."""

    plan: ParallelPlan
    verdict: Verdict
    sentence: str
    settings: Settings = ()
    """Framework settings that it was checked with."""
    num_layers: int | None = None
    """Of the model that it was checked on; None = the user's own module, whole."""
    losses: tuple[float, ...] = ()
    reference_losses: tuple[float, ...] = ()
    relative_tolerance: float = 0.0
    blind_to: tuple[str, ...] = ()
    """Mistakes that would have changed the losses by less than the tolerance here."""


def verification(
    plan: ParallelPlan,
    losses: Sequence[float],
    reference: Reference,
    *,
    num_layers: int | None,
) -> Verification:
    """The verdict on the losses of a plan's first steps.

    Args:
        plan: that gave the losses.
        losses: of the same steps as the reference's.
        reference: one rank with the same weights and data.
        num_layers: of the model that both trained.
    """
    tolerance = LOSS_TOLERANCE[plan.precision]
    verdict, sentence = _judged(losses, reference, tolerance)
    return Verification(
        plan=plan,
        verdict=verdict,
        sentence=sentence,
        num_layers=num_layers,
        losses=tuple(losses),
        reference_losses=reference.losses,
        relative_tolerance=tolerance,
        blind_to=_blind_to(reference, tolerance),
    )


def _judged(losses: Sequence[float], reference: Reference, tolerance: float) -> tuple[Verdict, str]:
    right = reference.losses
    if not reference.is_deterministic:
        return Verdict.UNKNOWN, (
            "the model must give the same loss for the same tokens, but one rank alone got two; "
            "switch off what is random in its forward pass (dropout)"
        )
    if len(losses) != len(right):
        return Verdict.UNKNOWN, (
            f"the plan must have run {len(right)} steps, got {len(losses)}; verify it again"
        )
    wrong = [i for i, loss in enumerate(losses) if not _near(loss, right[i], tolerance)]
    if not wrong:
        worst = max(abs(a - b) / b for a, b in zip(losses, right, strict=True))
        return Verdict.RIGHT, (
            f"its first {len(losses)} losses are those of one rank, within {worst:.2g} "
            f"(allowed: {tolerance:g})"
        )
    step = wrong[0]
    what = (
        f"the loss of step {step} must be {right[step]:.5f} as on one rank (within "
        f"{tolerance:g}), got {losses[step]:.5f}"
    )
    return Verdict.WRONG, f"{what}: {_suspicion(losses, reference, step, tolerance)}"


def _suspicion(losses: Sequence[float], reference: Reference, step: int, tolerance: float) -> str:
    exact = tolerance * _EXACT
    if step == 0:
        distance = {
            name: min(abs(loss - losses[0]) / loss for loss in candidates)
            for name, candidates in reference.first_losses.items()
            if candidates
        }
        named = min(distance, key=lambda name: distance[name], default=None)
        if named is not None and distance[named] <= max(exact, tolerance / 2):
            return f"as if {named}"
        return "the forward pass or its data differ (weights, a stage border, labels, samples)"
    for name, wrong in reference.later_losses.items():
        apart = [abs(a - b) / b for a, b in zip(losses, wrong, strict=True)]
        ours = [abs(a - b) / b for a, b in zip(losses, reference.losses, strict=True)]
        if max(apart) <= max(tolerance, max(ours) / 4):
            return f"as if {name}"
    hidden = "".join(
        f", or {name}, which that loss would not show"
        for name in _hidden_in_first_loss(reference, tolerance)
    )
    return (
        "the first loss is right, so gradients or the update differ (synchronisation over ranks, "
        f"scaling over micro-batches, the optimizer){hidden}"
    )


def _blind_to(reference: Reference, tolerance: float) -> tuple[str, ...]:
    later = [
        name
        for name, wrong in reference.later_losses.items()
        if all(_near(a, b, tolerance) for a, b in zip(wrong, reference.losses, strict=True))
    ]
    return (*_hidden_in_first_loss(reference, tolerance), *later)


def _hidden_in_first_loss(reference: Reference, tolerance: float) -> list[str]:
    return [
        name
        for name, candidates in reference.first_losses.items()
        if any(_near(loss, reference.losses[0], tolerance) for loss in candidates)
    ]


def _near(loss: float, right: float, tolerance: float) -> bool:
    return abs(loss - right) <= tolerance * abs(right)
