"""Plan, file, framework's own loader, plan: how many random legal plans come back the same.

Every other plan has framework settings drawn at random, which must come back too.

From the repository's root: ``python -m benchmarks.emit_round_trip [PLANS] [SEED]``. No GPU.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from itertools import islice
from pathlib import Path

from reports.emit.formats import Format, emitted
from tests.reports.emit.legal_plans import drawn
from tests.reports.emit.read_back import read_back
from tuner.errors import UserError

BACKENDS = {
    Format.DEEPSPEED: ("deepspeed",),
    Format.HF_DEEPSPEED: ("deepspeed",),
    Format.MEGATRON: ("megatron",),
    Format.MEGATRON_BRIDGE: ("megatron",),
    Format.TORCHTITAN: ("pytorch",),
}
ALL = ("pytorch", "deepspeed", "megatron")


def main() -> None:
    num_plans = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print(
        f"{'format':<16} {'tried':>6} {'refused':>8} {'loaded':>7} {'equal':>6} "
        f"{'settings':>9} {'seconds':>8}"
    )
    for form in Format:
        started = time.perf_counter()
        counts = _counts(form, num_plans, seed)
        print(
            f"{form:<16} {counts['tried']:>6} {counts['refused']:>8} {counts['loaded']:>7} "
            f"{counts['equal']:>6} {counts['settings']:>9} {time.perf_counter() - started:>8.1f}"
        )


def _counts(form: Format, num_plans: int, seed: int) -> Counter[str]:
    """Of so many plans that the format can say; those that it refuses are counted apart."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for subject in islice(drawn(BACKENDS.get(form, ALL), seed), 40 * num_plans):
            try:
                files = emitted(subject, form)
            except UserError:
                counts["refused"] += 1
                continue
            counts["tried"] += 1
            try:
                plan, found = read_back(form, files, subject.spec.num_ranks, Path(folder))
            except Exception as error:
                print(f"{form}: {subject.plan.label()}: {type(error).__name__}: {error}")
            else:
                counts["loaded"] += 1
                asked = subject.spec.settings
                same = plan == subject.plan and all(found.get(n) == value for n, value in asked)
                counts["equal"] += same
                counts["settings"] += len(asked)
                if not same and counts["loaded"] - counts["equal"] < 4:
                    print(f"{form}: {subject.plan.label()} {asked} came back as {plan} {found}")
            if counts["tried"] == num_plans:
                break
    return counts


if __name__ == "__main__":
    main()
