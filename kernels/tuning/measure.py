"""Times families of plans on this card, fits its table and writes it. `softbench tune` runs it in a process of its own.

Each shape is stored as soon as it was timed, and another start continues after the last one.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from ..common.cuda_library import BuildError
from ..plans.table import VARIABLE, Cell, Kind, TableError, family_name, family_of, table, tuned_file, written
from ..triton.devices import CLOCK_RATE, attribute
from .fit import CELL_COST, IMAGINED, NOW, UNFIT, Timed, imagined, judge, table_of, with_now
from .languages import DTYPES, Call, Cuda, Language, Operands, Triton
from .shapes import FAMILIES, HELD_OUT, Shape, draw

POOL_BYTES = 3 << 29
"""Of memory for inputs, and as much for results."""
ROTATED = 3
"""Operands are used again after launches that move so many times what L2 holds."""
MOST_SETS = 24
ENOUGH_US = 450
"""Launches of one measurement take about so long together."""
FEWEST, MOST = 6, 24
"""Launches of one measurement."""
HOST_US = 24, 48, 96
"""That the host takes for a launch, at most. A kernel that sleeps lets it queue launches before they start; a busy host needs longer."""
BAR = 30  # columns of the progress
MOST_LINES = 300
"""Of a table's file. A cell's cost is doubled until the file has no more, or until no cell can save it."""
FINALISTS, ROUNDS = 4, 2
"""The fastest families are timed again, so many times: one short measurement is good to a percent or two."""


class Timer:
    """Times launches one after the other, on operands that are in no cache."""

    def __init__(self) -> None:
        self.inputs = torch.empty(POOL_BYTES // 2, dtype=torch.bfloat16, device="cuda").normal_()
        self.results = torch.empty_like(self.inputs)
        self.rotated_bytes = ROTATED * torch.cuda.get_device_properties(0).L2_cache_size
        # At the highest clock; at 4 GHz if the driver tells none, since a kernel that sleeps too briefly would add the host's time.
        self.cycles_of_us = (attribute(torch.cuda.current_device(), CLOCK_RATE) or 4_000_000) / 1e3
        self.start, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def operands(self, shape: Shape) -> list[Operands]:
        """The operands of a launch, several times."""
        bytes_of = {size: shape.M * shape.N * size for size in (shape.size, shape.written_size)}
        apart = {size: -(-each // 512) * 512 for size, each in bytes_of.items()}
        read, write = shape.reads * apart[shape.size], apart[shape.written_size]
        count = max(1, min(MOST_SETS, self.rotated_bytes // (read + write) + 2, POOL_BYTES // max(read, write)))

        def view(pool: torch.Tensor, size: int, number: int) -> torch.Tensor:
            at = number * apart[size]
            return pool[at // 2 : (at + bytes_of[size]) // 2].view(DTYPES[size]).view(shape.M, shape.N)

        return [
            (*(view(self.inputs, shape.size, i * shape.reads + r) for r in range(shape.reads)), view(self.results, shape.written_size, i))
            for i in range(count)
        ]

    def us(self, calls: Sequence[Call], expected_us: float) -> float:
        """Microseconds of a launch."""
        count = int(max(FEWEST, min(MOST, ENOUGH_US / expected_us)))
        for host_us in HOST_US:
            begin = time.monotonic()
            torch.cuda._sleep(int((30 + count * max(0.0, host_us - expected_us / 2)) * self.cycles_of_us))
            calls[-1]()
            self.start.record()
            for number in range(count):
                calls[number % len(calls)]()
            self.end.record()
            queued_us = (time.monotonic() - begin) * 1e6
            self.end.synchronize()
            if queued_us <= count * host_us:
                break
        return float(self.start.elapsed_time(self.end)) * 1e3 / count


def time_shape(timer: Timer, language: Language, shape: Shape) -> Timed | None:
    """The times of a copy, of the plan that is used now and of all families; None if no family makes a plan."""
    plans = language.plans(shape)
    if not plans:
        return None
    sets = timer.operands(shape)
    copy: list[Call] = [
        (lambda given=given: torch.add(*given[:2], out=given[2])) if shape.reads == 2 else (lambda given=given: given[1].copy_(given[0]))  # type: ignore[misc]
        for given in sets
    ]
    now, *found = language.calls(shape, [None, *plans], sets)
    every = {plan: calls for plan, calls in zip(plans, found, strict=True) if calls}
    if not every or not now:
        return None
    for first in (copy, now, *every.values()):
        first[0]()
    expected = timer.us(copy, 20.0)
    times: dict[Any, list[float]] = {plan: [timer.us(one, expected)] for plan, one in every.items()}
    times |= {"copy": [expected, timer.us(copy, expected)], "now": [timer.us(now, expected)]}
    best = sorted(every, key=lambda plan: times[plan][0])[:FINALISTS]
    for _ in range(ROUNDS):
        for name, one in (("copy", copy), ("now", now), *((plan, every[plan]) for plan in best)):
            times[name].append(timer.us(one, times[name][0]))
    middle = {name: statistics.median(found) for name, found in times.items()}
    of_families = {family: middle[plan] for plan in every for family in plans[plan]}
    return Timed(shape, middle["copy"], middle["now"], of_families)


def to_json(one: Timed) -> str:
    """A line of the records."""
    times = {family_name(family): round(us, 2) for family, us in one.families.items()}
    return json.dumps({"shape": asdict(one.shape), "copy": round(one.copy, 2), "now": round(one.now, 2), "families": times})


def read(records: Path, language: str) -> list[Timed | None]:
    """The shapes that were timed, by number; an incomplete last line of an interrupted start is cut off.

    Raises:
        TableError: the file has something else.
    """
    try:
        lines = records.read_text().split("\n") if records.exists() else [""]
        found = [_from_json(json.loads(line), language) for line in lines[:-1]]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise TableError(f"{records} has other lines than tune writes; delete it, and tune begins anew") from None
    if lines[-1]:
        os.truncate(records, records.stat().st_size - len(lines[-1].encode()))
    return found


def _from_json(found: Any, language: str) -> Timed | None:
    if found is None:
        return None
    families = {family_of(language, name): us for name, us in found["families"].items()}
    return Timed(Shape(**found["shape"]), found["copy"], found["now"], families)


def measure(languages: Sequence[Language], stored: Sequence[Path], seconds: float, told: bool) -> list[list[Timed | None]]:
    """Times shapes for so many seconds, behind those that are in the records of each language. Returns all. `told`: with a bar on stderr.

    The language that had the least time goes on, unless its next shape is not ready.
    """
    known = [read(records, language.name) for language, records in zip(languages, stored, strict=True)]
    spent, begin, timer = [0.0] * len(languages), time.monotonic(), Timer()
    with ExitStack() as stack:
        files = [stack.enter_context(records.open("a")) for records in stored]
        while (now := time.monotonic()) < begin + seconds:
            if told:
                bar = "=" * int(BAR * (now - begin) / seconds)
                counts = ", ".join(f"{len(every)} of {language.name}" for language, every in zip(languages, known, strict=True))
                print(f"\rtune: [{bar:{BAR}}] {counts}, {seconds + begin - now:.0f} s left ", end="", file=sys.stderr, flush=True)
            order = sorted(range(len(languages)), key=spent.__getitem__)
            at = next((one for one in order if languages[one].ready(len(known[one]))), order[0])
            language = languages[at]
            found = time_shape(timer, language, draw(len(known[at]), language.name, language.each, language.seed))
            known[at].append(found)
            print("null" if found is None else to_json(found), file=files[at], flush=True)
            spent[at] += time.monotonic() - now
    if told:
        print(file=sys.stderr)
    return known


def main(seconds: float, output: Path | None, quiet: bool) -> None:
    """`softbench tune`: of each language, only lines that are faster on held-out shapes replace the present ones."""
    if not torch.cuda.is_available():
        print(f"softbench: tune needs a CUDA GPU, and torch {torch.__version__} sees none here: see softbench doctor", file=sys.stderr)
        sys.exit(2)
    card = torch.cuda.get_device_name()
    try:
        for folder in ((output or tuned_file(card)).parent, tuned_file(card).parent):
            folder.mkdir(parents=True, exist_ok=True)
        with tuned_file(card).with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _tune(card, seconds, output, told=not quiet and sys.stderr.isatty())
    except BlockingIOError:
        sys.exit("softbench: tune: another softbench tune measures this card; wait until it ends")
    except OSError as error:
        sys.exit(f"softbench: tune: {error}; name another folder in $SOFTBENCH_CACHE, or another --output")
    except torch.OutOfMemoryError:
        sys.exit(f"softbench: tune: it needs {2 * POOL_BYTES / 2**30:g} GiB of the GPU's memory, and others use it; wait until they end")
    except (BuildError, TableError) as error:
        print(f"softbench: tune: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, TableError) else 1)


def _tune(card: str, seconds: float, output: Path | None, told: bool) -> None:
    major, minor = torch.cuda.get_device_capability()
    before = [table(name, card, 10 * major + minor).cells for name in FAMILIES]
    # Records have the times of these plans too. They were perhaps fitted to the shapes of another seed. Other code times otherwise.
    code = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    seeds = (sha256(code + repr(cells).encode()).hexdigest()[:8] for cells in before)
    languages: tuple[Language, ...] = Cuda(next(seeds)), Triton(next(seeds))
    try:
        stored = [tuned_file(card).with_suffix(f".{language.key()}-{language.seed}.jsonl") for language in languages]
        measured = measure(languages, stored, seconds, told)
    finally:
        for language in languages:
            language.close()
    fits = [fitted(language, every, now) for language, every, now in zip(languages, measured, before, strict=True)]
    cost, most = CELL_COST, UNFIT * (IMAGINED + max(map(len, measured)))
    while True:
        found = [fit(cost) for fit in fits]
        cells = {language.name: one.cells for language, one in zip(languages, found, strict=True)}
        about = f"{date.today()}: {' and '.join(one.about for one in found)}, all in float32 and bfloat16"
        text = written(card, 10 * major + minor, cells, about)
        if text.count("\n") <= MOST_LINES or cost > most:
            break
        cost *= 2
    out = output or tuned_file(card)
    better = any(one.better for one in found)
    if better:
        _write(out, text)
    print("\n".join(one.report for one in found), f"{out}: {'' if better else 'not '}written", sep="\n")
    if better and text.count("\n") > MOST_LINES:
        why = f"the present plans that stay have so many; name a table of fewer lines in ${VARIABLE}, and tune again"
        print(f"softbench: tune: {out} has {text.count(chr(10))} lines, and {MOST_LINES} are the most: {why}", file=sys.stderr)


def _write(out: Path, text: str) -> None:
    """A launch that begins meanwhile reads the whole table. Where a device or a pipe is named, it gets the text."""
    out = out.resolve()
    if out.exists() and not out.is_file():
        out.write_text(text)
        return
    part = out.with_name(f"{out.name}.part")
    part.write_text(text)
    part.replace(out)


@dataclass(frozen=True)
class Tuned:
    """The cells of a language: the present ones if others gain nothing."""

    cells: Mapping[Kind, Sequence[Cell]]
    better: bool
    about: str
    """For the table's file."""
    report: str


