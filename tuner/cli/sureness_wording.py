"""How sure a prediction is, in the words of the tables."""

from __future__ import annotations

from tuner.cost_model.sureness import FitZone

WITHIN = (
    "within: with 95 % the measured value is at most so much above the prediction, or as much "
    "below it. fits: probably where both are possible."
)


def within_text(factor: float) -> str:
    """Of 1.25: 25 %; of factors from 2 on, such as a model of a GPU not known, the factor."""
    return f"{factor - 1:.0%}" if factor < 2 else f"{factor:.1f}x"


def fit_text(fits: bool | None, zone: str | None) -> str:
    """Yes or no, with probably where it is not sure; ? where the GPU's memory is not known."""
    if fits is None:
        return "?"
    answer = "yes" if fits else "no"
    return f"probably {answer}" if zone == FitZone.UNCERTAIN else answer
