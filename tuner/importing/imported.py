"""What a user's own configuration comes to: a plan, and what of the file is not in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.cluster import Cluster
from tuner.launch import Settings, SettingValue
from tuner.plan import ParallelPlan, PlanValue
from tuner.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredKey:
    """A key that the plan does not need, and why."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedKey:
    """A key that may change the speed and has no knob here; its value as text."""

    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportTarget:
    """What the plan is for: the job's GPUs and workload, and what was given beside the file."""

    cluster: Cluster
    workload: Workload
    arguments: Mapping[str, Any]
    """Hugging Face TrainingArguments; empty where none were given."""
    arguments_file: Path | None
    """None where none were given: then the Trainer's defaults are not assumed either."""

    def data_parallel(self, **degrees: int) -> int:
        """Ranks that see different data when the GPUs are split by these degrees, floored."""
        split = 1
        for degree in degrees.values():
            split *= degree
        return self.cluster.num_gpus // split


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A plan read from a file."""

    plan: ParallelPlan
    file: Path
    format: str
    """``deepspeed``, ``accelerate``, ``megatron``, ``torchtitan`` or ``paratune``."""
    key_of_knob: Mapping[str, str]
    """Where each knob was read, for messages about the plan; a knob at its default is missing."""
    unknown_keys: tuple[str, ...] = ()
    """Keys that the framework does not know."""
    ignored_keys: tuple[IgnoredKey, ...] = ()
    settings: Settings = ()
    """Framework settings that the file says: carried into every plan of the framework."""
    pinned: tuple[PinnedKey, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader should know: the job's batch instead of the file's, a nearest value, ..."""

    def document(self) -> dict[str, Any]:
        """As JSON values, for the study folder."""
        return {
            "plan": self.plan.to_dict(),
            "file": str(self.file),
            "format": self.format,
            "unknown_keys": list(self.unknown_keys),
            "ignored_keys": [{"key": one.key, "reason": one.reason} for one in self.ignored_keys],
            "settings": dict(self.settings),
            "pinned": {one.key: one.value for one in self.pinned},
            "notes": list(self.notes),
        }


@dataclass(slots=True)
class Findings:
    """What a reader of one format gathers on its way to a plan."""

    knobs: dict[str, PlanValue]
    keys: dict[str, str]
    notes: list[str]
    settings: dict[str, SettingValue] = field(default_factory=dict)
    """Framework settings, by their names here."""
    setting_keys: dict[str, str] = field(default_factory=dict)
    """The key that said each."""

    @classmethod
    def of(cls, backend: str) -> Findings:
        """Nothing but the framework."""
        return cls(knobs={"backend": backend}, keys={}, notes=[])

    def found(self, knob: str, value: PlanValue, key: str) -> None:
        """Keeps a knob's value and the key that said it."""
        self.knobs[knob] = value
        self.keys[knob] = key

    def set_to(self, setting: str, value: SettingValue, key: str) -> None:
        """Keeps a framework setting and the key that said it."""
        self.settings[setting] = value
        self.setting_keys[setting] = key

    def without_lone_sharding(self, data_parallel: int) -> None:
        """Stage 0 where one data-parallel rank shards over itself: the same layout by our rules.

        Not with offload or context parallelism, where the stage still says something.
        """
        stage = self.knobs.get("zero_stage", 0)
        alone = data_parallel == 1 and self.knobs.get("cp", 1) == 1
        if stage and alone and self.knobs.get("offload", "none") == "none":
            self.notes.append(
                f"{self.keys['zero_stage']} shards over one data-parallel rank, which is the same "
                "as zero_stage 0"
            )
            self.knobs["zero_stage"] = 0
