"""The plans that may be tried, as codes of knob options; found again by their knobs' values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2

import numpy as np

from tuner.errors import UserError
from tuner.plan import KNOB_NAMES, PlanValue
from tuner.plan_arrays import WORDS, PlanArrays
from tuner.samplers.evidence import FloatArray, IntArray

REPEAT_KNOB = "repeat"
"""Numbers candidates whose other knobs are all equal; says nothing of what they cost."""


class Candidates:
    """A table of knobs: one row a candidate, one column a knob, each cell a code of an option."""

    def __init__(self, knobs: Mapping[str, tuple[Sequence[PlanValue], IntArray]]) -> None:
        """Takes, of every knob, its options and each candidate's position among them.

        Raises:
            UserError: no candidate.
        """
        self.options = {name: tuple(options) for name, (options, _) in knobs.items()}
        self.names = tuple(knobs)
        columns = [np.asarray(codes, dtype=np.int32) for _, codes in knobs.values()]
        if not columns or not len(columns[0]):
            raise UserError("there must be at least one plan to try, got none")
        self.codes = np.column_stack(columns)
        self._positions: dict[bytes, int] | None = None
        self._telling: list[str] | None = None
        self._code_of = {
            name: {value: code for code, value in enumerate(options)}
            for name, options in self.options.items()
        }

    @classmethod
    def of_plans(
        cls,
        plans: PlanArrays,
        *,
        options: Mapping[str, Sequence[PlanValue]] | None = None,
        extra: Mapping[str, Sequence[PlanValue]] | None = None,
    ) -> Candidates:
        """Legal plans; equal rows are told apart by number.

        Args:
            plans: the legal plans.
            options: of each knob, as the study suggests them; those that occur where missing.
            extra: further knobs, cell by cell.
        """
        knobs: dict[str, tuple[Sequence[PlanValue], IntArray]] = {}
        for name in KNOB_NAMES:
            values, codes = np.unique(plans.columns[name], return_inverse=True)
            found = _options(name, values.tolist())
            wanted = tuple((options or {}).get(name, found))
            knobs[name] = (wanted, np.array([wanted.index(value) for value in found])[codes])
        for name, cells in (extra or {}).items():
            different = tuple(dict.fromkeys(cells))
            where = {option: code for code, option in enumerate(different)}
            free = name if name not in knobs else f"{name}_column"
            knobs[free] = (different, np.array([where[cell] for cell in cells]))
        repeats = _repeats(np.column_stack([codes for _, codes in knobs.values()]))
        if repeats.any():
            knobs[REPEAT_KNOB] = (tuple(range(int(repeats.max()) + 1)), repeats)
        return cls(knobs)

    def __len__(self) -> int:
        return len(self.codes)

    def values(self, position: int) -> dict[str, PlanValue]:
        """The knobs of a candidate."""
        row = self.codes[position]
        return {name: self.options[name][code] for name, code in zip(self.names, row, strict=True)}

    def find(self, values: Mapping[str, object]) -> int | None:
        """The candidate with these knobs; None where no candidate has them."""
        if self._positions is None:
            self._positions = {row.tobytes(): at for at, row in enumerate(self.codes)}
        codes = np.zeros(len(self.names), dtype=np.int32)
        for column, name in enumerate(self.names):
            code = self._code_of[name].get(values.get(name))  # type: ignore[call-overload]
            if code is None:
                return None
            codes[column] = code
        return self._positions.get(codes.tobytes())

    def telling(self) -> list[str]:
        """Knobs that differ among candidates and may say something of their cost.

        Of columns that always change together one is enough.
        """
        if self._telling is None:
            self._telling = self._found_telling()
        return list(self._telling)

    def _found_telling(self) -> list[str]:
        seen: set[bytes] = set()
        found = []
        for column, name in enumerate(self.names):
            codes = self.codes[:, column]
            if name == REPEAT_KNOB or codes.min() == codes.max():
                continue
            _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
            pattern = np.argsort(np.argsort(first))[inverse].astype(np.int32).tobytes()
            if pattern not in seen:
                seen.add(pattern)
                found.append(name)
        return found

    def scale(self, name: str) -> FloatArray | None:
        """Options of a knob on a line (log2 of a number); None where they are only different."""
        values = self.options[name]
        if any(isinstance(v, (bool, str)) and not _is_number(v) for v in values):
            return None
        numbers = [float(v) for v in values]
        if min(numbers) < 0 or len(numbers) < 3:
            return None
        return np.array([log2(v) if v > 0 else -1.0 for v in numbers])


def _options(name: str, codes: list[int]) -> tuple[PlanValue, ...]:
    if name in WORDS:
        return tuple(WORDS[name][code] for code in codes)
    if name == "sequence_parallel":
        return tuple(bool(code) for code in codes)
    return tuple(codes)


def _repeats(codes: IntArray) -> IntArray:
    """How many earlier candidates have the same codes, shape (n,)."""
    seen: dict[bytes, int] = {}
    counts = np.zeros(len(codes), dtype=np.int64)
    for at, row in enumerate(np.ascontiguousarray(codes, dtype=np.int32)):
        key = row.tobytes()
        counts[at] = seen.get(key, 0)
        seen[key] = int(counts[at]) + 1
    return counts


def _is_number(value: PlanValue) -> bool:
    if isinstance(value, bool):
        return False
    try:
        number = float(value)
    except ValueError:
        return False
    return number == number and abs(number) != float("inf")
