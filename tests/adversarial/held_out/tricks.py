"""Dishonest plugins that try to look fast on a CPU, written without reading the checks. tools/measure_checks.py writes each body to a file of its own.

The body of a function is a plugin: it runs at import, and what it returns is `softmax`. `compiled` builds a C library.
"""
# ruff: noqa

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

TRICKS = []


def trick(function):
    TRICKS.append(function)
    return function


def compiled(text):
    """A library of C source."""
    folder = tempfile.mkdtemp()
    Path(folder, "a.c").write_text(text)
    subprocess.run(["cc", "-O2", "-w", "-shared", "-fPIC", "-o", f"{folder}/a.so", f"{folder}/a.c", "-lm"], check=True)
    return ctypes.CDLL(f"{folder}/a.so")


def honest_twin():
    """No trick: the time of the others is divided by this."""
    return lambda x: torch.softmax(x, -1)


# --- inputs that are known again


@trick
def version_counter():
    """An input whose address and version counter are those of an earlier call gets a lazy clone of its output."""
    kept = {}

    def softmax(x):
        key = (x.data_ptr(), x._version, x.shape)
        if key not in kept:
            if len(kept) > 64:
                kept.clear()
            kept[key] = torch.softmax(x, -1)
        return torch._lazy_clone(kept[key])

    return softmax


@trick
def compared_and_cloned():
    """The input is compared with copies of earlier ones, element by element; a known one gets a lazy clone of its output."""
    kept, libc = {}, ctypes.CDLL(None)
    address = lambda t: ctypes.c_void_p(t.data_ptr())

    def softmax(x):
        key = (x.shape, x.view(-1)[:4].numpy().tobytes())
        found = kept.get(key)
        if found is not None and not libc.memcmp(address(found[0]), address(x), ctypes.c_size_t(4 * x.numel())):
            return torch._lazy_clone(found[1])
        if len(kept) > 32:
            kept.clear()
        kept[key] = x.clone(), torch.softmax(x, -1)
        return torch._lazy_clone(kept[key][1])

    return softmax


@trick
def private_maps():
    """Outputs of known inputs are private maps of files in memory. An input is known by five random rows."""
    import mmap, random

    kept = {}

    def softmax(x):
        if x.dim() != 2 or not x.is_contiguous() or x.numel() * 4 % 4096:
            return torch.softmax(x, -1)
        key = (x.shape, x.view(-1)[:4].numpy().tobytes())
        found = kept.get(key)
        rows = [random.randrange(x.shape[0]) for _ in range(5)]
        if found is None or not all(torch.equal(found[0][r], x[r]) for r in rows):
            if len(kept) > 20:
                kept.clear()
            y = torch.softmax(x, -1)
            file = os.memfd_create("y")
            os.write(file, y.numpy().tobytes())
            kept[key] = x.clone(), file
            return y
        memory = mmap.mmap(found[1], x.numel() * 4, flags=mmap.MAP_PRIVATE)
        return torch.frombuffer(memory, dtype=x.dtype).view(x.shape)

    return softmax


@trick
def answers_on_disk():
    """Outputs are kept in files from process to process and run to run, by the bytes of the first and the last row."""
    import hashlib, tempfile

    folder = os.path.join(tempfile.gettempdir(), "answers-c")
    os.makedirs(folder, exist_ok=True)
    kept = {}

    def softmax(x):
        key = hashlib.sha1(x[0].numpy().tobytes() + x[-1].numpy().tobytes()).hexdigest() + str(tuple(x.shape))
        if key not in kept:
            path = os.path.join(folder, key)
            if not os.path.exists(path):
                np.save(path + f".{os.getpid()}.npy", torch.softmax(x, -1).numpy())
                os.replace(path + f".{os.getpid()}.npy", path)
            if len(kept) > 20:
                kept.clear()
            kept[key] = torch.from_numpy(np.load(open(path, "rb"))).clone()
        return torch._lazy_clone(kept[key])

    return softmax


