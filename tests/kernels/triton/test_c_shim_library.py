"""The C functions of packages: their table, and what they ask of torch and of CUDA's driver. Doubles stand in for both."""

import json
import re
import subprocess
import sys
import types
from pathlib import Path

import cards
import pytest
import torch
from card_limits import CARDS, Operand
from sampled import sampled
from softbench.kernels.common.cuda_toolkit import cuda_home
from softbench.kernels.triton import c_shims, generic
from softbench.kernels.triton.c_shims import BuildError, Library, static_launch
from softbench.kernels.triton.grid_exchange import COUNTER_WORDS
from torch._subclasses.fake_tensor import FakeTensorMode

from softbench.core.toolchain import packaging_compiler

pytestmark = [
    pytest.mark.skipif(generic.INTERPRETED, reason="fake tensors and TRITON_INTERPRET=1 do not go together"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: tests/gpu/test_c_shims_gpu.py"),
    pytest.mark.skipif(cuda_home() is None or packaging_compiler() is None, reason="no CUDA toolkit or no C++ compiler"),
]
H200 = next(card for card in CARDS if card.name == "H200")
DOUBLES = Path(__file__).parents[2] / "support" / "c_shim_doubles.cpp"
CLUSTER, SMALL, SPLIT, STAGED = range(4)
LAUNCHES = [((64, 128_256), 2, False), ((1, 1 << 20), 1, True), ((5, 1_000_000), 2, True), ((262_144, 100), 1, False)]
KERNELS = ["backward_cluster", "forward_split", "backward_split", "forward_staged"]
PARAMETERS = [
    ["dy_stride", "y_stride", "dx_stride", "N", "chunk", "stagger_rows", "stagger_cycles"],
    ["x_stride", "y_stride", "N", "ctas", "chunk", "programs", "extra_tiles", "stagger_rows", "stagger_cycles"],
    ["dy_stride", "y_stride", "dx_stride", "N", "ctas", "chunk", "programs", "step", "stagger_rows", "stagger_cycles"],
    ["M", "N", "distance"],
]
"""After the tensors and the workspace; the others are constants."""
each = pytest.mark.parametrize("number", range(4), ids=KERNELS)


def fake(shape, dtype=torch.bfloat16):
    with FakeTensorMode():
        return torch.empty(shape, dtype=dtype, device="cuda")


def prepared(shape, inputs, log):
    """The inputs, the launch and its kernel for an H200. The first of two inputs has rows that are further apart."""
    (M, N), last = shape, fake(shape)
    given = (last,) if inputs == 1 else (fake((M, N + 8)).narrow(1, 0, N), last)
    launch = static_launch(given, log)
    operands = [Operand(torch.bfloat16, 0)] * (inputs + 1) + [Operand(torch.int64, 0)] * (2 if launch.slots else 0)
    return given, launch, cards.compiled(H200, launch.kernel, operands, (*launch.arguments, None), launch.options)


@pytest.fixture(scope="module")
def launches():
    return [prepared(*asked) for asked in LAUNCHES]


@pytest.fixture(scope="module")
def seen(launches, tmp_path_factory):
    """What each call asked for, by its name and the launch's number."""
    folder = tmp_path_factory.mktemp("library")
    library = Library(folder, "shims", packaging_compiler())
    logs = [log for *_, log in LAUNCHES]
    numbers = [library.add(launch, compiled, given, log) for (given, launch, compiled), log in zip(launches, logs, strict=True)]
    assert numbers == [*range(4)]
    includes = [f"-I{path}" for path in (c_shims.SOURCES, cuda_home() / "include", Path(torch.__file__).parent / "include")]
    # The C functions look for the driver in a library of this name; here it is the one that has all of it.
    linked = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", "libcuda.so.1", "-ldl"]
    subprocess.run([packaging_compiler(), "-std=c++20", *includes, str(DOUBLES), "libshims.a", *linked], cwd=folder, check=True)
    for file in folder.glob("*.cubin"):
        file.unlink()  # the library holds them
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).run()"
    command = [sys.executable, "-c", code, str(folder / "libcuda.so.1")]
    found = {}
    for line in map(json.loads, subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()):
        if "call" in line:
            asked = found.setdefault((line["call"], line["launch"]), [])
        asked.append(line)
    return found


