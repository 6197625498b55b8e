"""Results in the words of other formats: KernelBench's results, kernelbot's lines, and the traces of FlashInfer-Trace.

Sources: `KernelExecResult` and `fast_p` of https://github.com/ScalingIntelligence/KernelBench; `eval.py` of
https://github.com/gpu-mode/reference-kernels; `Trace` of https://github.com/flashinfer-ai/flashinfer-bench. Each runs its own evaluator;
softbench fills in what it measured, and leaves out what it did not.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from softbench.core.case import REFERENCE, YARDSTICK, CaseKey, parse_op
from softbench.core.errors import ResultsError, UsageError
from softbench.core.json import JsonObject
from softbench.core.outcome import FAILURES, Measured, Status
from softbench.results.columns import Row
from softbench.results.document import beside, beside_required, load_header, stream
from softbench.results.records import records_of

THRESHOLDS = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0)
"""The p of `fast_p`: the share of problems that are right and more than p times as fast as the reference."""
LIBRARIES = ("torch", "triton", "cuda")
Speed = tuple[float, float, float]
"""A speed-up, and the least and largest that intervals allow."""


@dataclass(frozen=True, slots=True)
class Solved:
    """A cell of a solution, with the reference's cells of its case."""

    row: Row
    references: Mapping[str, Row]
    """Those of the reference, eager and compiled, by backend."""
    us: tuple[float, ...]
    """All samples, microseconds a call."""
    reference_us: tuple[float, ...]
    values: JsonObject
    """The parameters of the case."""
    specs: tuple[str, ...]
    """The case in the words of its format: several if its benchmarks differ in the seed only."""

    @property
    def right(self) -> bool:
        return self.row.status in (Status.OK, Status.CHECKED)

    def speedup(self, over: str = REFERENCE) -> Speed | None:
        """Speed-up over a backend of the reference, and the least and largest that the 95 % intervals of both times allow."""
        row, other = self.row, self.references.get(over)
        if other is None or not (row.median_us and other.median_us):
            return None
        low, high = row.low_us or row.median_us, row.high_us or row.median_us
        return other.median_us / row.median_us, (other.low_us or other.median_us) / high, (other.high_us or other.median_us) / low


def solved(file: Path, rows: Sequence[Row], to: str) -> list[Solved]:
    """The cells of solutions of a results file, each beside its reference, for export to a format. What cannot run here is no solution.

    Raises:
        UsageError: its problems are of another format.
        ResultsError: the JSON beside it, which has the samples, is missing or of another run.
    """
    path = beside_required(file)
    document = stream(path)
    if rows and document.get("run") != rows[0].run:
        raise ResultsError(f"{file}: is of {rows[0].run}, but {path.name} is of another run; take both files of one run")
    formats = document.get("formats") or {}
    for name in dict.fromkeys(parse_op(row.op)[0] for row in rows):
        if (own := formats.get(name) or to) != to:
            raise UsageError(f"{file}: {name} is a problem of {own}, whose results are no results of {to}; write --to {own}")
    samples = {
        (record.backend, record.case.identity, record.unit): tuple(us for batch in outcome.timing.batches for us in batch.samples_us)
        for record in records_of(document, path)
        if isinstance(outcome := record.outcome, Measured)
    }
    references: dict[tuple[CaseKey, str], dict[str, Row]] = {}
    for row in rows:
        if row.backend.partition(":")[0] == REFERENCE:
            references.setdefault((row.case, row.unit), {})[row.backend] = row
    found = []
    for row in rows:
        if row.backend == YARDSTICK or row.backend.partition(":")[0] == REFERENCE or row.status == Status.UNAVAILABLE:
            continue
        others = references.get((row.case, row.unit), {})
        name, given = parse_op(row.op)
        values = {**((document.get("problems") or {}).get(name) or {}), **given} or {"M": row.M, "N": row.N}
        specs = tuple((document.get("specs") or {}).get(str(row.case)) or ["; ".join(f"{key}: {value}" for key, value in values.items())])
        found.append(Solved(row, others, _samples(samples, row), _samples(samples, others.get(REFERENCE)), values, specs))
    return found


def _samples(samples: Mapping[tuple[str, CaseKey, str], tuple[float, ...]], row: Row | None) -> tuple[float, ...]:
    return () if row is None else samples.get((row.backend, row.case, row.unit), ())


def kernelbench(files: Mapping[Path, Sequence[Row]]) -> str:
    """JSON: a `KernelExecResult` for each case and solution, and `fast_p` of each solution over all cases of all files.

    Times are milliseconds. Beside each share of `fast_p` stand the least and the largest that the intervals of the times allow.
    `fast_p_over` has the same over the other backends of the reference, such as its torch.compile. Without the reference there is neither.
    """
    results: dict[str, dict[str, JsonObject]] = {}
    speeds: dict[str, dict[str, list[Speed | None]]] = {REFERENCE: {}}
    for file, rows in files.items():
        cells = solved(file, rows, "kernelbench")
        device = load_header(beside(file)).get("device_name", "")
        for one in cells:
            speed = one.speedup()
            results.setdefault(str(one.row.case), {})[one.row.backend] = {
                "compiled": not one.row.reason.startswith(("import:", "build:")) if one.row.status in FAILURES else True,
                "correctness": one.right,
                "metadata": {"hardware": device, "run": one.row.run, "reason": one.row.reason, "class": one.row.grade},
                "runtime": fmean(one.us) / 1e3 if one.us else -1.0,
                "runtime_stats": _statistics(one.us),
                "ref_runtime": fmean(one.reference_us) / 1e3 if one.reference_us else -1.0,
                "ref_runtime_stats": _statistics(one.reference_us),
                "speedup": list(speed) if speed else None,
            }
            others = [name for name, row in one.references.items() if row.median_us]
            for over in dict.fromkeys([REFERENCE, *others] if one.references else []):
                found = speeds.setdefault(over, {}).setdefault(one.row.backend, [])
                found.append(one.speedup(over) if one.right else None)
    shares = {over: {backend: _shares(found) for backend, found in of.items()} for over, of in speeds.items()}
    return json.dumps({"results": results, "fast_p": shares.pop(REFERENCE), "fast_p_over": shares}, indent=1, allow_nan=False) + "\n"


