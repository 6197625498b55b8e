"""Attacks on the judge by host code, one backend each. `ends` is the status of the judgement, and `rule` a part of its reason.

An attack that reaches what it must not reach raises an error that begins with `reached`, and is then `failed`.
"""

import ctypes
import gc
import json
import mmap
import os
import resource
import socket
import statistics
import struct
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import torch

from softbench import Direction

SLOW_SECONDS = 0.002
CALLS = [64]
"""Calls of a challenge; on a GPU there are more."""
TIME_STANDS_STILL = bytes.fromhex("48c70600000000 48c7460800000000 31c0 c3")
"""x86-64: stores zero seconds and nanoseconds at rsi, and returns 0."""
LIBC = ctypes.CDLL(None, use_errno=True)
HERE = Path(__file__).resolve()


def honest(x):
    return torch.softmax(x, dim=-1)


def parent(pid):
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def others():
    """The other processes of the forkserver, such as the one of empty challenges, then the parent and its parents."""
    everyone, pid = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()], os.getppid()
    found = [other for other in everyone if other != os.getpid() and parent(other) == pid]
    while pid > 1:
        found.append(pid)
        pid = parent(pid)
    return found


def descriptors(kind):
    """Open descriptors whose link has this word."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if kind in str(entry.readlink()):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def system_call(number, *arguments):
    if LIBC.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")


def each_other(action):
    """Try an action on each of the other processes; it must fail for all."""

    def attempt():
        for pid in others():
            try:
                action(pid)
            except OSError:
                continue
            return
        raise PermissionError("refused for all")

    return attempt


def read_by_vm(pid):
    buffer = ctypes.create_string_buffer(8)
    local, remote = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), 8), (ctypes.c_uint64 * 2)(0x400000, 8)
    system_call(310, pid, local, 1, remote, 1, 0)


def opened(path, mode="rb"):
    return lambda: Path(path).open(mode).close()


MEMORY = {
    "memory of another process": each_other(lambda pid: Path(f"/proc/{pid}/mem").read_bytes()),
    "memory of another process by process_vm_readv": each_other(read_by_vm),
    "descriptors of another process": each_other(lambda pid: Path(f"/proc/{pid}/fd/0").stat()),
    "environment of another process": each_other(lambda pid: Path(f"/proc/{pid}/environ").read_bytes()),
    "a trace of another process": each_other(lambda pid: system_call(101, 16, pid, 0, 0)),
    "a descriptor by pidfd_getfd": each_other(lambda pid: system_call(438, os.pidfd_open(pid), 0, 0)),
    "a userfaultfd": lambda: system_call(323, 1),
}


def changing(read, change):
    """Change a property of another process, which may succeed and do nothing."""

    def attempt(pid):
        before = read(pid)
        change(pid)
        if read(pid) == before:
            raise PermissionError("nothing changed")

    return each_other(attempt)


def nice(pid):
    return os.getpriority(os.PRIO_PROCESS, pid)


def bind_itself():
    """A process may bind itself to a processor."""
    all_of_them = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(all_of_them)})
    if os.sched_getaffinity(0) != {min(all_of_them)}:
        raise RuntimeError("not bound")
    os.sched_setaffinity(0, all_of_them)
    raise PermissionError("as it should be")


PROCESSES = {
    "the priority of another process": changing(nice, lambda pid: os.setpriority(os.PRIO_PROCESS, pid, nice(pid) + 1)),
    "the processors of another process": changing(
        os.sched_getaffinity, lambda pid: os.sched_setaffinity(pid, {min(os.sched_getaffinity(pid))})
    ),
    "the scheduler of another process": changing(
        os.sched_getscheduler, lambda pid: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
    ),
    "the order of another process's input and output": changing(
        lambda pid: LIBC.syscall(252, 1, pid), lambda pid: LIBC.syscall(251, 1, pid, 3 << 13)
    ),
    "its own processors": bind_itself,
    "a signal to another process": each_other(lambda pid: os.kill(pid, 0)),
    "a signal to another process by pidfd": each_other(lambda pid: system_call(424, os.pidfd_open(pid), 0, None, 0)),
    "limits of another process": each_other(lambda pid: resource.prlimit(pid, resource.RLIMIT_CORE)),
    "a namespace": lambda: system_call(272, 0x10000000),
    "the machine's clock": lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()),
}
FILES = {
    "a file of another folder": opened(HERE.parents[2] / "conftest.py"),
    "passwords": opened("/etc/shadow"),
    "a file beside the plugin": opened(HERE.parent / "written", "w"),
    "a module in the working folder": opened(Path.cwd() / f"softbench_reached_{os.getpid()}.py", "w"),
    "a file in /tmp": opened(f"/tmp/softbench-reached-{os.getpid()}", "w"),
    "shared memory": opened(f"/dev/shm/softbench-reached-{os.getpid()}", "w"),
    "an INET socket": lambda: socket.socket(socket.AF_INET).close(),
    "a UNIX socket": lambda: socket.socket(socket.AF_UNIX).close(),
    "a ring of io_uring": lambda: system_call(425, 4, ctypes.create_string_buffer(120)),
}


def write_inputs():
    """Only the memory for outputs may be writable: its descriptor, and the copy that Python's mmap keeps."""
    writable = []
    for descriptor in descriptors("memfd"):
        try:
            writable.append(mmap.mmap(descriptor, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE))
        except OSError:
            continue
    if len(writable) <= 2 < len(descriptors("memfd")):
        raise PermissionError("refused for the inputs")


