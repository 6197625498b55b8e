"""The A/B run: measures candidate and reference interleaved, and flagged cells again in fresh processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from softbench.core.case import Direction
from softbench.core.errors import UsageError
from softbench.gate import environment_match, paired
from softbench.gate.run_files import from_run
from softbench.gate.samples import RunSamples
from softbench.gate.verdicts import GateReport, Rules, Verdict
from softbench.plan.settings import AXES, Layer
from softbench.plan.sweep import Sweep
from softbench.results import store
from softbench.run.request import Request

DEFAULTS: Layer = {**paired.FIXED_ROUNDS, "batch_ms": 5.0, "yardstick": False}
"""More and shorter batches than in a run, because a round is one value of the test."""

Measure = Callable[[Request], store.Run]


def ab_request(request: Request, candidate: str, reference: str) -> Request:
    """The request with both backends and enough rounds.

    Raises:
        UsageError: candidate and reference are the same.
    """
    if candidate == reference:
        raise UsageError(f"--candidate {candidate}: is also the reference; to measure the gate's own noise use --self-test")
    return replace(with_fixed_rounds(request), flags={**request.flags, "backends": (candidate, reference), "relative_to": reference})


def with_fixed_rounds(request: Request) -> Request:
    """The request with the defaults of an A/B run. A configuration's range of rounds is replaced."""
    config: Layer = {**DEFAULTS, **request.config}
    if config["rounds"] != config["max_rounds"]:  # only `softbench run` takes a range of rounds
        config = {**config, **paired.FIXED_ROUNDS}
    return replace(request, config=config)


def rounds_notes(request: Request) -> list[str]:
    """A note if the configuration's number of rounds is not used."""
    rounds, max_rounds = ({**DEFAULTS, **request.config}[key] for key in ("rounds", "max_rounds"))
    if rounds == max_rounds or "rounds" in request.flags:
        return []
    return [
        f"{paired.ROUNDS} rounds, which all backends share, instead of the configuration's {rounds} to {max_rounds}; --rounds changes that"
    ]


def judge(
    measure: Measure,
    request: Request,
    candidate: str,
    reference: str,
    rules: Rules,
    base: RunSamples | None = None,
    allowed: Sequence[str] = (),
) -> GateReport:
    """Measure and screen both backends, and measure flagged cells again in fresh process pairs.

    `base` is a baseline. Its spread of the reference between processes raises the margins of noisy cells.

    Raises:
        UsageError: a backend does not exist. Errors of `softbench.run.run.run` pass through.
        InconclusiveError: `base` comes from another machine.
    """
    try:
        run = measure(request)
    except UsageError as error:
        raise UsageError(str(error).replace("--backends", "--candidate, --reference", 1)) from None
    screened = samples_of(run)
    notes = [f"measured: {run.csv}"] + (environment_match.check(screened, base, allowed) if base else [])
    process_sds = paired.spreads(base, reference, candidate) if base else None
    report = paired.screen(screened, candidate, reference, rules, process_sds)
    if flagged := paired.flagged(report):
        second = measure(confirmation(request, flagged))
        notes.append(f"{len(flagged)} flagged, measured again in {paired.CONFIRMATIONS} fresh process pairs: {second.csv}")
        report = paired.confirmed(report, samples_of(second), reference)
    return replace(report, notes=tuple(notes))


def samples_of(run: store.Run) -> RunSamples:
    """The samples of a run that was just measured."""
    return from_run(run.header, run.records(), str(run.json))


def confirmation(request: Request, flagged: Sequence[Verdict]) -> Request:
    """The request that measures only the flagged cases, in fresh processes."""
    cells = [verdict.cell for verdict in flagged]
    sweeps = tuple(Sweep((cell.M,), (cell.N,), (cell.dtype,), (Direction(cell.direction),)) for cell in cells)
    flags = cast(Layer, {key: value for key, value in request.flags.items() if key not in AXES})
    flags["processes"] = paired.CONFIRMATIONS
    return replace(request, config={**request.config, "sweep": sweeps}, flags=flags, resume=False)
