"""Parameters of a test, of which a sample runs by default, and all with `--slow`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest


def sampled(values: Iterable, by_default: Callable[..., bool]) -> list:
    """The values for `parametrize`. Those that `by_default` does not choose have the mark `slow`; a tuple is several arguments."""
    given = [value if isinstance(value, tuple) else (value,) for value in values]
    chosen = [by_default(*each) for each in given]
    assert any(chosen) and not all(chosen), "a sample is a part of the values"
    return [pytest.param(*each, marks=() if default else pytest.mark.slow) for each, default in zip(given, chosen, strict=True)]


def with_dtypes(names: str, values: Iterable, every: int = 1) -> pytest.MarkDecorator:
    """Parametrize with these arguments and the dtype. By default each `every`-th value runs, with one dtype that alternates."""
    given = [value if isinstance(value, tuple) else (value,) for value in values]
    dtypes = ("fp32", "bf16", "fp16")
    cases = [(number, *each, dtype) for number, each in enumerate(given) for dtype in dtypes]
    chosen = sampled(cases, lambda number, *each: number % every == 0 and each[-1] == dtypes[number // every % 3])
    return pytest.mark.parametrize((*names.split(), "dtype"), [pytest.param(*one.values[1:], marks=one.marks) for one in chosen])