INPUTS = {
    "the size of the judge's memory": lambda: [os.ftruncate(descriptor, 0) for descriptor in descriptors("memfd")],
    "the inputs": write_inputs,
}


def attempting(attempts, *, in_a_call=False):
    """Attempts all, each of which the system must refuse, then is honest."""

    def attempt():
        for what, action in attempts.items():
            try:
                action()
            except OSError:
                continue
            raise RuntimeError(f"reached {what}")

    def call(x):
        if in_a_call and descriptors("memfd"):
            attempt()
        return honest(x)

    def prepare():
        if not in_a_call:
            attempt()
        return call

    return prepare


def without_clocks():
    """Is slow, and makes every clock and statistic of its process say that it is fast."""
    sleep = time.sleep
    for name in ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns"):
        setattr(time, name, lambda: 0)
    statistics.median = min = lambda *_: 1e-9  # noqa: F841

    def call(x):
        sleep(SLOW_SECONDS)
        return honest(x)

    return call


def detouring():
    """Is slow, and after the build replaces the code of libc's clock."""
    calls = [0]

    def call(x):
        calls[0] += 1
        if calls[0] == 2:
            address = ctypes.cast(LIBC.clock_gettime, ctypes.c_void_p).value
            if LIBC.mprotect(ctypes.c_void_p(address & -mmap.PAGESIZE), 2 * mmap.PAGESIZE, 7):
                raise RuntimeError("the code cannot be changed, so this attack shows nothing")
            ctypes.memmove(address, TIME_STANDS_STILL, len(TIME_STANDS_STILL))
        LIBC.usleep(int(SLOW_SECONDS * 1e6))  # relative to now, so the kernel keeps it whatever the clock says
        return honest(x)

    return call


def from_the_heap(x):
    """Returns a tensor of the right form that the collector knows, in the hope for an expected output."""
    found = [item for item in gc.get_objects() if type(item) is torch.Tensor and item.shape == x.shape and item is not x]
    return found[-1].clone() if found else torch.zeros_like(x)