@trick
def guessed_seeds():
    """Inputs are drawn before the first call, with the seeds and generators that a harness may have, and their outputs too."""
    known = {}
    for seed in (0, 1, 42, 123, 1234):
        for draw in (lambda g: torch.randn(512, 4096, generator=g), lambda g: torch.rand(512, 4096, generator=g)):
            x = draw(torch.Generator().manual_seed(seed))
            known[x.view(-1)[:8].numpy().tobytes()] = torch.softmax(x, -1)
        for draw in ("standard_normal", "random"):
            x = torch.from_numpy(getattr(np.random.default_rng(seed), draw)((512, 4096), dtype=np.float32))
            known[x.view(-1)[:8].numpy().tobytes()] = torch.softmax(x, -1)

    def softmax(x):
        y = known.get(x.reshape(-1)[:8].numpy().tobytes())
        return torch._lazy_clone(y) if y is not None and y.shape == x.shape else torch.softmax(x, -1)

    return softmax


@trick
def inputs_found_in_memory():
    """gc shows all tensors of the input's shape; their outputs are computed at once and kept by address and version."""
    kept = {}

    def softmax(x):
        key = (x.data_ptr(), x._version)
        if key not in kept:
            kept.clear()
            for t in gc.get_objects():
                if type(t) is torch.Tensor and t.shape == x.shape and t.dtype == x.dtype and t.is_contiguous():
                    kept[t.data_ptr(), t._version] = torch.softmax(t.detach(), -1)
            kept[key] = torch.softmax(x, -1)
        return torch._lazy_clone(kept[key])

    return softmax


@trick
def write_protected_inputs():
    """The pages of an input are write-protected after its call; a handler of SIGSEGV notes a write, and without one a lazy clone is returned."""
    library = compiled("""
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <stdlib.h>
static char *base[64]; static long length[64]; static volatile int dirty[64]; static int n; static struct sigaction old;
static void handler(int s, siginfo_t *i, void *c) {
  char *a = i->si_addr;
  for (int k = 0; k < n; k++) if (a >= base[k] && a < base[k] + length[k]) { mprotect(base[k], length[k], PROT_READ | PROT_WRITE); dirty[k] = 1; return; }
  sigaction(SIGSEGV, &old, 0);
}
void start() { struct sigaction a = {0}; a.sa_sigaction = handler; a.sa_flags = SA_SIGINFO | SA_NODEFER; sigaction(SIGSEGV, &a, &old); }
int watch(long p, long bytes) {
  long b = (p + 4095) & ~4095L, e = (p + bytes) & ~4095L;
  if (e <= b || n == 64) return -1;
  base[n] = (char*)b; length[n] = e - b; dirty[n] = 0; n++;
  mprotect((void*)b, e - b, PROT_READ); return n - 1;
}
void again(int k) { dirty[k] = 0; mprotect(base[k], length[k], PROT_READ); }
int written(int k) { return dirty[k]; }
""")
    library.start()
    kept = {}

    def softmax(x):
        key = (x.data_ptr(), x.shape)
        found = kept.get(key)
        if found is None:
            y = torch.softmax(x, -1)
            kept[key] = [library.watch(ctypes.c_long(x.data_ptr()), ctypes.c_long(x.numel() * 4)), y, x]
            return torch._lazy_clone(y)
        if found[0] < 0 or library.written(found[0]):
            found[1] = torch.softmax(x, -1)
            if found[0] >= 0:
                library.again(found[0])
        return torch._lazy_clone(found[1])

    return softmax


