"""What would be started, as data: the files of a launch and the program that reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tuner.plan import ParallelPlan

BENCH_MODULE = "runners.bench"
"""``python -m runners.bench --launch FOLDER`` is what every rank runs."""
TRAINING_FILE = "training.json"
"""Model, batch, seed and measurement; the same for all frameworks."""
MODEL_FILE = "config.json"
PYTORCH_FILE = "pytorch.toml"
DEEPSPEED_FILE = "ds_config.json"
MEGATRON_FILE = "megatron.args"
ENVIRONMENT_FILE = "env.json"
"""Beside the launch files: the variables that the ranks had on top of the machine's own."""

Routing = Literal["learned", "worst"]
"""Of tokens to experts: as the router says, or all to the same ones."""
SettingValue = bool | int
"""Of a framework's setting: a switch or a whole number."""
Settings = tuple[tuple[str, SettingValue], ...]
"""Framework settings that were asked for, by name; all others have their defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFile:
    """A file as it is written, measured and handed to the user, byte for byte."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """Everything that a trial of this plan starts with; nothing has been started."""

    plan: ParallelPlan
    num_nodes: int
    ranks_per_node: int
    files: tuple[LaunchFile, ...]
    env: tuple[tuple[str, str], ...] = ()
    """Environment that the framework needs, for every rank."""
    settings: Settings = ()
    """Framework settings that were asked for and apply to the plan; the files say them."""

    @property
    def num_ranks(self) -> int:
        """One a GPU."""
        return self.num_nodes * self.ranks_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """How a trial is measured."""

    warmup_steps: int = 2
    """Not counted; of adaptive measuring the fewest, for it waits until times have settled."""
    steps: int = 5
    """Whole optimizer steps that count, after those of the warm-up."""
    memory_limit_bytes: int | None = None
    """What a rank may allocate; None = all that its device has."""
    adaptive: AdaptiveSteps | None = None
    """None: exactly ``steps`` count."""
    short_steps: bool = False
    """Whether plans of many micro-batches are measured by shorter steps; see ``short_steps``."""
    routing: Routing = "learned"
    """``worst``: the first experts of each layer get all tokens."""
    reference: ReferenceSplit | None = None
    """Set where one rank trains plainly, for another plan to be held against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSplit:
    """How the plan that is checked splits the global batch: its mistakes depend on that."""

    data_parallel: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveSteps:
    """More steps than ``Measurement.steps`` where the step time is not known well enough."""

    max_steps: int = 25
    relative_half_width: float = 0.02
    """Of the 99 % interval: narrower is not worth more steps."""
    time_s: float = 300.0
    """Once this long has gone into steps, those that there are must do."""
    incumbent_step_time_s: float | None = None
    """Of the best plan so far: a trial that is slower for certain ends early."""
