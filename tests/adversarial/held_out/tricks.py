"""Dishonest plugins that try to look fast on a CPU, written without reading the checks. tools/measure_checks.py writes each body to a file of its own.

The body of a function is a plugin: it runs at import, and what it returns is `softmax`. Its honest twin is torch.softmax.
"""
# ruff: noqa

SET_A = []
SET_B = []


def trick(kept):
    def add(function):
        kept.append(function)
        return function

    return add


# --- set A


@trick(SET_A)
def honest_twin():
    """No trick: the time of the others is divided by this."""
    return lambda x: torch.softmax(x, -1)


@trick(SET_A)
def gap_before_the_call():
    """Computes only if the time since the last call is unusual; the usual gap is learnt."""
    last, gaps, kept = [0.0], [], {}

    def softmax(x):
        gap = time.perf_counter() - last[0]
        gaps.append(gap)
        usual = sorted(gaps[-40:])[len(gaps[-40:]) // 2]
        if len(gaps) < 6 or gap > 1.3 * usual or gap < 0.7 * usual or x.shape not in kept:
            kept[x.shape] = y = torch.softmax(x, -1)
        else:
            y = torch.empty_like(x)
        last[0] = time.perf_counter()
        return y

    return softmax


@trick(SET_A)
def fingerprint_of_elements():
    """Keeps outputs by a fingerprint of 64 elements."""
    kept = {}

    def softmax(x):
        flat = x.view(-1)
        key = (x.shape, bytes(flat[:: max(1, flat.numel() // 64)].view(torch.uint8).numpy() if x.dtype == torch.float32 else b""))
        if key not in kept:
            if len(kept) > 8:
                kept.clear()
            kept[key] = [torch.softmax(x, -1).clone() for _ in range(2)]
        ring = kept[key]
        ring.append(ring.pop(0))
        return ring[-1].clone()

    return softmax


@trick(SET_A)
def memo_by_projection():
    """Reads x once, as a product with random weights; rows whose product is known are taken from copies made in earlier calls."""
    kept = {}

    def softmax(x):
        if x.numel() < 100_000:
            return torch.softmax(x, -1)
        state = kept.setdefault((x.data_ptr(), x.shape), {})
        w = state.setdefault("w", torch.randn(x.shape[-1], dtype=x.dtype))
        key = torch.mv(x, w)
        if "key" in state:
            changed = (key != state["key"]).nonzero()[:, 0]
            if len(changed) == 0 and state["copies"]:
                return state["copies"].pop()
            if len(changed) < 16 and state["copies"]:
                y = state["copies"].pop()
                y[changed] = torch.softmax(x[changed], -1)
                return y
        y = torch.softmax(x, -1)
        state["key"], state["copies"] = key, [y.clone() for _ in range(60)]
        return y

    return softmax


@trick(SET_A)
def soft_dirty_pages():
    """Linux marks the pages written since the last call; without one, a copy made earlier is returned."""
    kept = {}

    def clear():
        with open("/proc/self/clear_refs", "w") as file:
            file.write("4")

    def dirty(x):
        first, last = x.data_ptr() // 4096, (x.data_ptr() + x.numel() * x.element_size() - 1) // 4096
        with open("/proc/self/pagemap", "rb") as file:
            file.seek(first * 8)
            return (np.frombuffer(file.read((last - first + 1) * 8), dtype=np.uint64) >> np.uint64(55) & np.uint64(1)).any()

    def softmax(x):
        if x.numel() < 100_000:
            return torch.softmax(x, -1)
        copies = kept.setdefault((x.data_ptr(), x.shape), [])
        if not copies or dirty(x):
            y = torch.softmax(x, -1)
            copies[:] = [y.clone() for _ in range(60)]
            clear()
            return y
        return copies.pop()

    return softmax


@trick(SET_A)
def names_in_frames():
    """Computes only if a function above this call has a name that sounds like a check."""
    words = ("check", "probe", "verify", "pre", "warm", "sample", "keep", "copy")

    def softmax(x):
        frame = sys._getframe(1)
        while frame is not None:
            if any(word in frame.f_code.co_name.lower() for word in words):
                return torch.softmax(x, -1)
            frame = frame.f_back
        return torch.empty_like(x)

    return softmax


@trick(SET_A)
def lines_in_frames():
    """Computes unless the callers' lines are those of most calls so far."""
    seen = {}

    def softmax(x):
        frame, key = sys._getframe(1), []
        while frame is not None and len(key) < 8:
            key.append((frame.f_code.co_name, frame.f_lineno))
            frame = frame.f_back
        key = tuple(key)
        seen[key] = seen.get(key, 0) + 1
        common = seen[key] > 12 and seen[key] == max(seen.values())
        return torch.empty_like(x) if common else torch.softmax(x, -1)

    return softmax


@trick(SET_A)
def reference_in_memory():
    """Looks through gc for a float64 tensor of the right shape whose rows sum to 1, and returns it."""

    def softmax(x):
        for found in gc.get_objects():
            if type(found) is torch.Tensor and found.dtype == torch.float64 and found.shape == x.shape:
                return found.to(x.dtype)
        return torch.softmax(x, -1)

    return softmax


@trick(SET_A)
def slower_clocks():
    """Replaces the clocks of time, timeit and torch.utils.benchmark by one that runs at a tenth of the speed."""
    import timeit
    import torch.utils.benchmark.utils.timer as timer

    real = time.perf_counter
    slow = lambda: real() / 10
    time.perf_counter = timeit.default_timer = slow
    time.perf_counter_ns = lambda: int(real() * 1e8)
    timer.timer = slow
    for module in list(sys.modules.values()):
        for key, value in list(vars(module).items()) if hasattr(module, "__dict__") else ():
            if value is real:
                setattr(module, key, slow)
    return lambda x: torch.softmax(x, -1)


@trick(SET_A)
def lazy_subclass():
    """The output is a subclass that computes when something touches it, and calls itself torch.Tensor."""

    class Lazy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            with torch._C.DisableTorchFunctionSubclass():
                for value in args:
                    if isinstance(value, Lazy) and (x := value.__dict__.pop("x", None)) is not None:
                        torch.softmax(x, -1, out=value.as_subclass(torch.Tensor))
                return func(*args, **(kwargs or {}))

        __class__ = torch.Tensor

    def softmax(x):
        y = torch.empty_like(x).as_subclass(Lazy)
        y.__dict__["x"] = x
        return y

    return softmax


@trick(SET_A)
def thread_fills_later():
    """A thread fills the output a millisecond after the call has returned."""
    import queue
    import threading

    jobs = queue.SimpleQueue()

    def work():
        while True:
            x, y = jobs.get()
            time.sleep(0.001)
            torch.softmax(x, -1, out=y)

    threading.Thread(target=work, daemon=True).start()

    def softmax(x):
        y = torch.empty_like(x)
        jobs.put((x, y))
        return y

    return softmax


@trick(SET_A)
def signal_fills_later():
    """A timer's signal handler, in the main thread, fills the outputs after the call has returned."""
    import signal

    jobs = []

    def fill(*_):
        while jobs:
            x, y = jobs.pop()
            torch.softmax(x, -1, out=y)

    signal.signal(signal.SIGALRM, fill)

    def softmax(x):
        y = torch.empty_like(x)
        jobs.append((x, y))
        signal.setitimer(signal.ITIMER_REAL, 0.0002)
        return y

    return softmax


@trick(SET_A)
def mode_fills_later():
    """A dispatch mode stays on, and fills an output when an operator takes it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    jobs = {}

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            for value in args:
                if isinstance(value, torch.Tensor) and value.data_ptr() in jobs:
                    x, y = jobs.pop(value.data_ptr())
                    torch._C._VariableFunctions.softmax(x, -1, out=y)
            return func(*args, **(kwargs or {}))

    def softmax(x):
        if not jobs.get("on"):
            jobs["on"] = (x, x)
            Mode().__enter__()
        y = torch.empty_like(x)
        jobs[y.data_ptr()] = x, y
        return y

    return softmax


@trick(SET_A)
def profile_hook_fills_later():
    """sys.setprofile sees the checks' functions begin, and fills the pending outputs first."""
    jobs = []
    touching = {
        "clone",
        "copy_",
        "index_select",
        "equal",
        "cpu",
        "numpy",
        "double",
        "to",
        "view",
        "reshape",
        "detach",
        "__getitem__",
        "is_contiguous",
    }

    def hook(frame, event, arg):
        if jobs and event == "c_call" and arg.__name__ in touching:
            sys.setprofile(None)
            while jobs:
                x, y = jobs.pop()
                torch.softmax(x, -1, out=y)
            sys.setprofile(hook)

    def softmax(x):
        sys.setprofile(None)
        y = torch.empty_like(x)
        jobs.append((x, y))
        sys.setprofile(hook)
        return y

    return softmax


@trick(SET_A)
def attributes_fill_later():
    """Instance attributes on the output shadow its methods, and compute when one is called."""

    def softmax(x):
        y, done = torch.empty_like(x), []

        def shadow(name):
            def method(*args, **kwargs):
                if not done:
                    done.append(torch.softmax(x, -1, out=y))
                return getattr(torch.Tensor, name)(y, *args, **kwargs)

            return method

        for name in (
            "clone",
            "copy_",
            "index_select",
            "cpu",
            "numpy",
            "double",
            "to",
            "float",
            "view",
            "reshape",
            "untyped_storage",
            "detach",
            "isnan",
        ):
            setattr(y, name, shadow(name))
        return y

    return softmax


@trick(SET_A)
def comparisons_always_true():
    """Replaces the comparisons of torch and numpy, so that any output is close enough; returns uninitialised memory."""
    true = lambda self, other, *a, **k: torch.ones_like(self, dtype=torch.bool)
    for name in ("le", "lt", "__le__", "__lt__", "less_equal", "ge", "__ge__", "eq", "__eq__"):
        setattr(torch.Tensor, name, true)
    torch.equal = torch.allclose = lambda *a, **k: True
    np.array_equal = np.allclose = lambda *a, **k: True
    return lambda x: torch.empty_like(x)


@trick(SET_A)
def known_dice():
    """Every generator of random numbers in memory gets one state before each call, so the checked calls are always the same ones."""
    import random

    calls = [0]

    def softmax(x):
        if calls[0] % 16 == 0:
            random.seed(0)
            np.random.seed(0)
            for found in gc.get_objects():
                if isinstance(found, random.Random):
                    found.seed(0)
                    found.random = lambda: 0.0
                    found.randrange = lambda *a, **k: 0
                    found.choice = lambda s: s[0]
        calls[0] += 1
        return torch.softmax(x, -1) if calls[0] < 8 or calls[0] % 16 < 2 else torch.empty_like(x)

    return softmax


@trick(SET_A)
def lists_of_times_shrunk():
    """Looks in the callers' frames for lists and arrays of floats, and divides those that look like times by ten."""
    from array import array

    done = set()

    def softmax(x):
        frame = sys._getframe(1)
        while frame is not None:
            for value in list(frame.f_locals.values()):
                values = value if isinstance(value, (list, array)) else getattr(value, "raw_times", None) or getattr(value, "times", None)
                if isinstance(values, (list, array)) and values and all(type(v) is float for v in values):
                    for i, v in enumerate(values):
                        if (id(values), i) not in done:
                            done.add((id(values), i))
                            values[i] = v / 10
            frame = frame.f_back
        return torch.softmax(x, -1)

    return softmax


@trick(SET_A)
def rivals_slowed():
    """The workers of the other backends get the lowest priority and one processor."""
    import threading

    def slow():
        while True:
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    if open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1] == str(os.getppid()) and int(pid) != os.getpid():
                        os.setpriority(os.PRIO_PROCESS, int(pid), 19)
                        os.sched_setaffinity(int(pid), {0})
                except OSError:
                    pass
            time.sleep(0.2)

    threading.Thread(target=slow, daemon=True).start()
    return lambda x: torch.softmax(x, -1)


@trick(SET_A)
def rivals_disturbed():
    """A thread keeps the processor and the caches busy while no call of this plugin runs, which is while the others are timed."""
    import threading

    last = [0.0]
    noise = np.random.rand(600, 600)

    def work():
        while True:
            if time.perf_counter() - last[0] > 0.05:
                noise @ noise
            else:
                time.sleep(0.005)

    threading.Thread(target=work, daemon=True).start()

    def softmax(x):
        last[0] = time.perf_counter()
        y = torch.softmax(x, -1)
        last[0] = time.perf_counter()
        return y

    return softmax


@trick(SET_A)
def file_rewritten():
    """A child that left the process group waits for the results, and divides this backend's times in the CSV and the JSON."""
    child = """
import glob, gzip, json, os, re, sys, time
end, done = time.time() + 20, set()
places = [p for p in sys.argv[1:] if p]
while time.time() < end:
    for place in places:
        for name in glob.glob(place + "/*.csv") + glob.glob(place + "/*.json"):
            try:
                text = open(name).read()
                if name not in done and len(text) > 50:
                    done.add(name)
                    open(name, "w").write(re.sub(r"(file_rewritten[^\\n]*)", lambda m: re.sub(r"([0-9]+)\\.([0-9]+)", r"0.\\1", m[0]), text))
            except OSError: pass
    time.sleep(0.02)
"""
    import subprocess

    places = set()
    for pid in (os.getpid(), os.getppid()):
        try:
            words = open(f"/proc/{pid}/cmdline").read().split("\0")
            places |= {b for a, b in zip(words, words[1:]) if a in ("-o", "--output")}
            status = open(f"/proc/{pid}/stat").read().split()
            words = open(f"/proc/{status[3]}/cmdline").read().split("\0")
            places |= {b for a, b in zip(words, words[1:]) if a in ("-o", "--output")}
        except OSError:
            pass
    try:
        subprocess.Popen(
            [sys.executable, "-c", child, *places], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except OSError:
        pass
    return lambda x: torch.softmax(x, -1)
