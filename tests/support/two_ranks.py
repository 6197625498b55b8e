"""What two ranks of a group compute, as one test: `run(kernels)` forks the second rank, and prints `fine` if all cases are right."""

import importlib
import os
import signal
import sys
import tempfile
from dataclasses import replace
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from softbench.kernels.automatic import loss_operators, vocabulary_parallel as parallel
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from softbench import kernels
from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.registry import numerics, operation

N, SPLIT = 37, 30
"""The classes of all ranks, and of the first one."""
DEVICE = "cpu"
"""Or cuda: each rank has a GPU of its own by NCCL, or both have the only one by gloo, without the cases of DTensor."""
LOSSES = [
    ("cross_entropy", "fp32"),
    ("cross_entropy(ignore_index=3)", "bf16"),
    ("cross_entropy(label_smoothing=0.1,z_loss=0.01)", "fp32"),
    ("cross_entropy(softcap=5,z_loss=0.01)", "fp32"),
    ("cross_entropy(reduction=mean,z_loss=0.01)", "bf16"),
    ("cross_entropy(reduction=mean,label_smoothing=0.2)", "bf16"),
]


def run(of_losses=None, small=None, device="cpu"):
    """All cases, by these kernels of losses and of the small steps, or by those that are chosen."""
    global DEVICE
    DEVICE = device
    if of_losses is not None:
        parallel._kernels = loss_operators._kernels = lambda function, x: of_losses
        parallel._small_kernels = lambda x, options: None if options.label_smoothing else small
    with tempfile.TemporaryDirectory() as folder:
        first = os.getpid()
        other = os.fork()
        rank = int(other == 0)
        try:
            store, backend = dist.FileStore(f"{folder}/store", 2), "gloo"
            if device == "cuda" and torch.cuda.device_count() > 1:
                torch.cuda.set_device(rank)
                backend = "nccl"  # refuses two ranks on one GPU
            dist.init_process_group(backend, store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
            torch.manual_seed(0)  # the generator of a GPU would have another seed in each process
            for op, dtype in LOSSES:
                loss(rank, op, dtype)
            logprob(rank)
            refusals(rank)
            if of_losses is None and not (device == "cuda" and backend == "gloo"):  # DTensor's gathering ends by a signal (pytorch#152645)
                sharded(rank)
            dist.destroy_process_group()
        except BaseException as error:
            print(f"rank {rank}: {error!r}", file=sys.stderr, flush=True)
            if rank and os.getppid() == first:  # it has not ended, and may wait for this rank on a GPU, without end
                os.kill(first, signal.SIGTERM)
            raise
        finally:
            if rank:
                sys.stderr.flush()
                os._exit(int(sys.exc_info()[0] is not None))
        assert os.waitpid(other, 0)[1] == 0, "the other rank failed"
    print("fine")


def drawn(case):
    """Inputs with structured rows, and the names of their kinds."""
    values = numerics(case.op)
    given = values.make(case, 0, torch.device("cpu"))
    return values, given, values.make_structured(given, case, 0)


def part(x, rank):
    return (x[:, :SPLIT], x[:, SPLIT:])[rank].to(DEVICE, copy=True).requires_grad_()


def whole(mine, rank):
    """The columns of both ranks; None on the second one."""
    second = mine.contiguous() if rank else mine.new_empty(len(mine), N - SPLIT)
    dist.broadcast(second, 1)  # gloo sends no tensor of a GPU to one rank alone
    return None if rank else torch.cat([mine, second], 1).cpu()


def judged(values, case, given, outputs, kinds):
    found = values.check(case, given, outputs, kinds=kinds)
    given_lse = case.direction is Direction.BACKWARD and found.grade is Grade.LOW_PRECISION  # which is rounded, and not what a rank has
    assert found.grade is Grade.PASS or given_lse, (case.op, case.dtype, found)


def loss(rank, op, dtype):
    case = Case(64, N, dtype, Direction.FUSED, "cpu", op)
    values, given, kinds = drawn(case)
    x, target = given
    mine = part(x, rank)
    shard = (0, SPLIT)[rank], N
    given_shard = {"process_group": dist.group.WORLD, "shard": shard if dtype == "fp32" else None}
    found = kernels.cross_entropy(mine, target.to(DEVICE), dtype=torch.float32, **given_shard, **operation(op).parameter_values)
    (dx,) = torch.autograd.grad(found, mine, torch.ones_like(found))
    if (dx := whole(dx, rank)) is not None:
        judged(values, case, given, (found.detach().cpu(), dx), kinds)


def logprob(rank):
    case = Case(64, N, "fp32", Direction.BACKWARD, "cpu", "logprob")
    values, given, kinds = drawn(case)
    x, target, *_, dlogprob, dentropy = given
    for temperature in (1.0, 0.5):
        mine = part(x * temperature, rank)
        found = kernels.logprob(mine, target.to(DEVICE), process_group=dist.group.WORLD, temperature=temperature)
        (dx,) = torch.autograd.grad(found, mine, (dlogprob.to(DEVICE), dentropy.to(DEVICE)))
        if (dx := whole(dx * temperature, rank)) is not None:
            judged(values, case, given, (dx,), kinds)
            judged(values, replace(case, direction=Direction.FORWARD), (x, target), tuple(one.detach().cpu() for one in found), kinds)


def refusals(rank):
    """One line for each wrong argument. A target that no rank has makes its row NaN."""
    x, target = torch.randn(3, 4, device=DEVICE, requires_grad=True), torch.tensor([0, 8, -100], device=DEVICE)
    found = kernels.cross_entropy(x, target, process_group=dist.group.WORLD, reduction="none")
    (dx,) = torch.autograd.grad(found.sum(), x, retain_graph=True)
    assert found.isnan().tolist() == [False, True, False] and dx.isnan().any(1).tolist() == [False, True, False]
    for loss in (found.sum(), kernels.logprob(x, target % 8, process_group=dist.group.WORLD)[1].sum()):
        (dx,) = torch.autograd.grad(loss, x, create_graph=True)
        try:
            torch.autograd.grad(dx.square().sum() + x.sum(), x)
        except RuntimeError as raised:
            assert "differentiable once; torch's own functions" in str(raised), raised
        else:
            raise AssertionError("a gradient of a gradient")
    for given, error, part_of in (
        ({"process_group": 3}, TypeError, "process_group is a int"),
        ({"shard": (6, 8)}, ValueError, "the 4 classes of this rank end at 10"),
        ({"shard": (6,)}, ValueError, "shard is (6,)"),
        ({"shard": (0, 8), "process_group": None}, ValueError, "shard is given without process_group"),
        ({"dtype": torch.int64}, TypeError, "dtype torch.int64"),
        ({"input": target[:, None].expand(3, 4)}, TypeError, "the logits are torch.int64"),
        ({"reduction": "all"}, ValueError, "'all' is not a valid value for reduction"),
        ({"return_lse": True, "weight": torch.ones(4)}, ValueError, "cross_entropy has no weight, return_...; leave it out"),
        ({"z_loss": -1.0}, ValueError, "z_loss -1.0: must be finite and not negative"),
    ):
        try:
            kernels.cross_entropy(**{"input": x, "target": target, "process_group": dist.group.WORLD, **given})
        except error as raised:
            assert part_of in str(raised), raised
        else:
            raise AssertionError(part_of)


def sharded(rank):
    """Operators of DTensor: rows, batch and heads stay sharded, and what an operator reduces is gathered."""
    mesh, ops = init_device_mesh(DEVICE, (2,)), torch.ops.softbench
    for name in ("cuda.operator", "automatic.masked_softmax"):
        importlib.import_module(f"softbench.kernels.{name}")  # their operators
    x, target, options = torch.randn(6, 4, device=DEVICE), torch.tensor([0, 3, -100, 1, 2, 3], device=DEVICE), (-100, 0.1, 0.0, 0.0)
    _functions_of_dtensor(mesh)
    scores, mask, sink = (torch.randn(shape, device=DEVICE) for shape in ((2, 4, 3, 5), (4, 1, 5), (4,)))
    for place, stays in ((Shard(0), True), (Shard(1), False), (Replicate(), True)):
        for call, given in (
            (lambda x: ops.cuda_softmax(x, -1), (x,)),
            (lambda x: ops.cuda_log_softmax(x, 1), (x,)),
            (lambda x, target: ops.cross_entropy(x, target, *options)[0], (x, target)),
            (lambda x, target: ops.logprob(x, target.clamp(min=0))[0], (x, target)),
        ):
            _same(mesh, call, given, [place, *[place if place == Shard(0) else Replicate()] * (len(given) - 1)], place if stays else None)
        of_heads = Shard(0) if place == Shard(1) else Replicate()  # of mask and sink, which have no batch
        given = scores, mask, sink
        _same(mesh, lambda x, *others: ops.masked_softmax(x, *others, 0.5, True)[0], given, [place, of_heads, of_heads], place)


def _same(mesh, call, given, places, expected):
    """The results and gradients of DTensor are those of the whole tensors, and the result is placed as expected."""
    whole = given[0].clone().requires_grad_()
    parts = [distribute_tensor(one, mesh, [place]) for one, place in zip(given, places, strict=True)]
    parts[0].requires_grad_()
    y, got = call(whole, *given[1:]), call(*parts)
    assert expected is None or got.placements == (expected,), (call, got.placements, expected)
    (dx,), (dpart,) = (torch.autograd.grad(one.square().sum(), leaf) for one, leaf in ((y, whole), (got, parts[0])))
    torch.testing.assert_close(got.full_tensor(), y)
    torch.testing.assert_close(dpart.full_tensor(), dx)


def _functions_of_dtensor(mesh):
    """The functions of tensors whose rows or classes are sharded, and the mean of the losses of both ranks."""
    x, target = torch.randn(6, 5, device=DEVICE), torch.tensor([0, 3, -100, 1, 4, 3], device=DEVICE)
    for place in (Shard(0), Shard(1), Replicate()):
        stays = None if place == Shard(1) else place
        for call in (kernels.softmax, kernels.log_softmax):
            _same(mesh, call, (x,), [place], stays)
        _same(mesh, partial(kernels.masked_softmax, scale=0.5, causal=True), (torch.stack([x, -x]),), [place], stays)
        of_target = Shard(0) if place == Shard(0) else Replicate()
        for reduction in ("mean", "none"):
            call = partial(kernels.cross_entropy, reduction=reduction, label_smoothing=0.1, z_loss=0.01)
            _same(mesh, call, (x, target), [place, of_target], of_target if reduction == "none" else None)
        _same(mesh, lambda x, target: kernels.logprob(x, target)[1], (x, target.clamp(min=0)), [place, of_target], of_target)
    part, of_part = (distribute_tensor(one, mesh, [Shard(0)]) for one in (x.double(), target))
    mine, its = kernels.cross_entropy(part, of_part).full_tensor(), kernels.cross_entropy(x.double(), target)
    torch.testing.assert_close(mine, its, rtol=1e-12, atol=0)
