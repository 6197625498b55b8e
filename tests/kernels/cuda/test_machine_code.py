"""The machine code that nvcc makes of softmax.cu and of the losses."""

import functools
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from cards import illegal_copies
from ptx import exponents
from simulated import needs_cuobjdump, needs_nvcc
from softbench.kernels.cuda import build, disassemble

KERNELS = ("sub_warp_aligned", "sub_warp_unaligned", "staged", "block", "cluster", "bulk", "split", "generic", "by_column")


def few_cores():
    return (os.cpu_count() or 1) < build.FEW_CORES


WIDE = {"sm_80": ("softmax", 4), "sm_90a": ("scaled_softmax", 4), "sm_100a": ("scaled_softmax", 2)}
"""For each architecture a part with 16-bit rows and float32 results."""
FLOAT32, LOG = ("scaled_softmax", 0), ("log_softmax", 5)
LACKING = {part: {"staged"} for part in WIDE.values()}
"""The kernels that these parts do not have."""


def parts(architecture):
    """The functions and parts of softmax.cu to compile: all, which takes seven minutes of a core.

    A machine of few cores compiles a part that has all kernels, float32 rows of scaled softmax, and elsewhere gradients of log_softmax.
    Tests with the mark slow compile the other architectures there.
    """
    if not few_cores():
        return [(function, part) for function in build.FUNCTIONS for part in range(build.parts())]
    return [FLOAT32] if architecture == "sm_90a" else [LOG]


