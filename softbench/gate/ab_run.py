"""The A/B run: measures candidate and reference interleaved, and undecided cells again in fresh process pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from softbench.core import text
from softbench.core.errors import UsageError
from softbench.gate import environment_match, fresh_pairs, paired
from softbench.gate.power import found_in_pairs
from softbench.gate.run_files import from_run
from softbench.gate.samples import CellKey, RunSamples
from softbench.gate.units import own
from softbench.gate.verdicts import GateReport, Rules
from softbench.plan import estimate
from softbench.plan.plan import Plan
from softbench.plan.settings import Layer
from softbench.plan.sweep import AXES, only
from softbench.plugins.select import of_source
from softbench.results import writer
from softbench.run.request import RunRequest

DEFAULTS: Layer = {**paired.FIXED_ROUNDS, "batch_ms": 5.0, "yardstick": False, "processes": fresh_pairs.PAIRS}
"""More and shorter batches than in a run, because a round is one value of the test."""

EXAMPLE_SDS = (0.003, 0.02)
"""Standard deviations between processes for which the plan says what it finds: a quiet GPU, and a busy machine."""

Measure = Callable[[RunRequest], writer.Run]


def ab_request(request: RunRequest, candidate: str, reference: str) -> RunRequest:
    """The request with both backends and enough rounds.

    Raises:
        UsageError: candidate and reference are the same, or the rounds are too few to reject anything.
    """
    if candidate == reference:
        raise UsageError(f"--candidate {candidate}: is also the reference; to measure the gate's own noise use softbench gate --self-test")
    return replace(with_fixed_rounds(request), flags={**request.flags, "backends": (candidate, reference), "relative_to": reference})


def with_fixed_rounds(request: RunRequest) -> RunRequest:
    """The request with the defaults of an A/B run. A configuration's range of rounds is replaced.

    Raises:
        UsageError: too few rounds.
    """
    config: Layer = {**DEFAULTS, **request.config}
    if config["rounds"] != config["max_rounds"]:  # only `softbench run` takes a range of rounds
        config = {**config, **paired.FIXED_ROUNDS}
    adjusted = replace(request, config=config)
    if (rounds := adjusted.settings().rounds) < paired.MIN_ROUNDS:
        raise UsageError(
            f"gate: {text.count(rounds, 'round')} can never show a regression, at least {paired.MIN_ROUNDS} are needed; "
            f"use --rounds {paired.ROUNDS}"
        )
    return adjusted


def rounds_notes(request: RunRequest) -> list[str]:
    """A note if the configuration's number of rounds is not used."""
    rounds, max_rounds = ({**DEFAULTS, **request.config}[key] for key in ("rounds", "max_rounds"))
    if rounds == max_rounds or "rounds" in request.flags:
        return []
    return [
        f"{paired.ROUNDS} rounds, which all backends share, instead of the configuration's {rounds} to {max_rounds}; --rounds changes that"
    ]


def check_candidate(plan: Plan, candidate: str) -> None:
    """Check before anything is measured that the candidate is a backend. A plan has its reference.

    Raises:
        UsageError: it is a pattern, or the name of a plugin source, which a run takes for all backends of the source.
    """
    if candidate in (info.name for info in plan.infos):
        return
    backends = [info.name for info in of_source(plan.infos, candidate)]
    what = "names a plugin source and no backend; name one of its backends" if backends else "is a pattern; name one backend"
    found = backends or [info.name for info in plan.infos if fnmatchcase(info.name, candidate)]
    raise UsageError(f"--candidate {candidate}: {what}: {', '.join(found)}")


def plan_text(plan: Plan, rules: Rules) -> str:
    """What the comparison can find and how long it takes, as a sentence, before anything is measured. `plan` is that of the first look."""
    settings = plan.settings
    first, *later = (look.pairs for look in fresh_pairs.looks(settings.processes))
    finds = " and ".join(f"{found_in_pairs(rules, later[-1], sd):.1%} if processes differ by {sd:.1%}" for sd in EXAMPLE_SDS)
    return (
        f"plan: all cells in {text.count(first, 'process pair')} of {text.count(settings.rounds, 'round')}, then undecided ones again "
        f"until they have {' and '.join(map(str, later))} pairs; {times(plan, later[-1] - first)}; margin {100 * rules.margin:.3g}%; "
        f"finds a slowdown of {finds} with probability .95"
    )


def times(plan: Plan, more: int) -> str:
    """The time of a plan, and the most that this many more process sets add."""
    first = estimate.run_seconds(plan)
    last = first * (1 + more / plan.settings.processes)
    idle = "on an idle CPU " if plan.device == "cpu" else ""
    return f"{idle}about {text.duration(first)}, and up to {text.duration(last)} if all cells are undecided"


def compare(
    measure: Measure,
    request: RunRequest,
    candidate: str,
    reference: str,
    rules: Rules,
    base: RunSamples | None = None,
    allowed: Sequence[str] = (),
    tell: Callable[[str], object] = lambda text: None,
) -> GateReport:
    """Measure both backends, and undecided cells again in fresh process pairs until they are decided.

    `base` is a baseline. Processes are taken to differ at least as much as its. `tell` gets a note for the user if they differ too much.

    Raises:
        UsageError: a backend does not exist. Errors of `softbench.run.run.run` pass through.
        InconclusiveError: `base` comes from another machine.
    """
    try:
        run = measure(request)
    except UsageError as error:
        message = str(error).replace("--backends", "--candidate, --reference", 1).replace("--relative-to", "--reference", 1)
        if "unknown backend" in message and not request.settings().plugins:
            message += "; --plugin NAME=FILE adds a kernel of your own"
        raise UsageError(message) from None
    first = samples_of(run)
    mine = own(first, base, allowed) if base else None
    notes = [f"measured: {run.csv}"] + (environment_match.check(first, mine, allowed) if mine else [])
    sds = paired.spreads(mine, reference, candidate) if mine else None

    def fresh(cells: Sequence[CellKey], pairs: int) -> RunSamples:
        again = measure(confirmation(request, cells, pairs))
        notes.append(f"{text.count(len(cells), 'cell')} measured again in {text.count(pairs, 'fresh process pair')}: {again.csv}")
        return samples_of(again)

    def watch(report: GateReport, look: fresh_pairs.Look) -> None:
        if look is first_look and (why := fresh_pairs.why_undecided(report, look, plan[-1])):
            tell(
                f"process pairs differ so much that equal code would be inconclusive even after {plan[-1].pairs} pairs: {why}; "
                "the gate goes on, and can find large slowdowns; for smaller ones press Ctrl-C, and start again with --wait 10m"
            )

    plan = fresh_pairs.looks(request.settings().processes)
    first_look = next(look for look in plan if look.share)
    report = fresh_pairs.compare(first, fresh, candidate, reference, rules, plan, sds, watch)
    return replace(report, notes=(*notes, *report.notes))


def samples_of(run: writer.Run) -> RunSamples:
    """The samples of a run that was just measured."""
    return from_run(run.header, run.records(), str(run.json))


def confirmation(request: RunRequest, cells: Sequence[CellKey], pairs: int) -> RunRequest:
    """The request that measures only these cases, in this many fresh process pairs."""
    sweeps = tuple(map(only, dict.fromkeys(cell.identity for cell in cells)))
    flags = {key: value for key, value in request.flags.items() if key not in AXES}
    flags["wait"] = 0.0  # the first look waited, and has what would be lost
    flags["processes"] = pairs
    return replace(request, config={**request.config, "sweep": sweeps}, flags=flags, resume=False)
