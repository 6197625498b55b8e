"""Every strategy on a GPU, where its package is: right within the bounds, within the limits that are stated."""

import csv

import pytest
import torch

from softbench.backends import cudnn, torch_compile, torchscript_fx
from softbench.backends.liger import backend as liger
from softbench.backends.peers import flaggems
from softbench.backends.quack import backend as quack
from softbench.core.case import OPERATION, Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.registry import numerics, operation
from softbench.plugins.traits import unsupported
from softbench.worker.checking.output_checks import breach, forms

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

VARIANTS = {backend.name: backend for backend in torch_compile.inductor}
NARROW = (Grade.PASS, Grade.LOW_PRECISION)
operations = pytest.mark.parametrize("op", ["softmax", "log_softmax"])


def graded(backend, M, N, dtype, direction, op=OPERATION):
    """The grade against float64, of the second of two calls; the inputs are compared with copies of them."""
    if reason := backend.available():
        pytest.skip(reason)
    case = Case(M, N, dtype, direction, op=op)
    if reason := unsupported(backend, case):
        pytest.skip(reason)
    given = numerics(op).make(case, 0, torch.device("cuda"))
    kept = tuple(tensor.detach().clone() for tensor in given)
    call = backend.prepare(case)
    call(*given)
    out = call(*given)
    torch.cuda.synchronize()
    results = out if direction is Direction.BOTH else (out,)
    assert breach(given, kept, results, forms(case)) == ""
    accuracy = numerics(op).check(case, given, results)
    return accuracy.grade, accuracy.detail


@operations
@pytest.mark.parametrize("direction", operation("softmax").directions)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("M", "N"), [(37, 8), (512, 781), (37, 4096), (5, 50257)])
def test_cudnn_is_right(M, N, dtype, direction, op):
    grade, detail = graded(cudnn.backend, M, N, dtype, direction, op)
    assert grade in (NARROW if dtype != "fp32" else (Grade.PASS,)), detail


def test_cudnn_uses_the_torch_stream_and_refuses_large_cases():
    if reason := cudnn.backend.available():
        pytest.skip(reason)
    case, stream = Case(64, 1000, "fp32", Direction.FORWARD), torch.cuda.Stream()
    call, x = cudnn.backend.prepare(case), torch.randn(64, 1000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)  # what follows on this stream must wait for it
        x.fill_(1.0)
        y = call(x)
    stream.synchronize()
    torch.testing.assert_close(y, torch.full_like(y, 1 / 1000))
    torch.testing.assert_close(call(x), torch.softmax(x, -1))  # and back on the default stream
    assert "2^31 elements" in cudnn.backend.supports(Case(2**16, 2**15, "bf16", Direction.FORWARD))


@operations
@pytest.mark.parametrize("direction", operation("softmax").directions)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("M", "N"), [(37, 1), (64, 781), (16, 16384), (5, 50257)])
@pytest.mark.parametrize("language", [flaggems], ids=lambda language: language.name)
def test_other_languages_are_right(language, M, N, dtype, direction, op):
    grade, detail = graded(language, M, N, dtype, direction, op)
    assert grade in (NARROW if language is flaggems and dtype != "fp32" else (Grade.PASS,)), detail


@operations
@pytest.mark.parametrize("direction", operation("softmax").directions)
@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_every_way_to_compile_is_right(name, direction, op):
    grade, detail = graded(VARIANTS[name], 64, 1000, "bf16", direction, op)
    assert grade in NARROW, detail


@pytest.mark.parametrize("name", ["compile:max-autotune", "compile:reduce-overhead", "compile-torch:reduce-overhead"])
def test_what_is_said_to_reuse_its_output_does(name):
    backend = VARIANTS[name]
    if reason := backend.available():
        pytest.skip(reason)
    call, x = backend.prepare(Case(64, 1000, "fp32", Direction.FORWARD)), torch.randn(64, 1000, device="cuda")
    first = call(x).data_ptr()
    assert call(x).data_ptr() == first


