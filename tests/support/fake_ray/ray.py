"""As much of Ray as the relay uses, within its process: one node, and actors that are objects of this process."""

import os
import sys
import threading
from types import ModuleType, SimpleNamespace

GPUS = {"GPU": float(os.environ["FAKE_RAY_GPUS"])} if "FAKE_RAY_GPUS" in os.environ else {}


def init(address, runtime_env, **about):
    if address != "auto":
        raise ConnectionError(f"no cluster at {address}")
    if "working_dir" in runtime_env:
        os.chdir(runtime_env["working_dir"])  # Ray's workers run in a copy of it


def nodes():
    dead = {"Alive": False, "NodeID": "dead", "NodeName": "gone", "Resources": {"CPU": 8.0}}
    return [dead, {"Alive": True, "NodeID": "abcd", "NodeName": "here", "Resources": {"CPU": 2.0, **GPUS}}]


class _Method:
    def __init__(self, function):
        self.function = function

    def options(self, num_returns):
        assert num_returns == "streaming"
        return _Stream(self.function)

    def remote(self, *values):
        self.function(*values)


class _Stream(_Method):
    def remote(self):
        return self.function()


class _Actor:
    def __init__(self, made):
        self._made = made

    def __getattr__(self, name):
        return _Method(getattr(self._made, name))


def remote(*, num_cpus, num_gpus=0, max_restarts, max_concurrency, scheduling_strategy):
    assert (max_restarts, scheduling_strategy.node_id) == (0, "abcd")

    class Remote:
        def __init__(self, kind):
            self.kind = kind

        def remote(self):
            return _Actor(self.kind())

    return Remote


def get(value):
    return value


def wait(done, num_returns, timeout):
    """Calls are over when they return."""


def kill(actor):
    threading.Thread(target=actor._made.process.kill).start()


class NodeAffinitySchedulingStrategy:
    """Where an actor is placed."""

    def __init__(self, node_id, soft):
        assert soft is False
        self.node_id = node_id


util = ModuleType("ray.util")
util.scheduling_strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=NodeAffinitySchedulingStrategy)
sys.modules |= {"ray.util": util, "ray.util.scheduling_strategies": util.scheduling_strategies}