def forging(places):
    """Replies before it computes."""
    calls = [0]

    def call(x):
        if calls[0] == 1:
            size = -(-x.nbytes // 512) * 512
            message = {"reply": "Called", "places": places(size), "device_us": 0}
            for descriptor in descriptors("socket:"):
                with suppress(OSError):  # CUDA has a socket too, which is not connected
                    os.write(descriptor, json.dumps(message).encode() + b"\n")
            time.sleep(0.1)
        calls[0] += 1
        return honest(x)

    return call


def forging_early():
    """Replies to the judge's next request too, while its calls of the second challenge wait for their inputs."""
    calls = [0]

    def call(x):
        calls[0] += 1
        if calls[0] == CALLS[0] + 1:
            for descriptor in descriptors("socket:"):
                with suppress(OSError):
                    os.write(descriptor, b'{"reply":"Called","places":[],"device_us":0}' + b"\n")
        return honest(x)

    return call


def without_a_wait():
    """Its process does not wait for the GPU before it replies. The judge's read then finds wrong rows, or waits for the GPU itself."""
    from softbench.worker.judged import calls as judged_calls

    judged_calls.synchronize = torch.cuda.synchronize = lambda *_: None
    return honest


def busy_afterwards():
    """Its GPU works on another stream for seconds after each challenge, so that an empty challenge takes longer."""
    from softbench.worker.judged import calls as judged_calls

    judged_calls.synchronize = lambda *_: torch.cuda.current_stream().synchronize()
    side = torch.cuda.Stream()

    def call(x):
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
        return honest(x)

    return call


def persisting():
    """Asks the driver to keep its inputs' lines in L2, also over a flush."""
    driver, limit, window = ctypes.CDLL("libcuda.so.1"), 0x06, 1
    persisting, streaming = 2, 1  # CUaccessProperty

    def call(x):
        size = min(x.nbytes, 2**24)
        ratio = int.from_bytes(struct.pack("f", 1.0), "little")
        policy = (ctypes.c_uint64 * 8)(x.data_ptr(), size, ratio | persisting << 32, streaming)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if driver.cuCtxSetLimit(limit, ctypes.c_size_t(size)) or driver.cuStreamSetAttribute(stream, window, policy):
            raise RuntimeError("the driver refuses to keep lines in L2")
        return honest(x)

    return call


def forking():
    """Starts a process in its second call, if a judge calls it."""
    calls, judged = [0], "softbench-plugin-" in os.environ["HOME"]

    def call(x):
        calls[0] += 1
        if judged and calls[0] == 2:
            subprocess.Popen(["sleep", "60"])
        return honest(x)

    return call


def leaving_a_process():
    """Leaves a process of another session behind its build, which would see later inputs if it had them."""
    subprocess.Popen(["sleep", "60"], start_new_session=True)
    return honest


def last_only():
    """Computes the last of many calls; the others get its output."""

    def call(x):
        calls[0] += 1
        return honest(x) if calls[0] % CALLS[0] < 2 else torch.full_like(x, 1 / x.shape[1])

    calls = [0]
    return call


class Attack:
    """A softmax that attacks its judge."""

    def __init__(self, name, make, ends="ok", rule="", *, cuda=False):
        self.name, self.make, self.ends, self.rule, self.cuda = name, make, ends, rule, cuda

    def available(self):
        return "no GPU" if self.cuda and not torch.cuda.is_available() else None

    def supports(self, case):
        return None if case.direction is Direction.FORWARD else "forward only"

    def prepare(self, case):
        CALLS[0] = 64 if case.device == "cpu" else 256
        return self.make()


backends = [
    Attack("reads-memory", attempting(MEMORY)),
    Attack("disturbs-processes", attempting(PROCESSES)),
    Attack("reaches-files-and-network", attempting(FILES)),
    Attack("changes-shared-memory", attempting(INPUTS, in_a_call=True)),
    Attack("without-clocks", without_clocks),
    Attack("detours-a-clock", detouring),
    Attack("from-the-heap", lambda: from_the_heap, "wrong", "should be"),
    Attack("leaves-a-process", leaving_a_process),
    Attack("forks-when-judged", forking, "wrong", "started a process"),
    Attack("forges-a-reply", lambda: forging(lambda size: [[call * size] for call in range(CALLS[0])]), "wrong", "should be"),
    Attack("forges-places", lambda: forging(lambda size: [[-8 * size] for _ in range(CALLS[0])]), "wrong", "outside the judge's memory"),
    Attack("forges-fewer-places", lambda: forging(lambda size: [[0]]), "wrong", "outside the judge's memory"),
    Attack("forges-nonsense", lambda: forging(lambda size: "nonsense"), "failed", "invalid reply"),
    Attack("without-a-wait", without_a_wait, cuda=True),
    Attack("keeps-the-gpu-busy", busy_afterwards, "unverified", "the GPU was busy", cuda=True),
    Attack("forges-an-early-reply", forging_early, "wrong", "", cuda=True),
    Attack("keeps-its-inputs-in-l2", persisting, cuda=True),
    Attack("last-call-only", last_only, "wrong", "should be"),
]
