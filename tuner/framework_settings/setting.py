"""A framework's setting as data: where it applies, its default, its options, what must hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tuner.cluster import Cluster, Device
from tuner.launch import SettingValue
from tuner.plan import Backend, ParallelPlan
from tuner.workload import Workload

Values = Mapping[str, SettingValue]
"""Of all settings that apply to a plan, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingCase:
    """What a setting is judged against."""

    plan: ParallelPlan
    workload: Workload
    cluster: Cluster

    @property
    def on_gpus(self) -> bool:
        """CPU ranks have neither streams to overlap on nor torch's caching allocator."""
        return self.cluster.gpu.device is Device.CUDA

    @property
    def data_parallel(self) -> int:
        """Ranks that see different data."""
        return self.plan.data_parallel(self.cluster.num_gpus)

    @property
    def num_microbatches(self) -> int:
        """Forward passes of one data-parallel rank in one optimizer step."""
        return self.plan.num_microbatches(
            self.cluster.num_gpus, self.workload.global_batch_sequences
        )

    @property
    def num_params(self) -> int | None:
        """Of the whole model; None for a user's own module."""
        return None if self.workload.shape is None else self.workload.shape.num_params


def never(value: SettingValue, values: Values, case: SettingCase) -> str | None:
    """Nothing that could be wrong with it."""
    return None


def positive(value: SettingValue, values: Values, case: SettingCase) -> str | None:
    """Its framework takes numbers above 0."""
    return None if value > 0 else f"must be above 0, got {value}"


def always(value: SettingValue) -> Callable[[SettingCase, Values], SettingValue]:
    """A default that depends on nothing."""
    return lambda case, values: value


def always_works(values: Values, case: SettingCase) -> bool:
    """It has an effect whatever the other settings are."""
    return True


def alone(value: SettingValue) -> tuple[tuple[str, SettingValue], ...]:
    """Nothing changes with it."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkSetting:
    """One setting of one framework (or of PyTorch under all of them) that no knob turns."""

    name: str
    backends: tuple[Backend, ...]
    written: str
    """Where it stands in the launch files."""
    is_switch: bool
    """True where it is on or off; otherwise it is a whole number."""
    applies: Callable[[SettingCase], bool]
    """Whether the framework follows it under this plan."""
    default: Callable[[SettingCase, Values], SettingValue]
    """What a launch has unless told; of the settings before it in the table."""
    options: Callable[[SettingCase, SettingValue], tuple[SettingValue, ...]]
    """What the second pass tries beside the value that it has; none for one only carried over."""
    source: str
    """Where it was found: file of the framework, or a rule."""
    works: Callable[[Values, SettingCase], bool] = always_works
    """False where another setting takes its effect."""
    wrong: Callable[[SettingValue, Values, SettingCase], str | None] = never
    """What must hold and does not, where the framework refuses the value."""
    takes_along: Callable[[SettingValue], tuple[tuple[str, SettingValue], ...]] = alone
    """Settings that must change with it."""


def switched(case: SettingCase, value: SettingValue) -> tuple[SettingValue, ...]:
    """The other position of a switch."""
    return (not value,)


def carried_only(case: SettingCase, value: SettingValue) -> tuple[SettingValue, ...]:
    """Nothing is tried: it is there for what a user's own file says."""
    return ()
