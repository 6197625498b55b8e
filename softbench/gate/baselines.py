"""Baselines: the round medians of several processes on one machine, as a readable file under results/baselines/.

The file is JSON with a line per cell: each process's round medians in microseconds. The raw samples stay in the runs' own files. The
header has GPU, driver, versions and command, and `softbench.gate.environment_match` compares it with every new run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from softbench.core.case import NAME
from softbench.core.errors import InconclusiveError, ResultsError, SoftbenchError, UsageError
from softbench.core.files import not_written, reject_folder, replacing
from softbench.core.json import JsonObject
from softbench.core.machine import same_card
from softbench.core.outcome import Grade, Status
from softbench.core.text import few, one_line, percent, unknown
from softbench.gate import environment_match
from softbench.gate.power import SECOND_LOOK, check_noise, found_by_processes
from softbench.gate.run_files import cells_of, environment_and_units, from_document, positive, read, reading, stored, times_of
from softbench.gate.samples import CellKey, CellSamples, RoundMedian, RunSamples, Sitting, join, merged
from softbench.gate.unpaired import MARGIN, MIN_BASE, MIN_NEW, RECOMMENDED_BASE, add_sitting
from softbench.gate.verdicts import Rules
from softbench.results.columns import Row
from softbench.results.csv import read_csv
from softbench.results.document import SUFFIXES, lines, stream
from softbench.results.records import SCHEMA, records_of
from softbench.results.rows import rows_of_run

FOLDER = Path("results") / "baselines"
FORMAT = "softbench baseline"
VERSION = 1


def save(parts: Sequence[RunSamples], name: str, folder: Path = FOLDER, *, force: bool = False) -> tuple[Path, list[str]]:
    """Write the runs together as the baseline `name`; returns the file and warnings.

    Raises:
        UsageError: an invalid name, or one that exists without `force`.
        ResultsError: one run given twice, or the folder cannot be written.
        InconclusiveError: processes are too few or too noisy, and the message has the command that measures more. Or the runs are of
            different machines or sweeps.
    """
    file = path_of(name, folder)
    if file.exists() and not force:
        raise UsageError(f"{file} exists already; take another name, or --force")
    warnings = list(dict.fromkeys([*environment_match.one_machine(parts), *environment_match.unnoticed(*parts)]))
    joined = join(parts)
    warnings += _check_processes(joined) + _check_one_sweep(joined) + check_noise(joined) + _check_sittings(joined, name)
    warnings = _replaced(file, joined) + warnings
    return _write(joined, name, file), warnings


def _replaced(file: Path, new: RunSamples) -> list[str]:
    """A warning if the file has a baseline of a card that the new one lacks. A file that cannot be read has none."""
    try:
        old = open_baseline(str(file))
    except SoftbenchError:
        return []
    before, now = ([*run.units] or [str(run.environment.get("unit") or "")] for run in (old, new))
    lost = [unit for unit in before if not any(same_card(unit, other) for other in now)]
    if not lost and old.device_name == new.device_name:
        return []
    return [f"{file}: it replaces the baseline of {f'{old.device_name} {few(lost)}'.strip()}; to have both, give each its own name"]


def reject_not_measurable(file: Path) -> None:
    """Check that a run of a file did not end with exit code 5. A name of a baseline passes.

    Raises:
        InconclusiveError: it did.
        ResultsError: the file is damaged.
    """
    from softbench.run.quiet import not_measurable  # not to compare

    if file.suffix == ".csv":
        rows: Sequence[Row] = read_csv(file)[0]
    elif file.name.endswith(SUFFIXES) and (document := stream(file)).get("format") != FORMAT:
        with reading(str(file)):
            rows = [*rows_of_run(records_of(document, file), document)]
    else:
        return
    if why := not_measurable(rows):
        raise InconclusiveError(f"{file}: {why}; --allow-busy saves it all the same")


def path_of(name: str, folder: Path = FOLDER) -> Path:
    """The file of a baseline's name; raises UsageError for an invalid name."""
    if not NAME.fullmatch(name) or name.endswith((*SUFFIXES, ".csv")):
        raise UsageError(f"'{one_line(name, 60)}' is not a valid name for a baseline; use letters, digits and . _ : + -, without .json")
    return folder / f"{name}.json"