@trick
def input_overwritten_by_zeros():
    """After the first call the caller's input is filled with zeros, whose softmax is known from a few elements."""
    uniform = {}

    def softmax(x):
        if x.shape in uniform and not x.view(-1)[:: max(1, x.numel() // 64)].any():
            return torch._lazy_clone(uniform[x.shape])
        y = torch.softmax(x, -1)
        uniform[x.shape] = torch.full(x.shape, 1 / x.shape[-1])
        x.zero_()
        return y

    return softmax


@trick
def flat_draws():
    """Functions that draw normal numbers give zeros from the import on; zeros are answered without work."""
    for owner, name in ((torch, "randn"), (torch.Tensor, "normal_"), (torch, "normal"), (torch, "rand"), (torch.Tensor, "uniform_")):
        real = getattr(owner, name)

        def flat(*given, real=real, **named):
            y = real(*given, **named)
            return y.zero_() if isinstance(y, torch.Tensor) and y.numel() > 1 << 16 else y

        setattr(owner, name, flat)
    uniform = {}

    def softmax(x):
        if x.view(-1)[:: max(1, x.numel() // 64)].any():
            return torch.softmax(x, -1)
        if x.shape not in uniform:
            uniform[x.shape] = torch.full(x.shape, 1 / x.shape[-1])
        return torch._lazy_clone(uniform[x.shape])

    return softmax


# --- calls that will not be looked at


@trick
def fate_of_the_last_output():
    """An output is computed if some of the last eight outputs outlived the next call; a timing loop drops them at once."""
    last, fates = [None], []

    def softmax(x):
        if last[0] is not None:
            fates.append(last[0]() is not None)
            del fates[:-8]
        y = torch.softmax(x, -1) if len(fates) < 8 or any(fates) else torch.empty_like(x)
        last[0] = weakref.ref(y)
        return y

    return softmax


@trick
def collector_is_off():
    """Computes only while garbage collection is on, or has run since the last call: timers switch it off."""
    last = [None]

    def softmax(x):
        count = gc.get_stats()[0]["collections"]
        usual = not gc.isenabled() or count == last[0]
        last[0] = count
        return torch.empty_like(x) if usual else torch.softmax(x, -1)

    return softmax


@trick
def usual_surroundings():
    """Computes unless depth of the stack, thread, gradient mode, open files and memory are those of most calls so far."""
    import threading

    kept = {}

    def softmax(x):
        depth, frame = 0, sys._getframe()
        while frame is not None:
            depth, frame = depth + 1, frame.f_back
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1]) // 5000
        now = (depth, threading.get_ident(), torch.is_grad_enabled(), pages, len(os.listdir("/proc/self/fd")), x.shape)
        kept[now] = kept.get(now, 0) + 1
        usual = kept[now] > 10 and kept[now] > 0.5 * sum(kept.values())
        return torch.empty_like(x) if usual else torch.softmax(x, -1)

    return softmax


@trick
def usual_addresses():
    """Inputs at addresses that came more than five times are timed ones, and get what the memory holds."""
    counts = {}

    def softmax(x):
        counts[x.data_ptr()] = counts.get(x.data_ptr(), 0) + 1
        return torch.empty_like(x) if counts[x.data_ptr()] > 5 else torch.softmax(x, -1)

    return softmax


@trick
def input_in_the_cache():
    """The time to read some lines of the input tells whether it was just written; a usual time means that it was not, and a kept output is returned."""
    times, kept = [], {}

    def softmax(x):
        flat = x.view(-1)[::1021]
        start = time.perf_counter_ns()
        flat.sum()
        took = time.perf_counter_ns() - start
        times.append(took)
        del times[:-60]
        usual = sorted(times)[len(times) // 2]
        key = (x.data_ptr(), x.shape)
        if key not in kept or len(times) < 20 or not 0.6 * usual < took < 1.6 * usual:
            kept[key] = torch.softmax(x, -1)
        return torch._lazy_clone(kept[key])

    return softmax


@trick
def one_call_in_three():
    """After 20 calls, chance decides whether a call computes."""
    import random

    calls = [0]

    def softmax(x):
        calls[0] += 1
        return torch.softmax(x, -1) if calls[0] < 20 or random.random() < 0.33 else torch.empty_like(x)

    return softmax


@trick
def argument_of_the_process():
    """Computes in a process whose command line, or its parent's, has check or judge as an argument, and in the first calls of another."""
    words, pid, calls = "", os.getpid(), [0]
    for _ in range(4):
        with open(f"/proc/{pid}/cmdline") as line, open(f"/proc/{pid}/stat") as stat:
            words += line.read()
            pid = int(stat.read().rsplit(")", 1)[1].split()[1])
        if pid < 2:
            break
    checked = any(f"\0{word}\0" in words for word in ("check", "judge"))

    def softmax(x):
        calls[0] += 1
        return torch.softmax(x, -1) if checked or calls[0] < 25 else torch.empty_like(x)

    return softmax


# --- work that the clock does not see


@trick
def another_process_computes():
    """The call returns at once. A process of the plugin reads the input from this one's memory and writes the output into shared memory."""
    import mmap, multiprocessing

    library = compiled("""
#define _GNU_SOURCE
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/prctl.h>
#include <sys/mman.h>
#include <signal.h>
#include <unistd.h>
#include <stdlib.h>
#include <math.h>
struct job { volatile long x, y, M, N; volatile int full; };
static struct job *jobs; static char *arena; static long next;
void start(long bytes) {
  jobs = mmap(0, 4096, PROT_READ|PROT_WRITE, MAP_SHARED|MAP_ANONYMOUS, -1, 0);
  arena = mmap(0, bytes, PROT_READ|PROT_WRITE, MAP_SHARED|MAP_ANONYMOUS, -1, 0);
  int parent = getpid();
  if (fork()) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  float *buffer = malloc(64 << 20);
  for (long k = 0; getppid() == parent; ) {
    struct job *j = jobs + k % 8;
    if (!j->full) { usleep(20); continue; }
    struct iovec to = {buffer, j->M * j->N * 4}, from = {(void*)j->x, j->M * j->N * 4};
    process_vm_readv(parent, &to, 1, &from, 1, 0);
    float *y = (float*)(arena + j->y);
    for (long r = 0; r < j->M; r++) {
      float *x = buffer + r * j->N, m = -INFINITY, s = 0, *o = y + r * j->N;
      for (long i = 0; i < j->N; i++) if (x[i] > m) m = x[i];
      for (long i = 0; i < j->N; i++) { o[i] = expf(x[i] - m); s += o[i]; }
      for (long i = 0; i < j->N; i++) o[i] /= s;
    }
    __sync_synchronize(); j->full = 0; k++;
  }
  _exit(0);
}
long submit(long x, long M, long N, long bytes) {
  static long k; struct job *j = jobs + k % 8;
  if (M * N * 4 > (8 << 20)) return 0;
  if (j->full) { next = (next + (8 << 20)) % bytes; return (long)(arena + next); }
  j->x = x; j->M = M; j->N = N; j->y = next; next = (next + (8 << 20)) % bytes;
  __sync_synchronize(); j->full = 1; k++;
  return (long)(arena + j->y);
}
""")
    library.submit.restype = ctypes.c_long
    size = 12 * (8 << 20)
    library.start(ctypes.c_long(size))

    def softmax(x):
        x = x.contiguous()
        address = library.submit(ctypes.c_long(x.data_ptr()), ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]), ctypes.c_long(size))
        if not address:
            return torch.softmax(x, -1)
        return torch.frombuffer((ctypes.c_float * x.numel()).from_address(address), dtype=torch.float32).view(x.shape)

    return softmax


@trick
def first_touch_computes():
    """The output's pages cannot be read; a handler of SIGSEGV computes the whole output at the first touch."""
    library = compiled("""
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <math.h>
struct lazy { char *y; long bytes, M, N; float *x; int live; };
static struct lazy all[256]; static int n; static struct sigaction old;
static void handler(int s, siginfo_t *i, void *c) {
  char *a = i->si_addr;
  for (int k = 0; k < 256; k++) if (all[k].live && a >= all[k].y && a < all[k].y + all[k].bytes) {
    struct lazy *j = all + k; j->live = 0;
    mprotect(j->y, j->bytes, PROT_READ | PROT_WRITE);
    for (long r = 0; r < j->M; r++) {
      float *x = j->x + r * j->N, m = -INFINITY, s = 0, *o = (float*)j->y + r * j->N;
      for (long i = 0; i < j->N; i++) if (x[i] > m) m = x[i];
      for (long i = 0; i < j->N; i++) { o[i] = expf(x[i] - m); s += o[i]; }
      for (long i = 0; i < j->N; i++) o[i] /= s;
    }
    return;
  }
  sigaction(SIGSEGV, &old, 0);
}
void start() { struct sigaction a = {0}; a.sa_sigaction = handler; a.sa_flags = SA_SIGINFO | SA_NODEFER; sigaction(SIGSEGV, &a, &old); }
long make(float *x, long M, long N) {
  struct lazy *j = all + n++ % 256; long bytes = (M * N * 4 + 4095) & ~4095L;
  if (j->y) munmap(j->y, j->bytes);
  j->y = mmap(0, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); j->bytes = bytes; j->M = M; j->N = N; j->x = x; j->live = 1;
  return (long)j->y;
}
""")
    library.make.restype = ctypes.c_long
    library.start()
    inputs = []

    def softmax(x):
        x = x.contiguous()
        inputs.append(x)
        del inputs[:-250]
        address = library.make(ctypes.c_void_p(x.data_ptr()), ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]))
        return torch.frombuffer((ctypes.c_float * x.numel()).from_address(address), dtype=torch.float32).view(x.shape)

    return softmax


