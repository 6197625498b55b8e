"""Plans with which a row has the same bits in every batch, by `softbench check --invariance`, and at other addresses."""

import itertools
import json

import pytest
import torch
from softbench.kernels.cuda import invariant as by_cuda
from softbench.kernels.triton import invariant as by_triton

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

OPERATIONS = ("softmax", "softmax(out_dtype=fp32)", "log_softmax", "cross_entropy", "logprob")
SCORES = ("masked_softmax", "masked_softmax(causal=true)")


@pytest.mark.parametrize(
    ("backend", "op"),
    [*itertools.product(("cuda-invariant", "triton-invariant"), OPERATIONS), *(("triton-invariant", op) for op in SCORES)],
)
def test_a_row_has_the_same_bits_in_every_batch(cli, backend, op):
    name, _, parameters = op.removesuffix(")").partition("(")
    given = ("--set", parameters) if parameters else ()
    lengths = [f"--case=N={N}" for N in (64, 197, 1000, 4096, 12289, *((50257, 151936, 262144) if "causal" not in op else ()))]
    done = cli("check", "--invariance", "--quick", "--backends", backend, "--op", name, *given, *lengths, "--json", "-", timeout=580)
    found = json.loads(done.stdout)["findings"]
    assert {finding["verdict"] for finding in found} == {"invariant"}, [one for one in found if one["verdict"] != "invariant"]


def test_views_at_other_addresses_have_the_same_bits():
    for kernels, N in itertools.product((by_cuda, by_triton), (1000, 781, 4096)):
        x = torch.randn(64, N, device="cuda")
        wide = torch.empty(64, N + 7, device="cuda")
        wide[:, 3:-4] = x
        assert torch.equal(kernels.softmax.forward(wide[:, 3:-4]), kernels.softmax.forward(x))
        target = torch.zeros(64, dtype=torch.int64, device="cuda")
        for mine, its in zip(kernels.logprob_forward(wide[:, 3:-4], target), kernels.logprob_forward(x, target), strict=True):
            assert torch.equal(mine, its)
