"""Takes rights from this process for the rest of its life, and from all processes that it starts. It needs no root.

Landlock limits files, TCP, signals and abstract sockets (https://docs.kernel.org/userspace-api/landlock.html). It also forbids to trace a
process outside, and so to read `/proc/PID/mem`. A seccomp filter forbids system calls (seccomp(2)). Capabilities are dropped. Each part
that the kernel lacks is reported and left out. Both filters apply to threads that exist: seccomp synchronizes them, and landlock must be
set before any other thread exists.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import stat
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

CPU_SECONDS = 3600
"""Processor time of the process, at most."""
PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP, LAST_CAPABILITY = 38, 24, 40
CAPABILITY_VERSION = 0x20080522
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
"""System calls; their numbers are equal on all architectures."""
READS = 1 | 1 << 2 | 1 << 3
"""Landlock's rights to execute, to read a file, and to list a folder."""
OF_FILES = 1 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
"""Landlock's rights that a file can have: execute, write, read, truncate, and control a device."""
RIGHTS = ((1, (1 << 13) - 1), (2, 1 << 13), (3, 1 << 14), (5, 1 << 15))
"""Landlock's rights on files, each with the version that brought it."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/nvidia*", "/dev/nvidia-caps/*")
"""Device files that stay usable."""
SYSTEM = (
    *("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/proc", "/sys", "/dev/null"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime", "/etc/passwd"),
)
"""Files and folders of the system that every process may read."""
OWN_PROCESS = "/proc/self"
"""The files of this process. They stay writable on a GPU: CUDA names its threads there, and does not start without that."""

AUDIT_ARCH_X86_64 = 0xC000003E
SET_FILTER, SYNCHRONIZE, ALLOW, ERROR = 1, 1, 0x7FFF0000, 0x00050000
SECCOMP = 317
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
"""Instructions of a filter: load a word, compare it, return."""
X32_CALLS = 1 << 30
"""The first number of the x32 ABI's calls."""
NOTHING: Mapping[int, int] = {}
FORBIDDEN = {
    "tracing": {"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_getfd": 438, "kcmp": 312, "process_madvise": 440},
    "kernel": {
        **{"userfaultfd": 323, "bpf": 321, "perf_event_open": 298, "io_uring_setup": 425},
        **{"add_key": 248, "request_key": 249, "keyctl": 250},
        **{"mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "move_mount": 429, "fsopen": 430},
        **{"open_by_handle_at": 304, "init_module": 175, "finit_module": 313, "kexec_load": 246, "reboot": 169, "syslog": 103},
        **{"settimeofday": 164, "adjtimex": 159, "clock_settime": 227, "clock_adjtime": 305},
    },
    "others": {"shmget": 29, "msgget": 68, "semget": 64, "mq_open": 240},
}
"""System calls of x86-64 by purpose."""
IGNORED = {"setsid": 112, "setpgid": 109, "setpriority": 141, "ioprio_set": 251}
"""They succeed and do nothing, because libraries call them: no process leaves the group of its worker, or makes another process slow."""
OWN_THREAD = {"sched_setparam": 142, "sched_setscheduler": 144, "sched_setaffinity": 203, "sched_setattr": 314}
"""The same but for the calling thread, whose number is 0 in the first argument. Libraries also bind other threads to processors."""
OWN_LIMITS = {"prlimit64": 302}
"""Allowed for the calling process, whose number is 0 in the first argument."""
SIGNALS = {"kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "pidfd_send_signal": 424}
SOCKETS = {"socket": 41, "connect": 42, "bind": 49, "listen": 50, "accept": 43, "accept4": 288}


def confine(readable: Iterable[str], folder: str, device: str, *, sockets: bool) -> dict[str, bool]:
    """Take the rights; a second call only forbids sockets. Returns the levels and whether each is had.

    Args:
        readable: files and folders that stay readable, beside those of SYSTEM.
        folder: the only folder that stays writable, beside OWN_PROCESS.
        device: `cpu` or `cuda`.
        sockets: sockets stay allowed: CUDA makes one when it starts.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    privileges = libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    version = max(0, libc.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1))
    files = version > 0 and _landlock(libc, version, readable, (folder, OWN_PROCESS) if device == "cuda" else (folder,))
    capabilities = _drop_capabilities(libc)
    memory = _limit(device)
    signals = files and version >= 6
    numbers = [number for group in FORBIDDEN.values() for number in group.values()]
    own = dict.fromkeys(OWN_LIMITS.values(), 0) | ({} if signals else dict.fromkeys(SIGNALS.values(), os.getpid()))
    calls = _filter(libc, numbers, own, IGNORED.values(), OWN_THREAD.values())
    return {
        "no new privileges": privileges,
        "capabilities dropped": capabilities,
        "files": files,
        "no tracing": files or calls,
        "no signals to others": signals or calls,
        "system calls": calls,
        "network": not sockets and forbid_sockets(),
        "memory limit": memory,
        "processor time limit": True,
    }


def forbid_sockets() -> bool:
    """From now on no thread of this process makes or connects a socket; those that exist stay. False where seccomp is missing."""
    return _filter(ctypes.CDLL(None, use_errno=True), SOCKETS.values())


def _landlock(libc: ctypes.CDLL, version: int, readable: Iterable[str], writable: Iterable[str]) -> bool:
    rights = sum(bits for since, bits in RIGHTS if version >= since)
    # TCP's bind and connect; abstract sockets and signals.
    attributes = struct.pack("QQQ", rights, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = libc.syscall(LANDLOCK_CREATE, attributes, ctypes.c_size_t(size), 0)
    if rules < 0:
        return False
    try:
        for path in (*SYSTEM, *readable):
            _allow(libc, rules, path, rights & READS)
        for pattern in DEVICES:
            for file in Path("/").glob(pattern[1:]):
                _allow(libc, rules, str(file), rights & OF_FILES & ~1)
        for path in writable:
            _allow(libc, rules, path, rights)
        return libc.syscall(LANDLOCK_RESTRICT, rules, 0) == 0
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    """Allow rights beneath a path; a path that does not exist is left out."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                rights &= OF_FILES
            libc.syscall(LANDLOCK_ADD, rules, 1, struct.pack("=Qi", rights, descriptor), 0)
        finally:
            os.close(descriptor)


def _drop_capabilities(libc: ctypes.CDLL) -> bool:
    for capability in range(LAST_CAPABILITY + 1):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # without CAP_SETPCAP there is nothing to drop
    header, none = struct.pack("Ii", CAPABILITY_VERSION, 0), struct.pack("IIIIII", 0, 0, 0, 0, 0, 0)
    return libc.capset(header, none) == 0


def _limit(device: str) -> bool:
    """Limits of core files, processor time and memory. CUDA maps more than there is, so on a GPU memory has no limit."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    if device != "cpu":
        return False
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    return True


def _filter(
    libc: ctypes.CDLL,
    forbidden: Iterable[int],
    own: Mapping[int, int] = NOTHING,
    ignored: Iterable[int] = (),
    own_thread: Iterable[int] = (),
) -> bool:
    """Filter system calls of all threads.

    Args:
        libc: the C library.
        forbidden: calls that fail.
        own: calls that fail unless their first argument is this one.
        ignored: calls that succeed and do nothing.
        own_thread: calls that succeed and do nothing unless their first argument is 0.

    Returns False on another architecture or without seccomp.
    """
    if platform.machine() != "x86_64":
        return False
    refuse, allow = _instruction(RETURN, ERROR | errno.EPERM), _instruction(RETURN, ALLOW)
    program = [
        _instruction(LOAD, 4),  # the architecture
        _instruction(EQUAL, AUDIT_ARCH_X86_64, 1, 0),
        refuse,  # of 32-bit calls, whose numbers differ
        _instruction(LOAD, 0),  # the number of the call
        _instruction(AT_LEAST, X32_CALLS, 0, 1),
        refuse,
    ]
    for number in forbidden:
        program += [_instruction(EQUAL, number, 0, 1), refuse]
    for number in ignored:
        program += [_instruction(EQUAL, number, 0, 1), _instruction(RETURN, ERROR)]
    limited = [(number, argument, refuse) for number, argument in own.items()]
    limited += [(number, 0, _instruction(RETURN, ERROR)) for number in own_thread]
    for number, argument, otherwise in limited:
        program += [_instruction(EQUAL, number, 0, 4), _instruction(LOAD, 16), _instruction(EQUAL, argument, 0, 1), allow, otherwise]
    program.append(allow)
    code = ctypes.create_string_buffer(b"".join(program))
    head = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    return libc.syscall(SECCOMP, SET_FILTER, SYNCHRONIZE, head) == 0


def _instruction(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", operation, if_true, if_false, value & 0xFFFFFFFF)
