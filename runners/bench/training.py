"""What the bench asks of a framework: whole optimizer steps, the loss, the effective layout."""

from __future__ import annotations

from typing import Any, Protocol


class Training(Protocol):
    """A model with its optimizer, laid out over the ranks; all methods are collective."""

    def step(self, index: int) -> None:
        """One optimizer step over global batch ``index``: all micro-batches, then the update."""
        ...

    def run_microbatches(self, count: int) -> None:
        """From the next step on, so many micro-batches of each global batch; all at first."""
        ...

    def bytes_of_microbatch(self) -> int:
        """What this rank holds throughout for each micro-batch of a step, whether it runs or not.

        A step of fewer micro-batches does not show it.
        """
        ...

    def loss(self) -> float:
        """Mean loss over the micro-batches of the last step; the same on every rank."""
        ...

    def effective(self) -> dict[str, Any]:
        """The layout as the framework says it runs, in the words of the plan."""
        ...
