"""The answer that comes before the tables: who is fastest where, by how much, how close to the memory, and what is wrong or doubtful.

Every verdict is that of `standings`, so that the lines and the signs of the tables agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from softbench.core.case import CaseKey, pass_name
from softbench.core.outcome import FAILURES, LIMITED, PASSES, UNTRIED, Grade, Status
from softbench.core.text import count, few, percent, ratio, size
from softbench.report.standings import Standing
from softbench.results.columns import DOUBTFUL, LABELS, Row, grouped

FEW = 2
"""Unavailable backends whose reasons stand below the tables."""
NOT_RIGHT = FAILURES | {Status.UNVERIFIED}
LEADERS = 3
"""Backends whose cases the first line tells; others are counted."""
PLACES = 3
"""The most places that a line names; of more it gives the number of cases."""
MEMORIES, LARGER = 4, 1.1
"""Backends whose memory is told, and the least ratio of the largest memory to the smallest that is."""
LONGEST = 75
"""Characters of a list of names or places; of a longer one the line has the number."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: what it is about, and what it says."""

    name: str
    text: str
    style: str = ""
    """`red` for failures, `yellow` for doubts."""


Tied = Mapping[CaseKey, Mapping[str, Row]]
"""The backends that may be the fastest in each case, with their rows."""


def lines(rows: Sequence[Row], found: Mapping[CaseKey, Standing], why: str = "--long says why") -> list[Line]:
    """Three to six lines. `found`: the standings of these rows, which are of one card or of cards that shared a sweep.

    `why` tells where the reasons of many unavailable backends stand.
    """
    tied = {case: {row.backend: row for row in one.tied} for case, one in found.items()}
    where = _Places(list(dict.fromkeys(row.case for row in rows)), len(found))
    of_roof = _of_copy(rows, found), _of_products(found), _memory(found, where)
    made = [_fastest(found, tied, where), _speedup(rows, found, tied, where), *of_roof, _correct(rows, where)]
    return [line for line in [*made, _missing(rows, why), _doubtful(rows, found)] if line]


def leader(found: Mapping[CaseKey, Standing]) -> str:
    """Who leads so far: `cuda leads in 5 of 7 cases`; empty without a rival. Those that tie lead both."""
    rivals = [one for one in found.values() if len(one.rows) > 1]
    names = Counter(row.backend for one in rivals for row in one.tied)
    if not names:
        return ""
    most = max(names.values())
    best = [name for name, number in names.items() if number == most]
    verb = "leads" if len(best) == 1 else "tie"
    return f"{' and '.join(best[:2]) if len(best) <= 2 else count(len(best), 'backend')} {verb} in {most} of {count(len(rivals), 'case')}"


class _Places:
    """Names sets of cases in few words, against all cases of a file."""

    def __init__(self, cases: Sequence[CaseKey], with_result: int) -> None:
        self.total = with_result
        self._number = len(cases)
        self._one_op = len({case.op for case in cases}) == 1
        self.of_pass = grouped(cases, self.name)
        several = [name for name in ("M", "N") if len({getattr(case, name) for case in cases}) > 1]
        self._axis = "" if len(several) > 1 or any(case.shape for case in cases) else (several or ["N"])[0]

    def name(self, case: CaseKey) -> str:
        """The pass and the dtype; the operation only if there are several."""
        return f"{case.direction if self._one_op else pass_name(case.op, case.direction)} {case.dtype}"

    def of(self, cases: Sequence[CaseKey]) -> str:
        """`N=1152, 1280`, or `backward bf16 N=512 to 1024`; empty if they are all, or in too many places."""
        texts: list[str] = []
        for name, some in grouped(cases, self.name).items():
            every = self.of_pass.get(name, ())
            runs = [] if len(some) == len(every) else self._runs(some, every)
            if len(texts) + len(runs) > PLACES:
                return ""
            sizes = f"{self._axis}={', '.join(runs)}" if self._axis and runs else ", ".join(runs)
            texts.append(" ".join(filter(None, (name if len(self.of_pass) > 1 else "", sizes))))
        text = "; ".join(filter(None, texts))
        return text if len(cases) < self._number and len(text) <= LONGEST else ""

    def _runs(self, some: Sequence[CaseKey], every: Sequence[CaseKey]) -> list[str]:
        """The sizes; neighbours along the axis as `256 to 512`."""
        if not self._axis:
            return [case.size for case in some]
        sizes = sorted({getattr(case, self._axis) for case in [*some, *every]})
        order, runs = {length: i for i, length in enumerate(sizes)}, list[list[int]]()
        for length in sorted({getattr(case, self._axis) for case in some}):
            if runs and order[length] == order[runs[-1][-1]] + 1:
                runs[-1].append(length)
            else:
                runs.append([length])
        return [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]


