"""What a caller sees of a measurement, in a notebook too; that two of them wait for each other; and the cell magic."""

import io
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from notebooks import run_the_notebook

from softbench.api import notebook, progress
from softbench.api.progress import watched
from softbench.core.errors import ResultsError, UsageError


@pytest.mark.parametrize(("asked", "shown"), [(None, ""), (False, ""), (True, "softbench: a note\n")])
def test_a_log_gets_notes_only_if_asked(monkeypatch, asked, shown):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with watched(asked) as observer:
        observer.watch(str)
        observer.note("a note")
        observer.advance(None)
    assert (observer.notes, stream.getvalue()) == (["a note"], shown)


def test_a_second_thread_waits_for_the_first():
    inside, order = threading.Event(), []

    def second():
        inside.wait()
        with watched(False):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with watched(False):
        inside.set()
        thread.join(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_a_process_forked_during_a_measurement_does_not_wait():
    inside, over = threading.Event(), threading.Event()

    def measure():
        with watched(False):
            inside.set()
            over.wait()

    thread = threading.Thread(target=measure)
    thread.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if progress._MEASURING.acquire(blocking=False) else 1)
    over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_no_kernel_of_a_notebook_runs_here():
    assert not progress.in_notebook()


CELL = "def kernel(x):\n    return x\n\n_hidden = 1\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("softbench_cell_mine", None)


@pytest.mark.slow
def test_the_notebook_of_the_docs_runs(here):
    assert {row.timer for row in run_the_notebook(here) if row.status == "ok"} == {"torch.utils.benchmark"}


def test_a_cell_becomes_a_file_whose_functions_are_importable(here):
    from softbench.api.backends import place

    names = {}
    notebook.softbench_magic(" mine.py ", CELL, names)
    assert [*names] == ["kernel"]
    assert place(names["kernel"]) == "mine.py:kernel"
    assert Path("mine.py").read_text() == f"{notebook.FIRST_LINE}\n{CELL}"
    notebook.softbench_magic("mine.py", CELL.replace("kernel", "other"), names)
    assert place(names["other"]) == "mine.py:other"


def test_a_file_of_the_user_is_kept(here):
    Path("mine.py").write_text("precious = 1\n")
    with pytest.raises(UsageError, match=r"%%softbench mine.py: this file is not of a cell, and is kept; choose another name"):
        notebook.softbench_magic("mine.py", CELL, {})
    assert Path("mine.py").read_text() == "precious = 1\n"


@pytest.mark.parametrize(("line", "error"), [("", UsageError), ("mine", UsageError), ("no/folder/mine.py", ResultsError)])
def test_a_name_that_cannot_be_written_is_refused(here, line, error):
    with pytest.raises(error, match=f"%%softbench {line}"):
        notebook.softbench_magic(line, CELL, {})


def test_progress_is_one_line_and_notes_stay(monkeypatch):
    display = pytest.importorskip("IPython.display")
    shown = []
    handle = SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))
    monkeypatch.setattr(display, "display", lambda data, raw, display_id: handle)
    with notebook.NotebookProgress() as line:
        line.watch(lambda: "starting the workers")
        line.note("a note")
        line._show()
        line.begin(None, SimpleNamespace(done=2, cells=8, seconds_left=lambda: 5.0, doing=lambda: "timing"), "run-1")
        line._show()
    assert "starting the workers\nsoftbench: a note" in shown
    assert "2 of 8 cells, about 5 s left; timing\nsoftbench: a note" in shown
    assert shown[-1] == "softbench: a note"


def test_the_extension_registers_the_magic(here):
    import softbench

    registered, names = {}, {}

    def register(function, magic_kind, magic_name):
        registered[magic_kind, magic_name] = function

    softbench.load_ipython_extension(SimpleNamespace(register_magic_function=register, user_ns=names))
    registered["cell", "softbench"]("mine.py", CELL)
    assert "kernel" in names
