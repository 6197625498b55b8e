"""The garbage collector rests during imports and judged calls, and is then as it was or as a plugin has set it."""

import gc
import weakref

import pytest

from softbench.worker.garbage_collection import SELDOM, paused, seldom, settle


@pytest.fixture(autouse=True)
def restored():
    before, enabled = gc.get_threshold(), gc.isenabled()
    yield
    gc.set_threshold(*before)
    (gc.enable if enabled else gc.disable)()


def runs_of(count):
    """Collections while this many objects are made that stay."""
    runs = []

    def told(phase, info):
        if phase == "start":
            runs.append(info["generation"])

    gc.callbacks.append(told)
    try:
        kept = [[] for _ in range(count)]
    finally:
        gc.callbacks.remove(told)
    assert len(kept) == count
    return len(runs)


def test_nothing_is_collected_during_an_import():
    assert runs_of(50_000) > 0
    with seldom():
        assert runs_of(50_000) == 0
    assert runs_of(50_000) > 0


def test_an_error_restores_the_thresholds():
    before = gc.get_threshold()
    with pytest.raises(ImportError), seldom():
        raise ImportError
    assert gc.get_threshold() == before


def test_the_thresholds_of_python_3_14_are_restored(monkeypatch):
    """It ignores the third threshold, and reads 0 for it."""
    now = [(700, 10, 0)]
    monkeypatch.setattr(gc, "get_threshold", lambda: now[-1])
    monkeypatch.setattr(gc, "set_threshold", lambda first, second, third: now.append((first, second, 0)))
    with seldom():
        assert now[-1] == (*SELDOM[:2], 0)
    assert now[-1] == now[0] and len(now) == 3
    monkeypatch.undo()


def test_what_a_plugin_sets_stays():
    with seldom():
        gc.set_threshold(5, 5, 5)
    assert gc.get_threshold() == (5, 5, 5)
    with seldom():
        gc.disable()
    assert not gc.isenabled()


def test_garbage_is_collected_once_and_the_rest_is_left_alone():
    class Node:
        pass

    node, frozen = Node(), gc.get_freeze_count()
    node.itself, gone = node, weakref.ref(node)
    del node
    kept = [[] for _ in range(100)]
    settle()
    assert gone() is None
    assert gc.get_freeze_count() >= frozen + len(kept)


def test_a_pause_restores_the_collector():
    with pytest.raises(ValueError, match="a call"), paused():
        assert not gc.isenabled()
        raise ValueError("a call")
    assert gc.isenabled()
    gc.disable()
    with paused():
        pass
    assert not gc.isenabled()
