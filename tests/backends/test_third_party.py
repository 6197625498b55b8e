"""Kernels of other projects: the message for a missing package, the calls to a simulated one, and which of them need NVIDIA's GPUs."""

import importlib.util
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from compiling import assert_passes, install

from softbench.backends import gallery, nvidia, quack as quack_module, torch_eager
from softbench.backends.calls import EMPTY
from softbench.backends.cce import backend as cce
from softbench.backends.cuda import backend as cuda
from softbench.backends.cudnn import backend as cudnn
from softbench.backends.liger import backend as liger, cutedsl, cutile
from softbench.backends.peers import flaggems, flashinfer, tilegym
from softbench.backends.quack import backend as quack
from softbench.backends.torch_library import CudaOp, TritonAoti
from softbench.backends.triton import own
from softbench.core.case import Case, Direction
from softbench.core.outcome import PASSES
from softbench.ops.registry import numerics, operation
from softbench.plugins.load import source_hash
from softbench.plugins.source import origins
from softbench.plugins.traits import unsupported
from softbench.worker.compile_stats import CompilerCounts
from softbench.worker.guarding.audit import ForbiddenError

H200 = SimpleNamespace(major=9, shared_memory_per_block_optin=227 * 1024)
A100 = SimpleNamespace(major=8, shared_memory_per_block_optin=163 * 1024)
RTX_5090 = SimpleNamespace(major=12, shared_memory_per_block_optin=99 * 1024)

each_backend = pytest.mark.parametrize("backend", [quack, liger], ids=lambda backend: backend.name)


def case(N, dtype="bf16", direction=Direction.FORWARD, M=4):
    return Case(M, N, dtype, direction)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: H200)
    monkeypatch.setenv("CC", sys.executable)  # any program: softbench only checks that it exists


def gradient(dy, y):
    return y * (dy - (dy * y).sum(-1, keepdim=True))


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        return gradient(dy, *ctx.saved_tensors)


