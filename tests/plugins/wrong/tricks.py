"""Tricks that feign speed, one backend each. `rule` is a part of the reason for its failure. `stage` is the check that detects it.

That is the pre-check, or the check of kept outputs if the backend is correct during the pre-check.
"""

import concurrent.futures
import threading
import time

import torch

from softbench import Direction

KEPT = []
LOOKED_AT = 3  # calls that build and check


def honest(x):
    return torch.softmax(x, dim=-1)


def cached(key):
    """An output kept by what `key` makes of the input."""
    kept = {}

    def call(x):
        found = key(x)
        if found not in kept:
            kept[found] = honest(x)
        return kept[found].clone()

    return call


def some_values(x):
    return x.data_ptr(), x[0, 0].item(), x[-1, -1].item(), x[0, x.shape[1] // 2].item()


def checksum(x):
    return round(x.double().sum().item(), 6), round(x.double().square().sum().item(), 6)


def later(trick):
    """Correct until it seems unchecked."""
    calls = [0]

    def call(x):
        calls[0] += 1
        return honest(x) if calls[0] <= LOOKED_AT else trick(x)

    return call


def half(x):
    y = torch.empty_like(x)
    columns = x.shape[1] // 2
    y[:, :columns] = torch.softmax(x[:, :columns], dim=-1)
    y[:, columns:] = 0
    return y


def without_maximum(x):
    """Standard normal inputs never overflow."""
    e = torch.exp(x.float())
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def damaging(x):
    y = honest(x)
    x.data.mul_(0)
    return y


def put_back(x):
    y = honest(x)
    before = x.clone()
    x.copy_(y)
    x.copy_(before)
    return y


class Lazy(torch.Tensor):
    """A tensor that computes itself when it is read."""

    @staticmethod
    def __new__(cls, x):
        made = torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype, device=x.device)
        made.x = x
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args = [honest(arg.x) if isinstance(arg, Lazy) else arg for arg in args]
        return function(*args, **(kwargs or {}))


def into(y, x, seconds=0.01):
    time.sleep(seconds)
    y.copy_(honest(x))


def by_thread(x, seconds=0.01):
    y = torch.empty_like(x)
    threading.Thread(target=into, args=(y, x, seconds), daemon=True).start()
    return y


def by_pool():
    pool = concurrent.futures.ThreadPoolExecutor(1)
    pool.submit(int).result()  # its thread is there before anyone counts

    def call(x):
        y = torch.empty_like(x)
        pool.submit(into, y, x)
        return y

    return call


def between_calls(work):
    """Start a thread that repeats `work()` while no call comes. Returns the function that reports a call."""
    last = []

    def watch():
        while True:
            time.sleep(0.002)
            if last and time.monotonic() - last[0] > 0.005:
                work()

    threading.Thread(target=watch, daemon=True).start()
    return lambda: last.__setitem__(slice(None), [time.monotonic()])


def by_and_by():
    """Queues its work, for when its batch is over."""
    jobs = []

    def work():
        while jobs:
            into(*jobs.pop(), seconds=0)

    called = between_calls(work)

    def call(x):
        y = torch.empty_like(x)
        jobs.append((y, x))
        called()
        return y

    return later(call)


def ahead():
    """Has the next batch's outputs ready when it begins."""
    ready = {}

    def work():
        for place, (x, _) in list(ready.items()):
            ready[place] = x, honest(x)

    called = between_calls(work)

    def call(x):
        called()
        if x.data_ptr() not in ready:
            ready[x.data_ptr()] = x, honest(x)
        return ready[x.data_ptr()][1]

    return later(call)


def emptying():
    """Writes zeros to its inputs between calls."""
    inputs = []
    called = between_calls(lambda: [x.data.zero_() for x in inputs])

    def call(x):
        inputs[:] = [*inputs[-1:], x]
        called()
        return honest(x)

    return later(call)


def exchanging_the_judge():
    """Until the next call."""
    from softbench.core.outcome import Accuracy, Grade
    from softbench.ops import values

    real = values.check
    called = between_calls(lambda: setattr(values, "check", lambda *_: Accuracy(Grade.PASS, 0.0, "")))

    def call(x):
        values.check = real
        called()
        return x.clone()

    return later(call)


def on_a_side_stream():
    """Work on a stream of its own, which the caller's stream is never told to wait for."""
    stream = torch.cuda.Stream()

    def call(x):
        y = torch.empty_like(x)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y.copy_(honest(x))
        return y

    return call


def one_buffer():
    buffer = []

    def call(x):
        if not buffer:
            buffer.append(torch.empty_like(x))
        return buffer[0].copy_(honest(x))

    return call


class Fast:
    """An event that finds everything fast."""

    def __init__(self, *_, **__):
        pass

    def record(self, *_):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, _):
        return 1e-3


def patching(module, attribute, value):
    """Patches what measures or judges, when it is prepared."""

    def prepare():
        import importlib

        setattr(importlib.import_module(module), attribute, value)
        return honest

    return prepare


