"""Imports and judged calls without garbage collection: packages such as torch make millions of objects, and each collection visits them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = (10_000_000, 1_000, 1_000)
"""Thresholds that no import reaches. They have no other meaning, so a plugin does not set the same ones."""


@contextmanager
def seldom() -> Iterator[None]:
    """In the context the collector almost never runs. What a plugin sets itself meanwhile stays."""
    before = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    during = gc.get_threshold()  # Python 3.14 has no third threshold and reads 0
    try:
        yield
    finally:
        if gc.get_threshold() == during:
            gc.set_threshold(*before)


def settle() -> None:
    """Collect all garbage now. Later collections leave out what is there."""
    gc.collect()
    gc.freeze()


@contextmanager
def paused() -> Iterator[None]:
    """In the context the collector does not run."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
