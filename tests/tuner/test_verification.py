"""The verdict on losses: right, wrong and named, or not to be told."""

from __future__ import annotations

from dataclasses import replace

from tuner.plan import Backend, ParallelPlan, Precision
from tuner.verification import (
    DOUBLED,
    UNSYNCHRONISED,
    Reference,
    Verdict,
    Verification,
    verification,
)

PLAN = ParallelPlan(backend=Backend.PYTORCH, precision=Precision.FP32)
REFERENCE = Reference(
    losses=(6.0, 5.5, 5.0),
    is_deterministic=True,
    first_losses={DOUBLED: (6.1, 5.9)},
    later_losses={UNSYNCHRONISED: (6.0, 5.6, 5.2)},
)


def verdict(losses: tuple[float, ...], reference: Reference = REFERENCE) -> Verification:
    return verification(PLAN, losses, reference, num_layers=2)


def test_equal_losses_are_right() -> None:
    assert verdict((6.0001, 5.5, 5.0)).verdict is Verdict.RIGHT


def test_a_first_loss_of_a_known_mistake_names_it() -> None:
    found = verdict((6.1, 5.5, 5.0))
    assert found.verdict is Verdict.WRONG
    assert f"as if {DOUBLED}" in found.sentence


def test_later_losses_of_a_known_mistake_name_it() -> None:
    assert f"as if {UNSYNCHRONISED}" in verdict((6.0, 5.6, 5.2)).sentence


def test_an_unknown_mistake_is_placed_before_or_behind_the_update() -> None:
    assert "forward pass" in verdict((7.0, 5.5, 5.0)).sentence
    assert "update" in verdict((6.0, 5.4, 4.0)).sentence


def test_a_random_forward_pass_cannot_be_verified() -> None:
    found = verdict((6.0, 5.5, 5.0), replace(REFERENCE, is_deterministic=False))
    assert found.verdict is Verdict.UNKNOWN
    assert "random" in found.sentence


def test_what_the_tolerance_hides_is_said() -> None:
    half = replace(PLAN, precision=Precision.FP8)
    found = verification(half, (6.0, 5.5, 5.0), REFERENCE, num_layers=2)
    assert found.blind_to == (DOUBLED,)
    assert verdict((6.0, 5.5, 5.0)).blind_to == ()