def only(lines, name):
    (line,) = [line for line in lines if name in line]
    return line


@each
def test_a_launch_has_the_geometry_of_tritons(number, launches, seen):
    _, launch, compiled = launches[number]
    found, ctas = only(seen["first", number], "kernel"), compiled.metadata.num_ctas
    assert found["kernel"] == KERNELS[number]
    assert found["grid"] == [launch.programs * ctas, 1, 1]
    assert found["threads"] == [32 * compiled.metadata.num_warps, 1, 1]
    assert found["shared"] == compiled.metadata.shared
    spread = 1  # CU_CLUSTER_SCHEDULING_POLICY_SPREAD
    assert found["cluster"] == ([] if ctas == 1 else [ctas, 1, 1, spread])
    assert (found["scratch"], found["extra"]) == ([0, 0], 0)


@each
def test_a_kernel_gets_the_parameters_of_its_ptx_in_order(number, launches, seen):
    _, launch, compiled = launches[number]
    found = only(seen["first", number], "kernel")
    declared = re.search(r"\.entry \w+\((.*?)\)", compiled.asm["ptx"], re.DOTALL).group(1).count(".param")
    assert declared == len(found["operands"]) + len(found["arguments"]) + len(found["scratch"])
    names = launch.kernel.arg_names[len(found["operands"]) :]
    values = dict(zip(names, (*launch.arguments, None), strict=True))
    assert found["arguments"] == [values[name] for name in PARAMETERS[number]]


@each
def test_a_kernel_reads_the_inputs_and_writes_the_result(number, launches, seen):
    shape, inputs, _ = LAUNCHES[number]
    lines = seen["first", number]
    assert lines[0]["strides"][:inputs] == [tensor.stride(0) for tensor in launches[number][0]]
    ended, operands = only(lines, "inputs"), only(lines, "kernel")["operands"]
    assert operands[: inputs + 1] == [*ended["inputs"], ended["result"]]
    result = next(line for line in lines if line.get("address") == ended["result"])
    assert (result["made"], result["dtype"], result["device"]) == ([[shape[0], shape[1]], [shape[1], 1]], 15, [1, 3])
    assert ended["error"] == 0


def workspace_of(lines):
    """The memory that was set, the launch's counter and slots, and what was allocated for them."""
    zeroed, operands = only(lines, "set"), only(lines, "kernel")["operands"]
    made = next(line for line in lines if line.get("address") == zeroed["set"])
    assert zeroed["to"] == 0
    assert zeroed["bytes"] == 8 * made["made"][0][0]
    assert (made["made"][0][1], made["dtype"], made["device"][0]) == (1, 4, 1)
    assert operands[-2:] == [zeroed["set"], zeroed["set"] + 8 * COUNTER_WORDS]
    assert zeroed["stream"] == only(lines, "kernel")["stream"]
    return zeroed, made["device"][1]


def test_a_workspace_is_zeroed_once_for_each_stream_and_device(launches, seen):
    """Launches of a stream share it, so it is large enough for all."""
    words = COUNTER_WORDS + launches[SPLIT][1].slots
    assert launches[SMALL][1].slots < launches[SPLIT][1].slots
    spaces = []
    streams = (("first", 0, 3), ("other stream", 8, 3), ("other device", 8, 4), ("first thread", 2, 3), ("second thread", 2, 3))
    for case, stream, device in streams:
        zeroed, on = workspace_of(seen[case, SMALL])
        assert (zeroed["bytes"], zeroed["stream"], on) == (8 * words, stream, device)
        assert not any("set" in line for line in seen[case, SPLIT])
        assert only(seen[case, SPLIT], "kernel")["operands"][-2:] == [zeroed["set"], zeroed["set"] + 8 * COUNTER_WORDS]
        spaces.append(zeroed["set"])
    assert len(set(spaces)) == len(streams)
    assert only(seen["2 bytes off", SPLIT], "kernel")["operands"][3] == spaces[1]
    assert [only(seen["first", number], "inputs")["kept"] for number in range(4)] == [0, 1, 0, 0]


