"""Our kernels beyond the catalogue: the public functions, autograd, and what the CUDA source compiles to."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from softbench.kernels.common import rows
from softbench.kernels.cuda import build, disassemble

from softbench.core import toolchain

INTERPRETED = """
import torch
from softbench.kernels.triton.{module} import softmax
torch.manual_seed(0)
for shape, dim in (((5, 7), -1), ((2, 3, 4), 1), ((6,), 0), ((), -1), ((0, 3), 1)):
    x = torch.randn(shape, requires_grad=True)
    dy = torch.randn(shape)
    y = softmax(x, dim)
    (dx,) = torch.autograd.grad(y, x, dy)
    z = x.detach().double().requires_grad_()
    expected = torch.softmax(z, dim)
    (slope,) = torch.autograd.grad(expected, z, dy.double())
    assert y.shape == x.shape and torch.allclose(y.double(), expected, atol=1e-6), shape
    assert dx.shape == x.shape and torch.allclose(dx.double(), slope, atol=1e-6), shape
for bad, error in ((lambda: softmax(torch.ones(3, dtype=torch.int32)), TypeError), (lambda: softmax(torch.ones(3), 1), IndexError)):
    try:
        bad()
    except error:
        continue
    raise AssertionError("it was taken")
print("fine")
"""


@pytest.mark.parametrize("module", ["tiers", "row", "tile"])
def test_the_public_functions_take_any_shape_and_dim_and_differentiate(module):
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED.format(module=module)],
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "fine", done.stderr


def test_rows_are_views_where_strides_allow_and_come_back_as_they_were():
    x = torch.randn(4, 5, 6)
    assert rows.as_rows(x, -1).data_ptr() == x.data_ptr()
    wide = torch.randn(4, 128)[:, :100]
    assert rows.as_rows(wide, -1).data_ptr() == wide.data_ptr()
    assert rows.as_rows(wide, -1).stride() == (128, 1)
    for dim in range(3):
        assert torch.equal(rows.from_rows(rows.as_rows(x, dim).contiguous(), x, dim), x)
    assert rows.as_rows(x.t() if x.dim() == 2 else x.transpose(0, 2), -1).stride(-1) == 1


needs_nvcc = pytest.mark.skipif(build.nvcc() is None, reason="no nvcc on this machine")


@needs_nvcc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_100a"])
def test_the_cuda_source_compiles_without_spilling_a_register(tmp_path, architecture):
    command = build.command(build.nvcc(), architecture, tmp_path / "x.fatbin")
    command = [word for word in command if word not in ("-shared", "-Xcompiler", "-fPIC")]
    whole = architecture == "sm_90a" or (os.cpu_count() or 1) >= build.FEW_CORES
    # A minute each: of the others the parts that need most registers, float32 rows, 16-bit rows to float32 and the gradient of 16-bit rows.
    told = ""
    for part in [""] if whole else ["-DSOFTBENCH_PART=0", "-DSOFTBENCH_PART=4", "-DSOFTBENCH_PART=7"]:
        done = subprocess.run([*command, *part.split(), "-fatbin", "-Xptxas", "-v"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert f"for '{architecture}'" in done.stderr
        told += done.stderr
    kernels = told.count("Compiling entry function")
    spills = [line for line in told.splitlines() if "spill stores" in line]
    assert kernels == len(spills) > (300 if whole else 100)  # each tier x its vector counts x (5 pairs of types forward + 3 backward)
    assert all("0 bytes spill stores, 0 bytes spill loads" in line for line in spills)
    for tier in ("lanes_whole", "lanes_odd", "block", "cluster", "split", "wide", "plain", "staged", "warp_row", "warp_rows"):
        assert told.count(f"_ZN9softbench{len(tier)}{tier}I") >= 1, tier


WRITES = re.compile(r"^\s*(?:@!?U?P\w+ )?(\S+) (?:U?P\w+, )*UR(\d+)")


def undefined_descriptors(sass: str) -> list[str]:
    """Copies to shared memory by a uniform register that their function never sets."""
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


def test_a_policy_that_was_never_set_is_seen():
    good = "/*0010*/ ULDC.64 UR4, c[0x0][0x208] ; /* 0x0 */\n/*0020*/ @P0 LDGSTS.E.BYPASS.128 [R33], desc[UR4][R26.64] ; /* 0x0 */\n"
    bad = "/*0010*/ ULDC.64 UR4, c[0x0][0x208] ; /* 0x0 */\n/*0020*/ LDGSTS.E.BYPASS.128 [R33+UR0], desc[UR1][R26.64] ; /* 0x0 */\n"
    assert undefined_descriptors(f"Function : good\n{good}Function : bad\n{bad}") == [
        "bad: LDGSTS.E.BYPASS.128 [R33+UR0], desc[UR1][R26.64]: [0, 1]"
    ]


@needs_nvcc
@pytest.mark.parametrize("architecture", ["sm_90a", "sm_100a"])
def test_copies_to_shared_memory_have_a_policy_that_was_set(tmp_path, architecture):
    """ptxas of CUDA 12.8 to 13.3 takes one that nobody set, for sm_100, where such a copy has a cache hint (memory.cuh)."""
    known = subprocess.run([build.nvcc(), "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout
    if f"compute_{architecture[3:-1]}" not in known:
        pytest.skip(f"this nvcc does not know {architecture}")
    cubin = tmp_path / "x.cubin"
    words = [word for word in build.command(build.nvcc(), architecture, cubin) if word not in ("-shared", "-Xcompiler", "-fPIC")]
    done = subprocess.run([*words, "-DSOFTBENCH_PART=7", "-cubin"], capture_output=True, text=True, check=False)  # 16-bit gradients
    assert done.returncode == 0, done.stderr
    try:
        sass = disassemble.sass(cubin, [name for name in disassemble.resources(cubin) if "5split" in name or "staged" in name])
    except build.BuildError as error:
        pytest.skip(str(error))
    assert sass.count("LDGSTS") >= 4
    assert undefined_descriptors(sass) == []


@needs_nvcc
def test_every_plan_of_the_cuda_rules_holds_its_rows_on_every_kind_of_device(tmp_path):
    """No GPU is asked: `plans.cu` fakes the devices and asks `plan` and `holds`, whose answer to a launch would else be an error."""
    program = tmp_path / "plans"
    command = [build.nvcc(), "-std=c++17", "-O1", "-arch=sm_90a", "-I", str(build.SOURCE.parent), "-o", str(program)]
    made = subprocess.run([*command, str(Path(__file__).with_name("plans.cu"))], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split()[0]) > 1_000_000


@needs_nvcc
def test_a_library_of_parts_is_linked_of_all_of_them(tmp_path, monkeypatch):
    source = tmp_path / "softmax.cu"
    source.write_text(
        "#if SOFTBENCH_PART == 0\n"
        'int other(); extern "C" int softbench_both() { return other() + 1; }\n'
        "#elif SOFTBENCH_PART == 1\n__global__ void nothing() {}\nint other() { return 41; }\n#endif\n"
    )
    monkeypatch.setattr(build, "SOURCE", source)
    monkeypatch.setattr(build, "FEW_CORES", 0)
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path / "cache"))
    assert build.parts() == 2
    assert ctypes.CDLL(str(build.build("sm_90a"))).softbench_both() == 42
    source.write_text(source.read_text().replace("return 41", "return nothing_such"))
    with pytest.raises(build.BuildError, match=r"nvcc failed: .*nothing_such"):
        build.build("sm_90a")


def test_our_own_source_comes_in_as_many_parts_as_it_has_operations():
    assert build.parts() == 8


@needs_nvcc
def test_a_library_is_built_once_and_anew_when_its_source_changes(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "softmax.cu"  # a small one: what ours compiles to is the test above
    source.write_text('__global__ void nothing() {}\nextern "C" void softbench_nothing() { nothing<<<1, 1>>>(); }\n')
    monkeypatch.setattr(build, "SOURCE", source)
    library = build.build("sm_90a")
    assert "building softmax.cu for sm_90a" in capfd.readouterr().err
    assert ctypes.CDLL(str(library)).softbench_nothing
    stamp = library.stat().st_mtime_ns
    assert build.build("sm_90a") == library
    assert library.stat().st_mtime_ns == stamp
    assert capfd.readouterr().err == ""
    source.write_text("int main( {")
    with pytest.raises(build.BuildError, match=r"nvcc failed: .*error.*\(log: "):
        build.build("sm_90a")


def test_the_cache_knows_a_library_by_every_source_and_by_torch(monkeypatch, tmp_path):
    for path in build.sources():
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(build, "SOURCE", tmp_path / "softmax.cu")
    assert len(build.sources()) > 5
    keys = [build._key("/bin/true", "sm_90a")]
    with (tmp_path / "memory.cuh").open("a") as header:
        header.write("// a change\n")
    keys.append(build._key("/bin/true", "sm_90a"))
    monkeypatch.setattr(torch, "__version__", "0.0")
    keys += [build._key("/bin/true", "sm_90a"), build._key("/bin/true", "sm_80")]
    assert len(set(keys)) == 4


def test_a_compiler_from_pips_packages_is_found_where_there_is_no_toolkit(tmp_path, monkeypatch):
    kit = tmp_path / "nvidia" / "cu13"
    (kit / "bin").mkdir(parents=True)
    (kit / "lib").mkdir()
    compiler, runtime = kit / "bin" / "nvcc", kit / "lib" / "libcudart_static.a"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    runtime.touch()
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    monkeypatch.setattr(build, "_packaged_toolkits", lambda: [kit])
    assert build.nvcc() == str(compiler)
    assert f"-L{kit / 'lib'}" in build.command(str(compiler), "sm_90a", tmp_path / "out.so")


def test_doctor_finds_the_compiler_that_the_build_finds(tmp_path, monkeypatch):
    def compiler(*parts):
        path = tmp_path.joinpath(*parts)
        path.parent.mkdir(parents=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return path

    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    older, newer = compiler("nvidia", "cu12", "bin", "nvcc"), compiler("nvidia", "cu13", "bin", "nvcc")
    assert build.nvcc() is not None
    assert build.nvcc() == toolchain.nvcc()
    if list(find_spec("nvidia").submodule_search_locations) == [str(tmp_path / "nvidia")]:  # else there are NVIDIA's own packages, too
        assert build.nvcc() == toolchain.nvcc() == str(newer)
        newer.unlink()
        assert build.nvcc() == toolchain.nvcc() == str(older)
        assert toolchain.cuda_home() in (None, Path("/usr/local/cuda"))
    home = compiler("a toolkit", "bin", "nvcc").parents[1]
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setenv("CUDA_PATH", str(home))
    assert build.nvcc() == toolchain.nvcc() == str(home / "bin" / "nvcc")
    monkeypatch.setenv("CUDA_HOME", str(compiler("another", "bin", "nvcc").parents[1]))
    assert build.nvcc() == toolchain.nvcc() == str(tmp_path / "another" / "bin" / "nvcc")
    monkeypatch.setenv("PATH", str(compiler("on path", "nvcc").parent))
    assert build.nvcc() == toolchain.nvcc() == str(tmp_path / "on path" / "nvcc")


def test_without_a_compiler_the_reason_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
        build.BuildError, match="no nvcc on PATH, under CUDA_HOME or in pip's packages; install the CUDA toolkit or: pip install"
    ):
        build.build("sm_90a")


def test_hopper_and_later_are_compiled_with_their_own_instructions():
    assert [build.architecture_of(c) for c in ((8, 0), (8, 9), (9, 0), (10, 0))] == ["sm_80", "sm_89", "sm_90a", "sm_100a"]
