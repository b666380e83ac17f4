"""The ``stack`` section of a job file: versions to plan for that are not installed here."""

from __future__ import annotations

from typing import Annotated, Any

from packaging.version import InvalidVersion, Version
from pydantic import BeforeValidator, Field, create_model, model_validator

from tuner.job_fields import Spelled, Strict
from tuner.stack import COMPONENTS, Stack, installed_stack

ABSENT = "none"
"""What a file says of a component that the other stack does not have."""


def _version(value: Any) -> Any:
    """The version as written: a number in YAML loses its zeros, 2.10 is 2.1."""
    if isinstance(value, str):
        if value == ABSENT:
            return value
        try:
            return str(Version(value))
        except InvalidVersion:
            pass
    hint = f'; put it in quotes: "{value}"' if type(value) in (int, float) else ""
    raise ValueError(
        f'it must be a version such as "2.9.0", or {ABSENT} where it is not installed, '
        f"got {value!r}{hint}"
    )


class _StackBase(Strict):
    @model_validator(mode="before")
    @classmethod
    def _underscores(cls, value: Any) -> Any:
        """A distribution's name has hyphens, a key of ours underscores; both are understood."""
        if not isinstance(value, dict):
            return value
        keys = [str(key).replace("-", "_") for key in value]
        if len(set(keys)) < len(keys):
            raise ValueError("a component must stand once, got it with - and with _")
        return dict(zip(keys, value.values(), strict=True))

    def over(self, installed: Stack) -> Stack:
        """The installed stack with what this section says of it."""
        versions = dict(installed.versions)
        for name in COMPONENTS:
            given = getattr(self, name.replace("-", "_"))
            if given == ABSENT:
                versions.pop(name, None)
            elif given is not None:
                versions[name] = given
        return Stack(versions=versions)


_VersionText = Annotated[
    str | None, BeforeValidator(_version), Spelled(f"a version in quotes, or {ABSENT}")
]

StackSection = create_model(
    "StackSection",
    __base__=_StackBase,
    __doc__="``stack``: the versions of every component that decides what is legal.",
    **{
        name.replace("-", "_"): (
            _VersionText,
            Field(None, description=f"Of {name}; what is installed here, unless given."),
        )
        for name in COMPONENTS
    },  # type: ignore[call-overload]  # fields by name
)


def planned_stack(section: _StackBase) -> Stack:
    """What plans are made for: what is installed here, except for what the file says."""
    return section.over(installed_stack())
