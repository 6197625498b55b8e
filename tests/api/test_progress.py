"""What a caller sees of a measurement, and that two of them wait for each other."""

import io
import os
import threading

import pytest

from softbench.api import progress
from softbench.api.progress import watched


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