def _fastest(found: Mapping[CaseKey, Standing], tied: Tied, where: _Places) -> Line:
    """The backend that is the fastest or ties in most cases; for the other cases the next one, and so on."""
    if not found:
        return Line("fastest", "none: no backend but copy has a result", "red")
    texts, left = list[str](), dict(tied)
    firsts = Counter(one.rows[0].backend for one in found.values())
    while left and len(texts) < LEADERS:
        members = Counter(name for names in left.values() for name in names)
        alone = Counter(name for names in left.values() if len(names) == 1 for name in names)
        best = max(members, key=lambda name: (members[name], alone[name], firsts[name]))
        mine = {case: names for case, names in left.items() if best in names}
        place = _in_parentheses(where.of(list(mine)))
        texts.append(f"{_limited(best, mine)} in {len(mine)}{place}" if texts else _lead(best, mine, where))
        left = {case: names for case, names in left.items() if best not in names}
    texts += [f"others in {len(left)}"] if left else []
    unknown, single = sum(one.unknown for one in found.values()), sum(len(one.rows) == 1 for one in found.values())
    texts += [f"{count(unknown, 'lead')} {'have' if unknown > 1 else 'has'} no interval and may be noise"] if unknown else []
    texts += ["no other backend has a result" if single == len(found) else f"in {single} no other backend has a result"] if single else []
    texts += ["doubtful, see below"] if all(one.rows[0].doubtful for one in found.values()) else []
    return Line("fastest", "; ".join(texts))


def _lead(best: str, tied: Tied, where: _Places) -> str:
    """`cuda in 46 of 48 cases, in 37 of them a tie with triton`, or `cuda and triton tie in all 12 cases`."""
    rivals = Counter(name for names in tied.values() for name in names if name != best)
    ties = sum(len(names) > 1 for names in tied.values())
    cases = _all(len(tied)) if len(tied) == where.total else f" in {len(tied)} of {count(where.total, 'case')}"
    cases += _in_parentheses(where.of(list(tied)) if 2 * len(tied) <= where.total else "")  # else the places of the others are shorter
    always = [_limited(name, tied) for name, number in rivals.items() if number == len(tied)]
    best = _limited(best, tied)
    if always:
        return f"{', '.join((best, *always[:-1]))} and {always[-1]} tie{cases}"
    names = [name for name, _ in rivals.most_common()]
    of_them = "each" if ties == len(tied) else f"{ties} of them"
    return f"{best}{cases}" + (f", in {of_them} a tie with {names[0]}{' and others' * (len(names) > 1)}" if ties else "")


def _limited(name: str, tied: Tied) -> str:
    """The name, with the class of a backend that is finite-only or low-precision where it leads: `torch (low-precision in 3)`."""
    mine = [names[name].grade for names in tied.values() if name in names]
    grades = Counter(str(grade) for grade in mine if grade in LIMITED)
    return name + _in_parentheses(", ".join(grade + f" in {number}" * (number < len(mine)) for grade, number in grades.items()))


def _all(number: int) -> str:
    """` in all 12 cases`, ` in both cases`, or nothing if there is one case."""
    return "" if number == 1 else " in both cases" if number == 2 else f" in all {number} cases"


