"""A torch for the CPU that pretends to be one for ROCm, with two of AMD's GPUs. Nothing can be allocated on them.

The answers are those of HIP: a GPU is `cuda`, its compute capability looks like NVIDIA's, and fields of NVIDIA's properties do not exist.
"""

import time
from types import SimpleNamespace

HIP = "6.4.43482"
GPU = SimpleNamespace(
    name="AMD Instinct MI300X",
    total_memory=192 << 30,
    multi_processor_count=304,
    major=9,
    minor=4,
    gcnArchName="gfx942:sramecc+:xnack-",
    L2_cache_size=4 << 20,
)


class Event:
    """An event of HIP's: it takes the time when it is recorded."""

    recorded = 0

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, external=False):
        self.at = 0.0

    def record(self, stream=None):
        Event.recorded += 1
        self.at = time.perf_counter()

    def elapsed_time(self, end):
        return 1e3 * (end.at - self.at)

    def synchronize(self):
        """Nothing runs later."""

    wait = synchronize


def answers():
    """(dotted name in torch, value) of all that a torch for ROCm answers differently."""
    yield "version.hip", HIP
    yield "version.cuda", None
    yield "cuda.is_available", lambda: True
    yield "cuda.device_count", lambda: 2
    yield "cuda.current_device", lambda: 0
    yield "cuda.get_device_name", lambda device=None: GPU.name
    yield "cuda.get_device_capability", lambda device=None: (GPU.major, GPU.minor)
    yield "cuda.get_device_properties", lambda device=None: SimpleNamespace(**vars(GPU), uuid=f"6339656{int(device or 0)}-3033")
    yield "cuda.mem_get_info", lambda device=None: (190 << 30, 192 << 30)
    yield "cuda.synchronize", lambda device=None: None
    yield "cuda.Event", Event


def pretend(torch, patch=setattr):
    """Let this process's torch answer so. `patch` may be `monkeypatch.setattr`."""
    for name, value in answers():
        owner, _, attribute = name.rpartition(".")
        patch(getattr(torch, owner), attribute, value)


class Driver:
    """What Triton's do_bench asks of a driver."""

    def __init__(self, torch):
        self.torch, self.cleared = torch, 0

    def get_device_interface(self):
        return self.torch.cuda

    def get_empty_cache_for_benchmark(self):
        return None

    def clear_cache(self, cache):
        self.cleared += 1
