"""The C functions of packages: their table, and what they ask of torch and of CUDA's driver. Doubles stand in for both."""

import json
import re
import subprocess
from pathlib import Path

import cards
import pytest
import torch
from card_compiler import Operand
from card_limits import CARDS
from softbench.kernels.common.cuda_toolkit import cuda_home
from softbench.kernels.triton import c_shim_library, generic
from softbench.kernels.triton.c_shim_library import BuildError, Library, arguments_of
from softbench.kernels.triton.static_launch import static_launch
from softbench.kernels.triton.workspace import COUNTER_WORDS
from torch._subclasses.fake_tensor import FakeTensorMode

from softbench.core.toolchain import packaging_compiler

pytestmark = [
    pytest.mark.skipif(generic.INTERPRETED, reason="fake tensors and TRITON_INTERPRET=1 do not go together"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: tests/gpu/test_c_shims_gpu.py"),
    pytest.mark.skipif(cuda_home() is None or packaging_compiler() is None, reason="no CUDA toolkit or no C++ compiler"),
]
H200 = next(card for card in CARDS if card.name == "H200")
DOUBLES = Path(__file__).parents[2] / "support" / "c_shim_doubles.cpp"
CLUSTER, SPLIT, STAGED = 0, 1, 2
LAUNCHES = [((64, 128_256), 1), ((2, 1_000_000), 2), ((262_144, 100), 1)]
CASES = ("first", "other stream", "odd address", "captured", "more rows", "failing")


def fake(shape, dtype=torch.bfloat16):
    with FakeTensorMode():
        return torch.empty(shape, dtype=dtype, device="cuda")


def prepared(shape, inputs):
    """The inputs, the launch and its kernel for an H200."""
    given = (fake(shape),) * inputs
    launch = static_launch(given)
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
    assert [library.add(launch, compiled, given) for given, launch, compiled in launches] == [CLUSTER, SPLIT, STAGED]
    includes = [f"-I{path}" for path in (c_shim_library.SOURCES, cuda_home() / "include", Path(torch.__file__).parent / "include")]
    command = [packaging_compiler(), "-std=c++17", *includes, str(DOUBLES), "libshims.a", "-o", "doubles"]
    subprocess.run(command, cwd=folder, check=True)
    for file in folder.glob("*.cubin"):
        file.unlink()  # the library holds them
    lines = subprocess.run([folder / "doubles"], check=True, capture_output=True, text=True).stdout.splitlines()
    found = {}
    for line in map(json.loads, lines):
        if "call" in line:
            asked = found.setdefault((line["call"], line["launch"]), [])
        asked.append(line)
    return found


def only(lines, name):
    (line,) = [line for line in lines if name in line]
    return line


def test_the_launches_are_of_all_tiers(launches):
    assert [launch.kernel.__name__ for _, launch, _ in launches] == ["forward_cluster", "backward_split", "forward_staged"]


@pytest.mark.parametrize("number", [CLUSTER, SPLIT, STAGED])
def test_a_launch_has_the_geometry_of_tritons(number, launches, seen):
    _, launch, compiled = launches[number]
    found = only(seen["first", number], "kernel")
    assert found["kernel"] == launch.kernel.__name__
    assert found["grid"] == launch.programs * compiled.metadata.num_ctas
    assert found["threads"] == 32 * compiled.metadata.num_warps
    assert found["shared"] == compiled.metadata.shared
    assert found["cluster"] == ([] if compiled.metadata.num_ctas == 1 else [compiled.metadata.num_ctas])
    assert (found["scratch"], found["extra"]) == ([0, 0], 0)


@pytest.mark.parametrize("number", [CLUSTER, SPLIT, STAGED])
def test_a_kernel_gets_as_many_parameters_as_it_has(number, launches, seen):
    _, launch, compiled = launches[number]
    found = only(seen["first", number], "kernel")
    assert found["arguments"] == arguments_of(launch, compiled)
    declared = re.search(r"\.entry \w+\((.*?)\)", compiled.asm["ptx"], re.DOTALL).group(1).count(".param")
    assert declared == len(found["operands"]) + len(found["arguments"]) + len(found["scratch"])


@pytest.mark.parametrize("number", [CLUSTER, SPLIT, STAGED])
def test_a_kernel_reads_the_inputs_and_writes_the_result(number, launches, seen):
    (shape, inputs) = LAUNCHES[number]
    lines = seen["first", number]
    ended, operands = only(lines, "inputs"), only(lines, "kernel")["operands"]
    assert operands[: inputs + 1] == [*ended["inputs"], ended["result"]]
    result = next(line for line in lines if line.get("address") == ended["result"])
    assert (result["made"], result["dtype"], result["device"]) == ([[shape[0], shape[1]], [shape[1], 1]], 15, [1, 3])
    assert ended["error"] == 0


def test_a_workspace_is_zeroed_once_for_each_stream(launches, seen):
    words = COUNTER_WORDS + launches[SPLIT][1].slots
    spaces = []
    for case, stream in (("first", 0), ("other stream", 8)):
        zeroed, launched = only(seen[case, SPLIT], "set"), only(seen[case, SPLIT], "kernel")
        assert (zeroed["to"], zeroed["bytes"], zeroed["stream"]) == (0, 8 * words, stream)
        assert launched["operands"][3:] == [zeroed["set"], zeroed["set"] + 8 * COUNTER_WORDS]
        assert launched["stream"] == stream
        spaces.append(zeroed["set"])
    assert len(set(spaces)) == 2
    again = seen["odd address", SPLIT]
    assert not [line for line in again if "set" in line]
    assert only(again, "kernel")["operands"][3] == spaces[1]
    assert [only(seen["first", number], "inputs")["kept"] for number in (CLUSTER, SPLIT, STAGED)] == [0, 1, 0]


def test_a_captured_launch_has_a_workspace_of_its_own(seen):
    lines = seen["captured", SPLIT]
    zeroed = only(lines, "set")
    assert zeroed["set"] not in (only(seen[case, SPLIT], "set")["set"] for case in ("first", "other stream"))
    assert only(lines, "kernel")["operands"][3] == zeroed["set"]
    assert only(lines, "inputs")["kept"] == 0


@pytest.mark.parametrize("number", [CLUSTER, SPLIT, STAGED])
def test_inputs_at_odd_addresses_are_copied(number, seen):
    lines = seen["odd address", number]
    ended, copies = only(lines, "inputs"), [line for line in lines if "cloned" in line]
    assert [copy["cloned"] for copy in copies] == ended["inputs"]
    assert only(lines, "kernel")["operands"][: len(copies)] == [copy["address"] for copy in copies]
    assert ended["kept"] == 0
    assert not any("cloned" in line for line in seen["first", number])


@pytest.mark.parametrize("number", [CLUSTER, SPLIT, STAGED])
def test_other_sizes_and_failures_raise_one_line_and_leak_nothing(number, seen):
    (M, N), _ = LAUNCHES[number]
    assert only(seen["more rows", number], "raised")["raised"].startswith(
        f"softbench: input 0 of {'backward' if number == SPLIT else 'forward'}"
    )
    assert f" {M} x {N} elements" in only(seen["more rows", number], "raised")["raised"]
    assert only(seen["failing", number], "raised")["raised"] == "softbench: cuLaunchKernelEx: the driver says no"
    assert only(seen["failing", number], "raised")["kept"] == only(seen["more rows", number], "raised")["kept"] == 0
    for missing in (-1, len(LAUNCHES)):
        assert only(seen["no such launch", missing], "raised")["raised"] == f"softbench: no launch {missing} in the package"


def test_modules_are_loaded_once_with_the_attributes_they_need(seen):
    attributes = {
        number: {line["attribute"]: line["value"] for line in seen["first", number] if "attribute" in line} for number in range(3)
    }
    assert attributes[CLUSTER] == {14: 1}  # clusters of 16 CTAs are not portable
    assert attributes[STAGED].keys() == {9}  # the carveout
    assert 9 in attributes[SPLIT]
    assert [line for line in seen["no such launch", -1] if "module_loads" in line] == [{"module_loads": len(LAUNCHES)}]


def test_a_library_that_cannot_be_built_says_why(tmp_path, monkeypatch):
    with pytest.raises(BuildError, match="no-such-compiler does not start"):
        Library(tmp_path, "shims", "no-such-compiler")
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho 'no disk space' >&2\nexit 1\n")
    failing.chmod(0o755)
    with pytest.raises(BuildError, match=r"failing failed:\nno disk space"):
        Library(tmp_path, "shims", str(failing))
    monkeypatch.setattr(c_shim_library, "cuda_home", lambda: None)
    with pytest.raises(BuildError, match=r"no CUDA toolkit .* CUDA_HOME"):
        Library(tmp_path, "shims", packaging_compiler())