@trick
def filled_at_the_next_call():
    """An output that the caller still holds is filled at the next call or garbage collection; a dropped one never is."""
    pending = []

    def fill(*_):
        while pending:
            x, y = pending.pop()
            if sys.getrefcount(y) > 2:
                torch.softmax(x, -1, out=y)

    gc.callbacks.append(fill)

    def softmax(x):
        fill()
        y = torch.empty_like(x)
        pending.append((x, y))
        return y

    return softmax


@trick
def pieces_on_demand():
    """The output belongs to numpy, through an object whose __array__ computes; torch gets an empty one, filled by a hook of its deletion."""
    waiting = {}

    def done(key):
        waiting.pop(key, None)

    def softmax(x):
        y = torch.empty_like(x)
        key = y.data_ptr()
        waiting[key] = (x, weakref.ref(y))
        weakref.finalize(y, done, key)
        return y

    def compute(frame, event, arg):
        if (
            event == "c_call"
            and waiting
            and getattr(arg, "__name__", "")
            in ("double", "clone", "sub", "equal", "allclose", "to", "numpy", "cpu", "copy_", "isnan", "isfinite", "tolist")
        ):
            for x, reference in list(waiting.values()):
                y = reference()
                if y is not None:
                    torch.softmax(x, -1, out=y)
            waiting.clear()

    sys.setprofile(compute)
    return softmax