def _in_parentheses(text: str) -> str:
    return f" ({text})" if text else ""


def _speedup(rows: Sequence[Row], found: Mapping[CaseKey, Standing], tied: Tied, where: _Places) -> Line | None:
    """How much faster than the reference backend the fastest is, where it is beyond noise."""
    reference = next((row.relative_to for row in rows if row.relative_to), "")
    best = {case: one.rows[0] for case, one in found.items()}
    even = [case for case, one in found.items() if reference in tied[case] and len(one.rows) > 1]
    ahead = {case: row for case, row in best.items() if row.speedup and row.relative_to == reference and reference not in tied[case]}
    if not ahead:
        return Line("speed-up", f"none over {reference}, which is the fastest or ties{_all(len(even))}") if even else None
    values = sorted(row.speedup or 0 for row in ahead.values())
    if len(values) == 1:
        ((case, row),) = ahead.items()
        exact = next((row.times_as_fast(other) for other in found[case].rows if other.backend == reference), None)
        text = f"{ratio(values[0])}x over {reference}" + (f" (95 % interval {ratio(exact.low)}x to {ratio(exact.high)}x)" if exact else "")
    else:
        text = f"{ratio(median(values))}x over {reference} (median; {ratio(values[0])}x to {ratio(values[-1])}x)"
    of_pass = {name: median(ahead[case].speedup or 0 for case in some) for name, some in grouped(ahead, where.name).items()}
    passes = ", ".join(f"{name} {ratio(value)}x" for name, value in of_pass.items())
    if len(of_pass) > 1 and len(passes) <= LONGEST:
        text += f"; {passes}"
    if even:
        text += f"; {reference} is the fastest or ties in {count(len(even), 'case')}{_in_parentheses(where.of(even))}"
    return Line("speed-up", text)


def _of_copy(rows: Sequence[Row], found: Mapping[CaseKey, Standing]) -> Line | None:
    """How close the fastest is to the yardstick; without doubtful cells, if there are others."""
    if found and all(one.rows[0].compute_bound for one in found.values()):
        return None
    best = [one.rows[0] for one in found.values() if one.rows[0].of_copy and not one.rows[0].compute_bound]
    values = sorted(row.of_copy or 0 for row in [row for row in best if not row.doubtful] or best)
    if values:
        some = f"{len(values)} of {count(len(found), 'case')}" if len(values) < len(found) else ""
        spread = f"median{some and f' of {some}'}; {percent(values[0])} to {percent(values[-1])}" if len(values) > 1 else some
        return Line("of copy", f"{percent(median(values))} of the speed of copy, which only moves the bytes{_in_parentheses(spread)}")
    if found and any(row.grade == Grade.YARDSTICK and row.median_us and row.timer != "host" for row in rows):
        return Line("of copy", "unknown: copy is doubtful, or slower than what it judges; measure again when nothing else runs", "yellow")
    return None


def _of_products(found: Mapping[CaseKey, Standing]) -> Line | None:
    """How close the fastest is to the matrix products alone, in the cases that are compute-bound."""
    values = sorted(row.of_copy for one in found.values() if (row := one.rows[0]).of_copy and row.compute_bound)
    if not values:
        return None
    some = f"{len(values)} of {count(len(found), 'case')}" if len(values) < len(found) else ""
    spread = f"median{some and f' of {some}'}; {percent(values[0])} to {percent(values[-1])}" if len(values) > 1 else some
    return Line("of roof", f"{percent(median(values))} of the speed of the matrix products alone{_in_parentheses(spread)}")


