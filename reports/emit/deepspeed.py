"""DeepSpeed itself: ``ds_config.json`` byte for byte as the trial read it, and two launchers."""

from __future__ import annotations

from reports.emit.scripts import deepspeed_scripts, torchrun_script
from reports.emit.subject import Subject, check, only
from tuner.launch import DEEPSPEED_FILE, LaunchFile
from tuner.plan import Backend


def deepspeed_files(subject: Subject) -> tuple[LaunchFile, ...]:
    """The trial's files, complete and without "auto", which DeepSpeed itself does not resolve.

    Raises:
        UserError: the plan is of another framework.
    """
    check("deepspeed", subject, (only(subject.plan, Backend.DEEPSPEED, "torchrun"),))
    subject.text(DEEPSPEED_FILE)
    return (*subject.spec.files, torchrun_script(subject), *deepspeed_scripts(subject))
