"""Deterministic runs of several processes, made from a committed run or baseline."""

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

ROUNDS, SAMPLES = 3, 3


@dataclass(frozen=True)
class Change:
    """What happens to the measured cells. Each set holds places among the cells that are not copy's."""

    slower: frozenset[int] = frozenset()
    faster: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    missing: frozenset[int] = frozenset()
    launch_bound: frozenset[int] = frozenset()
    factor: float = 1.1
    """Latency of a slower cell over the original; a faster cell gets the inverse."""


def several(document, count, *, seed, change=Change(), noise=0.003, environment=None):
    """A run document of `count` processes. `noise` is the spread between processes, of the log latency."""
    rng = random.Random(seed)
    drift = [math.exp(rng.gauss(0, 0.01)) for _ in range(count)]  # of the machine: it moves copy too
    cells, place = [], -1
    for original in document["cells"]:
        outcome = dict(original["outcome"])
        cell, ours = {**original, "outcome": outcome}, original["backend"] != "copy"
        if outcome["kind"] != "measured":
            cells.append(cell)
            continue
        place += ours
        factor = 1.0
        if ours:
            factor = change.factor if place in change.slower else 1 / change.factor if place in change.faster else 1.0
        tau = noise if ours else noise / 3
        levels = [factor * moved * math.exp(rng.gauss(0, tau)) for moved in drift]
        batches = [
            _batch(batch, process, level, rng) for process, level in enumerate(levels) for batch in outcome["timing"]["batches"][:ROUNDS]
        ]
        outcome["timing"] = {**outcome["timing"], "batches": batches}
        if ours and place in change.launch_bound:
            outcome["profile"] = {**outcome["profile"], "device_us": [3.2, 3.3], "host_us": [71.0], "kernels": ["k"]}
        if ours and place in change.failed:
            cell["outcome"] = {"kind": "failed", "status": "failed", "stage": "time", "reason": "it broke", "build": None, "accuracy": None}
        if not (ours and place in change.missing):
            cells.append(cell)
    about = {"environment": {**document["environment"], **(environment or {})}, "command": "softbench run --config synthetic"}
    return {**document, **about, "run": f"run-20270101-{seed:06}", "cells": cells}


def _batch(batch, process, level, rng):
    samples = [round(us * level * math.exp(rng.gauss(0, 0.002)), 4) for us in batch["samples_us"][:SAMPLES]]
    return {**batch, "process": process, "samples_us": samples}


def from_baseline(baseline):
    """A run document with the first process of a baseline, which `several` takes."""
    cells = []
    for cell in baseline["cells"]:
        case = {name: cell[name] for name in ("M", "N", "dtype", "direction")} | {"device": "cuda"}
        medians = cell["round_medians_us"]["0"]
        batches = [{"process": 0, "round": turn, "position": 0, "samples_us": [us], "telemetry": None} for turn, us in enumerate(medians)]
        outcome = {
            "kind": "measured",
            "build": {"seconds": 0.1, "cache": "", "compile_s": None, "graph_breaks": None, "reuses_output": False},
            "accuracy": {"grade": cell["class"], "worst": 0.0, "detail": ""},
            "timing": {"batches": batches, "kind": "do_bench", "l2": "cold", "stopped": "fixed"},
            "profile": {"device_us": [], "host_us": [], "kernels": [], "note": "", "peak_bytes": None, "recompiles": None},
        }
        cells.append({"backend": cell["backend"], "case": case, "outcome": outcome, "source": "", "unit": ""})
    kept = {name: baseline[name] for name in ("schema", "device_name", "settings", "environment")}
    return {**kept, "cells": cells}


def write(document, file):
    """Write a run document; returns its name."""
    Path(file).write_text(json.dumps(document), encoding="utf-8")
    return file
