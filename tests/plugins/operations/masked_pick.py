"""The target's share of a row's weights: an integer input, a result of one value a row, parameters, and half of x if it is causal."""

import torch

from softbench.ops.operation import Operation, Pass, Share, TensorSpec
from softbench.ops.parameters import Parameter
from softbench.ops.values import Values

U = 2.0**-24
OPERATION = Operation(
    name="masked_pick",
    summary="cap * x at the target less the mean of the row, or of its first half",
    tensors={
        "x": TensorSpec(("M", "N")),
        "target": TensorSpec(("M",), "int64"),
        "bias": TensorSpec(("M", "K"), "fp32", ("bias", True)),
        "value": TensorSpec(("M",), "fp32"),
    },
    passes={"forward": Pass(("x", "target", "bias"), ("value",), ("x", "target", "bias"), (Share("x", 0.5, ("causal", True)),))},
    parameters=(
        Parameter("K", "whole", 4, "columns of the bias", least=1, most=64),
        Parameter("bias", "bool", False, "add the mean of a bias"),
        Parameter("causal", "bool", False, "read the first half of a row"),
        Parameter("cap", "number", 1.0, "the factor of x", least=0.5, most=8),
    ),
)


class MaskedPick(Values):
    def draw(self, case, random):
        target = torch.randint(max(1, case.N // 2), (case.M,), generator=random.generator, device=random.device)
        x = random.normal(case.M, case.N)
        if not case.parameters.get("bias"):
            return x, target
        return x, target, torch.randn(case.M, case.parameters.get("K", 4), generator=random.generator, device=random.device)

    def parts(self, case, x, target, *bias):
        seen = x[:, : max(1, case.N // 2)] if case.parameters.get("causal") else x
        picked = case.parameters.get("cap", 1.0) * x.gather(1, target[:, None])[:, 0]
        return picked, seen, (bias[0].mean(dim=-1) if bias else torch.zeros_like(picked))

    def reference(self, case, *inputs):
        picked, seen, bias = self.parts(case, *inputs)
        return (picked - seen.mean(dim=-1) + bias,)

    def bound(self, case, *inputs):
        picked, seen, bias = self.parts(case, *inputs)
        return (U * (16 + case.N**0.5) * (picked.abs() + seen.abs().mean(dim=-1) + bias.abs() + 1e-3),)

    def structured_rows(self, case):
        return {"large": lambda x, *others: x.mul_(100), "falling": lambda x, *others: x.copy_(torch.linspace(9, 1, case.N).to(x.dtype))}


NUMERICS = MaskedPick()
