"""What `softbench.use()` changes in a training step of a ViT, a BERT and a GPT-2 with eager attention. The weights are random.

    python tools/use_models.py [--models vit,bert,gpt2] [--dtype fp32|bf16|autocast] [--json FILE]

A step is forward, loss, backward and AdamW. A round has a few steps outside the block and as many inside it, so that drift affects both
alike. The first step of each part does not count. The table has medians over the rounds, and the 95 % interval of the ratio. The softmax's
time is that of torch's operators for softmax and log_softmax and of their gradients, by torch.profiler. It is device time, except on the
CPU. The models come from transformers (pip install transformers), which downloads nothing. `tiny` needs torch only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import softbench
from softbench.core.statistics import median_interval

OPERATORS = ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data")
WARMUP = 3
STEPS = 3
"""Steps that count, outside and inside, in a round."""
Batch = dict[str, torch.Tensor]
Step = Callable[[], object]


class Tiny(torch.nn.Module):
    """Attention and a classifier, without transformers."""

    def __init__(self, width: int = 32, classes: int = 100) -> None:
        super().__init__()
        self.embed, self.qkv = torch.nn.Embedding(classes, width), torch.nn.Linear(width, 3 * width)
        self.head = torch.nn.Linear(width, classes)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor]:
        q, k, v = self.qkv(self.embed(input_ids)).chunk(3, -1)
        attended = torch.nn.functional.softmax(q @ k.mT, dim=-1) @ v
        return (torch.nn.functional.cross_entropy(self.head(attended).flatten(0, 1), labels.flatten()),)


def vit(batch: int, length: int) -> tuple[torch.nn.Module, Batch]:
    """ViT-Base on images of 224x224: 197 tokens, whatever `length`."""
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(num_labels=1000, attn_implementation="eager"))
    return model, {"pixel_values": torch.randn(batch, 3, 224, 224), "labels": torch.randint(1000, (batch,))}


def bert(batch: int, length: int) -> tuple[torch.nn.Module, Batch]:
    """BERT-Base with its masked language model."""
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(attn_implementation="eager")), tokens(batch, length, 30522)


def gpt2(batch: int, length: int) -> tuple[torch.nn.Module, Batch]:
    """GPT-2 small with its language model."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(attn_implementation="eager")), tokens(batch, length, 50257)


def tiny(batch: int, length: int) -> tuple[torch.nn.Module, Batch]:
    """`Tiny`."""
    return Tiny(), tokens(batch, length, 100)


def tokens(batch: int, length: int, vocabulary: int) -> Batch:
    """Random input and labels."""
    return {name: torch.randint(vocabulary, (batch, length)) for name in ("input_ids", "labels")}


MODELS: dict[str, tuple[Callable[[int, int], tuple[torch.nn.Module, Batch]], int, int]] = {
    "vit": (vit, 64, 197),
    "bert": (bert, 32, 512),
    "gpt2": (gpt2, 8, 1024),
    "tiny": (tiny, 4, 16),
}
"""Each model with its batch and the length of its sequences."""


def step_of(name: str, batch: int | None, dtype: str, device: str) -> Step:
    """One training step of a model."""
    build, usual, length = MODELS[name]
    torch.manual_seed(0)
    model, inputs = build(batch or usual, length)
    model.to(device, torch.bfloat16 if dtype == "bf16" else torch.float32).train()
    inputs = {key: value.to(device) for key, value in inputs.items()}
    if dtype == "bf16":
        inputs = {key: value.bfloat16() if value.is_floating_point() else value for key, value in inputs.items()}
    optimizer = torch.optim.AdamW(model.parameters(), fused=device == "cuda")

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "autocast"):
            loss = model(**inputs)[0]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@contextlib.contextmanager
def synchronized(device: str) -> Iterator[list[float]]:
    """A list that gets the milliseconds of the block."""
    taken: list[float] = []
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    begin = time.perf_counter()
    yield taken
    wait()
    taken.append(1e3 * (time.perf_counter() - begin))


