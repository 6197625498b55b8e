"""Is a training step slower with softbench's kernels? The gate's tests judge steps of GPT-2, BERT and Llama, at batch 1 and 32.

    python tools/training_step.py                 softmax, log_softmax and cross_entropy of `softbench.kernels` in place of torch's
    python tools/training_step.py inside_use      the same steps inside `softbench.use()`

A step is forward, loss, backward, norm of the gradients and AdamW. It ends when the device is done. Models have 4 layers, eager attention,
no dropout, and random weights, which keep their values: the learning rate is 0. They come from `pip install transformers`, which downloads
nothing.

On the host, processes differ by more than both sides do. So each process times both, in turns of a few steps: a round has one turn of each,
in the orders AB BA BA AB. A process then is what a process pair is for `softbench gate`, and its looks and tests decide, with its margin
and its exit code: 0 no step is slower, 1 one is, 3 that is not known. Undecided ones are measured in more processes, until `--seconds` have
passed.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch.nn import functional

import softbench
from softbench import kernels
from softbench.cli import output
from softbench.cli.gate_outputs import LOG_WIDTH
from softbench.core.case import parse_op
from softbench.core.outcome import Status
from softbench.gate import fresh_pairs, paired
from softbench.gate.samples import CellKey, CellSamples, RoundMedian, RunSamples
from softbench.gate.verdicts import Rules
from softbench.report import gate_report

REFERENCE, BATCHES, LENGTH, LAYERS = "torch", (1, 32), 128, 4
ROUNDS, STEPS, WARMUP = 24, 4, 3
"""Rounds of a process, and steps of a turn that are timed. One more comes before them, in which a side is new to the caches."""
IMPORTS = 10.0
"""Seconds until a process has imported torch and transformers, while another one measures."""
LARGEST_ERROR = 2e-2
"""Of the loss and the norm of the gradients, relative to torch's. bfloat16 has 8 bits."""
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)),
    "bert": ("BertConfig", "BertForMaskedLM", dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12}),
}
"""The classes of transformers, and what differs from their defaults. Llama has the width of the others."""
Step = Callable[[], tuple[float, float]]


@contextmanager
def library() -> Iterator[None]:
    """`torch.nn.functional` with the functions of `softbench.kernels`."""
    theirs = {name: getattr(functional, name) for name in ("softmax", "log_softmax", "cross_entropy")}
    try:
        for name in theirs:
            setattr(functional, name, getattr(kernels, name))
        yield
    finally:
        for name, function in theirs.items():
            setattr(functional, name, function)


SIDES: dict[str, Callable[[], AbstractContextManager[None]]] = {REFERENCE: nullcontext, "library": library, "inside_use": softbench.use}


def step_of(name: str, batch: int, device: str) -> Step:
    """A step of a model, which returns the loss and the norm of the gradients."""
    config, model, options = MODELS[name]
    transformers = importlib.import_module("transformers")
    torch.manual_seed(0)
    with torch.device(device):
        settings = getattr(transformers, config)(num_hidden_layers=LAYERS, attn_implementation="eager", use_cache=False, **options)
        found = getattr(transformers, model)(settings).to(torch.bfloat16).train()
        tokens = torch.randint(30000, (batch, LENGTH))
    optimizer = torch.optim.AdamW(found.parameters(), lr=0.0, fused=True)

    def step() -> tuple[float, float]:
        loss = found(input_ids=tokens, labels=tokens).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(found.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach()), float(norm)

    return step


def timed(step: Step) -> float:
    """Microseconds of a step."""
    begin = time.perf_counter()
    step()
    return 1e6 * (time.perf_counter() - begin)


def measure(candidate: str, cell: CellKey, process: int, device: str) -> dict[str, Any]:
    """The rounds of a model in this process, or how the results differ. The sides take turns in beginning, from process to process."""
    case = parse_op(cell.op)[1]
    step = step_of(str(case["model"]), int(str(case["batch"])), device)
    sides = [candidate, REFERENCE] if process % 2 else [REFERENCE, candidate]
    results = {}
    for side in sides:
        with SIDES[side]():
            results[side] = [step() for _ in range(WARMUP)][-1]
    if not all(abs(a - b) <= LARGEST_ERROR * abs(b) for a, b in zip(results[candidate], results[REFERENCE], strict=True)):
        return {"wrong": "loss and norm are {} and {}, with torch {} and {}".format(*results[candidate], *results[REFERENCE])}
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # what a collection finds would else be the modules of transformers
    rounds: dict[str, list[RoundMedian]] = {side: [] for side in sides}
    for number in range(ROUNDS):
        for position, side in enumerate(sides if number % 4 in (0, 3) else sides[::-1]):
            with SIDES[side]():
                step()
                us = [timed(step) for _ in range(STEPS)]
            rounds[side].append(RoundMedian(number, position, median(us), fmean(us)))
    return {"rounds": rounds}