@operations
@pytest.mark.parametrize("direction", operation("softmax").directions)
@pytest.mark.parametrize("backend", [torchscript_fx.trace, torchscript_fx.script, torchscript_fx.fx], ids=lambda backend: backend.name)
def test_the_backends_are_right(backend, direction, op):
    grade, detail = graded(backend, 64, 1000, "fp32", direction, op)
    assert grade is Grade.PASS, detail


def test_dynamos_other_backends_are_measured_or_say_why_not(cli):
    arguments = ("--M", "64", "--N", "1000", "--direction", "forward,backward", "--quick")
    done = cli("run", "--backends", "compile:*", *arguments, timeout=500)
    assert done.returncode in (0, 1), done.stdout + done.stderr  # a backend for debugging may fail in some torch
    with (cli.folder / "results" / "latest.csv").open() as file:
        found = list(csv.DictReader(file))
    by_name = {row["backend"]: row for row in found if row["direction"] == "forward"}
    for name in ("compile:plain", "compile:max-autotune", "compile:cudagraphs", "compile:eager", "compile:aot_eager"):
        assert by_name[name]["status"] == "ok", by_name[name]
    for row in found:
        assert row["status"] == "ok" or row["reason"], row


DTYPES = ("fp32", "fp16", "bf16")


@pytest.mark.parametrize("direction", operation("softmax").directions)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("M", "N"), [(37, 8), (512, 1000), (37, 4096), (5, 32768), (4, 131072)])
def test_quack_is_right(M, N, dtype, direction):
    grade, detail = graded(quack, M, N, dtype, direction)
    assert grade is Grade.PASS, detail


@pytest.mark.parametrize("direction", operation("softmax").directions)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("M", "N"), [(37, 1), (512, 781), (37, 4096), (5, 65536)])
def test_liger_passes_or_is_low_precision_in_16_bit_backward(M, N, dtype, direction):
    grade, detail = graded(liger, M, N, dtype, direction)
    narrow = dtype != "fp32" and direction is not Direction.FORWARD
    assert grade in ((Grade.PASS, Grade.LOW_PRECISION) if narrow else (Grade.PASS,)), detail


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_quack_takes_the_longest_row_that_is_said_to_fit(dtype, direction):
    if reason := quack.available():
        pytest.skip(reason)
    grade, detail = graded(quack, 2, quack._most_columns(Case(2, 8, dtype, direction)), dtype, direction)
    assert grade is Grade.PASS, detail


def test_a_run_measures_supported_cases_and_skips_the_others(cli):
    able = [peer for peer in (quack, liger) if peer.available() is None]
    if not able:
        pytest.skip(f"{quack.available()}; {liger.available()}")
    cli.env["QUACK_CACHE_DIR"], cli.env["TRITON_CACHE_DIR"] = str(cli.folder / "quack"), str(cli.folder / "triton")
    names = ",".join(peer.name for peer in able)
    arguments = ("--M", "64", "--N", "781,1000,131072", "--dtype", "bf16", "--direction", "forward,backward,both", "--quick")
    for cache in ("cold", "cached"):
        done = cli("run", "--backends", names, *arguments, timeout=280)
        assert done.returncode == 0, done.stdout + done.stderr
        with (cli.folder / "results" / "latest.csv").open() as file:
            found = [row for row in csv.DictReader(file) if row["backend"] != "copy"]
        for row in found:
            beyond = row["N"] == ("781" if row["backend"] == "quack" else "131072")
            assert row["status"] == ("skipped" if beyond else "ok"), row
        first = {row["backend"]: row["build_cache"] for row in reversed(found) if row["direction"] == "forward" and row["status"] == "ok"}
        assert set(first.values()) == {cache}, first  # of a sweep's first shape: liger's kernel of one N may serve the next
