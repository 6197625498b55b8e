"""What to do about a report that does not pass: a sentence with a command that the shell takes as it is printed.

A command repeats what was asked: the gate's own command line with other values of a few options, or the same options for `softbench check`
and `softbench inspect`. `command` is the gate's command line as it was typed.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from softbench.core import text
from softbench.core.case import AT_DIM, OPERATION, parse_op, value_text
from softbench.gate import unpaired
from softbench.gate.command_line import OPERATIONS, operation_files, options, without, words as words_of
from softbench.gate.fresh_pairs import MORE_PAIRS
from softbench.gate.samples import CellKey, RunSamples
from softbench.gate.units import count_dealt
from softbench.gate.verdicts import GateReport, State
from softbench.ops import registry
from softbench.plugins.source import split_alias, split_function

OF_A_CELL = ("--M", "--N", "--shape", "--dim", *OPERATIONS, "--set")
"""The options that the command for one cell replaces, besides those of every cell. `--M` and `--shape` exclude each other."""
ALL_ADVISE = "no cell counts, because all that were measured are advisory: measure larger shapes (--M, --N)"
"""What to do about a report of cells that are short or launch-bound."""
NONE_TIMED = "no cell was timed on both sides: the lines above say why"
"""What to do about a report without a time."""
SHORT_AND_SLOWER = "cells of short or launch-bound calls are slower: measure larger shapes of them (--M, --N), which the gate judges"
"""What to do about a report in which many advisory cells are slower."""
SAME_CLOCK = "measure at one clock: sudo nvidia-smi -lgc MHZ (-rgc undoes it), or see whether the new code draws more power"
"""What to do about cells that are slower by the clock."""
SITTINGS_DIFFER = 0.01
"""With this standard deviation between sittings, more processes of one sitting decide little."""
OF_ANY_COMMAND = ("--plugin", "--device", "--seed", "--timeout")
"""Options that `softbench check` and `softbench inspect` take as the gate does."""


OUTPUTS = ("--json", "--markdown", "--junit", "--plot", "--output", "-o")
"""Options that name what is written. A command leaves them out, or it would replace the files of this report."""


def after_pairs(report: GateReport, command: str, processes: int) -> str:
    """After an A/B run that began with this many process pairs; empty if it passes."""
    command = _without_outputs(command)
    if broken := _find_the_error(report, command):
        return broken
    if slower := [verdict.cell for verdict in report.verdicts if verdict.fails and verdict.state is State.SLOWER]:
        cell, words = slower[0], words_of(command)
        axes: dict[str, object] = {**_extents(cell, words), "--dtype": cell.dtype, "--direction": cell.direction}
        of_cell = _operation(cell.op, words, named=bool(options(words, ("--config",))))
        alone = shlex.join([*without(words, OF_A_CELL), *of_cell])
        return f"if the change is not intended, look at its worst cell alone: {_with(alone, {**axes, '--processes': MORE_PAIRS})}"
    if report.exit_code == 1:
        return "column why has the reason of each missing cell: mend it, or leave the case out (--M, --N, --dtype, --direction)"
    return _more_pairs(report, command, processes)


def after_packages(report: GateReport, command: str, processes: int) -> str:
    """After a comparison of two environments that began with this many process pairs; empty if it passes."""
    command = _without_outputs(command)
    states = {verdict.state for verdict in report.verdicts}
    if states & {State.BROKEN, State.FAILED, State.MISSING} and report.exit_code:
        wider = "tolerance = [RTOL, ATOL] of the target in softbench.toml, or --tolerance RTOL,ATOL with MODULE:NAME"
        return f"the column why says what is wrong; if only the rounding differs, give a wider tolerance: {wider}"
    if slower := [verdict.cell for verdict in report.verdicts if verdict.fails and verdict.state is State.SLOWER]:
        of_cell = {**_extents(slower[0], []), "--dtype": slower[0].dtype, "--processes": MORE_PAIRS}
        named = any(":" in word for word in options(words_of(command), ("--candidate",)))
        alone = _with(command, of_cell if named else {"--candidate": parse_op(slower[0].op)[0], **of_cell})
        return f"if the change is not intended, look at its worst cell alone: {alone}"
    return _more_pairs(report, command, processes)


def _more_pairs(report: GateReport, command: str, processes: int) -> str:
    """What to do about cells that are not decided; empty if there are none."""
    if not report.exit_code:
        return ""
    more = _with(command, {"--processes": max(MORE_PAIRS, 2 * processes)})
    return _too_short(report) or f"measure in more process pairs, on a machine that does nothing else: {more}"


def after_new_processes(report: GateReport, command: str, base: RunSamples, processes: int) -> str:
    """After a comparison of this many new processes with a baseline; empty if it passes."""
    command = _without_outputs(command)
    if broken := _find_the_error(report, command):
        return broken
    if report.exit_code == 1:
        return f"if the change is intended, measure a new baseline: {_new_baseline(base, command)}"
    if dealt := _baseline_of_each_card(report, base, command):
        return dealt
    if short := _too_short(report):
        return short
    if later := _another_sitting(report, base):
        return later
    if report.exit_code:
        more = _with(command, {"--processes": 2 * processes})
        return f"measure more processes, on a machine that does nothing else: {more}"
    return ""


def after_files(report: GateReport, command: str, files: Collection[Path], new: RunSamples, base: RunSamples) -> str:
    """After a comparison of stored runs with a baseline; empty if it passes."""
    again = shlex.join([*_without_files(_without_outputs(command), files), *new.plugin_flags, *new.problem_flags])
    if broken := _find_the_error(report, again):
        return broken
    if report.exit_code == 3 and (dealt := _baseline_of_each_card(report, base, again)):
        return dealt
    if short := _too_short(report):
        return short
    if report.exit_code and abs(unpaired.machine_change(new, base)) > math.log1p(report.rules.reference_moves):
        return f"measure the baseline anew on the machine as it is now: {_new_baseline(base, again)}"
    if later := _another_sitting(report, base):
        return later
    plugins = [flag.removeprefix("--plugin=") for flag in new.plugin_flags if flag != "--plugin"]
    places = [split_function(split_alias(Path(plugin))[1])[0] for plugin in plugins]
    away = [str(place) for place in places if place.suffix == ".py" and not place.is_file()]
    add = f" (add the folder of {text.few(away)}, which results do not store)" if away else ""
    return f"measure again, with a second look in new processes{add}: {again}" if report.exit_code else ""


def _too_short(report: GateReport) -> str:
    """What to do if the gated cells say too little; empty if they do not."""
    if report.exit_code != 3:
        return ""
    if any(one.gated and one.state is State.CLOCK for one in report.verdicts):
        return SAME_CLOCK
    if report.nothing_tested:
        return NONE_TIMED if all(one.state is State.UNMEASURED for one in report.verdicts) else ALL_ADVISE
    return SHORT_AND_SLOWER if report.too_many_advise else ""


def _another_sitting(report: GateReport, base: RunSamples) -> str:
    """What to do if more processes of this sitting cannot decide; empty if they may."""
    beyond = 1 + report.rules.margin
    slow = any(one.gated and one.state is State.AMBIGUOUS and one.ratio is not None and one.ratio > beyond for one in report.verdicts)
    if report.exit_code != 3 or not slow:
        return ""
    name, again = Path(base.source).stem, f"softbench gate FIRST.csv SECOND.csv --baseline {shlex.quote(Path(base.source).stem)}"
    if any(unpaired.NO_SECOND_SITTING in note for note in report.notes):
        return f"if the code of the baseline is still there, add a sitting to it: {unpaired.add_sitting(base, shlex.quote(name))}"
    sittings = unpaired.between_sittings(base)
    if sittings is None or sittings.sd < SITTINGS_DIFFER:
        return ""
    return f"sittings differ by {sittings.sd:.1%}, so measure at another time too (softbench run), and judge both runs: {again}"


def _baseline_of_each_card(report: GateReport, base: RunSamples, command: str) -> str:
    """What to do about cells that another card measured than in the baseline; empty if there are none."""
    if not (number := count_dealt(report)):
        return ""
    once = _new_baseline(base, command)
    shared = options(words_of(once), ("--devices", "--ray"))
    each = _with(once, {"--spread": "replicate"}) if shared else f"{once}, on each card"
    were = "cell was" if number == 1 else "cells were"
    return f"{number} {were} measured on another card than in the baseline; measure a baseline that has every cell of each card: {each}"


def _find_the_error(report: GateReport, command: str) -> str:
    """What to do about the first cell that is wrong or fails; empty if there is none. A measurement more would not mend it."""
    state = State.BROKEN if report.exit_code == 1 else State.FAILED
    broken = [verdict.cell for verdict in report.verdicts if verdict.state is state]
    if not broken:
        return ""
    found = "broke, so find the error" if state is State.BROKEN else "failed, so find the error, or leave the case out,"
    cell, words = broken[0], words_of(command)
    program = words[: words.index("gate")] if "gate" in words else ["softbench"]
    axes = ["--dtype", cell.dtype, "--direction", cell.direction, *_operation(cell.op, words), *options(words, OF_ANY_COMMAND)]
    check = shlex.join([*program, "check", "--backends", cell.backend, *axes])
    extents = [str(word) for pair in _extents(cell, words).items() for word in pair]
    inspect = shlex.join([*program, "inspect", cell.backend, *extents, *axes])
    return (
        f"{text.count(len(broken), 'cell')} of {text.few(list(dict.fromkeys(one.backend for one in broken)))} "
        f"{found} before you measure again: {check}; or look at the code of that case: {inspect}"
    )


def _extents(cell: CellKey, words: Sequence[str]) -> dict[str, object]:
    """The options that give the cell's shape. A problem may have no M or no N, so it gets those that were given."""
    if not cell.shape:
        both: dict[str, object] = {"--M": cell.M, "--N": cell.N}
        return {axis: size for axis, size in both.items() if options(words, (axis,))} if _problem(cell.op, words) else both
    sizes, _, dim = cell.shape.partition(AT_DIM)
    return {"--shape": sizes, "--dim": dim or "-1"}