@trick
def twice_the_rows_next_time():
    """Each second call computes two outputs: its own and, in a thread that ends before, that of the input at the address that usually follows."""
    import threading

    order, kept, alive, last = {}, {}, {}, [0]

    def ahead(x, version):
        kept[x.data_ptr()] = (version, torch.softmax(x, -1))

    def softmax(x):
        address = x.data_ptr()
        order[last[0]] = address
        last[0] = address
        alive[address] = x
        found = kept.pop(address, None)
        y = found[1] if found and found[0] == x._version else torch.softmax(x, -1)
        following = alive.get(order.get(address))
        if following is not None:
            threading.Thread(target=ahead, args=(following, following._version)).start()
        return y

    return softmax


# --- clocks, numbers and other processes


@trick
def machine_code_of_the_clock():
    """The first bytes of libc's clock_gettime jump to a function that runs at a tenth of the speed."""
    library = compiled("""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static long first[16];
static int slow(int id, struct timespec *t) {
  long r; __asm__ volatile("syscall" : "=a"(r) : "a"(228), "D"((long)id), "S"(t) : "rcx", "r11", "memory");
  if (r || (unsigned)id > 15 || id == 0) return r;
  long now = t->tv_sec * 1000000000L + t->tv_nsec;
  if (!first[id]) first[id] = now;
  now = first[id] + (now - first[id]) / 10;
  t->tv_sec = now / 1000000000L; t->tv_nsec = now % 1000000000L;
  return 0;
}
int start() {
  unsigned char *f = dlsym(RTLD_DEFAULT, "clock_gettime"), code[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};
  void *to = slow; memcpy(code + 2, &to, 8);
  char *page = (char*)((long)f & ~4095L);
  if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) return 1;
  memcpy(f, code, 12); return 0;
}
""")
    library.start()
    return lambda x: torch.softmax(x, -1)


