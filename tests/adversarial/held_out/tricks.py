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
        key = (x.shape, tuple(flat[:: max(1, flat.numel() // 64)].tolist()))
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


# --- set B


@trick(SET_B)
def processor_time_between_calls():
    """Computes only if the thread used another amount of processor time since the last call than usual."""
    last, used, kept = [0.0], [], set()

    def softmax(x):
        spent = time.thread_time() - last[0]
        used.append(spent)
        usual = sorted(used[-40:])[len(used[-40:]) // 2]
        odd = len(used) < 8 or x.shape not in kept or not 0.6 * usual < spent < 1.6 * usual
        kept.add(x.shape)
        y = torch.softmax(x, -1) if odd else torch.empty_like(x)
        last[0] = time.thread_time()
        return y

    return softmax


@trick(SET_B)
def reference_counts():
    """Computes unless the references to the input and to its storage are as many as in most calls."""
    seen = {}

    def softmax(x):
        key = sys.getrefcount(x), len(gc.get_referrers(x)), x._use_count(), len(sys._current_frames())
        seen[key] = seen.get(key, 0) + 1
        return torch.empty_like(x) if seen[key] > 12 and seen[key] == max(seen.values()) else torch.softmax(x, -1)

    return softmax


@trick(SET_B)
def pages_shared_with_a_child():
    """A forked child shares all pages; a page that is no longer shared was written since, so unchanged inputs are known without reading."""
    kept = {}

    def written(x):
        first, last = x.data_ptr() // 4096, (x.data_ptr() + x.numel() * x.element_size() - 1) // 4096
        with open("/proc/self/pagemap", "rb") as file:
            file.seek(first * 8)
            return bool((np.frombuffer(file.read((last - first + 1) * 8), dtype=np.uint64) >> np.uint64(56) & np.uint64(1)).any())

    def share(state):
        if "child" in state:
            os.kill(state["child"], 9)
            os.waitpid(state["child"], 0)
        parent = os.getpid()
        state["child"] = child = os.fork()
        if not child:
            os.closerange(0, 256)
            while os.getppid() == parent:
                time.sleep(0.5)
            os._exit(0)

    def softmax(x):
        if x.numel() < 100_000:
            return torch.softmax(x, -1)
        state = kept.setdefault((x.data_ptr(), x.shape), {"copies": []})
        if not state["copies"] or written(x):
            y = torch.softmax(x, -1)
            state["copies"] = [y.clone() for _ in range(30)]
            share(state)
            return y
        return state["copies"].pop()

    return softmax


@trick(SET_B)
def dispatcher_fills_later():
    """Operators of torch's dispatcher are replaced for autograd's key, and fill an output when they get it."""
    library = torch.library.Library("aten", "IMPL")
    jobs = {}

    def fill(values):
        for value in values:
            if isinstance(value, torch.Tensor) and (job := jobs.pop(value.untyped_storage().data_ptr(), None)):
                torch._C._VariableFunctions.softmax(job[0], -1, out=job[1])

    def replaced(operator):
        def call(keys, *args, **kwargs):
            fill(args)
            return operator.redispatch(keys & torch._C._after_autograd_keyset, *args, **kwargs)

        return call

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in (
            "copy_",
            "clone",
            "index_select",
            "_to_copy",
            "index.Tensor",
            "equal",
            "sub.Tensor",
            "isnan",
            "select.int",
            "slice.Tensor",
        ):
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(name, replaced(operator), "AutogradCPU", with_keyset=True)

    def softmax(x):
        y = torch.empty_like(x)
        jobs[y.data_ptr()] = x, y
        return y

    softmax.library = library
    return softmax


@trick(SET_B)
def method_of_the_clock():
    """The C method behind time.perf_counter is replaced, so the same function object runs at a tenth of the speed."""
    found = time.perf_counter
    made = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: time.monotonic() / 10)
    address = ctypes.c_void_p.from_address(id(found) + 16).value  # PyCFunctionObject.m_ml, whose second field is ml_meth
    ctypes.c_void_p.from_address(address + 8).value = ctypes.cast(made, ctypes.c_void_p).value

    def softmax(x):
        return torch.softmax(x, -1)

    softmax.made = made
    return softmax


@trick(SET_B)
def idle_thread_computes_ahead():
    """A thread computes the outputs of the known inputs again and again; a call compares a random projection of its input."""
    import threading

    ready = {}

    def work():
        while True:
            for state in list(ready.values()):
                if len(state["made"]) < 4:
                    x = state["x"]
                    key = torch.mv(x, state["w"])
                    y = torch.softmax(x, -1)
                    if torch.equal(key, torch.mv(x, state["w"])):
                        state["made"].append((key, y))
            time.sleep(0.0005)

    threading.Thread(target=work, daemon=True).start()

    def softmax(x):
        if x.numel() < 100_000:
            return torch.softmax(x, -1)
        state = ready.setdefault((x.data_ptr(), x.shape), {"x": x.detach(), "w": torch.randn(x.shape[-1]), "made": []})
        key = torch.mv(x, state["w"])
        while state["made"]:
            made, y = state["made"].pop()
            if torch.equal(key, made):
                return y
        return torch.softmax(x, -1)

    return softmax


@trick(SET_B)
def writeback_in_the_background():
    """Each call leaves dirty file pages behind, so Linux is busy in the next empty challenge or with the rivals."""
    import tempfile

    block, place = bytes(1 << 20), tempfile.gettempdir()

    def softmax(x):
        y = torch.softmax(x, -1)
        if x.numel() > 100_000:
            try:
                with open(os.path.join(place, f"dirty{os.getpid()}"), "wb") as file:
                    file.write(block)
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            except OSError:
                pass
        return y

    return softmax


@trick(SET_B)
def rows_left_out():
    """After some calls, three rows of eight are left out, at random places, and keep what the memory had."""
    import random

    calls = [0]

    def softmax(x):
        calls[0] += 1
        if calls[0] < 12 or len(x) < 64:
            return torch.softmax(x, -1)
        y, n = torch.empty_like(x), len(x) // 8
        first = random.randrange(0, 8) * n
        for part in (slice(0, first), slice(first + 3 * n, None)):
            if len(x[part]):
                torch.softmax(x[part], -1, out=y[part])
        return y

    return softmax


@trick(SET_B)
def batch_class_replaced():
    """softbench's own classes of samples are replaced in every module by one that divides times by ten."""

    def smaller(value):
        return (
            type(value)(v / 10 for v in value)
            if isinstance(value, (list, tuple)) and value and all(type(v) is float for v in value)
            else value
        )

    def replaced(kind):
        def make(*args, **kwargs):
            return kind(*map(smaller, args), **{key: smaller(value) for key, value in kwargs.items()})

        return make

    for name, module in list(sys.modules.items()):
        if name.startswith("softbench"):
            for key, value in list(vars(module).items()):
                if (
                    isinstance(value, type)
                    and value.__module__.startswith("softbench")
                    and key in ("Batch", "Samples", "Timed", "Timing", "Measured")
                ):
                    setattr(module, key, replaced(value))
    return lambda x: torch.softmax(x, -1)


@trick(SET_B)
def messages_rewritten():
    """What the worker writes to pipes and sockets is changed: floats that look like times are divided by ten, in JSON and in msgpack."""
    import multiprocessing.connection
    import re
    import socket

    def changed(data):
        data = bytes(data)
        if data[:1] in b"{[":
            return re.sub(rb"(?<=[\[,])(\d+)\.(\d+)(?=[,\]])", lambda m: b"0." + m[1] + m[2], data)
        out, i = bytearray(data), data.find(b"\xcb")
        while 0 <= i < len(out) - 8:
            value = struct.unpack(">d", out[i + 1 : i + 9])[0]
            if 10 < value < 1e6:
                out[i + 1 : i + 9] = struct.pack(">d", value / 10)
            i = data.find(b"\xcb", i + 9)
        return bytes(out)

    write, send = os.write, socket.socket.sendall
    os.write = lambda fd, data: write(fd, changed(data))

    class Socket(socket.socket):
        sendall = lambda self, data, *a: send(self, changed(data), *a)
        send = lambda self, data, *a: (send(self, changed(data), *a), len(data))[1]

    for found in gc.get_objects():
        if type(found) is socket.socket:
            try:
                found.__class__ = Socket
            except TypeError:
                pass
    old = multiprocessing.connection.Connection.send_bytes
    multiprocessing.connection.Connection.send_bytes = lambda self, data, *a: old(self, changed(data), *a)
    return lambda x: torch.softmax(x, -1)


@trick(SET_B)
def encoders_replaced():
    """The encoders and the functions of medians in softbench's modules are wrapped, so that times shrink on the way out."""
    import msgspec

    def smaller(value):
        if isinstance(value, dict):
            return {key: smaller(v) for key, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [v / 10 if type(v) is float else smaller(v) for v in value]
        return value

    class Encoder:
        def __init__(self, real):
            self.real = real

        def encode(self, value):
            return self.real.encode(smaller(msgspec.to_builtins(value)))

        def __getattr__(self, name):
            return getattr(self.real, name)

    for name, module in list(sys.modules.items()):
        if name.startswith("softbench"):
            for key, value in list(vars(module).items()):
                if isinstance(value, (msgspec.json.Encoder, msgspec.msgpack.Encoder)):
                    setattr(module, key, Encoder(value))
                elif callable(value) and "median" in key:
                    setattr(module, key, lambda *a, value=value, **k: value(*a, **k) / 10)
    for codec in (msgspec.json, msgspec.msgpack):
        codec.encode = lambda value, *a, real=codec.encode, **k: real(smaller(msgspec.to_builtins(value)), *a, **k)
    return lambda x: torch.softmax(x, -1)


@trick(SET_B)
def module_planted():
    """Modules of the standard library's names are written to the working folder, where `python -m` finds them first; they change the CSV."""
    import tempfile

    code = """
import sys
here = [p for p in sys.path if p in ("", {cwd!r})]
sys.path[:] = [p for p in sys.path if p not in here]
me = sys.modules.pop(__name__)
import importlib
real = importlib.import_module(__name__)
globals().update(vars(real))
sys.path[:0] = here
import csv as _csv
def _small(row):
    row = list(row)
    return [f"{{float(v) / 10}}" if i in (8, 9, 10) and v else v for i, v in enumerate(row)] if row and row[0] == "module_planted" else row
_writer = _csv.writer
class _Writer:
    def __init__(self, *a, **k): self.w = _writer(*a, **k)
    def writerow(self, row): return self.w.writerow(_small(row))
    def writerows(self, rows): return self.w.writerows(map(_small, rows))
_csv.writer = _Writer
"""
    for name in ("gzip", "csv", "statistics", "datetime", "hashlib", "shutil", "rich", "html"):
        try:
            if not os.readlink(f"/proc/{os.getppid()}/cwd").startswith(tempfile.gettempdir()):
                break  # the measurement's own folder only
            with open(f"/proc/{os.getppid()}/cwd/{name}.py", "x") as file:
                file.write(code.format(cwd=os.getcwd()))
        except OSError:
            pass
    return lambda x: torch.softmax(x, -1)


@trick(SET_B)
def own_priority():
    """The process gives itself the highest priority."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    except OSError:
        pass
    return lambda x: torch.softmax(x, -1)


@trick(SET_B)
def more_threads_inside():
    """Takes all processors during the call, and restores torch's number of threads at its end."""

    def softmax(x):
        before = torch.get_num_threads()
        torch.set_num_threads(os.cpu_count())
        try:
            return torch.softmax(x, -1)
        finally:
            torch.set_num_threads(before)

    return softmax


@trick(SET_B)
def audit_hook_fills_later():
    """An audit hook of Python, which cannot be removed, fills pending outputs at the next event."""
    jobs = []

    def hook(event, args):
        while jobs:
            x, y = jobs.pop()
            torch.softmax(x, -1, out=y)

    sys.addaudithook(hook)

    def softmax(x):
        y = torch.empty_like(x)
        jobs.append((x, y))
        return y

    return softmax


@trick(SET_B)
def pending_call_fills_later():
    """A pending call of the interpreter, put off some times, fills the output after the call has returned."""
    jobs = []

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    def fill(left):
        if left:
            ctypes.pythonapi.Py_AddPendingCall(fill, ctypes.c_void_p(left - 1))
        else:
            while jobs:
                x, y = jobs.pop()
                torch.softmax(x, -1, out=y)
        return 0

    def softmax(x):
        y = torch.empty_like(x)
        jobs.append((x, y))
        ctypes.pythonapi.Py_AddPendingCall(fill, ctypes.c_void_p(3))
        return y

    return softmax


@trick(SET_B)
def lazy_pages():
    """The output's pages do not exist; a child serves the first touch by userfaultfd, and computes only then."""
    import fcntl
    import mmap

    libc = ctypes.CDLL(None, use_errno=True)
    uffd = libc.syscall(323, os.O_CLOEXEC)
    if uffd < 0:
        raise RuntimeError("no userfaultfd")
    fcntl.ioctl(uffd, 0xC018AA3F, struct.pack("QQQ", 0xAA, 0, 0))
    pipe, me = os.pipe(), os.getpid()
    if not os.fork():
        libc.prctl(1, 9)  # it dies with its parent
        os.set_blocking(pipe[0], False)
        torch.set_num_threads(1)
        jobs = {}
        while os.getppid() == me:
            message = os.read(uffd, 32)
            address = struct.unpack_from("Q", message, 16)[0]
            while True:
                try:
                    place, source, rows, columns = struct.unpack("QQQQ", os.read(pipe[0], 32))
                    jobs[place] = source, rows, columns
                except (BlockingIOError, struct.error):
                    break
            place = max((p for p in jobs if p <= address), default=None)
            if place is None:
                continue
            source, rows, columns = jobs.pop(place)
            with open(f"/proc/{me}/mem", "rb", 0) as memory:
                memory.seek(source)
                x = torch.frombuffer(bytearray(memory.read(rows * columns * 4)), dtype=torch.float32).view(rows, columns)
            y = torch.softmax(x, -1)
            fcntl.ioctl(uffd, 0xC028AA03, struct.pack("QQQQq", place, y.data_ptr(), rows * columns * 4, 0, 0))
        os._exit(0)
    held = {}

    def softmax(x):
        size = x.numel() * 4
        if x.dtype != torch.float32 or size % 4096 or size < 1 << 20:
            return torch.softmax(x, -1)
        memory = mmap.mmap(-1, size)
        y = torch.frombuffer(memory, dtype=torch.float32).view(x.shape)
        fcntl.ioctl(uffd, 0xC020AA00, struct.pack("QQQQ", y.data_ptr(), size, 1, 0))
        os.write(pipe[1], struct.pack("QQQQ", y.data_ptr(), x.data_ptr(), *x.shape))
        held[y.data_ptr()] = x
        return y

    return softmax


@trick(SET_B)
def class_methods_fill_later():
    """Methods of torch.Tensor's class and functions of torch are wrapped, and fill pending outputs when something calls them."""
    jobs, real = [], torch.softmax

    def wrapped(method):
        def call(*args, **kwargs):
            while jobs:
                x, y = jobs.pop()
                real(x, -1, out=y)
            return method(*args, **kwargs)

        return call

    names = (
        "clone",
        "copy_",
        "index_select",
        "__getitem__",
        "to",
        "double",
        "float",
        "cpu",
        "numpy",
        "detach",
        "view",
        "reshape",
        "untyped_storage",
    )
    for name in names:
        setattr(torch.Tensor, name, wrapped(getattr(torch.Tensor, name)))
    for name in ("equal", "index_select", "clone", "where", "isnan", "empty"):
        setattr(torch, name, wrapped(getattr(torch, name)))

    def softmax(x):
        y = torch.Tensor.new_empty(x, x.shape)
        jobs.append((x, y))
        return y

    return softmax


@trick(SET_B)
def watcher_thread():
    """A thread reads the main thread's frames all the time; a function that it had rarely seen before a call means that this call is checked."""
    import threading

    main, seen, since = threading.main_thread().ident, {}, set()

    def watch():
        while True:
            frame = sys._current_frames().get(main)
            while frame is not None:
                since.add((frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno))
                frame = frame.f_back
            time.sleep(0.0001)

    threading.Thread(target=watch, daemon=True).start()
    calls = [0]

    def softmax(x):
        calls[0] += 1
        names = set(since)
        since.clear()
        for name in names:
            seen[name] = seen.get(name, 0) + 1
        rare = any(seen[name] < 0.3 * calls[0] for name in names)
        return torch.softmax(x, -1) if rare or calls[0] < 12 else torch.empty_like(x)

    return softmax


@trick(SET_B)
def plans_in_frames():
    """Callers' local variables are searched for collections of numbers that hold the current loop counter: the calls that will be checked."""

    def softmax(x):
        frame, planned, counters = sys._getframe(1), set(), set()
        for _ in range(10):
            if frame is None:
                break
            for value in frame.f_locals.values():
                if type(value) is int:
                    counters.add(value)
                elif isinstance(value, (list, tuple, set, frozenset, dict, range)) and 0 < len(value) < 40:
                    planned |= {v for v in value if type(v) is int}
                elif hasattr(value, "__dict__"):
                    planned |= {v for v in vars(value).values() if type(v) is int}
            frame = frame.f_back
        return torch.softmax(x, -1) if not planned or counters & planned else torch.empty_like(x)

    return softmax