def _problem(op: str, words: Sequence[str]) -> list[str]:
    """The option that names the problem of a cell, as it was typed; empty for an operation."""
    return [] if parse_op(op)[0] in registry.NAMES else options(words, ("--problem",))


def _operation(op: str, words: Sequence[str], *, named: bool = False) -> list[str]:
    """The options for a cell's operation, with a file as the command names it. The default one is left out, unless `named`."""
    name, parameters = parse_op(op)
    typed = _problem(op, words)
    files = [file for file in operation_files(words) if registry.of_file(str(Path(file).resolve())) == name]
    found = typed or (["--op", files[0] if files else registry.given(name)] if named or name != OPERATION else [])
    pairs = ",".join(f"{key}={value_text(value)}" for key, value in parameters.items())
    return [*found, "--set", pairs] if pairs else found


def _new_baseline(base: RunSamples, command: str) -> str:
    """The baseline's command with enough processes. It names plugins as the gate's command does, because baselines store no folders."""
    words = words_of(base.more_processes(unpaired.RECOMMENDED_BASE))
    plugins = options(words_of(command), ("--plugin",))
    return shlex.join([*(without(words, ("--plugin",)) if plugins else words), *plugins])


def _with(command: str, flags: Mapping[str, object]) -> str:
    """The command line with these flags. They replace its own."""
    return shlex.join([*without(words_of(command), flags), *(part for name, value in flags.items() for part in (name, str(value)))])


def _without_outputs(command: str) -> str:
    return shlex.join(without(words_of(command), OUTPUTS))


def _without_files(command: str, files: Collection[Path]) -> list[str]:
    """The words of the command line without the results files. The value of `--baseline` may be such a file."""
    words, names = words_of(command), {str(file) for file in files}
    return [word for before, word in zip(["", *words], words, strict=False) if before == "--baseline" or str(Path(word)) not in names]
