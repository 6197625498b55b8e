"""`softbench inspect` on a GPU: generated code and facts of compile, triton and cuda."""

import json

import pytest
from softbench.kernels.cuda import disassemble

from softbench.backends.cuda import backend as cuda
from softbench.backends.torch_compile import backend as compile_backend
from softbench.backends.triton import own

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

M, N = 4096, 1024


def looked_at(cli, name, *more):
    done = cli("inspect", name, "--M", M, "--N", N, "--json", "all.json", "-o", "code", *more, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((cli.folder / "all.json").read_text())
    assert {artifact["name"] for artifact in found["artifacts"]} == {file.name for file in (cli.folder / "code").iterdir()}
    return found, {kind: [a for a in found["artifacts"] if a["kind"] == kind] for kind in {a["kind"] for a in found["artifacts"]}}


def check_launches(found, moved):
    launches = found["launches"]
    assert len(launches) >= 1
    for launch in launches:
        assert len(launch["grid"]) == len(launch["block"]) == 3
        assert 0 < launch["registers"] <= 255
        assert launch["shared_bytes"] >= 0
        assert launch["spilled_bytes"] >= 0
    assert moved <= sum(launch["moved_bytes"] for launch in launches) <= 1.05 * moved  # row statistics may pass through memory


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_compile_shows_inductors_code_and_its_stages(cli, direction):
    if reason := compile_backend.available():
        pytest.skip(reason)
    found, kinds = looked_at(cli, "compile", "--direction", direction)
    assert any("@triton.jit" in artifact["text"] for artifact in kinds["source"])
    assert any("async_compile.triton" in artifact["text"] for artifact in kinds["wrapper"])
    for kind, part in (("ttir", "tt."), ("ttgir", "ttg."), ("llir", "define"), ("ptx", ".entry")):
        assert any(part in artifact["text"] for artifact in kinds[kind]), kind
    if disassemble.cuobjdump():
        assert any("EXIT" in artifact["text"] for artifact in kinds["sass"])
    check_launches(found, (2 if direction == "forward" else 3) * M * N * 4)
    assert dict(found["facts"])["torch.compile"] == "1 graph, 0 graph breaks"


def test_triton_shows_its_kernel_and_every_stage(cli):
    if reason := own.available():
        pytest.skip(reason)
    found, kinds = looked_at(cli, "triton", "--dtype", "bf16")
    assert any("def " in artifact["text"] for artifact in kinds["source"])
    assert {"ttir", "ttgir", "llir", "ptx"} <= set(kinds)
    check_launches(found, 2 * M * N * 2)


@pytest.mark.parametrize("name", ["cuda", "cuda-op"])
def test_cuda_shows_code_and_report_of_launched_kernels(cli, name):
    if reason := cuda.available():
        pytest.skip(reason)
    found, kinds = looked_at(cli, name, "--dtype", "bf16")
    check_launches(found, 2 * M * N * 2)
    [report], launched = kinds["report"], found["launches"][0]["name"]
    assert launched in report["text"]
    assert f"REG {found['launches'][0]['registers']}" in report["text"]
    assert "EXIT" in kinds["sass"][0]["text"]
    assert ".entry" in kinds["ptx"][0]["text"]


def test_a_cuda_graph_shows_its_copy_and_its_kernel(cli):
    found, _ = looked_at(cli, "compile:reduce-overhead")
    names = [launch["name"] for launch in found["launches"]]
    assert any("triton" in name for name in names), names
    assert len(names) >= 2, names  # the graph copies its input into its own memory


def test_library_kernels_have_facts_and_no_code(cli):
    found, kinds = looked_at(cli, "torch")
    assert kinds == {}
    assert len(found["launches"]) == 1
    assert found["launches"][0]["registers"] > 0