@each_backend
def test_without_a_gpu_no_package_is_imported(backend, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    install(monkeypatch, backend.module.partition(".")[0])
    assert backend.available() == "no CUDA GPU here"


@each_backend
def test_a_failing_import_is_one_line_with_the_fix(backend, monkeypatch, tmp_path, gpu):
    package = backend.module.partition(".")[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("raise RuntimeError('libcute is not\\nwhere it was')")
    monkeypatch.syspath_prepend(tmp_path)
    assert (
        backend.available() == f"{backend.module} cannot be imported (RuntimeError: libcute is not where it was); "
        f"for torch {torch.__version__}, try an older version, or: pip install -U {backend.package}"
        + (" (for CUDA 13: 'quack-kernels[cu13]')" if backend is quack else "")
    )


def test_a_package_outside_site_packages_is_told_to_be_installed(monkeypatch, gpu):
    def closed():
        raise ForbiddenError("sys._getframe() shows what measures and checks a plugin")

    monkeypatch.setattr(quack, "_module", closed, raising=False)
    install(monkeypatch, "quack.softmax")
    assert quack.available() == (
        "quack-kernels looks at frames, which only packages in site-packages may do; not from PYTHONPATH or by -e: "
        "pip install quack-kernels (for CUDA 13: 'quack-kernels[cu13]')"
    )


def test_products_of_quack_that_cannot_be_imported_are_skipped_with_the_fix(monkeypatch, gpu):
    quack_module._missing_products.cache_clear()
    install(monkeypatch, "quack.softmax")
    monkeypatch.setitem(sys.modules, "quack.linear_cross_entropy", None)
    reason = quack.supports(Case(64, 64, "bf16", Direction.FUSED, "cuda", "linear_cross_entropy(hidden=64)"))
    assert reason.startswith("quack.linear_cross_entropy cannot be imported (ModuleNotFoundError: ")
    assert reason.endswith(f"; not from PYTHONPATH or by -e: {quack.install}")
    quack_module._missing_products.cache_clear()


@each_backend
def test_a_failing_look_up_becomes_a_reason(backend, monkeypatch):
    def broken(name):
        raise ValueError(f"{name}.__spec__ is None")

    monkeypatch.setattr(importlib.util, "find_spec", broken)
    assert "cannot be imported (ValueError: " in backend.available()


def test_liger_needs_the_compiler_that_triton_needs(monkeypatch, gpu):
    install(monkeypatch, "liger_kernel.ops.softmax")
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "install gcc" in liger.available()


def test_quack_is_called_through_its_public_functions(monkeypatch, gpu):
    calls = []

    def softmax_fwd(*given):
        calls.append(given)
        return "y"

    def softmax_bwd(*given):
        calls.append(given)
        return "dx"

    module = install(monkeypatch, "quack.softmax", softmax=Softmax.apply, softmax_fwd=softmax_fwd, softmax_bwd=softmax_bwd)
    sys.modules["quack"].softmax = module.softmax  # as in the package: the function hides the module
    x, dy, y = torch.randn(3, 4, 8).unbind()
    assert quack.available() is None
    assert quack.prepare(case(8))(x) == "y"
    assert quack.prepare(case(8, direction=Direction.BACKWARD))(dy, y) == "dx"
    assert [list(map(id, given)) for given in calls] == [[id(x)], [id(dy), id(y)]]
    check_both(quack)


def test_liger_gets_the_settings_of_its_autograd(monkeypatch, gpu):
    calls = []

    def _softmax_backward(*given):
        calls.append(given)
        return "dx"

    install(
        monkeypatch,
        "liger_kernel.ops.softmax",
        calculate_settings=lambda n: (2 * n, 4),
        _softmax_forward=lambda x: (x + 1, 16, 4, False),
        _softmax_backward=_softmax_backward,
        LigerSoftmaxFunction=Softmax,
    )
    x, dy, y = torch.randn(3, 4, 8).unbind()
    if liger.available() is not None:
        assert "headers" in liger.available()  # Python.h: not every machine that tests has it
    assert torch.equal(liger.prepare(case(8))(x), x + 1)
    assert liger.prepare(case(8, direction=Direction.BACKWARD))(dy, y) == "dx"
    assert calls[0][0] is dy
    assert calls[0][1] is y
    assert calls[0][2:] == (16, 4, False)
    check_both(liger)


def check_both(backend):
    x, dy = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8)
    y, dx = backend.prepare(case(8, "fp32", Direction.BOTH))(x, dy)
    assert torch.equal(y, torch.softmax(x.detach(), -1))
    assert torch.equal(dx, gradient(dy, y))


@pytest.mark.parametrize(("dtype", "vector"), [("fp32", 4), ("bf16", 8), ("fp16", 8)])
def test_quack_refuses_rows_of_partial_vectors(dtype, vector, gpu):
    for N in (vector, 1000, 0):
        assert quack.supports(case(N, dtype)) is None
    for N in (1, 50257, 1000 + vector // 2):
        assert quack.supports(case(N, dtype)) == f"it reads rows in 16-byte vectors: N must be a multiple of {vector} in {dtype}"


@pytest.mark.parametrize(
    ("card", "dtype", "direction", "most"),
    [
        (H200, "bf16", Direction.FORWARD, 1835008),
        (H200, "fp32", Direction.FORWARD, 917504),
        (H200, "fp32", Direction.BACKWARD, 458752),
        (H200, "bf16", Direction.BOTH, 917504),
        (A100, "bf16", Direction.FORWARD, 81920),
        (RTX_5090, "fp32", Direction.FORWARD, 196608),
    ],
)
def test_quack_refuses_rows_over_the_shared_memory_of_a_cluster(card, dtype, direction, most, gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    assert quack.supports(case(most, dtype, direction)) is None
    assert quack.supports(case(most + 8, dtype, direction)) == (
        f"a row must fit the shared memory of one cluster of CTAs: N is at most {most} here"
    )


@pytest.mark.parametrize("direction", operation("softmax").directions)
def test_liger_refuses_rows_over_one_block(direction):
    for N in (1, 781, 65536):
        assert liger.supports(case(N, direction=direction, M=2**20)) is None
    assert liger.supports(case(65537, direction=direction)) == "a row must fit one block: N is at most 65536"
    assert liger.supports(case(0, direction=direction)) == EMPTY


@each_backend
def test_another_package_version_changes_the_source_hash(backend, monkeypatch, tmp_path):
    source = next(source for source in origins([]) if source.label == backend.name)
    monkeypatch.delitem(sys.modules, backend.module, raising=False)
    assert backend.sources() == []
    (tmp_path / "softmax.py").write_text("1")
    install(monkeypatch, backend.module).__file__ = str(tmp_path / "softmax.py")
    before = source_hash(backend, source)
    (tmp_path / "softmax.py").write_text("2")
    assert source_hash(backend, source) != before


def test_a_quack_build_is_cold_if_its_compiler_ran(monkeypatch):
    misses = {"forward": 3, "backward": 1}

    def kernel(which):
        return SimpleNamespace(compile=SimpleNamespace(cache_info=lambda: SimpleNamespace(misses=misses[which])))

    install(monkeypatch, "quack.softmax", Softmax=kernel("forward"), SoftmaxBackward=kernel("backward"))
    built = CompilerCounts(quack.compilations)
    assert built.state() == "cached"
    misses["backward"] += 1
    assert built.state() == "cold"


LOSS = "cross_entropy(ignore_index=7)"


def loss_of(x, target, ignore_index, **options):
    return torch.nn.functional.cross_entropy(x.float(), target, ignore_index=ignore_index, reduction="none", **options)


@pytest.mark.parametrize("direction", operation(LOSS).directions)
def test_quack_computes_a_loss_its_gradient_or_both(monkeypatch, direction):
    def forward(x, target, target_logit=None, weight=None, ignore_index=-100, return_lse=False, return_dx=False, inplace_backward=False):
        if return_lse:  # the signature of quack-kernels 0.6.4
            return loss_of(x, target, ignore_index), torch.logsumexp(x.float(), -1)
        leaf = x.clone().requires_grad_()
        loss = loss_of(leaf, target, ignore_index)
        return loss.detach(), torch.autograd.grad(loss.sum(), leaf)[0]

    def backward(x, target, dloss, lse, weight=None, ignore_index=-100, inplace_backward=False):
        dz = torch.exp(x.float() - lse[:, None]) - torch.nn.functional.one_hot(target, x.shape[1])
        return torch.where((target == ignore_index)[:, None], 0, dz * dloss[:, None]).to(x.dtype)

    install(monkeypatch, "quack.cross_entropy", cross_entropy_fwd=forward, cross_entropy_bwd=backward)
    assert_passes(quack, Case(4, 32, "fp32", direction, "cpu", LOSS))


def test_liger_computes_a_loss_with_its_gradient(monkeypatch):
    def forward(_input, target, weight, ignore_index, lse_square_scale, label_smoothing, reduction, softcap, return_z_loss):
        assert (weight, lse_square_scale, reduction, softcap, return_z_loss) == (None, 0.0, "none", None, False)
        assert _input.requires_grad  # the signature of liger-kernel 0.8.2, whose kernel then computes the gradient
        loss = loss_of(_input, target, ignore_index, label_smoothing=label_smoothing)
        (dx,) = torch.autograd.grad(loss.sum(), _input)
        _input.data.copy_(dx)
        return loss.detach().to(_input.dtype), None, None, None, _input

    install(monkeypatch, "liger_kernel.ops.cross_entropy", cross_entropy_forward=forward)
    found = Case(4, 32, "fp32", Direction.FUSED, "cpu", "cross_entropy(ignore_index=7,label_smoothing=0.1)")
    assert_passes(liger, found)
    assert "--direction fused" in liger.supports(replace(found, direction=Direction.FORWARD))


def linear_loss(x, w, target, *args, **given):
    return torch.nn.functional.cross_entropy((x @ w.T).float(), target, ignore_index=given["ignore_index"])


def of_liger(x, w, target, **given):
    """As its function without autograd: it gives the gradients of tensors that require one."""
    assert given["lse_square_scale"] == 0 and given["softcap"] is None and not torch.is_grad_enabled()
    if not x.requires_grad:
        return linear_loss(x, w, target, **given), None, None, None, None
    with torch.enable_grad():
        loss = linear_loss(x, w, target, **given)
        return loss.detach(), None, *torch.autograd.grad(loss, (x, w)), None


OF_LINEAR = {
    liger: ("liger_kernel.ops.fused_linear_cross_entropy", {"fused_linear_cross_entropy_forward": of_liger}),
    quack: ("quack.linear_cross_entropy", {"chunked_linear_cross_entropy": linear_loss}),
    cce: ("cut_cross_entropy", {"linear_cross_entropy": linear_loss}),
}


@pytest.mark.parametrize("backend", OF_LINEAR, ids=lambda backend: backend.name)
def test_losses_of_hidden_states_are_called_with_their_gradients(monkeypatch, backend):
    module, functions = OF_LINEAR[backend]
    install(monkeypatch, module, **functions)
    op = "linear_cross_entropy(hidden=16,ignore_index=7)"
    for direction in (Direction.FORWARD, Direction.FUSED):
        one = Case(24, 32, "bf16", direction, "cpu", op)
        given = numerics(op).make(one, 0, torch.device("cpu"))
        found = backend.prepare(one)(*given)
        assert numerics(op).check(one, given, found if isinstance(found, tuple) else (found,)).grade in PASSES


@pytest.mark.parametrize("op", flaggems.operations)
@pytest.mark.parametrize("direction", operation("softmax").directions)
def test_flaggems_is_called_with_rows(monkeypatch, direction, op):
    def forward(self, dim, half_to_float=False):  # the signatures of FlagGems 5.0.2
        return getattr(torch, op)(self, dim)

    def backward(grad_output, output, dim, input_dtype):
        return getattr(torch.ops.aten, f"_{op}_backward_data")(grad_output, output, dim, input_dtype)

    install(monkeypatch, f"flag_gems.ops.{op}", **{op: forward, f"{op}_backward": backward})
    assert_passes(flaggems, Case(4, 32, "fp32", direction, "cpu", op))


@pytest.mark.parametrize("direction", operation("softmax").directions)
def test_liger_in_other_languages_is_called_as_liger_impl_selects_it(monkeypatch, direction):
    def softmax(x, *, impl=None, mode=None, backend=None):  # the signatures of liger-kernel 0.8.5
        assert impl == "nvidia-cutedsl"
        return Softmax.apply(x)

    install(monkeypatch, cutedsl.module, _softmax_cutedsl_backward=gradient)
    install(monkeypatch, "liger_kernel.functional", softmax=softmax)
    install(monkeypatch, cutile.module, _softmax_backward_ct=gradient, LigerSoftmaxFunction=Softmax)
    for backend in (cutedsl, cutile):
        assert_passes(backend, Case(4, 32, "fp32", direction, "cpu"))
        assert backend.supports(case(0)) == EMPTY
    assert "multiple of 8" in cutedsl.supports(case(1001))
    assert "Triton" in cutedsl.supports(case(65536))
    assert cutile.supports(case(100001)) is None


def test_tilegym_has_a_forward(monkeypatch):
    def softmax(x, use_tma=False, backend=None, use_chunked=False, use_multi_wave=False):  # of tilegym 1.5.1, through its dispatcher
        assert (backend, use_chunked) == ("cutile", x.shape[1] > 32768)
        return torch.softmax(x, -1)

    install(monkeypatch, "tilegym.ops", softmax=softmax)
    for N in (32, 40000):
        assert_passes(tilegym, Case(4, N, "fp32", Direction.FORWARD, "cpu"))
    assert tilegym.supports(case(32, direction=Direction.BOTH)) == "it has only the forward"


def test_overrides_of_torch_are_on_or_off(monkeypatch, gpu):
    _, native, aten = torch_eager.backends
    language = SimpleNamespace(
        enabled=True, enable=lambda: vars(language).update(enabled=True), disable=lambda: vars(language).update(enabled=False)
    )
    switches = SimpleNamespace(
        available_dsls=[], get_dsl_operations={"cutedsl": ["_fused_rms_norm", "sum.dim_IntList"]}.get, cutedsl=language
    )
    monkeypatch.setattr(torch_eager, "_switches", lambda: switches)  # the names in torch 2.15
    norm = Case(4, 32, "fp32", Direction.FORWARD, "cpu", "rms_norm")
    assert "nvidia-cutlass-dsl" in native.available()
    switches.available_dsls.append("cutedsl")
    assert native.available() is aten.available() is native.supports(norm) is None
    assert native.supports(case(32)).endswith("overrides no kernel of softmax, only: _fused_rms_norm, sum")
    for backend, on in ((aten, False), (native, True), (aten, False)):
        assert_passes(backend, norm)
        assert language.enabled is on
    monkeypatch.setattr(torch_eager, "_switches", lambda: None)
    assert "torch 2.12" in aten.available()


@each_backend
def test_a_backend_without_log_softmax_is_skipped_for_it(backend):
    found = unsupported(backend, Case(4, 32, "bf16", Direction.FORWARD, op="log_softmax"))
    assert found.startswith("it has no log_softmax, only softmax")


ONLY_NVIDIA = [cuda, CudaOp(), TritonAoti(), cudnn, quack, flashinfer, gallery.cupy_row, gallery.numba_row]
ANY_GPU = [liger, flaggems, gallery.helion_row]


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