def fitted(language: Language, every: list[Timed | None], now: dict[Kind, tuple[Cell, ...]]) -> Callable[[float], Tuned]:
    """A function from a cell's cost to a language's cells. Kinds that were not timed keep theirs."""
    numbered = [(number // language.each % HELD_OUT, one) for number, one in enumerate(every) if one]
    held_out = [one for part, one in numbered if not part]
    known, families = [one for part, one in numbered if part], FAMILIES[language.name]
    if not held_out or not known:
        sys.exit(f"softbench: tune: the time is too short to time shapes of {language.name}; give more --minutes")
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    known += imagined(language.name, known, sms, now, language.makes)

    def tuned(cost: float) -> Tuned:
        cells = {kind: [Cell(math.inf, math.inf, NOW)] for kind in now} | table_of(known, families, sms, now, cost)
        found = judge(held_out, cells, sms)
        whole = {kind: with_now(of_kind, now.get(kind, ())) for kind, of_kind in cells.items()}
        better = found.gained > 1
        why = "" if better else ", not taken, because it gains nothing: tune for longer, or keep the present plans"
        report = (
            f"{language.name}: {sum(map(len, whole.values()))} cells of {len(every)} shapes{why}\n"
            f"{found.shapes} held-out shapes: {found.gained:.3f} of the speed before; the fastest plan of each has {found.best:.3f}\n"
            f"{found.of_copy:.3f} of copy; {found.slow:.1%} of the shapes are below .90 of it, {found.slow_now:.1%} before"
        )
        about = f"{len(every)} shapes of {language.name}" if better else f"{language.name} as before"
        return Tuned(whole if better else now, better, about, report)

    return tuned


if __name__ == "__main__":
    os.environ.setdefault(VARIABLE, "")  # the present plans are the shipped ones, also after an earlier start wrote others
    try:
        main(float(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2] else None, bool(sys.argv[3]))
    except KeyboardInterrupt:
        sys.exit(130)
