"""Every stored file, damaged in every way: the commands that read it refuse it, leave a part out and name it, or print what they did.

A change is *refused* if the command ends with exit code 2 and one line that names the file. It is *left out* if the command prints what it
printed before, or a part of it, and one more line that names the file. It has *no effect* if all is as before. Anything else is *missed*.
A journal without its last lines is that of a run that was interrupted earlier, so no line says that they are not there.
"""

import gzip
import json
import random
from pathlib import Path
from typing import NamedTuple

import pytest

from softbench.core.case import CPU_TIMER, YARDSTICK, Case, Direction
from softbench.core.outcome import Accuracy, Batch, Build, Grade, Measured, Record, Timing
from softbench.core.statistics import FIXED
from softbench.gate import baselines, run_files
from softbench.results import writer
from softbench.results.document import environments
from softbench.results.records import record_to_json

BACKENDS = (YARDSTICK, "torch", "naive")
CASES = [Case(64, 256 * N, "fp32", Direction.FORWARD, "cpu") for N in (1, 2, 3)]
FACTS = {"device": "cpu", "cpu": "EPYC", "cpu_count": 8, "torch_threads": 4, "torch": "2.13"}
UNITS = ("node1/0/0000000a", "node1/1/0000000b")


class Said(NamedTuple):
    """What a command printed."""

    code: int
    out: str
    err: str


def at(change):
    """A way to damage a file at a random place."""
    return lambda content, rng: change(content, rng.randrange(len(content)), rng)


def digit(content, rng):
    place = rng.choice([i for i, byte in enumerate(content) if 48 <= byte < 58])
    return content[:place] + b"%d" % ((content[place] - 48 + rng.randrange(1, 10)) % 10) + content[place + 1 :]


def of_lines(change):
    def changed(content, rng):
        """Lines of a compressed file are changed by a program that compresses it again."""
        packed = content.startswith(b"\x1f\x8b")
        lines = (gzip.decompress(content) if packed else content).splitlines(keepends=True)
        change(lines, *sorted(rng.sample(range(len(lines)), 2)))
        return gzip.compress(b"".join(lines)) if packed else b"".join(lines)

    return changed


DAMAGES = {
    "byte": at(lambda content, i, rng: content[:i] + bytes([(content[i] + rng.randrange(1, 256)) % 256]) + content[i + 1 :]),
    "digit": digit,
    "bit": at(lambda content, i, rng: content[:i] + bytes([content[i] ^ 1 << rng.randrange(8)]) + content[i + 1 :]),
    "end cut off": at(lambda content, i, rng: content[:i]),
    "lines swapped": of_lines(lambda lines, a, b: lines.__setitem__(slice(a, b + 1), [lines[b], *lines[a + 1 : b], lines[a]])),
    "line twice": of_lines(lambda lines, a, b: lines.insert(b, lines[a])),
    "line taken out": of_lines(lambda lines, a, b: lines.pop(b)),
}


def header(**more):
    return {
        **{"command": "softbench run", "softbench": "1.0.0", "device_name": "EPYC", "backends": list(BACKENDS)},
        **{"sources": dict.fromkeys(BACKENDS, ""), "commits": {}, "yardstick": YARDSTICK, "relative_to": "torch"},
        **{"settings": {"rounds": 3, "timer": "queued"}, "fingerprint": {"processes": 10}, **environments({"": {"unit": "", **FACTS}})},
        **more,
    }


def records(process, case, rng, unit=""):
    found = []
    for place, backend in enumerate(BACKENDS):
        us = (20 + 5 * place) * case.N / 256 * rng.gauss(1, 0.002)
        batches = tuple(Batch(process, turn, place, tuple(round(us * rng.gauss(1, 0.002), 3) for _ in range(3))) for turn in range(3))
        grade = Grade.YARDSTICK if backend == YARDSTICK else Grade.PASS
        outcome = Measured(Build(0.1, ""), Accuracy(grade, 0.1, ""), Timing(batches, CPU_TIMER, "", FIXED))
        found.append(Record(backend, case, outcome, "", unit))
    return found


