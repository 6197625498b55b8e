"""A training step of GPT-2, BERT or Llama: forward, loss, backward, norm of the gradients and AdamW. The step ends when the device is done.

Is a step slower with `softbench.kernels` in place of torch's functions, or inside `softbench.use()`? The gate judges it:

    softbench gate --config tools/training_step.toml --problem tools/training_step.py --reference reference \\
        --plugin tools/training_step.py:library --candidate library --dtype bf16

`--plugin tools/training_step.py:inside_use --candidate inside_use` judges the block. Models have eager attention, no dropout, and random
weights, which keep their values: the learning rate is 0. They come from `pip install transformers`, which downloads nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

cases = [{"model": model, "batch": batch} for model in ("gpt2", "bert", "llama") for batch in (1, 32)]
tolerance = (2e-2, 0.0)
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)),
    "bert": ("BertConfig", "BertForMaskedLM", dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12}),
}
"""The classes of transformers, and what differs from their defaults. Llama has the width of the others."""
Step = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def inputs(model="gpt2", batch=1, length=128, layers=4, dtype=torch.bfloat16):
    """Token numbers, and a tensor of the dtype of the weights. Models have a third of their usual layers."""
    return model, layers, torch.randint(30000, (batch, length)), torch.zeros(1, dtype=dtype)


def reference(model, layers, tokens, like):
    """The loss and the norm of the gradients, by the functions of torch."""
    if type(tokens) is not torch.Tensor:  # softbench asks for shapes and dtypes
        return tokens.new_zeros((), dtype=torch.float32), tokens.new_zeros((), dtype=torch.float32)
    with _disable_current_modes(), torch.enable_grad():  # a float64 `like` makes a model of float64
        return step_of(model, layers, like.dtype, tokens.device)(tokens)


def library(model, layers, tokens, like):
    """The same, after softmax, log_softmax and cross_entropy of `torch.nn.functional` are those of `softbench.kernels`."""
    _replace()
    return reference(model, layers, tokens, like)


def inside_use(model, layers, tokens, like):
    """The same after `softbench.enable()`."""
    _enable()
    return reference(model, layers, tokens, like)


@cache
def _replace() -> None:
    """For the rest of the worker, which runs no other solution."""
    from softbench import kernels

    for name in ("softmax", "log_softmax", "cross_entropy"):
        setattr(torch.nn.functional, name, getattr(kernels, name))


@cache
def _enable() -> None:
    import softbench

    softbench.enable()


@cache
def step_of(name: str, layers: int, dtype: torch.dtype, device: torch.device) -> Step:
    """A step of a model, whose weights are the same in each process."""
    config, model, options = MODELS[name]
    transformers = importlib.import_module("transformers")
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)  # weights are the same random numbers in each dtype
    with torch.random.fork_rng([device] if device.type == "cuda" else []), device:
        torch.manual_seed(0)
        settings = getattr(transformers, config)(num_hidden_layers=layers, attn_implementation="eager", use_cache=False, **options)
        found = getattr(transformers, model)(settings).to(dtype).train()
    torch.set_default_dtype(default)
    optimizer = torch.optim.AdamW(found.parameters(), lr=0.0, fused=True)

    def step(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        loss = found(input_ids=tokens, labels=tokens).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(found.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if tokens.is_cuda:
            torch.cuda.synchronize()
        return loss.detach().float(), norm.float()

    return step