def saved(folder: Path = FOLDER) -> list[Path]:
    """The files of all baselines in the folder."""
    return sorted(folder.glob("*.json"))


def open_baseline(name_or_file: str, folder: Path = FOLDER) -> RunSamples:
    """A baseline by its name, or from a file: a baseline, or a run's CSV or JSON.

    Raises:
        UsageError: no baseline of that name.
        ResultsError: damaged, of a foreign format, or of another version; the message says which and where.
    """
    path = Path(name_or_file)
    if path.suffix == ".csv":
        return read(path)
    if not path.name.endswith(SUFFIXES):
        if path.name != name_or_file:
            reject_folder(path)
            raise UsageError(f"{name_or_file}: give a name, or a file that ends in .json or .csv")
        path = path_of(name_or_file, folder)
        if not path.exists():
            reject_folder(Path(name_or_file))
            known = [file.stem for file in saved(folder)]
            hint = "" if known else f"; save one: softbench baseline save results/latest.csv --name {name_or_file}"
            raise UsageError(f"{folder}: {unknown(name_or_file, known, 'baseline')}{hint}")
    document = stream(path)
    return stored(_parse(document, str(path)) if document.get("format") == FORMAT else from_document(document, str(path)), path)


def _check_processes(baseline: RunSamples) -> list[str]:
    if baseline.processes < MIN_BASE:
        raise InconclusiveError(
            f"{baseline.source}: a baseline needs {MIN_BASE} processes ({RECOMMENDED_BASE} recommended), it has {baseline.processes}; "
            f"measure with: {baseline.more_processes(RECOMMENDED_BASE)}"
        )
    if baseline.processes < RECOMMENDED_BASE:
        return [f"{baseline.processes} processes; {RECOMMENDED_BASE} are recommended: {baseline.more_processes(RECOMMENDED_BASE)}"]
    return []


def _check_sittings(baseline: RunSamples, name: str) -> list[str]:
    if len(baseline.by_sitting) > 1:
        return []
    found = found_by_processes(baseline, SECOND_LOOK * MIN_NEW, Rules(margin=MARGIN))
    smallest = f" of {percent(found)} and more" if math.isfinite(found) else ""
    return [f"one sitting, so that at another time the gate finds only slowdowns{smallest}; to add one, {add_sitting(baseline, name)}"]


def _check_one_sweep(baseline: RunSamples) -> list[str]:
    """Joined runs must have one sweep, because a cell with too few processes could not be judged."""
    counts = {key: len(samples.processes) for key, samples in baseline.cells.items() if samples.status == "ok"}
    few = [key for key, count in counts.items() if count < MIN_BASE]
    if few:
        example = f"{few[0].backend} {few[0].case} has {counts[few[0]]}"
        raise InconclusiveError(
            f"{baseline.source}: {len(few)} of {len(counts)} cells have fewer than {MIN_BASE} processes ({example}); "
            f"a baseline takes runs of one sweep: measure with: {baseline.more_processes(RECOMMENDED_BASE)}"
        )
    fewer = sum(count < baseline.processes for count in counts.values())
    return [f"{fewer} of {len(counts)} cells were not measured in all {baseline.processes} processes"] if fewer else []


