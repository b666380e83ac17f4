"""Framework settings drawn at random: legal for a plan, and not what it would have anyway."""

from __future__ import annotations

import random

from tuner.framework_settings.setting import SettingCase
from tuner.framework_settings.table import applying, other_options
from tuner.launch import Settings


def some_settings(case: SettingCase, generator: random.Random) -> Settings:
    """Of every other setting that applies, one of the options that the second pass would try."""
    settings: Settings = ()
    for setting in applying(case):
        options = other_options(case, settings, setting.name)
        if options and generator.random() < 0.5:
            settings = generator.choice(options)
    return settings
