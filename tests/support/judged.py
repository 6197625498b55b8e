"""Judgements of plugin files of the tests."""

import ctypes
import os

import pytest
from wrongs import PLUGINS

from softbench.core.case import Case, Direction
from softbench.plugins.source import FILE, PluginSource
from softbench.worker.judged import confinement

CASE = Case(16, 96, "fp32", Direction.FORWARD, "cpu")
LANDLOCK = max(0, ctypes.CDLL(None).syscall(confinement.LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1))
confined = pytest.mark.skipif(LANDLOCK < 6 or os.uname().machine != "x86_64", reason="this kernel has no landlock 6, or no seccomp table")


def judged(judge, file, name, case=CASE):
    """The judgement of a backend of a file in `tests/plugins`."""
    path = PLUGINS / file
    return judge.judge(PluginSource(FILE, path.stem, str(path), path.name), case, name)
