"""What ``paratune submit`` starts on the head of a Ray cluster, and what sends its folder back.

It is sent along as a file, for it must be able to say that paratune, or a Python that can run it,
is missing there: so it imports nothing of ours, and reads as any Python that Ray supports.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import os
import sys
import tarfile

LOWEST_PYTHON = (3, 11)
"""As in pyproject.toml."""
WRONG_INPUT = 2
ARCHIVE_MARK = "paratune-archive"
"""Starts every line of an archive in a job's log, where others may write as well."""
LIMIT_BYTES = 64 * 2**20
"""Of the files that are sent back, before they are compressed: a log is read as a whole."""
_LINE_BYTES = 24 * 1024
"""Of an archive in one line of the log; a multiple of 3, so that base64 needs no padding."""


def main() -> int:
    """Becomes a study on this cluster, or prints a study folder as an archive."""
    parser = argparse.ArgumentParser(prog="paratune-entry")
    parser.add_argument("--study", required=True, help="its folder, on this machine")
    parser.add_argument("--paratune", default="", help="the version that must be installed here")
    parser.add_argument("--columns", default="80", help="of the terminal that shows the log")
    parser.add_argument("tune", nargs="*", help="arguments of paratune tune; none: send the folder")
    options = parser.parse_args()
    study = os.path.abspath(os.path.expanduser(options.study))
    if not options.tune:
        return _send(study)
    mistake = unsuitable(options.paratune)
    if mistake is not None:
        sys.stderr.write(f"paratune: {mistake}\n")
        return WRONG_INPUT
    os.environ["COLUMNS"] = options.columns
    command = [sys.executable, "-m", "tuner", "tune", "--study", study, *options.tune]
    if "simulated" not in options.tune:
        command += ["--ray-address", os.environ["RAY_ADDRESS"]]  # set for every Ray job
    os.execv(sys.executable, command)


def unsuitable(version: str) -> str | None:
    """Why this Python cannot run the study."""
    here = f"{sys.executable} ({'.'.join(map(str, sys.version_info[:3]))})"
    if sys.version_info[:2] < LOWEST_PYTHON:
        needed = ".".join(map(str, LOWEST_PYTHON))
        return (
            f"the cluster must have Python {needed} or newer for paratune, but python is {here} "
            "there; start Ray on every node from an environment with a newer one"
        )
    from importlib import metadata

    try:
        found = metadata.version("paratune")
    except metadata.PackageNotFoundError:
        return (
            f"paratune {version} must be installed on every node of the cluster, but the Python of "
            f"its head, {here}, has none; install paratune {version} there"
        )
    if found != version:
        return (
            f"the cluster must have the paratune that submits, {version}, but the Python of its "
            f"head, {here}, has {found}; install {version} on every node, or {found} here"
        )
    return None


def _send(study: str) -> int:
    """Prints the folder as lines of a job's log."""
    if not os.path.isfile(os.path.join(study, "job.json")):
        _say("nothing", f"{study} is no study folder")
        return 0
    chosen, left_out, num_bytes = _chosen(study)
    if num_bytes > LIMIT_BYTES:
        _say("refused", f"{study} has {num_bytes} bytes without logs, more than {LIMIT_BYTES}")
        return 1
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in chosen:
            archive.add(os.path.join(study, name), arcname=name, recursive=False)
    content = buffer.getvalue()
    for start in range(0, len(content), _LINE_BYTES):
        _say("data", base64.b64encode(content[start : start + _LINE_BYTES]).decode())
    digest = hashlib.sha256(content).hexdigest()
    _say("end", json.dumps({"sha256": digest, "left_out": left_out}))
    return 0


def _say(kind: str, text: str) -> None:
    sys.stdout.write(f"{ARCHIVE_MARK} {kind} {text}\n")


def _chosen(study: str) -> tuple[list[str], list[str], int]:
    """Names of the files to send, of the logs that would be too much, and the bytes of the former.

    Logs of ranks come last and the smallest first: everything else is needed for the reports.
    """
    names = []
    for folder, _, files in os.walk(study):
        paths = [os.path.join(folder, name) for name in files if name != "lock"]
        names += [os.path.relpath(path, study) for path in paths if not os.path.islink(path)]
    sizes = {name: os.path.getsize(os.path.join(study, name)) for name in names}
    chosen, left_out, num_bytes = [], [], 0
    for name in sorted(names, key=lambda name: (_is_log(name), sizes[name])):
        if _is_log(name) and num_bytes + sizes[name] > LIMIT_BYTES:
            left_out.append(name)
        else:
            chosen.append(name)
            num_bytes += sizes[name]
    return chosen, left_out, num_bytes


def _is_log(name: str) -> bool:
    base = os.path.basename(name)
    return base.startswith("rank-") and base.endswith(".log")


if __name__ == "__main__":
    sys.exit(main())
