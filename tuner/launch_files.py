"""The launch files of a trial on disk: where they lie, and how they are written."""

from __future__ import annotations

from pathlib import Path

from tuner.launch import LaunchSpec


def launch_folder(trial_folder: Path) -> Path:
    """Where a trial keeps its launch files."""
    return trial_folder / "launch"


def plain_name(name: str) -> str:
    """The name of a file that lies in the folder it is joined to.

    Raises:
        ValueError: it would lie elsewhere.
    """
    if Path(name).name != name or name in ("", ".", ".."):
        raise ValueError(f"a launch file must lie in its folder, got {name!r}")
    return name


def write_launch_files(spec: LaunchSpec, folder: Path) -> None:
    """Writes the files of a launch into a folder, making it."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in spec.files:
        (folder / plain_name(file.name)).write_text(file.text)
