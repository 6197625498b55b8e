"""For notebooks: a line of progress, and the cell magic `%%softbench FILE.py`, which makes the functions of a cell importable.

`%load_ext softbench` registers the magic.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from softbench.core.errors import UsageError
from softbench.core.files import not_written
from softbench.core.text import duration, printable
from softbench.report.progress import Leader

if TYPE_CHECKING:
    from softbench.core.case import Case
    from softbench.plan.plan import Plan
    from softbench.run.pace import Pacing

SECONDS = 0.5
"""Between two updates of the line."""
FIRST_LINE = "# A cell of a notebook wrote this file by %%softbench: edit the cell."
USAGE = "write %%softbench FILE.py as the first line of the cell"


class NotebookProgress:
    """A `softbench.run.run.Observer` whose progress is one line of the cell's output. Notes are kept below it."""

    def __init__(self) -> None:
        self._doing: Callable[[], str] = str
        self._pace: Pacing | None = None
        self._notes: list[str] = []
        self.leader = Leader()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._update, daemon=True)

    def __enter__(self) -> NotebookProgress:
        from IPython.display import display

        self._handle: Any = display(self._data(), raw=True, display_id=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._doing, self._pace, self.leader = str, None, Leader()
        self._show()

    def watch(self, doing: Callable[[], str]) -> None:
        self._doing = doing

    def begin(self, plan: Plan, pace: Pacing, name: str) -> None:
        self._pace = pace

    def advance(self, case: Case) -> None:
        self.leader.update()

    def note(self, text: str, *, error: bool = False) -> None:
        self._notes.append(printable(text))

    def _update(self) -> None:
        while not self._over.wait(SECONDS):
            self._show()

    def _show(self) -> None:
        self._handle.update(self._data(), raw=True)

    def _data(self) -> dict[str, str]:
        pace = self._pace
        about = f"{pace.done} of {pace.cells} cells, about {duration(pace.seconds_left())} left" if pace else ""
        line = "; ".join(filter(None, (about, self.leader.text, pace.doing() if pace else self._doing())))
        return {"text/plain": "\n".join(filter(None, (printable(line), *(f"softbench: {text}" for text in self._notes))))}


def softbench_magic(line: str, cell: str, namespace: dict[str, Any]) -> None:
    """`%%softbench FILE.py`: write the cell into a file and import it. Its public names are then those of the notebook.

    A worker imports the functions from the file, so `softbench.compare` takes them.

    Raises:
        UsageError: there is no file name, or the file is not of this magic, and would be lost.
        ResultsError: the file cannot be written.
    """
    file = Path(line.strip())
    if file.suffix != ".py":
        raise UsageError(f"%%softbench {line.strip()}: {USAGE}")
    if file.exists() and not file.read_text(encoding="utf-8", errors="replace").startswith(FIRST_LINE):
        raise UsageError(f"%%softbench {file}: this file is not of a cell, and is kept; choose another name")
    try:
        file.write_text(f"{FIRST_LINE}\n{cell}", encoding="utf-8")
    except OSError as error:
        raise not_written(f"%%softbench {file}", error) from None
    module = _imported(file)
    namespace |= {name: value for name, value in vars(module).items() if not name.startswith("_")}


def _imported(file: Path) -> ModuleType:
    """The file as a module, imported anew. Its name is that of no package."""
    name = f"softbench_cell_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"%%softbench {file}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load(ipython: Any) -> None:
    """Register the magic in IPython."""

    def magic(line: str, cell: str) -> None:
        softbench_magic(line, cell, ipython.user_ns)

    ipython.register_magic_function(magic, magic_kind="cell", magic_name="softbench")