def matrix():
    """Architectures and their parts. On a machine of few cores, where a part takes ten seconds, all are slow."""
    if not few_cores():
        return [(name, parts(name)) for name in WIDE]
    others = [
        ("sm_100a", LOG),
        ("sm_90a", WIDE["sm_90a"]),
        ("sm_80", FLOAT32),
        ("sm_80", WIDE["sm_80"]),
        ("sm_100a", FLOAT32),
        ("sm_100a", WIDE["sm_100a"]),
    ]
    given = [("sm_90a", parts("sm_90a")), *((name, [part]) for name, part in others)]
    return [pytest.param(*one, marks=pytest.mark.slow) for one in given]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """`compiled(architecture, function, part)`: the cubin of a part of a function's source and ptxas's report; made once.

    The PTX lies beside the cubin.
    """

    folder = tmp_path_factory.mktemp("cubin")

    @functools.cache
    def compile_part(architecture, function, part):
        cubin = folder / f"{architecture}-{function}-{part}.cubin"
        words = [
            word for word in build.command(build.nvcc(), architecture, cubin, function) if word not in ("-shared", "-Xcompiler", "-fPIC")
        ]
        kept = cubin.with_suffix("")
        kept.mkdir()
        words += [f"-DSOFTBENCH_PART={part}", "-cubin", "-Xptxas", "-v", "-keep", "-keep-dir", str(kept)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert f"for '{architecture}'" in done.stderr
        (ptx,) = kept.glob("*.ptx")
        ptx.rename(cubin.with_suffix(".ptx"))
        shutil.rmtree(kept)
        return cubin, done.stderr

    return compile_part


def unspilled(compiled, architecture, given):
    """ptxas's report on these parts, and the number of their kernels, of which none may spill a register."""
    with ThreadPoolExecutor(1 if few_cores() else os.cpu_count()) as pool:
        report = "".join(pool.map(lambda part: compiled(architecture, *part)[1], given))
    spills = [line for line in report.splitlines() if "spill stores" in line]
    assert report.count("Compiling entry function") == len(spills)
    assert all("0 bytes spill stores, 0 bytes spill loads" in line for line in spills)
    return report, len(spills)


def lacking(report, kernels):
    return {kernel for kernel in kernels if f"_ZN9softbench{len(kernel)}{kernel}I" not in report}


@needs_nvcc
@pytest.mark.parametrize(("architecture", "given"), matrix())
def test_no_kernel_spills_a_register(compiled, architecture, given):
    report, kernels = unspilled(compiled, architecture, given)
    assert kernels > (60 if few_cores() else 900)  # tiers x variants x (5 pairs of dtypes forward, 5 backward) x functions
    assert lacking(report, KERNELS) <= (LACKING.get(given[0], set()) if len(given) == 1 else set())


LOSS_KERNELS = (*(kernel for kernel in KERNELS if kernel not in ("sub_warp_aligned", "staged")), "row_statistics")


ON_FEW_CORES_SLOW = [pytest.param("sm_90a", marks=pytest.mark.slow)] if few_cores() else ["sm_80", "sm_90a", "sm_100a"]
"""Architectures. On a machine of few cores other tests compile a part of each source."""


def loss_parts():
    """The functions and parts of the losses to compile. On a machine of few cores, those without the tiers."""
    if few_cores():
        return [("cross_entropy", 3), ("logprob", 0)]
    return [("logprob", 0), *(("cross_entropy", part) for part in range(build.parts("cross_entropy")))]


@needs_nvcc
@pytest.mark.parametrize("architecture", ON_FEW_CORES_SLOW)
def test_no_kernel_of_a_loss_spills_a_register(compiled, architecture):
    report, kernels = unspilled(compiled, architecture, loss_parts())
    assert kernels > (50 if few_cores() else 250)
    assert lacking(report, LOSS_KERNELS[-1:] if few_cores() else LOSS_KERNELS) == set()


WRITES = re.compile(r"^\s*(?:@!?U?P\w+ )?(\S+) (?:U?P\w+, )*UR(\d+)")


def undefined_descriptors(sass: str) -> list[str]:
    """The copies to shared memory whose policy register their function never sets."""
    found = []
    for function in sass.split("Function : ")[1:]:
        code = [line.split("*/", 1)[1].split(";")[0] for line in function.splitlines() if line.lstrip().startswith("/*") and ";" in line]
        written: set[int] = set()
        for operation, number in (match.groups() for match in map(WRITES.match, code) if match):
            written |= set(range(int(number), int(number) + (4 if ".128" in operation else 2)))
        for line in code:
            if "LDGSTS" in line and (lost := {int(number) for number in re.findall(r"UR(\d+)", line)} - written):
                found.append(f"{function.splitlines()[0]}: {line.strip()}: {sorted(lost)}")
    return found


def test_undefined_descriptors_are_found_in_sass():
    good = "/*0010*/ ULDC.64 UR4, c[0x0][0x208] ; /* 0x0 */\n/*0020*/ @P0 LDGSTS.E.BYPASS.128 [R33], desc[UR4][R26.64] ; /* 0x0 */\n"
    bad = "/*0010*/ ULDC.64 UR4, c[0x0][0x208] ; /* 0x0 */\n/*0020*/ LDGSTS.E.BYPASS.128 [R33+UR0], desc[UR1][R26.64] ; /* 0x0 */\n"
    assert undefined_descriptors(f"Function : good\n{good}Function : bad\n{bad}") == [
        "bad: LDGSTS.E.BYPASS.128 [R33+UR0], desc[UR1][R26.64]: [0, 1]"
    ]


@pytest.mark.slow
@needs_nvcc
@needs_cuobjdump
@pytest.mark.parametrize("architecture", ["sm_90a", pytest.param("sm_100a", marks=pytest.mark.slow) if few_cores() else "sm_100a"])
def test_copies_to_shared_memory_have_a_defined_policy(compiled, architecture):
    """ptxas of CUDA 12.8 to 13.3 for sm_100 gives a copy with a hint a policy register that it never sets (async_copy.cuh)."""
    known = subprocess.run([build.nvcc(), "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout
    if f"compute_{architecture[3:-1]}" not in known:
        pytest.skip(f"this nvcc does not know {architecture}")
    cubin, _ = compiled(architecture, *(parts(architecture)[0] if few_cores() else ("softmax", 7)))  # 7: the gradient of 16-bit rows
    kernels = [name for name in disassemble.resources(cubin) if "5split" in name or "6staged" in name]
    sass = disassemble.sass(cubin, kernels[:: 3 if few_cores() else 1])  # disassembling all takes twelve seconds there
    assert sass.count("LDGSTS") >= 4
    assert undefined_descriptors(sass) == []
    assert illegal_copies(sass) == 0


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize(
    ("architecture", "function", "part"),
    [("sm_90a", *WIDE["sm_90a"]), ("sm_100a", *LOG), ("sm_90a", *FLOAT32), ("sm_90a", "softmax", 3)],
)
def test_no_exponent_is_contracted(compiled, architecture, function, part):
    """exp2(x * log2 e - m * log2 e) in one multiply-add rounds m * log2 e, which no bound of the class pass allows."""
    cubin, _ = compiled(architecture, function, part)
    made = exponents(cubin.with_suffix(".ptx").read_text())
    assert len(made) > 1000
    assert {*made} == {"mul.f32"}


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize(("function", "part"), [("logprob", 0), ("cross_entropy", 3)])
def test_exponents_of_losses_are_not_contracted(compiled, function, part):
    cubin, _ = compiled("sm_90a", function, part)
    assert {*exponents(cubin.with_suffix(".ptx").read_text())} == {"mul.f32"}


@pytest.mark.parametrize("function", build.ALL)
def test_contraction_is_stated_for_nvcc(function, tmp_path):
    assert [word for word in build.command("nvcc", "sm_90a", tmp_path, function) if word.startswith("-fmad")] == ["-fmad=true"]
