"""`softbench inspect`: what is generated and launched, in a worker; here without a GPU, or of a GPU's trace."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from softbench.kernels.cuda import build, disassemble

from softbench.backends import torch_eager
from softbench.backends.cuda import backend as cuda
from softbench.backends.torch_compile import backend as compile_backend
from softbench.core.case import Case, Direction
from softbench.core.errors import UsageError
from softbench.core.inspection import KINDS, Artifact, Inspection, Launch
from softbench.core.json import from_json, to_json
from softbench.core.text import harmless
from softbench.report import listing
from softbench.run import inspect
from softbench.worker import code_capture

FORWARD = Case(8, 100, "fp32", Direction.FORWARD, "cpu")

EVENTS = [
    {"cat": "kernel", "name": "second", "ts": 9, "args": {"grid": [1, 1, 1], "block": [32, 1, 1]}},
    {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1},
    {
        "cat": "kernel",
        "name": "first",
        "ts": 2,
        "args": {"grid": [4096, 1, 1], "block": [256, 1, 1], "registers per thread": 32, "shared memory": 1024},
    },
    {"cat": "gpu_memcpy", "name": "Memcpy DtoD", "ts": 5, "args": {"bytes": 640}},
]


def test_a_trace_gives_kernels_copies_and_fills_in_their_order():
    first, copied, second = code_capture.launches_of(EVENTS)
    assert first == Launch("first", (4096, 1, 1), (256, 1, 1), registers=32, shared_bytes=1024)
    assert (copied.name, copied.moved_bytes, copied.counted_by) == ("Memcpy DtoD", 640, "CUDA")
    assert (second.name, second.registers) == ("second", None)


def compiled_kernel(name, warps, spills=0, **stages):
    source = SimpleNamespace(fn=SimpleNamespace(raw_src=[f"def {name}():\n", "    pass\n"]))
    about = {"metadata": SimpleNamespace(num_warps=warps, shared=128), "n_regs": 32, "n_spills": spills}
    return SimpleNamespace(name=name, src=source, asm=stages, _init_handles=lambda: None, **about)


def test_of_several_autotuned_kernels_the_launched_one_is_told():
    tried = compiled_kernel("first", 4)
    seen = code_capture.Seen(kernels=[tried, compiled_kernel("first", 8, spills=3, ttir="module {}"), compiled_kernel("x", 8)])
    launches, artifacts = code_capture._triton(seen, code_capture.launches_of(EVENTS))
    assert (launches[0].spilled_bytes, launches[0].shared_bytes) == (12, 1024)  # CUPTI counts what is static, too
    assert [(artifact.name, artifact.kind) for artifact in artifacts] == [("first.py", "source"), ("first.ttir", "ttir")]
    assert artifacts[0].text == "def first():\n    pass\n"
    assert launches[2].spilled_bytes is None


def test_bytes_are_of_inductor_or_algorithmic_for_one_kernel():
    module = "first = async_compile.triton('first', '''x''')\nother = async_compile.triton('other', '''y''')\n"
    seen = code_capture.Seen(modules=[module], counts=[[100, 200]])
    launches = code_capture._with_bytes([Launch("first"), Launch("other")], seen, FORWARD)
    assert [(launch.moved_bytes, launch.counted_by) for launch in launches] == [(100, "Inductor"), (200, "Inductor")]
    apart = code_capture.Seen(modules=[module], counts=[[100]])
    assert [launch.moved_bytes for launch in code_capture._with_bytes([Launch("first"), Launch("other")], apart, FORWARD)] == [None, None]
    [lone] = code_capture._with_bytes([Launch("mine")], apart, FORWARD)
    assert (lone.moved_bytes, lone.counted_by) == (2 * 8 * 100 * 4, "algorithmic")
    assert [artifact.name for artifact in code_capture._inductor(seen)] == ["inductor-0.py", "first.py", "other.py"]


@pytest.mark.slow
def test_inductors_code_is_seen_although_it_is_cached():
    if reason := compile_backend.available():
        pytest.skip(reason)
    for _ in range(2):
        found = code_capture.inspect(compile_backend, FORWARD, 0)
        facts = dict(found.facts)
        assert facts["algorithmic bytes"] == "6400 (6.25 KiB)"
        assert facts["torch.compile"].endswith("0 graph breaks")  # how many graphs, other tests of this process have their part in
        assert "bytes by Inductor" in facts
        cpp = next(artifact for artifact in found.artifacts if artifact.language == "cpp")
        assert cpp.kind == "source"
        assert "at::vec" in cpp.text
        assert any(artifact.kind == "wrapper" and "async_compile" in artifact.text for artifact in found.artifacts)


def test_an_inspection_survives_json_and_a_hostile_one_is_refused():
    found = Inspection((("backend", "x"),), (Launch("k", (1, 2), (3,)),), (Artifact("k.ptx", "ptx", "gas", ".entry"),))
    assert from_json(Inspection, json.loads(json.dumps(found.document()))) == found
    for name, kind in (("../k.ptx", "ptx"), ("..", "ptx"), ("", "ptx"), ("k.ptx\n", "gift"), ("k.ptx", "gift"), ("k.ptx", "ptx\n")):
        with pytest.raises(ValueError, match=r"at `\$\.artifacts"):
            from_json(Inspection, Inspection((), (), (Artifact(name, kind, "gas", ""),)).document())


def test_generated_code_is_cleaned_and_invalid_values_are_refused():
    def inspected(answer):
        backend = SimpleNamespace(name="b", prepare=lambda case: torch.relu, generated=lambda *_: answer)
        return code_capture.inspect(backend, FORWARD, 0)

    found = from_json(
        Inspection, harmless(json.loads(json.dumps(to_json(inspected(([("a\x1b[2J.ptx", "ptx", "gas", "one\x1b[31m\n\ttwo")], {}))))))
    )
    assert found.artifacts == (Artifact("a .ptx", "ptx", "gas", "one \n\ttwo"),)
    for odd in (5, None, [1, 2], ([("a.ptx", "ptx")], {}), ([], {"kernel": "many"})):
        with pytest.raises(TypeError, match=r"generated\(\) returned .*, not \(\[\(name, kind, language, text\)"):
            inspected(odd)
    wrong = Inspection((), (Launch("k", moved_bytes="much"),), ()).document()
    with pytest.raises(ValueError, match="moved_bytes"):
        from_json(Inspection, wrong)


def test_the_kinds_that_are_shown_are_those_asked_for(capsys):
    from rich.console import Console

    found = Inspection(
        (("backend", "mine"),),
        (Launch("k", (4096,), (256,), 32, 0, 1024, 2048, "algorithmic"), Launch("unknown")),
        (Artifact("k.py", "source", "python", "def k(): pass\n"), Artifact("k.ptx", "ptx", "gas", ".entry k\n")),
    )
    console = Console(width=120)
    console.print(listing.inspection(found, inspect.kinds("source"), color=False))
    shown = capsys.readouterr().out
    assert "def k(): pass" in shown
    assert ".entry" not in shown
    assert "2 KiB (algorithmic)" in shown
    assert listing.others(inspect.left_out(found, ("source",))) == (
        "not shown: k.ptx (1 line); show them with --show all, or write files with -o DIR"
    )
    assert inspect.kinds("all") == KINDS
    with pytest.raises(UsageError, match="--show: unknown kind 'asm'; known are source, wrapper, ttir"):
        inspect.kinds("asm")


@pytest.mark.slow
def test_the_command_writes_files_and_shows_code(cli):
    if reason := compile_backend.available():
        pytest.skip(reason)
    done = cli("inspect", "compile", "--M", 8, "--N", 100, "--device", "cpu", "-o", "code")
    assert done.returncode == 0, done.stderr
    assert "compile, forward-fp32-8x100 on the CPU" in done.stdout
    assert 'extern "C"' in done.stdout
    assert not any(line != line.rstrip() for line in done.stdout.splitlines() if "auto tmp" in line)  # code in a log is not padded
    assert {file.name for file in (cli.folder / "code").iterdir()} == {"inductor-0.py", "inductor-0-0.cpp"}


@pytest.mark.slow
def test_a_backend_that_crashes_is_one_clear_line(cli, plugins):
    crash = cli("inspect", "dies-by-sigsegv", "--plugin", plugins / "faulty" / "faults.py", "--M", 4, "--N", 8, "--device", "cpu")
    assert crash.returncode == 1
    assert re.fullmatch(r"softbench: dies-by-sigsegv: crashed \(SIGSEGV\) in inspect: in <lambda>, faults\.py:\d+: .*\n", crash.stderr)


def test_where_nothing_is_generated_that_is_said():
    found = code_capture.inspect(torch_eager.backend, FORWARD, 0)
    assert dict(found.facts)["generated code"].startswith("none: what is called was compiled before")
    assert found.artifacts == ()


SOURCE = """
template <typename T> __global__ void doubled(T* x) { x[threadIdx.x] *= 2; }
template __global__ void doubled<float>(float*);
template __global__ void doubled<double>(double*);
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Has the source, and the library once it is built."""
    found = tmp_path_factory.mktemp("library")
    (found / "softmax.cu").write_text(SOURCE)
    return found


@pytest.fixture
def library(monkeypatch, folder):
    if build.nvcc() is None or disassemble.cuobjdump() is None:
        pytest.skip(f"nvcc: {build.nvcc()}, cuobjdump: {disassemble.cuobjdump()}")
    monkeypatch.setattr(build, "SOURCE", folder / "softmax.cu")
    monkeypatch.setenv("SOFTBENCH_CACHE", str(folder / "cache"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    return build.build("sm_90a")


@pytest.mark.slow
def test_the_cuda_library_is_looked_into_for_what_was_launched(library):
    pieces, spills = cuda.generated(FORWARD, ["void doubled<float>(float*)", "elsewhere"])
    assert spills == {"void doubled<float>(float*)": 0}
    by_kind = {artifact.kind: artifact.text for artifact in (Artifact(*piece) for piece in pieces)}
    assert set(by_kind) == {"report", "sass", "ptx"}
    assert "REG " in by_kind["report"]
    assert "doubledIfE" in by_kind["sass"]
    assert "FMUL" in by_kind["sass"] or "FADD" in by_kind["sass"]
    assert by_kind["ptx"].count(".entry") == 1
    assert "doubledIfE" in by_kind["ptx"]
    none, _ = cuda.generated(FORWARD, ["elsewhere"])
    assert none == [("softmax.txt", "report", "text", "none of the library's kernels was launched\n")]


def test_without_a_disassembler_the_report_says_what_to_install(library, monkeypatch):
    monkeypatch.setattr(disassemble, "cuobjdump", lambda: None)
    [piece], spills = cuda.generated(FORWARD, [])
    assert "install the CUDA toolkit" in piece[3]
    assert spills == {}