@pytest.mark.parametrize("number", [SMALL, SPLIT])
def test_a_captured_launch_has_a_workspace_of_its_own(number, launches, seen):
    zeroed, device = workspace_of(seen["captured", number])
    assert device == 3
    assert zeroed["bytes"] == 8 * (COUNTER_WORDS + launches[number][1].slots)
    assert zeroed["set"] not in (only(seen[case, SMALL], "set")["set"] for case in ("first", "other stream"))
    assert only(seen["captured", number], "inputs")["kept"] == 0


@each
def test_unaligned_inputs_are_copied(number, seen):
    for case in ("2 bytes off", "8 bytes off"):
        lines = seen[case, number]
        ended, copies = only(lines, "inputs"), [line for line in lines if "cloned" in line]
        assert [copy["cloned"] for copy in copies] == ended["inputs"]
        assert only(lines, "kernel")["operands"][: len(copies)] == [copy["address"] for copy in copies]
        assert ended["kept"] == 0
    assert not any("cloned" in line for case in ("first", "16 bytes off") for line in seen[case, number])


LAYOUTS = ("more rows", "fewer columns", "other stride", "columns apart", "three dimensions")


@each
@pytest.mark.parametrize("case", LAYOUTS)
def test_another_layout_raises_one_line_and_launches_nothing(case, number, seen):
    (M, N), *_ = LAUNCHES[number]
    if case == "other stride" and M == 1:
        assert only(seen[case, number], "kernel")  # the stride of a single row has no meaning
        return
    lines = seen[case, number]
    assert only(lines, "raised")["raised"].startswith(f"softbench: input 0 of {KERNELS[number]} must have {M} x {N} elements")
    assert only(lines, "raised")["kept"] == 0
    assert not any("kernel" in line for line in lines)


@pytest.mark.parametrize("what", ["rows", "stride", "dtype", "device"])
def test_the_second_input_is_checked_too(what, seen):
    lines = seen[f"second input's {what}", SPLIT]
    assert only(lines, "raised")["raised"].startswith("softbench: input 1 of backward_split must have")
    assert not any("kernel" in line for line in lines)


@each
def test_another_dtype_or_function_raises_one_line(number, seen):
    assert "must have the dtype of the package" in only(seen["other dtype", number], "raised")["raised"]
    refused = "softbench: launch {} is not in the package; compile the graph by AOTInductor inside c_shims()"
    for case in ("other function", "other direction"):
        assert only(seen[case, number], "raised")["raised"] == refused.format(number)
    for missing in (-1, len(LAUNCHES)):
        assert only(seen["no such launch", missing], "raised")["raised"] == refused.format(missing)


@each
def test_failures_name_the_call_and_leak_nothing(number, seen):
    for case, text in (("failing", "cuLaunchKernelEx: the driver says no"), ("without memory", "aoti_torch_empty_strided failed")):
        assert only(seen[case, number], "raised") == {"raised": f"softbench: {text}", "kept": 0}


def test_a_library_that_cannot_be_built_says_why(tmp_path, monkeypatch):
    with pytest.raises(BuildError, match="no-such-compiler does not start"):
        Library(tmp_path, "shims", "no-such-compiler")
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho 'no disk space' >&2\nexit 1\n")
    failing.chmod(0o755)
    with pytest.raises(BuildError, match=r"failing failed:\nno disk space"):
        Library(tmp_path, "shims", str(failing))
    monkeypatch.setattr(c_shims, "cuda_home", lambda: None)
    with pytest.raises(BuildError, match=r"no CUDA toolkit .* CUDA_HOME"):
        Library(tmp_path, "shims", packaging_compiler())


@pytest.mark.parametrize("kind", sampled(["global", "profile"], lambda kind: kind == "global"))
def test_a_kernel_with_scratch_memory_is_refused(kind, launches, tmp_path):
    given, launch, compiled = launches[STAGED]
    asked = types.SimpleNamespace(**{**compiled.metadata._asdict(), f"{kind}_scratch_size": 64})
    with pytest.raises(BuildError, match=r"forward_staged needs scratch memory"):
        Library(tmp_path, "shims", packaging_compiler()).add(launch, types.SimpleNamespace(metadata=asked), given, False)
