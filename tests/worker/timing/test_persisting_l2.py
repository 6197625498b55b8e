"""Persisting lines of L2, with a driver that only pretends."""

import types

import pytest

from softbench.worker.timing import persisting_l2
from softbench.worker.timing.persisting_l2 import LIMIT, WINDOW, PersistingL2, bind


class Driver:
    def __init__(self, limit=4096, window=0):
        self.limit, self.window, self.resets, self.result = limit, window, 0, 0

    def cuCtxGetLimit(self, value, limit):  # noqa: N802
        assert limit == LIMIT
        value._obj.value = self.limit
        return self.result

    def cuStreamGetAttribute(self, stream, attribute, value):  # noqa: N802
        assert attribute == WINDOW
        value[1] = self.window
        return self.result

    def cuCtxResetPersistingL2Cache(self):  # noqa: N802
        self.resets += 1


@pytest.fixture
def driver(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(persisting_l2.torch.cuda, "current_stream", lambda: types.SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(persisting_l2.ctypes, "CDLL", lambda name: driver)
    return driver


def test_changed_settings_are_named(driver):
    found = bind()
    assert found.changed() == ""
    driver.limit = 8192
    assert found.changed() == "set the limit of L2's persisting lines to 8192 bytes, which the flush of L2 does not evict"
    driver.limit, driver.window = 4096, 1
    assert found.changed() == "set an access policy window on the caller's stream, whose lines the flush of L2 does not evict"


def test_a_gpu_without_persisting_lines_has_no_changes(driver, monkeypatch):
    driver.result = 801  # CUDA_ERROR_NOT_SUPPORTED
    assert bind().changed() == ""

    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(persisting_l2.ctypes, "CDLL", missing)
    assert bind() is None
    monkeypatch.setattr(persisting_l2.ctypes, "CDLL", lambda name: object())
    assert bind() is None


def test_persisting_lines_are_evicted_on_request(driver):
    PersistingL2(driver, 4096).reset()
    assert driver.resets == 1