def _memory(found: Mapping[CaseKey, Standing], where: _Places) -> Line | None:
    """What calls take in the compute-bound case that takes the most: their backends differ in what they store between products."""
    bound = {
        case: sorted((row.peak_bytes or 0, row.backend) for row in one.rows) for case, one in found.items() if one.rows[0].compute_bound
    }
    if not bound:
        return None
    case, taken = max(bound.items(), key=lambda one: one[1][-1])
    (least, _), (most, _) = taken[0], taken[-1]
    if not least or most < LARGER * least:
        return None
    text = few([f"{size(taken)} by {backend}" for taken, backend in taken], MEMORIES)
    return Line("memory", f"{text}, of a call with its results{_in_parentheses(where.of([case]))}")


def _correct(rows: Sequence[Row], where: _Places) -> Line | None:
    """How many cells lie within the bound, and which do not."""
    tried = [row for row in rows if row.grade != Grade.YARDSTICK and row.status not in UNTRIED]
    if not tried:
        return None
    bad = grouped((row for row in tried if row.status in NOT_RIGHT), lambda row: row.status)
    limited = grouped((row for row in tried if row.grade in LIMITED and row.status not in NOT_RIGHT), lambda row: row.grade)
    right = sum(row.grade in PASSES and row.status not in NOT_RIGHT for row in tried)
    texts = [f"{what}: {_cells(some, where)}" for what, some in [*bad.items(), *limited.items()]]
    cells = (
        f"{right} of {count(len(tried), 'cell')}" if right < len(tried) else {1: "1 cell", 2: "both cells"}.get(right, f"all {right} cells")
    )
    return Line("correct", "; ".join([f"{cells} within the bound", *texts]), "red" if bad else "")


def _cells(rows: Sequence[Row], where: _Places) -> str:
    """`cudnn (N=384), quack (12 cells)`, or only the number of cells of many backends."""
    texts = []
    for name, some in grouped(rows, lambda row: row.backend).items():
        place = where.of([row.case for row in some]) if len(some) <= PLACES else ""
        texts.append(f"{name} ({place or count(len(some), 'cell')})")
    return _few(texts, f"{count(len(rows), 'cell')} of {count(len(texts), 'backend')}")


def _few(texts: Sequence[str], many: str) -> str:
    """The texts in a row if they are short, else `many`."""
    joined = ", ".join(texts)
    return joined if len(joined) <= LONGEST else many


def _missing(rows: Sequence[Row], hint: str) -> Line | None:
    """The backends that could not run here, or not in some cases, or were not timed."""
    gone = dict.fromkeys(row.backend for row in rows if row.status == Status.UNAVAILABLE)
    why = f" ({hint})" if len(gone) > FEW else ""
    texts = [f"unavailable: {_few(list(gone), count(len(gone), 'backend'))}{why}"] if gone else []
    for what, status in (("skipped", Status.SKIPPED), ("checked, not timed", Status.CHECKED)):
        if some := Counter(row.backend for row in rows if row.status == status):
            cells = [f"{name} ({count(number, 'cell')})" for name, number in some.most_common()]
            many = f"{count(some.total(), 'cell')} of {count(len(cells), 'backend')}"
            texts.append(f"{what}: {_few(cells, many)}")
    return Line("missing", "; ".join(texts)) if texts else None


def _doubtful(rows: Sequence[Row], found: Mapping[CaseKey, Standing]) -> Line | None:
    """How many results are doubtful, why, and what to do."""
    timed = [row for row in rows if row.median_us]
    doubtful = [row for row in timed if row.doubtful]
    if not doubtful:
        return None
    (most, number), *others = Counter(label for row in doubtful for label in row.labels.split() if label in DOUBTFUL).most_common()
    first = sum(one.rows[0].doubtful for one in found.values())
    fastest = f", the fastest of {count(first, 'case')} among them" if first else ""
    texts = [f"{len(doubtful)} of {count(len(timed), 'cell')}{fastest}", f"{number} {most}: {LABELS[most].partition(': ')[2]}"]
    texts += [f"{some} {label}: {LABELS[label].partition(': ')[2]}" for label, some in others[:1]]
    texts += [f"{some} {label}" for label, some in others[1:]]
    return Line("doubtful", "; ".join(texts), "yellow")
