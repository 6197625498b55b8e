"""Users' operations: reads a file in a worker and makes its operation known to the parent process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from softbench.core.errors import UsageError
from softbench.core.messages import INVALID_REPLY, Failure, LoadOperation
from softbench.ops import registry
from softbench.ops.declaration import from_json
from softbench.plan.grammar import DEFAULTS, parse_operation, parse_parameters, split
from softbench.plan.settings import PHASES
from softbench.processes.worker_pool import Lost, Pool


def names(given: Sequence[str] | None, at: str = "--op", seconds: float = PHASES["import"]) -> list[str] | None:
    """The values of `--op` with the name of its operation in place of each Python file. None stays None.

    Args:
        given: names, or files that end in `.py`; each may be a list with commas.
        at: the flag or the key of a configuration, for errors.
        seconds: the deadline for one file.

    Raises:
        UsageError: a file has no valid operation.
    """
    if given is None:
        return None
    words = [word for text in given for word in split(text)]
    found = {word: registry.of_file(str(Path(word).resolve())) for word in words if word.endswith(".py")}
    if files := [file for file, known in found.items() if not known]:
        with Pool() as pool:
            found |= {file: _read(pool, file, at, seconds) for file in files}
    return [found.get(word, word) for word in words]


def name(given: str, parameters: Sequence[str] | None = None) -> str:
    """The one operation of values of `--op` and `--set`; raises as `names`, also if there are several or an unknown one."""
    return parse_operation(",".join(names([given]) or ()), "--op", parse_parameters(parameters, "--set") if parameters else DEFAULTS)


def _read(pool: Pool, file: str, at: str, seconds: float) -> str:
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"{at} {file}: no such file")
    worker = pool.spawn("operation")
    reply = pool.ask(worker, LoadOperation(str(path.resolve())), seconds, "import")
    pool.discard(worker)
    if isinstance(reply, Failure | Lost):
        raise UsageError(f"{at} {file}: {reply.reason}")
    try:
        operation = from_json(reply.operation)
        registry.add(operation, str(path.resolve()))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{at} {file}: {error if isinstance(error, ValueError) else INVALID_REPLY}") from None
    return operation.name
