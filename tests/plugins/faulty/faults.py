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


backends = [
    Faulty("raises-in-prepare", prepare=refuse),
    Faulty("dies-by-sigsegv", call=lambda x: ctypes.string_at(0)),
    Faulty("sleeps-for-ever", call=lambda x: time.sleep(3600)),
    Faulty("exits", call=lambda x: os._exit(7)),
    Faulty("prints", call=chatty),
]
