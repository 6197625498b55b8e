"""Damages each stored file, and runs the commands that read it: is each change refused, left out and named, or without effect?

    python tools/measure_flips.py                1000 changed bytes of each file, and 100 of each other damage; ten minutes
    python tools/measure_flips.py --bytes 100

A change is *refused* if the command ends with exit code 2 and one line that names the file. It is *left out* if the command prints what it
printed before, or a part of it, and one more line that names the file. It has *no effect* if all is as before. Anything else is *missed*.
A journal without its last lines is that of a run that was interrupted earlier, so no line says that they are not there.
The exit code is 1 if a change is missed.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from softbench.cli.main import main as softbench
from softbench.core.case import CPU_TIMER, YARDSTICK, Case, Direction
from softbench.core.outcome import Accuracy, Batch, Build, Grade, Measured, Record, Timing
from softbench.core.statistics import FIXED
from softbench.gate import baselines, run_files
from softbench.results import writer
from softbench.results.document import SUFFIX, environments
from softbench.results.records import record_to_json

BACKENDS = (YARDSTICK, "torch", "naive")
CASES = [Case(64, 256 * N, "fp32", Direction.FORWARD, "cpu") for N in (1, 2, 3)]
FACTS = {"device": "cpu", "cpu": "EPYC", "cpu_count": 8, "torch_threads": 4, "torch": "2.13"}
UNITS = ("node1/0/0000000a", "node1/1/0000000b")
DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {}


class Said(NamedTuple):
    """What a command printed."""

    code: int
    out: str
    err: str


def damage(name: str) -> Callable[[Callable[[bytes, random.Random], bytes]], Callable[[bytes, random.Random], bytes]]:
    """Register a way to damage a file."""

    def register(change: Callable[[bytes, random.Random], bytes]) -> Callable[[bytes, random.Random], bytes]:
        DAMAGES[name] = change
        return change

    return register


@damage("byte")
def _byte(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + bytes([(content[at] + rng.randrange(1, 256)) % 256]) + content[at + 1 :]


@damage("digit")
def _digit(content: bytes, rng: random.Random) -> bytes:
    at = rng.choice([i for i, byte in enumerate(content) if 48 <= byte < 58])
    return content[:at] + b"%d" % ((content[at] - 48 + rng.randrange(1, 10)) % 10) + content[at + 1 :]


@damage("bit")
def _bit(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


@damage("end cut off")
def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def _lines(change: Callable[[list[bytes], int, int], object]) -> Callable[[bytes, random.Random], bytes]:
    def changed(content: bytes, rng: random.Random) -> bytes:
        """Lines of a compressed file are changed by a program that compresses it again."""
        packed = content.startswith(b"\x1f\x8b")
        lines = (gzip.decompress(content) if packed else content).splitlines(keepends=True)
        a, b = sorted(rng.sample(range(len(lines)), 2))
        change(lines, a, b)
        return gzip.compress(b"".join(lines)) if packed else b"".join(lines)

    return changed


DAMAGES["lines swapped"] = _lines(lambda lines, a, b: lines.__setitem__(slice(a, b + 1), [lines[b], *lines[a + 1 : b], lines[a]]))
DAMAGES["line twice"] = _lines(lambda lines, a, b: lines.insert(b, lines[a]))
DAMAGES["line taken out"] = _lines(lambda lines, a, b: lines.pop(b))


def header(**more: object) -> dict[str, object]:
    """The header of a run on the CPU."""
    return {
        **{"command": "softbench run", "softbench": "1.0.0", "device_name": "EPYC", "backends": list(BACKENDS)},
        **{"sources": dict.fromkeys(BACKENDS, ""), "commits": {}, "yardstick": YARDSTICK, "relative_to": "torch"},
        **{"settings": {"rounds": 3, "timer": "queued"}, "fingerprint": {"processes": 10}, **environments({"": {"unit": "", **FACTS}})},
        **more,
    }


def records(process: int, case: Case, rng: random.Random, unit: str = "") -> list[Record]:
    """The records of a case."""
    found = []
    for place, backend in enumerate(BACKENDS):
        us = (20 + 5 * place) * case.N / 256 * rng.gauss(1, 0.002)
        batches = tuple(Batch(process, turn, place, tuple(round(us * rng.gauss(1, 0.002), 3) for _ in range(3))) for turn in range(3))
        grade = Grade.YARDSTICK if backend == YARDSTICK else Grade.PASS
        outcome = Measured(Build(0.1, ""), Accuracy(grade, 0.1, ""), Timing(batches, CPU_TIMER, "", FIXED))
        found.append(Record(backend, case, outcome, "", unit))
    return found


def finished(folder: Path, processes: int, seed: int) -> writer.Run:
    """A finished run."""
    run, rng = writer.start(folder, header()), random.Random(seed)
    for process in range(processes):
        for case in CASES:
            run.add(process, records(process, case, rng))
    run.finish(publish=False)
    return run


def interrupted(folder: Path, head: dict[str, object], units: Sequence[str]) -> Path:
    """The journal of an interrupted run; with several units other cards joined it."""
    rng, run = random.Random(3), None
    for number, unit in enumerate(units):
        some = {**head, **environments({unit: {"unit": unit, **FACTS}})}
        run = writer.resume(folder, some)[0] if number else writer.start(folder, some)
        assert run is not None
        for case in CASES if len(units) == 1 else CASES[number::2]:
            run.add(0, records(0, case, rng, unit))
        run.interrupt()
    assert run is not None
    return Path(run.journal.name)


def command(*words: object) -> Callable[[], Said]:
    """A command of softbench, within this process."""

    def run() -> Said:
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
        sys.argv, code = ["softbench", *map(str, words)], 0
        with redirect_stdout(out), redirect_stderr(err):
            try:
                softbench()
            except SystemExit as end:
                code = int(end.code or 0)
        texts = []
        for stream in (out, err):
            stream.flush()
            texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
        return Said(code, *texts)

    return run


def resumed(folder: Path, head: dict[str, object], unit: str) -> Callable[[], Said]:
    """What `softbench run --resume` has of an interrupted run before it measures: a line for each record, and its notes."""
    now = {**head, **environments({unit: {"unit": unit, **FACTS}})}

    def run() -> Said:
        found, note = writer.resume(folder, now, CASES, look=True)
        if found is None:
            return Said(2, "", f"{note}\n")
        [path] = folder.glob("*.jsonl")
        with path.open("rb", buffering=0) as found.journal:
            lines = [json.dumps(record_to_json(record)) for record in found.records()]
        return Said(0, "\n".join(lines), f"{found.lost}\n" if found.lost else "")

    return run


def judged(before: Said, after: Said, file: Path, *, cut: bool) -> str:
    """What became of a change. `cut`: the file is a journal without its last lines."""
    name = file.name.partition(".")[0]
    new = [line for line in after.err.splitlines() if line not in before.err.splitlines()]
    if after == before:
        return "no effect"
    if after.code == 2 and not after.out and len(new) == 1 and name in new[0]:
        return "refused"
    known = before.out.splitlines()
    part = after.code == before.code and all(line in known for line in after.out.splitlines())
    if part and len(new) == 1 and name in new[0]:
        return "left out"
    return "no effect" if part and cut and not new else "missed"


class Target(NamedTuple):
    """A file, with the commands that read it."""

    name: str
    file: Path
    commands: Sequence[Callable[[], Said]]


def targets(folder: Path) -> list[Target]:
    """The files, in the working folder."""
    old, new = finished(folder, 10, 1), finished(folder, 3, 2)
    base, _ = baselines.save([run_files.read(old.csv)], "base", folder)
    plain = folder / "plain.json"
    plain.write_bytes(gzip.decompress(new.json.read_bytes()))
    head, fleet = header(fingerprint={"processes": 1}), header(fingerprint={"processes": 1}, spread="shard")
    one, several = folder / "one", folder / "several"
    gate = command("gate", "--baseline", base, new.csv)
    return [
        Target("CSV", new.csv, [command("show", new.csv), gate]),
        Target(f"JSON ({SUFFIX})", new.json, [command("show", new.csv), gate]),
        Target("JSON (.json)", plain, [command("gate", "--baseline", base, plain)]),
        Target("baseline", base, [gate, command("baseline", "show", base)]),
        Target("journal", interrupted(one, head, [""]), [resumed(one, head, "")]),
        Target("journal of a fleet", interrupted(several, fleet, UNITS), [resumed(several, fleet, UNITS[1])]),
    ]


def measure(target: Target, name: str, number: int, rng: random.Random) -> tuple[Counter[str], list[str]]:
    """What became of so many changes of one kind, and what each missed one printed."""
    content, before = target.file.read_bytes(), [run() for run in target.commands]
    found, missed = Counter[str](), []
    for _ in range(number):
        damaged = DAMAGES[name](content, rng)
        if damaged == content:
            continue
        target.file.write_bytes(damaged)
        outcomes = []
        for was, run in zip(before, target.commands, strict=True):
            try:
                said = run()
            except Exception as error:
                said = Said(-1, "", f"{type(error).__name__}: {error}\n")
            outcomes.append(judged(was, said, target.file, cut=target.file.suffix == ".jsonl" and content.startswith(damaged)))
            if outcomes[-1] == "missed":
                at = next(i for i, (a, b) in enumerate(zip(content + b" ", damaged + b" ", strict=False)) if a != b)
                here = slice(max(0, at - 20), at + 20)
                missed.append(f"byte {at}: {content[here]!r} -> {damaged[here]!r}: exit code {said.code}, {said.err!r}")
        found[next(one for one in OUTCOMES if one in outcomes)] += 1
    target.file.write_bytes(content)
    return found, missed


OUTCOMES = ("missed", "refused", "left out", "no effect")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=1000, help="changed bytes of each file; a tenth of each other damage")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    bad = 0
    print(f"{'file':<20} {'damage':<15} {'changes':>8} {'refused':>8} {'left out':>9} {'no effect':>10} {'missed':>7}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        for target in targets(Path()):
            for name in DAMAGES:
                number = given.bytes if name == "byte" else -(-given.bytes // 10)
                found, missed = measure(target, name, number, random.Random(f"{given.seed} {target.name} {name}"))
                counts = [found.total(), *(found[one] for one in ("refused", "left out", "no effect", "missed"))]
                print("{:<20} {:<15} {:>8} {:>8} {:>9} {:>10} {:>7}".format(target.name, name, *counts), flush=True)
                bad += found["missed"]
                if missed:
                    print("\n".join(missed[:3]), file=sys.stderr)
        os.chdir("/")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
