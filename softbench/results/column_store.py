"""The rows of a results file, stored by column: a million take 300 MB, where as many `Row` take 1 GB."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import MISSING
from typing import Any, cast, overload

from softbench.core.case import DTYPES, NAME, CaseKey, Direction, parse_op, valid_shape
from softbench.core.outcome import Grade, Status
from softbench.core.text import one_line
from softbench.results.columns import FIELDS, FORMULA, IMPLAUSIBLE, USERS, Row
from softbench.results.records import unit_text

NUMBERS = frozenset(name for name, field in FIELDS.items() if str(field.type).startswith("float"))
"""The columns of floating-point numbers; the others repeat few values."""
ONE_OF = {
    "dtype": set(DTYPES),
    "class": {grade.value for grade in Grade} | {""},
    "status": {status.value for status in Status},
    "direction": {direction.value for direction in Direction},
}
OF_CASE = CaseKey._fields
TIMES = ("low_us", "high_us", "device_us", "host_us", "do_bench_us", *USERS)
RATIOS = ("of_copy", "speedup", "of_peak")
UNPUBLISHED = (Grade.WRONG, Grade.UNVERIFIED)
BITS = 20  # a code of a column, since a file has at most a million cells


class _Coded(dict[Any, int]):
    """A column that repeats few values: the code of each row, and the value of each code. As a dict, the code of each text."""

    def __init__(self, read: Callable[[Any], object]) -> None:
        """`read` gives the value of a text, or raises ValueError."""
        super().__init__()
        self.read, self.codes, self.values_ = read, array("I"), list[Any]()

    def __missing__(self, text: Any) -> int:
        value = self.read(text)
        self[text] = code = len(self.values_)
        self.values_.append(value)
        return code


class ColumnStore(Sequence[Row]):
    """Rows that are made when they are asked for."""

    def __init__(self, header: Sequence[str], keep: Collection[str] | None = None) -> None:
        """`header`: the columns of the lines to come; a field without a column has its default. `keep`: the fields that rows have."""
        self._header = header
        self.numbers = {name: array("d") for name in NUMBERS}
        self.coded = {name: _Coded(_reader(name)) for name in FIELDS if name not in NUMBERS}
        self.cases = _Coded(self._case)
        self._kept = [name for name, field in FIELDS.items() if keep is None or field.name in keep]
        self._seen: set[int] = set()

    def add(self, lines: Sequence[Sequence[str]]) -> None:
        """Add the rows of these lines.

        Raises:
            ValueError: a line is invalid; then none of them is added.
        """
        if any(len(line) != len(self._header) for line in lines):
            raise ValueError("has another number of values than the header")
        texts = dict(zip(self._header, zip(*lines, strict=True), strict=True))
        absent = {name: (_default(name),) * len(lines) for name in FIELDS if name not in texts}
        numbers = {name: _numbers(name, texts.get(name) or absent[name]) for name in NUMBERS}
        codes = {name: list(map(column.__getitem__, texts.get(name) or absent[name])) for name, column in self.coded.items()}
        cases = list(map(self.cases.__getitem__, zip(*(codes[name] for name in OF_CASE), strict=True)))
        self._check(numbers, codes)
        keys = {a << 2 * BITS | b << BITS | c for a, b, c in zip(cases, codes["unit"], codes["backend"], strict=True)}
        if len(keys) < len(lines) or not self._seen.isdisjoint(keys):
            raise ValueError(f"{self.coded['backend'].values_[codes['backend'][-1]]} has this case twice")
        self._seen |= keys
        self.cases.codes.extend(cases)
        for name in self._kept:
            if name in NUMBERS:
                self.numbers[name].extend(numbers[name])
            else:
                self.coded[name].codes.extend(codes[name])

    def close(self) -> ColumnStore:
        """Forget what only reading needs."""
        self._seen = set()
        for column in (self.cases, *self.coded.values()):
            column.clear()
        return self

    def _case(self, codes: tuple[int, ...]) -> CaseKey:
        case = CaseKey(*(self.coded[name].values_[code] for name, code in zip(OF_CASE, codes, strict=True)))
        if not (0 < case.M < 2**63 and 0 < case.N < 2**63):
            raise ValueError("M and N must be positive")
        if not valid_shape(case.shape, case.M, case.N):
            raise ValueError(f"shape: '{case.shape[:40]}' is no shape of {case.M} rows and {case.N} columns")
        return case

    def _check(self, numbers: dict[str, list[float]], codes: dict[str, list[int]]) -> None:
        """Check what several columns must say together, and the ranges of numbers. An empty number is NaN."""
        published = ("status", "class", "timer", "labels")
        columns = ([self.coded[name].values_[code] for code in codes[name]] for name in published)
        times = zip(*(numbers[name] for name in ("median_us", "p20_us", "p80_us", "gbps")), strict=True)
        for status, grade, timer, labels, (median, p20, p80, gbps) in zip(*columns, times, strict=True):
            if status != Status.OK:
                continue
            without = timer == "host" or IMPLAUSIBLE in labels
            positive = 0 < median < math.inf and 0 < p20 < math.inf and 0 < p80 < math.inf and (without or 0 < gbps < math.inf)
            if grade in UNPUBLISHED or not positive:
                raise ValueError("status is ok, but a time or the bandwidth is no positive number, or the class has none")
        for name in TIMES:
            if not all(0 <= us < math.inf for us in numbers[name] if us == us):
                raise ValueError(f"{name}: {numbers[name][-1]:g} is no time")
        if not all(0 < ratio < math.inf for name in RATIOS for ratio in numbers[name] if ratio == ratio):
            raise ValueError("of_copy, speedup and of_peak must be positive numbers")
        for gbps, of_peak in zip(numbers["gbps"], numbers["of_peak"], strict=True):
            if gbps and gbps == gbps and of_peak == of_peak and not 0 < gbps / of_peak < math.inf:
                raise ValueError(f"of_peak: {of_peak:g} is no fraction of a datasheet bandwidth")

    def __len__(self) -> int:
        return len(self.cases.codes)

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | Sequence[Row]:
        places = range(len(self))[at]
        return cast(Row, _View(self, places)) if isinstance(places, int) else [cast(Row, _View(self, place)) for place in places]

    def __iter__(self) -> Iterator[Row]:
        return (cast(Row, _View(self, place)) for place in range(len(self)))


def _default(name: str) -> str:
    default = FIELDS[name].default
    return "" if default is None or default is MISSING else str(default)


def _numbers(name: str, texts: Sequence[str]) -> list[float]:
    """The numbers of texts; NaN for an empty one. Raises ValueError if a text is no number."""
    try:
        found = [float(text) if text else math.nan for text in texts]
    except ValueError:
        found = []
    if len([one for one in found if one != one]) != texts.count("") or not found:
        raise ValueError(f"{name}: '{texts[-1][:40]}' is not a number")
    return found


def _reader(name: str) -> Callable[[str], object]:
    """What reads the texts of a column of few values."""
    optional = "None" in str(FIELDS[name].type)

    def whole(text: str) -> int | None:
        try:
            return None if optional and not text else int(text)
        except ValueError:
            raise ValueError(f"{name}: '{text[:40]}' is not a number") from None

    def text_of(text: str) -> str:
        if name in ONE_OF and text not in ONE_OF[name]:
            raise ValueError(f"{name}: unknown '{text[:40]}'")
        unquoted = text[1:] if text.startswith("'") and text[1:].startswith(FORMULA) else text
        found = one_line(unquoted)  # a foreign file may hold escape sequences
        if name == "backend" and not NAME.fullmatch(found):
            raise ValueError(f"backend: '{found[:40]}' is no name of one")
        try:
            if name in ("op", "unit"):
                (parse_op if name == "op" else unit_text)(found)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        return found

    return text_of if str(FIELDS[name].type) == "str" else whole


class _View:
    """A row of `ColumnStore`. It is a Row for every reader, for `replace` and for ==, and has a tenth of its size."""

    __slots__ = ("_at", "_rows")

    def __init__(self, rows: ColumnStore, at: int) -> None:
        self._rows, self._at = rows, at

    @property  # type: ignore[misc]
    def __class__(self) -> type[Row]:  # type: ignore[override]
        return Row

    def __reduce__(self) -> tuple[type[Row], tuple[object, ...]]:
        """A copy, also by pickle, is a Row, without the other rows."""
        return Row, tuple(getattr(self, field.name) for field in FIELDS.values())

    @property
    def case(self) -> CaseKey:
        cases = self._rows.cases
        return cast(CaseKey, cases.values_[cases.codes[self._at]])


def _number(name: str) -> property:
    def get(view: _View) -> float | None:
        value = view._rows.numbers[name][view._at]
        return value if value == value else None

    return property(get)


def _value(name: str) -> property:
    def get(view: _View) -> object:
        column = view._rows.coded[name]
        return column.values_[column.codes[view._at]]

    return property(get)


for _name, _member in vars(Row).items():
    if _name in ("__eq__", "__hash__", "__repr__", "__dataclass_fields__") or not (hasattr(_View, _name) or _name.startswith("__")):
        setattr(_View, _name, _member)
for _name, _field in FIELDS.items():
    setattr(_View, _field.name, (_number if _name in NUMBERS else _value)(_name))
