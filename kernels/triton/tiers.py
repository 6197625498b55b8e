"""Alias of `dispatch`, the module's former name, which README promised to users: `softbench.kernels.triton.tiers.softmax`."""

from .dispatch import softmax as softmax
