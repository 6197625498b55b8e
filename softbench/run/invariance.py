"""`softbench check --invariance`: which lengths and numbers of rows are compared, and what the answers say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from softbench.core.case import Direction
from softbench.core.errors import UsageError
from softbench.core.messages import RowsCompared
from softbench.core.text import count, split_exclusions
from softbench.ops import registry
from softbench.ops.operation import Operation

INVARIANT = "invariant"
DEPENDS = ("run", "M", "position")
"""What a row's bits can depend on, beside its own values."""
LENGTHS = (64, 197, 1000, 1024, 4096, 12289, 16384, 32000, 50257, 128256, 151936, 262144)
QUICK_LENGTHS = (197, 4096, 50257, 151936)
QUICK_COUNTS = (1, 4096, 64, 8, 512, 2, 500, 7)
"""Numbers of rows, the most telling ones first, as the time of a length may end."""
_POWERS = [m for k in range(5, 13) for m in (2**k - 1, 2**k, 2**k + 1)]
_MULTIPLES = [odd * 2**k for odd in (3, 5, 7) for k in range(2, 11)]
COUNTS = tuple(dict.fromkeys([*QUICK_COUNTS, *(m for m in sorted({*range(1, 17), *_POWERS, *_MULTIPLES}) if m <= 4096)]))
SECONDS, QUICK_SECONDS = 20.0, 2.0
"""After so many seconds at a length, no further number of rows is tried. A backend that compiles for each may take longer."""
_LENGTH = re.compile(r"N=([1-9][0-9]{0,8})")


def directions_of(op: str, given: Sequence[str] | None, directions: Sequence[Direction]) -> tuple[Direction, ...]:
    """Those of the directions whose outputs have rows. `both` computes as forward and backward do, so it has to be asked for.

    Raises:
        UsageError: there is none.
    """
    operation = registry.operation(op)
    there = [one for one in directions if one in operation.directions and (given or one is not Direction.BOTH)]
    found = tuple(one for one in there if _has_rows(operation, one))
    if not found:
        raise UsageError(f"--invariance compares rows, and the outputs of {op} have none, or a mean over them")
    return found


def _has_rows(operation: Operation, direction: Direction) -> bool:
    """True if rows of an output depend on their own inputs only: no output is a number, as the mean of a loss, whose gradient has 1/M."""
    if operation.whole:
        return False
    passes = operation.passes
    outputs = [operation.tensors[name] for name in passes[direction].outputs]
    losses = [operation.tensors[name] for name in passes[Direction.FORWARD].outputs] if Direction.FORWARD in passes else []
    return all(spec.axes for spec in (*outputs, *losses)) and any(spec.has_rows for spec in outputs)


def cases(patterns: Sequence[str], directions: Sequence[str], *, quick: bool) -> list[tuple[str, Direction, bool, str]]:
    """As the check cases of an operation: a case for each length, such as `N=4096`. A pattern `N=5000` adds this length.

    Raises:
        UsageError: a pattern selects no length, or the patterns leave none.
    """
    given = [int(number[1]) for pattern in patterns if (number := _LENGTH.fullmatch(pattern))]
    lengths = sorted({*given, *(QUICK_LENGTHS if quick else LENGTHS)})
    wanted, excluded = split_exclusions(patterns)
    named = [(f"N={N}", N) for N in lengths]
    for pattern in patterns:
        if not pattern or not any(fnmatchcase(name, pattern.removeprefix("!")) for name, _ in named):
            raise UsageError(
                f"--case '{pattern}': with --invariance the cases are {', '.join(name for name, _ in named)}, or N= any length"
            )
    chosen = [name for name, _ in named if _matches(name, wanted or ["*"]) and not _matches(name, excluded)]
    if not chosen:
        raise UsageError(f"--case {' --case '.join(map(repr, patterns))}: no case is left")
    return [(name, Direction(direction), False, "") for direction in directions for name in chosen]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def length(name: str) -> int:
    """N of a case."""
    return int(name.partition("=")[2])


def told(reply: RowsCompared) -> tuple[str, str, float]:
    """The class, the smallest examples in words, and the worst distance in ULP."""
    texts = [f"{_example(kind, M, other)}: {ulp} ULP" for kind, M, other, ulp in reply.differences]
    verdict = ", ".join(kind for kind, *_ in reply.differences) or INVARIANT
    tried = f"M={min(reply.tried)}" + (f" to {max(reply.tried)}, {len(reply.tried)} values of M" if len(reply.tried) > 1 else "")
    return verdict, "; ".join(texts) or tried, float(max((ulp for *_, ulp in reply.differences), default=0))


def _example(kind: str, M: int, other: int) -> str:
    if kind == "run":
        return f"two calls on {count(M, 'row')}"
    return f"M={M} and M={other}" if kind == "M" else f"rows 0 and {other} of {M}"
