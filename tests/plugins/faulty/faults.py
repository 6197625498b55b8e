"""Backends that fail in a cell, each in its own way."""

import ctypes
import os
import time

import torch


class Faulty:
    """A backend that fails in one way."""

    def __init__(self, name, call=None, prepare=None):
        self.name, self.call, self.fail = name, call, prepare

    def available(self):
        return None

    def supports(self, case):
        return None

    def prepare(self, case):
        if self.fail is not None:
            self.fail()
        return self.call


def refuse():
    raise RuntimeError("this kernel does not build\nsecond line: a long compiler log")


def chatty(x):
    print("a plugin may print", flush=True)
    os.write(1, b'{"samples_us": [1.0]}\n')
    return torch.softmax(x, dim=-1)


def from_call(number, fault):
    """Honest until its call of that number: the first builds, the next ones check, what follows is timed."""
    calls = [0]

    def call(x):
        calls[0] += 1
        if calls[0] >= number:
            fault(x)
        return torch.softmax(x, dim=-1)

    return call


CHECKED, TIMED = 2, 25  # a case of one row has a call for each kind of structured row

backends = [
    Faulty("raises-in-prepare", prepare=refuse),
    Faulty("dies-by-sigsegv", call=lambda x: ctypes.string_at(0)),
    Faulty("sleeps-for-ever", call=lambda x: time.sleep(3600)),
    Faulty("exits", call=lambda x: os._exit(7)),
    Faulty("prints", call=chatty),
]

late = [
    Faulty("aborts-in-check", call=from_call(CHECKED, lambda x: os.abort())),
    Faulty("hangs-in-check", call=from_call(CHECKED, lambda x: time.sleep(3600))),
    Faulty("hangs-in-time", call=from_call(TIMED, lambda x: time.sleep(3600))),
    Faulty("dies-in-time", call=from_call(TIMED, lambda x: ctypes.string_at(0))),
    Faulty("raises-in-time", call=from_call(TIMED, lambda x: x.view(-1, 7))),
    Faulty("asks-for-too-much", call=lambda x: torch.empty(2**50, dtype=torch.uint8)),
]
"""They fail in a later phase than the build: in the check, or while they are timed."""

for fault in late:
    fault.extra = True  # only their names select them
backends += late
