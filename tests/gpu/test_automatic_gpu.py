"""`softbench.kernels.softmax` on a GPU: Triton until the CUDA kernels are built, and then these."""

import pytest
import torch
from softbench.kernels.automatic import choice, softmax
from softbench.kernels.common.cuda_toolkit import nvcc

from softbench import kernels

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
FUNCTIONS = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}


def agrees(name, x, **given):
    return torch.allclose(getattr(kernels, name)(x, **given), FUNCTIONS[name](x, -1, **given), atol=1e-2 if name == "log_softmax" else 1e-3)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_class_of_calls_computes_the_function(name):
    x = torch.randn(64, 1000, device="cuda")
    assert agrees(name, x)
    assert agrees(name, x.bfloat16(), dtype=torch.float32)
    assert agrees(name, x.double())
    assert torch.allclose(getattr(kernels, name)(x, 0), FUNCTIONS[name](x, 0), atol=1e-4)


def test_a_build_is_taken_by_later_calls_only(monkeypatch, tmp_path):
    if nvcc() is None:
        pytest.skip("needs nvcc")
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path))
    for function in (softmax._SOFTMAX, softmax._LOG_SOFTMAX):
        monkeypatch.setattr(function, "calls", {})
    monkeypatch.setattr(choice, "_choices", {})
    x = torch.randn(64, 1000, device="cuda", dtype=torch.bfloat16)
    kernels.softmax(x)
    assert kernels.which(x).kernels == "triton"
    assert not list(tmp_path.rglob("*.so"))
    architectures = {torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())}
    assert len({*kernels.build()}) == 6 * len(architectures)
    for name in choice.SUBJECTS:
        assert kernels.which(x, function=name) == ("cuda", "the CUDA kernels are built")
    assert all(agrees(name, x) for name in FUNCTIONS)