def entering(mode, calls=0):
    """Enters a mode in a call, and never leaves it."""

    def call(x):
        made[0] += 1
        if made[0] == calls + 1:
            KEPT.append(mode())
            KEPT[-1].__enter__()
        return honest(x)

    made = [0]
    return call


def hiding(x):
    y = torch.empty_like(x)
    y.is_neg = lambda: False
    return y


class Trick:
    """A softmax that only looks fast."""

    def __init__(self, name, prepare, rule, *, stage="check", cuda=False):
        self.name, self.make, self.rule, self.stage, self.cuda = name, prepare, rule, stage, cuda

    def available(self):
        return "no GPU" if self.cuda and not torch.cuda.is_available() else None

    def supports(self, case):
        return None if case.direction is Direction.FORWARD else "forward only"

    def prepare(self, case):
        return self.make()


def plain(call):
    return lambda: call


VALUES = "should be"
LATE = (
    "wrote its output after its call had returned",
    "its output changed during later calls",
    VALUES,
)
TIMED = "in a timed call, "  # on values it had not seen, or in a row that had just changed
backends = [
    Trick("cached-by-address", lambda: cached(lambda x: x.data_ptr()), VALUES),
    Trick("cached-by-id", lambda: cached(id), VALUES),
    Trick("cached-by-shape", lambda: cached(lambda x: x.shape), VALUES),
    Trick("cached-by-version", lambda: cached(lambda x: (x.data_ptr(), x._version)), TIMED, stage="time"),
    Trick("cached-by-some-values", lambda: cached(some_values), TIMED, stage="time"),
    Trick("cached-by-checksum", lambda: cached(checksum), TIMED, stage="time"),
    Trick("half-the-columns", plain(half), VALUES),
    Trick("half-when-unwatched", lambda: later(half), TIMED, stage="time"),
    Trick("skips-when-unwatched", lambda: later(torch.empty_like), "in a timed call", stage="time"),
    Trick("normal-rows-only", plain(without_maximum), "(wrong structured rows: "),
    Trick("by-thread", plain(by_thread), LATE),
    Trick("by-a-pool-of-threads", by_pool, LATE),
    Trick("by-and-by", by_and_by, TIMED, stage="time"),
    Trick("exchanges-the-judge-between-batches", exchanging_the_judge, ("replaced softbench.ops.values.check", TIMED), stage="time"),
    Trick("ahead", ahead, TIMED, stage="time"),
    Trick("empties-its-input-by-and-by", emptying, "in a timed call: changed its input", stage="time"),
    Trick(
        "empties-its-input-when-unwatched",
        lambda: later(lambda x: honest(x.resize_(0))),
        "in a timed call: changed its input",
        stage="time",
    ),
    Trick("by-quick-thread-when-unwatched", lambda: later(lambda x: by_thread(x, 0)), (*LATE, TIMED), stage="time"),
    Trick("by-thread-when-unwatched", lambda: later(by_thread), (*LATE, TIMED), stage="time"),
    Trick("side-stream", on_a_side_stream, ("stream", "its output changed"), stage="either", cuda=True),
    Trick("lazy", plain(Lazy), "returned Lazy, not a torch.Tensor"),
    Trick("lazy-negation", plain(lambda x: torch._neg_view(-honest(x))), "returned a lazy view"),
    Trick("one-value-for-all", plain(lambda x: x.new_full((1, 1), 1 / x.shape[1]).expand(x.shape)), "returned an expanded tensor"),
    Trick("stale-memory", plain(torch.empty_like), VALUES),
    Trick("damages-its-input", plain(damaging), "changed its input"),
    Trick("puts-its-input-back", plain(put_back), "wrote to its input"),
    Trick("damages-when-unwatched", lambda: later(damaging), "in a timed call: changed its input", stage="time"),
    Trick("one-buffer-undeclared", one_buffer, "share their memory; a backend that does so on purpose declares"),
    Trick("patches-events", patching("torch.cuda", "Event", Fast), "replaced torch.cuda.Event, which measures"),
    Trick("patches-the-clock", patching("time", "perf_counter", lambda: 0.0), "replaced time.perf_counter"),
    Trick(
        "patches-the-judge",
        patching("softbench.ops.check", "excess", lambda out, *_: out * 0),
        "replaced softbench.ops.check.excess",
    ),
    Trick("hides-a-method", plain(hiding), "hid is_neg of its output"),
    Trick("leaves-autocast", lambda: entering(lambda: torch.autocast("cpu")), ("left autocast active", "changed torch's autocast")),
    Trick("leaves-a-mode-when-unwatched", lambda: entering(lambda: torch.device("cpu"), 40), "left a torch function mode", stage="time"),
    Trick("patches-round", patching("builtins", "round", lambda *_: 1e-3), "replaced builtins.round"),
    Trick("patches-samples", patching("torch.utils.benchmark", "Measurement", Fast), "replaced torch.utils.benchmark.Measurement"),
    Trick(
        "patches-the-worker", patching("softbench.worker.server", "verify_outputs", None), "replaced softbench.worker.server.verify_outputs"
    ),
    Trick("patches-the-reference", patching("torch", "softmax", lambda x, dim: x.clone()), "replaced torch.softmax"),
]