def step_times(step: Step, device: str, rounds: int) -> dict[str, Any]:
    """Median milliseconds of a step outside and inside the block, and the ratio of both with its 95 % interval.

    Every second round begins outside. The ratio is the median over the rounds.
    """
    found: dict[str, list[float]] = {"outside": [], "inside": []}
    for each in range(rounds):
        for where in ("outside", "inside") if each % 2 else ("inside", "outside"):
            with softbench.use() if where == "inside" else contextlib.nullcontext():
                step()  # the first calls of a block decide what runs
                with synchronized(device) as taken:
                    for _ in range(STEPS):
                        step()
            found[where].append(taken[0] / STEPS)
    ratios = [torchs / ours for torchs, ours in zip(found["outside"], found["inside"], strict=True)]
    return {where: median(times) for where, times in found.items()} | {"faster": median(ratios), "interval": median_interval(ratios)}


def softmax_time(step: Step, device: str, steps: int) -> dict[str, float]:
    """Milliseconds per step of each operator of `OPERATORS`, by torch.profiler."""
    cuda = device == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as profiled:
        for _ in range(steps):
            step()
        if cuda:
            torch.cuda.synchronize()
    found = {event.key.removeprefix("aten::"): event for event in profiled.key_averages()}
    times = {name: found[name].device_time_total if cuda else found[name].cpu_time_total for name in OPERATORS if name in found}
    return {name: us / 1e3 / steps for name, us in times.items()}


def measured(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """The line of one model: milliseconds of the step and of its softmax, outside and inside."""
    step = step_of(name, given.batch, given.dtype, given.device)
    softmax = {}
    for where, block in (("outside", contextlib.nullcontext()), ("inside", softbench.use())):
        with block:
            for _ in range(WARMUP):
                step()
            softmax[where] = softmax_time(step, given.device, given.steps)
    return {"model": name, "dtype": given.dtype, "step_ms": step_times(step, given.device, given.rounds), "softmax_ms": softmax}


def table(lines: list[dict[str, Any]]) -> str:
    """The lines as a text."""
    shown = ["model  dtype     step: torch     use()  faster (95 % interval)   softmax: torch     use()  faster  share"]
    for line in lines:
        steps = line["step_ms"]
        softmax = {where: sum(times.values()) for where, times in line["softmax_ms"].items()}
        faster = softmax["outside"] / softmax["inside"] if softmax["inside"] else float("nan")
        interval = "{:.3f} to {:.3f}".format(*steps["interval"]) if steps["interval"] else "too few rounds"
        shown.append(
            f"{line['model']:6} {line['dtype']:8} {steps['outside']:9.2f} ms {steps['inside']:6.2f} ms "
            f"{steps['faster']:6.3f}x {f'({interval})':>16}   {softmax['outside']:11.3f} ms {softmax['inside']:6.3f} ms "
            f"{faster:6.2f}x {softmax['outside'] / steps['outside']:6.1%}"
        )
    return "\n".join(shown)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="vit,bert,gpt2")
    parser.add_argument("--dtype", default="bf16", choices=("fp32", "bf16", "autocast"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--batch", type=int)
    parser.add_argument("--rounds", type=int, default=20, help="rounds, each with steps outside and inside")
    parser.add_argument("--steps", type=int, default=3, help="steps that are profiled")
    parser.add_argument("--json", type=Path, help="writes the numbers")
    given = parser.parse_args(arguments)
    names = given.models.split(",")
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"--models: no model {unknown[0]!r}; there are {', '.join(MODELS)}")
    for option in ("rounds", "steps"):
        if getattr(given, option) < 1:
            parser.error(f"--{option}: must be at least 1")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA GPU here; --device cpu tries the tool without one")
    try:
        lines = [measured(name, given) for name in names]
    except ImportError as error:
        parser.error(f"{error}; pip install transformers, or --models tiny")
    print(table(lines))
    if given.json:
        device = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
        given.json.write_text(json.dumps({"device": device, "torch": torch.__version__, "lines": lines}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
