"""All framework settings, and what follows from them for a plan; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tuner.framework_settings.deepspeed_settings import DEEPSPEED_SETTINGS
from tuner.framework_settings.megatron_settings import MEGATRON_SETTINGS
from tuner.framework_settings.pytorch_settings import ALLOCATOR_SETTINGS, PYTORCH_SETTINGS
from tuner.framework_settings.setting import FrameworkSetting, SettingCase
from tuner.launch import Settings, SettingValue

SETTINGS: tuple[FrameworkSetting, ...] = (
    *PYTORCH_SETTINGS,
    *DEEPSPEED_SETTINGS,
    *MEGATRON_SETTINGS,
    *ALLOCATOR_SETTINGS,
)
SETTING_NAMES = frozenset(setting.name for setting in SETTINGS)
assert len(SETTING_NAMES) == len(SETTINGS), "one name for one setting, whatever the framework"


def applying(case: SettingCase) -> tuple[FrameworkSetting, ...]:
    """The settings that the framework follows under this plan."""
    return tuple(
        setting
        for setting in SETTINGS
        if case.plan.backend in setting.backends and setting.applies(case)
    )


def applied(case: SettingCase, asked: Settings) -> Settings:
    """Of what was asked for, what applies to this plan; in the table's order."""
    given = dict(asked)
    return tuple((one.name, given[one.name]) for one in applying(case) if one.name in given)


def settled(case: SettingCase, asked: Settings) -> dict[str, SettingValue]:
    """The value of every setting that applies to this plan: asked for, else its default."""
    given = dict(asked)
    values: dict[str, SettingValue] = {}
    for one in applying(case):
        values[one.name] = given[one.name] if one.name in given else one.default(case, values)
    return values


def broken(case: SettingCase, asked: Settings) -> tuple[tuple[str, str], ...]:
    """Of what was asked for, what the framework refuses: names with the sentence that says why."""
    values = settled(case, asked)
    given = {name for name, _ in asked}
    sentences = (
        (one.name, one.wrong(values[one.name], values, case))
        for one in applying(case)
        if one.name in given
    )
    return tuple((name, sentence) for name, sentence in sentences if sentence is not None)


def other_options(case: SettingCase, current: Settings, name: str) -> tuple[Settings, ...]:
    """What is worth trying in place of ``current`` in one setting, legal and with an effect."""
    values = settled(case, current)
    setting = next(one for one in applying(case) if one.name == name)
    found = []
    for option in setting.options(case, values[name]):
        changes = {name: option, **dict(setting.takes_along(option))}
        changed = with_changes(case, current, changes)
        if setting.works(settled(case, changed), case) and not broken(case, changed):
            found.append(changed)
    return tuple(found)


def with_changes(
    case: SettingCase, current: Settings, changes: Mapping[str, SettingValue]
) -> Settings:
    """The settings with some values changed; what does not apply to the plan falls out."""
    return applied(case, tuple({**dict(current), **changes}.items()))


def differing(case: SettingCase, first: Settings, second: Settings) -> dict[str, SettingValue]:
    """The second's values where they are not the first's, defaults counted."""
    was, now = settled(case, first), settled(case, second)
    return {name: value for name, value in now.items() if was[name] != value}


def unfollowed(asked: Mapping[str, object], effective: Mapping[str, object]) -> tuple[str, ...]:
    """Where a framework runs another value than was asked for, a sentence each."""
    return tuple(
        f"{name} was asked to be {value_text(value)}, and the framework runs "
        f"{value_text(effective[name]) if name in effective else 'without it'}"
        for name, value in asked.items()
        if effective.get(name) != value
    )


def settings_text(values: Iterable[tuple[str, SettingValue]]) -> str:
    """``overlap_comm=false, reduce_bucket_size=5000000``."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in values)


def value_text(value: object) -> str:
    """As the launch files would say it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
