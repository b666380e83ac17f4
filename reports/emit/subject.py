"""What is emitted: a plan with the launch files that its trial ran with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tuner.errors import UserError
from tuner.framework_settings.table import value_text
from tuner.launch import MODEL_FILE, TRAINING_FILE, LaunchFile, LaunchSpec, SettingValue
from tuner.plan import ParallelPlan, PlanValue


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A legal plan, the files that carry it out, and where they run."""

    spec: LaunchSpec
    on_cpu: bool
    """True where ranks run on CPUs, as on a laptop."""
    origin: str
    """Who made it, in a line, for the head of a file."""

    @property
    def plan(self) -> ParallelPlan:
        """The plan that the files carry out."""
        return self.spec.plan

    @property
    def num_microbatches(self) -> int:
        """Forward passes of one data-parallel rank in one optimizer step."""
        return self.plan.num_microbatches(
            self.spec.num_ranks, self.training["global_batch_sequences"]
        )

    @cached_property
    def training(self) -> dict[str, Any]:
        """``training.json``: batch, length, optimizer and seed."""
        return self._json(TRAINING_FILE)

    @cached_property
    def model(self) -> dict[str, Any]:
        """The model's ``config.json``; empty for a module of the user's own."""
        has_model = any(file.name == MODEL_FILE for file in self.spec.files)
        return self._json(MODEL_FILE) if has_model else {}

    def text(self, name: str) -> str:
        """A launch file's text.

        Raises:
            UserError: the trial kept no such file.
        """
        for file in self.spec.files:
            if file.name == name:
                return file.text
        names = ", ".join(file.name for file in self.spec.files) or "none"
        raise UserError(
            f"the launch files of {self.plan.label()} must hold {name}, got {names}; "
            "bring the trial's launch folder back, or emit another trial with --trial"
        )

    def _json(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads(self.text(name))
        except ValueError as error:
            raise UserError(
                f"{name} of {self.plan.label()} must be JSON, but {error}; "
                "emit another trial with --trial"
            ) from error
        if not isinstance(value, dict):
            raise UserError(
                f"{name} of {self.plan.label()} must hold a JSON object, got "
                f"{type(value).__name__}; emit another trial with --trial"
            )
        return value


class Unsayable(UserError):
    """The format has no words for the plan, its settings or where it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a format has a word for, of one knob or framework setting."""

    knob: str
    holds: bool
    allowed: str
    """The options that can be said, in words."""
    why: str
    instead: str
    """What to do: another option of the knob, or another format."""


def check(name: str, subject: Subject, needs: tuple[Need, ...]) -> None:
    """Refuses a plan that the format cannot say, with every knob or setting that is in the way.

    Raises:
        Unsayable: it cannot say it.
    """
    values: dict[str, PlanValue] = subject.plan.to_dict() | dict(subject.spec.settings)
    broken = [
        f"{need.knob} must be {need.allowed}, got {value_text(values[need.knob])}: {need.why}; "
        f"{need.instead}"
        for need in needs
        if not need.holds
    ]
    if broken:
        raise Unsayable(f"--format {name} cannot say this plan: {'. And '.join(broken)}")


def unsaid_settings(
    subject: Subject, defaults: Mapping[str, SettingValue | None], why: str, instead: str
) -> tuple[Need, ...]:
    """That framework settings, which the format has no words for, are as they would be anyway.

    Args:
        subject: what is emitted.
        defaults: the settings with what stands where nothing is said; None: any value is too much.
        why: the format has none.
        instead: a format that says them.
    """
    asked = dict(subject.spec.settings)
    return tuple(
        Need(
            knob=name,
            holds=name not in asked or asked[name] == default,
            allowed="left out" if default is None else value_text(default),
            why=why,
            instead=f"use --format {instead}, or a trial without it (--trial)",
        )
        for name, default in defaults.items()
    )


def only(plan: ParallelPlan, backend: str, formats: str) -> Need:
    """The format belongs to one framework."""
    return Need(
        knob="backend",
        holds=plan.backend == backend,
        allowed=backend,
        why=f"these are files of {backend}",
        instead=f"use --format {formats}, or emit a trial of {backend} with --trial",
    )


def json_file(name: str, value: object) -> LaunchFile:
    """A JSON file as paratune writes them."""
    return LaunchFile(name=name, text=json.dumps(value, indent=2) + "\n")