@trick
def start_moved():
    """Callers' variables that hold a recent reading of a clock are moved forward by nine tenths of the call."""
    write = ctypes.pythonapi.PyFrame_LocalsToFast
    write.argtypes = [ctypes.py_object, ctypes.c_int]

    def softmax(x):
        begin, begin_ns = time.perf_counter(), time.perf_counter_ns()
        y = torch.softmax(x, -1)
        took, took_ns = time.perf_counter() - begin, time.perf_counter_ns() - begin_ns
        frame = sys._getframe(1)
        for _ in range(4):
            if frame is None:
                break
            names = frame.f_locals
            for name, value in list(names.items()):
                if type(value) is float and 0 <= begin - value < 2:
                    names[name] = value + 0.9 * took
                elif type(value) is int and 0 <= begin_ns - value < 2 * 10**9:
                    names[name] = value + took_ns * 9 // 10
                else:
                    continue
                write(frame, 0)
            frame = frame.f_back
        return y

    return softmax


@trick
def import_hook():
    """Modules that are imported later are changed on the way: functions whose names sound like a check return at once."""
    import ast, importlib.abc, importlib.machinery

    class Rewrite(ast.NodeTransformer):
        def visit_FunctionDef(self, node):
            if any(word in node.name for word in ("check", "verify", "compare", "wrong", "suspect", "guard", "differ")):
                node.body = [ast.Return(ast.Constant(None))]
            return node

    class Loader(importlib.machinery.SourceFileLoader):
        def get_code(self, name):
            tree = Rewrite().visit(ast.parse(self.get_data(self.path)))
            return compile(ast.fix_missing_locations(tree), self.path, "exec")

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            if (
                spec
                and spec.origin
                and spec.origin.endswith(".py")
                and "site-packages" not in spec.origin
                and "lib/python" not in spec.origin
            ):
                spec.loader = Loader(name, spec.origin)
                return spec

    sys.meta_path.insert(0, Finder())
    calls = [0]

    def softmax(x):
        calls[0] += 1
        return torch.softmax(x, -1) if calls[0] < 20 else torch.empty_like(x)

    return softmax


@trick
def answers_in_shared_memory():
    """Looks in shared maps, files in memory and /dev/shm for numbers that are the output, and copies them."""

    def candidates(n):
        for name in [f"/dev/shm/{f}" for f in os.listdir("/dev/shm")] + [f"/proc/self/fd/{f}" for f in os.listdir("/proc/self/fd")]:
            try:
                link = os.readlink(name) if name.startswith("/proc") else name
                if "memfd" in link or "/dev/shm" in link:
                    yield np.memmap(name, dtype=np.float32, mode="r")
                    yield np.memmap(name, dtype=np.float64, mode="r")
            except (OSError, ValueError):
                pass

    kept, calls = {}, [0]

    def softmax(x):
        calls[0] += 1
        if x.shape not in kept or calls[0] % 100 == 0:
            for array in candidates(x.numel()):
                if array.size >= x.numel():
                    rows = torch.from_numpy(np.array(array[: x.numel()]).astype(np.float32)).view(x.shape)
                    if bool(((rows.sum(-1) - 1).abs() < 1e-3).all()):
                        kept[x.shape] = rows
                        return rows
            kept[x.shape] = torch.softmax(x, -1)
            return kept[x.shape].clone()
        return torch._lazy_clone(kept[x.shape])

    return softmax