def work(candidate: str, device: str) -> None:
    """A process: it imports what it needs, waits for a line with its number and its cells, and writes a line for each."""
    for config, model, _ in MODELS.values():
        getattr(importlib.import_module("transformers"), config), getattr(importlib.import_module("transformers"), model)
    process, cells = json.loads(sys.stdin.readline())
    if device == "cuda":
        kernels.build()
    for cell in cells:
        print(json.dumps(measure(candidate, CellKey(*cell), process, device)), flush=True)


class Processes:
    """Measures in one new process after the other. The next one imports while one measures, as in `softbench gate`."""

    def __init__(self, candidate: str, device: str, seconds: float) -> None:
        self.candidate, self.device, self.used = candidate, device, 0
        self.end, self.longest = time.monotonic() + seconds, 0.0
        self.next = self._start()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, self.candidate, "--device", self.device, "--work"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self) -> None:
        self.next.kill()
        self.next.communicate()

    def measure(self, cells: Sequence[CellKey], count: int) -> RunSamples:
        """The samples of cells of the candidate, and of the reference, in so many processes, or in those that end in time."""
        found = {key.with_backend(side): CellSamples(Status.OK, "", "") for key in cells for side in (self.candidate, REFERENCE)}
        run = f"process {self.used} and {count - 1} more"
        for _ in range(count):
            if self.used >= paired.MIN_PAIRS and time.monotonic() + max(IMPORTS, self.longest * len(cells)) > self.end:
                break
            begin, now, self.next = time.monotonic(), self.next, self._start()
            out, _ = now.communicate(json.dumps([self.used, cells]))
            answers = [json.loads(line) for line in out.splitlines()]
            answers += [{"reason": f"a process ended with {now.returncode}"}] * (len(cells) - len(answers))
            for key, answer in zip(cells, answers, strict=True):
                for side in (self.candidate, REFERENCE):
                    if "rounds" in answer:
                        found[key.with_backend(side)].processes[self.used] = tuple(RoundMedian(*one) for one in answer["rounds"][side])
                    elif side == self.candidate or "wrong" not in answer:
                        status = Status.WRONG if "wrong" in answer else Status.FAILED
                        found[key.with_backend(side)] = CellSamples(status, answer.get("wrong") or answer["reason"], "")
            self.used += 1
            self.longest = max(self.longest, (time.monotonic() - begin) / len(cells))
            print(f"process {self.used}: {len(cells)} steps in {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        return RunSamples(run, (run,), 0, "", {"device": self.device}, {}, "", found, count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("candidate", nargs="?", default="library", choices=[name for name in SIDES if name != REFERENCE])
    parser.add_argument("--models", default=",".join(MODELS), help="of gpt2, bert and llama, with commas")
    parser.add_argument("--processes", type=int, default=fresh_pairs.PAIRS, help="of the first look; the second has twice as many")
    parser.add_argument("--seconds", type=float, default=900, help="after five processes, none begins that would end later")
    parser.add_argument("--margin", type=float, default=100 * paired.MARGIN, help="the slowdown that passes, in percent")
    parser.add_argument("--json", type=Path, help="writes the verdicts, as softbench gate --json")
    parser.add_argument("--device", default="cuda" if torch.version.cuda else "cpu")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.candidate, given.device)
        return 0
    if importlib.util.find_spec("transformers") is None:
        parser.error("the models are those of transformers, which is not installed; pip install transformers")
    if given.processes < paired.MIN_PAIRS:
        parser.error(f"--processes {given.processes}: fewer than {paired.MIN_PAIRS} decide nothing")
    if unknown := set(given.models.split(",")) - set(MODELS):
        parser.error(f"--models {','.join(unknown)}: is none of {', '.join(MODELS)}")
    cases = itertools.product(given.models.split(","), BATCHES)
    cells = [CellKey(given.candidate, "both", "bf16", b, LENGTH, f"training_step(model={m},batch={b})") for m, b in cases]
    processes, plan = Processes(given.candidate, given.device, given.seconds), fresh_pairs.looks(given.processes)
    try:
        first = processes.measure(cells, given.processes)
        report = fresh_pairs.compare(first, processes.measure, given.candidate, REFERENCE, Rules(given.margin / 100), plan)
    finally:
        processes.close()
    output.show(gate_report.text(report, long=True), output.console(log_width=LOG_WIDTH))
    if given.json:
        given.json.write_text(json.dumps(report.document(), indent=1) + "\n")
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