def finished(folder, processes, seed):
    run, rng = writer.start(folder, header()), random.Random(seed)
    for process in range(processes):
        for case in CASES:
            run.add(process, records(process, case, rng))
    run.finish(publish=False)
    return run


def interrupted(folder, head, units):
    """The journal of an interrupted run; with several units other cards joined it."""
    rng, run = random.Random(3), None
    for number, unit in enumerate(units):
        some = {**head, **environments({unit: {"unit": unit, **FACTS}})}
        run = writer.resume(folder, some)[0] if number else writer.start(folder, some)
        for case in CASES if len(units) == 1 else CASES[number::2]:
            run.add(0, records(0, case, rng, unit))
        run.interrupt()
    return Path(run.journal.name)


def resumed(folder, head, unit):
    """What `softbench run --resume` has of an interrupted run before it measures: a line for each record, and its notes."""
    now = {**head, **environments({unit: {"unit": unit, **FACTS}})}

    def run():
        found, note = writer.resume(folder, now, CASES, look=True)
        if found is None:
            return Said(2, "", f"{note}\n")
        [path] = folder.glob("*.jsonl")
        with path.open("rb", buffering=0) as found.journal:
            lines = [json.dumps(record_to_json(record)) for record in found.records()]
        return Said(0, "\n".join(lines), f"{found.lost}\n" if found.lost else "")

    return run


def judged(before, after, file, *, cut):
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


@pytest.fixture
def targets(main, tmp_path):
    """By name: a file, and the commands that read it."""

    def command(*words):
        return lambda: Said(*main(*words))

    folder = Path()
    old, new = finished(folder, 10, 1), finished(folder, 3, 2)
    base, _ = baselines.save([run_files.read(old.csv)], "base", folder)
    plain = folder / "plain.json"
    plain.write_bytes(gzip.decompress(new.json.read_bytes()))
    head, fleet = header(fingerprint={"processes": 1}), header(fingerprint={"processes": 1}, spread="shard")
    one, several = folder / "one", folder / "several"
    gate = command("gate", "--baseline", base, new.csv)
    return {
        "CSV": (new.csv, [command("show", new.csv), gate]),
        "JSON (.json.gz)": (new.json, [command("show", new.csv), gate]),
        "JSON (.json)": (plain, [command("gate", "--baseline", base, plain)]),
        "baseline": (base, [gate, command("baseline", "show", base)]),
        "journal": (interrupted(one, head, [""]), [resumed(one, head, "")]),
        "journal of a fleet": (interrupted(several, fleet, UNITS), [resumed(several, fleet, UNITS[1])]),
    }


FILES = ("CSV", "JSON (.json.gz)", "JSON (.json)", "baseline", "journal", "journal of a fleet")


@pytest.mark.parametrize("times", [1, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FILES)
def test_no_damage_is_missed(targets, name, times):
    file, commands = targets[name]
    content, before = file.read_bytes(), [run() for run in commands]
    for damage, change in DAMAGES.items():
        rng = random.Random(f"{name} {damage}")
        for _ in range(times * (3 if damage == "byte" else 1)):
            damaged = change(content, rng)
            file.write_bytes(damaged)
            for was, run in zip(before, commands, strict=True):
                said = run()
                found = judged(was, said, file, cut=file.suffix == ".jsonl" and content.startswith(damaged))
                assert found != "missed", (damage, next(i for i, (a, b) in enumerate(zip(content, damaged, strict=False)) if a != b), said)


def test_a_change_without_a_word_is_missed():
    before, file = Said(0, "1 us\n2 us\n", ""), Path("run-1.csv")
    for after, found in (
        (before, "no effect"),
        (before._replace(out="1 us\n3 us\n"), "missed"),
        (before._replace(out="1 us\n"), "missed"),
        (before._replace(out="1 us\n", err="run-1.csv: line 2 is damaged\n"), "left out"),
        (Said(2, "", "run-1.csv: line 2 is damaged\n"), "refused"),
        (Said(2, "", "run-1.csv: line 2\nis damaged\n"), "missed"),
        (Said(-1, "", "KeyError: 'run-1'\n"), "missed"),
    ):
        assert judged(before, after, file, cut=False) == found