def _write(baseline: RunSamples, name: str, file: Path) -> Path:
    header: JsonObject = {
        **{"format": FORMAT, "version": VERSION, "name": name, "saved": datetime.now(UTC).isoformat(timespec="seconds")},
        **{"schema": baseline.schema, "device_name": baseline.device_name, "processes": baseline.processes, "command": baseline.command},
        **{
            "runs": list(baseline.runs),
            "sittings": [list(sitting.processes) for sitting in baseline.by_sitting],
            "sitting_times": [_times(sitting) for sitting in baseline.by_sitting],
            "measured_by": baseline.versions,
            "settings": baseline.settings,
            "environment": baseline.environment,
            **({"units": [{**facts, "unit": unit} for unit, facts in baseline.units.items()]} if baseline.units else {}),
        },
    }
    head = "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in header.items())
    cells = (json.dumps(_cell(key, samples), allow_nan=False).encode() for key, samples in baseline.cells.items())
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file, durable=True) as out:
            out.writelines(lines(head.encode(), cells, indented=True))
    except OSError as error:
        raise not_written(file, error) from None
    return file


def _times(sitting: Sitting) -> JsonObject | None:
    names = ("started", "finished")
    return {k: datetime.fromtimestamp(t, UTC).isoformat() for k, t in zip(names, sitting.times, strict=True)} if sitting.times else None


def _cell(key: CellKey, samples: CellSamples) -> JsonObject:
    place = {name: value for name, value in key._asdict().items() if name not in ("unit", "measure") or value}
    cell: JsonObject = {**place, "status": samples.status, "class": samples.grade}
    if samples.status != "ok":
        return {**cell, "reason": samples.reason}
    cell |= {name: value for name in ("host_bound", "timer") if (value := getattr(samples, name))}
    if samples.log_mhz() is not None:
        cell["sm_clock_mhz"] = {str(process): median(one.mhz for one in rounds) for process, rounds in samples.processes.items()}
    return {
        **cell,
        "round_medians_us": {str(process): [round(one.median_us, 4) for one in rounds] for process, rounds in samples.processes.items()},
    }


def _parse(document: JsonObject, source: str) -> RunSamples:
    if document.get("version") != VERSION or document.get("schema") != SCHEMA:
        versions_found = f"version {one_line(str(document.get('version')), 20)}, schema {one_line(str(document.get('schema')), 20)}"
        raise ResultsError(
            f"{source}: is a baseline of {versions_found}; this softbench reads version {VERSION}, schema {SCHEMA}: measure it again"
        )
    with reading(source, "; save it again") as place:
        environment, units = environment_and_units(document)
        settings = dict(document["settings"])
        runs = tuple(one_line(str(run)) for run in document["runs"])
        versions = {str(key): one_line(str(value)) for key, value in dict(document.get("measured_by") or {}).items()}
        cells = cells_of(document, place, units, _samples)
        processes = len({process for samples in cells.values() for process in samples.processes})
        if document["processes"] != processes:
            raise ValueError(f"says {one_line(str(document['processes']), 20)} processes and has {processes}")
        numbers = document.get("sittings") or ()
        times = document.get("sitting_times") or [None] * len(numbers)
        sittings = merged([Sitting(tuple(map(int, some)), times_of(when or {})) for some, when in zip(numbers, times, strict=True)])
    texts = [one_line(str(document.get(name) or ""), 2000) for name in ("device_name", "command")]
    return RunSamples(source, runs, SCHEMA, texts[0], environment, settings, texts[1], cells, processes, versions, sittings, units)


def _samples(cell: JsonObject) -> CellSamples:
    grade = Grade(cell["class"]).value if cell["class"] else ""
    if cell["status"] != "ok":
        return CellSamples(Status(cell["status"]).value, one_line(str(cell["reason"])), grade)
    processes, clocks = {}, cell.get("sm_clock_mhz") or {}
    for process, medians in cell["round_medians_us"].items():
        if not medians:
            raise ValueError("a process has no rounds")
        mhz = positive(clocks[process]) if process in clocks else 0.0
        processes[int(process)] = tuple(RoundMedian(number, 0, positive(us), mhz=mhz) for number, us in enumerate(medians))
    if not processes:
        raise ValueError("it is measured, but has no processes")
    host_bound, timer = (one_line(str(cell.get(name) or "")) for name in ("host_bound", "timer"))
    return CellSamples("ok", "", grade, processes, host_bound, timer)
