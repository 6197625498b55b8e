"""Backends that only NVIDIA's GPUs run say so on ROCm; the others do not ask for NVIDIA's."""

import importlib.util

import pytest
import torch

from softbench.backends import dsl, flaggems, flashinfer, liger, nvidia, quack
from softbench.backends.cuda import backend as cuda
from softbench.backends.cudnn import backend as cudnn
from softbench.backends.torch_library import CudaOp, TritonAoti
from softbench.backends.triton import own
from softbench.core.case import Case, Direction

ONLY_NVIDIA = [cuda, CudaOp(), TritonAoti(), cudnn, quack.backend, flashinfer.backend, dsl.CuPy(), dsl.Numba()]
ANY_GPU = [liger.backend, flaggems.backend, dsl.Helion()]


@pytest.fixture
def rocm(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4.43482")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def test_rocm_has_no_nvidia_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert nvidia.missing() is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert nvidia.missing() == "no CUDA GPU here"
    monkeypatch.setattr(torch.version, "hip", "6.4.43482")
    assert "built for AMD's (ROCm)" in nvidia.missing()


@pytest.mark.parametrize("backend", ONLY_NVIDIA, ids=lambda backend: backend.name)
def test_backends_of_nvidia_are_unavailable_on_rocm(backend, rocm):
    assert backend.available() == nvidia.missing()


@pytest.mark.parametrize("backend", ANY_GPU, ids=lambda backend: backend.name)
def test_portable_packages_are_only_not_installed(backend, rocm, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "is not installed" in backend.available()


@pytest.mark.parametrize(("op", "refused"), [("softmax", False), ("log_softmax", False), ("cross_entropy", True), ("masked_softmax", True)])
def test_triton_refuses_operations_whose_kernels_contain_ptx(rocm, op, refused):
    reason = own.supports(Case(8, 64, "fp32", Direction.FORWARD, "cuda", op))
    assert (reason is not None and "PTX" in reason) == refused