def _shares(found: Sequence[Speed | None]) -> JsonObject:
    """`fast_p` of each threshold."""
    return {f"{p:g}": {name: _share(found, p, place) for place, name in enumerate(("share", "least", "most"))} for p in THRESHOLDS}


def _share(found: Sequence[Speed | None], p: float, place: int) -> float:
    return sum(speed is not None and speed[place] > p for speed in found) / len(found)


def _statistics(us: Sequence[float]) -> JsonObject:
    """KernelBench's: milliseconds."""
    if not us:
        return {}
    ms = [one / 1e3 for one in us]
    return {"mean": fmean(ms), "std": stdev(ms) if len(ms) > 1 else 0.0, "min": min(ms), "max": max(ms), "num_trials": len(ms)}


def kernelbot(files: Mapping[Path, Sequence[Row]]) -> str:
    """The lines that kernelbot reads from an evaluator: nanoseconds. The files must have one solution.

    Raises:
        UsageError: they have several.
    """
    found = [one for file, rows in files.items() for one in solved(file, rows, "kernelbot")]
    if len(names := {one.row.backend for one in found}) > 1:
        raise UsageError(f"kernelbot's lines are of one solution, and there are {', '.join(sorted(names))}; choose with --backends")
    benchmarks = [(one, spec) for one in found for spec in one.specs]
    lines = [f"benchmark-count: {len(benchmarks)}"]
    for place, (one, spec) in enumerate(benchmarks):
        lines.append(f"benchmark.{place}.spec: {spec}")
        if not one.right or not one.us:
            lines += [f"benchmark.{place}.status: fail", f"benchmark.{place}.error: {one.row.reason or one.row.status}"]
            continue
        ns = [us * 1e3 for us in one.us]
        deviation = stdev(ns) if len(ns) > 1 else 0.0
        for name, value in {
            "runs": len(ns), "mean": fmean(ns), "std": deviation, "err": deviation / len(ns) ** 0.5, "best": min(ns), "worst": max(ns),
        }.items():  # fmt: skip
            lines.append(f"benchmark.{place}.{name}: {value}")
    lines.append(f"check: {'pass' if found and all(one.right and one.us for one in found) else 'fail'}")
    return "\n".join(lines) + "\n"


def flashinfer(files: Mapping[Path, Sequence[Row]], workloads: Path | None = None) -> str:
    """JSON lines, a trace for each cell. `workloads` is the file of the definition's workloads, which have the identifiers.

    Raises:
        ResultsError: `workloads` cannot be read.
    """
    known = list(_workloads(workloads)) if workloads else []
    lines = []
    for file, rows in files.items():
        cells, header = solved(file, rows, "flashinfer"), load_header(beside(file))
        about = header.get("environment") or {}
        libraries = {name: str(about[name]) for name in LIBRARIES if about.get(name)}
        for one in cells:
            name, axes = parse_op(one.row.op)[0], {name: value for name, value in one.values.items() if isinstance(value, int)}
            sizes = {"M": one.row.M, "N": one.row.N, **axes}
            own = next((found for found in known if all(sizes.get(axis) == size for axis, size in found["axes"].items())), None)
            workload = own or {"axes": axes, "inputs": {}, "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{name} {sorted(axes.items())}"))}
            evaluation: JsonObject = {
                "status": _status(one.row),
                "environment": {
                    "hardware": header.get("device_name", ""),
                    "libs": libraries,
                },
                "timestamp": header.get("started", ""),
                "log": one.row.reason,
            }
            if evaluation["status"] == "PASSED":
                speed, reference = one.speedup(), one.references.get(REFERENCE)
                evaluation["correctness"] = {"extra": {"error_over_bound": one.row.error_over_bound, "class": one.row.grade}}
                evaluation["performance"] = {
                    "latency_ms": (one.row.median_us or 0.0) / 1e3,
                    "reference_latency_ms": ((reference.median_us if reference else None) or 0.0) / 1e3,
                    "speedup_factor": speed[0] if speed else 0.0,
                }
            lines.append(json.dumps({"definition": name, "workload": workload, "solution": one.row.backend, "evaluation": evaluation}))
    return "\n".join(lines) + "\n"


def _workloads(path: Path) -> Iterable[JsonObject]:
    try:
        for line in path.read_text().splitlines():
            if line.strip():
                found = dict(json.loads(line)["workload"])
                yield {**found, "axes": dict(found["axes"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{path}: is no file of workloads: {type(error).__name__}: {error}") from None


def _status(row: Row) -> str:
    if row.status in (Status.OK, Status.CHECKED):
        return "PASSED"
    if row.status == Status.WRONG:
        kinds = {"shape": "INCORRECT_SHAPE", "dtype": "INCORRECT_DTYPE"}
        return next((kind for word, kind in kinds.items() if word in row.reason), "INCORRECT_NUMERICAL")
    if row.status == Status.TIMEOUT:
        return "TIMEOUT"
    return "COMPILE_ERROR" if row.reason.startswith(("import:", "build:")) else "RUNTIME_ERROR"
