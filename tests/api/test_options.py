"""Arguments of Python are the options of the command line: their words, read by the command line, give the same settings."""

import inspect
import typing
from pathlib import Path

import numpy
import pytest
import torch
import typer

import softbench
from softbench.api.backends import given
from softbench.api.keywords import KEYWORDS
from softbench.api.options import as_arguments, given_settings, keywords, operations, texts, words
from softbench.cli.main import app
from softbench.core.errors import ResultsError, UsageError
from softbench.plan.settings import SETTINGS, from_flags, of_command

CALLS = {
    "numbers": {"M": 4096, "N": [1024, 4096], "rounds": 4, "max_rounds": 8, "precision": 0.01, "seed": 3, "processes": 2, "timeout": 30},
    "ranges": {"M": range(8, 32, 8), "N": "256:1024:*2", "dtype": "bf16", "direction": ["forward", "backward"]},
    "torch's dtypes": {"M": 8, "N": 8, "dtype": (torch.float32, torch.bfloat16)},
    "one shape": {"shape": (8, 16, 1024), "dim": -1},
    "shapes": {"shape": ["8x16x1024", "attention"], "dim": [0, -1]},
    "lists of sizes": {"shape": [(8, 16, 1024), [4, 4, 4]]},
    "parameters": {"M": 8, "N": 8, "set": {"scale": 0.5, "out_dtype": "fp32"}, "device": "cpu"},
    "two sets": {"M": 8, "N": 8, "set": [{"scale": 0.5}, "scale=0.7"], "timer": "device", "l2": "warm", "profile": "off"},
    "numpy's numbers": {
        "shape": numpy.array([8, 16, 1024]),
        "dim": numpy.int64(2),
        "rounds": numpy.int64(4),
        "precision": numpy.float64(0.01),
    },
    "numpy's parameters": {"M": numpy.int64(8), "N": numpy.array([8, 16]), "set": {"scale": numpy.float64(0.5)}},
    "torch's objects": {"M": 8, "N": 8, "set": {"out_dtype": torch.float32}, "device": torch.device("cpu")},
    "phases": {"M": 8, "N": 8, "timeout": {"import": 10, "build": 600}, "relative_to": "torch"},
}


def layer(found, op, backends):
    return from_flags(given_settings(backends, op, found))


@pytest.mark.parametrize("name", CALLS)
def test_the_words_give_the_same_settings(name):
    chosen, found = given(["torch", "compile:*"]), texts(CALLS[name])
    line = words(chosen, None, {"backends": ",".join(chosen.labels), **found})
    context = typer.main.get_command(app).get_command(None, "run").make_context("run", list(line))
    flags = {key: value for key, value in context.params.items() if key in (*keywords("run"), "backends", "op")}
    assert layer(found, None, chosen) == from_flags(flags)


def test_an_operation_and_plugins_are_words_too():
    chosen, found = given(["new=a b.py"]), texts({"plugins": ["c.py"], "shape": "attention"})
    line = words(chosen, ["softmax", "log_softmax"], {**found, "quick": True, "config": None})
    assert line == ["--plugin", "new=a b.py", "--plugin", "c.py", "--op", "softmax,log_softmax", "--shape", "attention", "--quick"]


def test_errors_are_those_of_the_command_line():
    with pytest.raises(UsageError, match="--N: 0 is out of range"):
        layer(texts({"M": 8, "N": 0}), "softmax", given([]))
    with pytest.raises(UsageError, match=r"--dtype.*did you mean 'bf16'"):
        layer(texts({"dtype": "bf61"}), "softmax", given([]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": [4, 8]}, r"^rounds: must be one number, not \[4, 8\]$"),
        ({"set": 5}, r"^set: 5 is no set of parameters; write \{'scale': 0.7\}"),
        ({"plugins": [5]}, "^plugins: 5 is no plugin file"),
        ({"M": []}, "^M: is empty; give a value, or leave it out$"),
        ({"dtype": (), "N": 8}, "^dtype: is empty"),
        ({"set": {}}, "^set: is empty"),
        ({"timeout": {"build": "soon"}}, "--timeout build=soon: write seconds"),
        ({"shape": 8.5}, "--shape"),
    ],
)
def test_values_of_another_type_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        layer(texts(options), None, given([]))


def test_an_operation_is_a_name_or_a_path():
    assert (operations(None), operations(Path("a.py")), operations(["softmax", Path("a.py")])) == (None, ["a.py"], ["softmax", "a.py"])
    with pytest.raises(UsageError, match=r"^op: 5 is no operation; give a name or a file"):
        operations(5)
    with pytest.raises(UsageError, match=r"^op: is empty"):
        operations([])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("--shape gives all sizes of the tensor; leave out --M and --N", "shape gives all sizes of the tensor; leave out M and N"),
        ("--relative-to: unknown backend 'a--M'", "relative_to: unknown backend 'a--M'"),
        ("--timeout.build: must be a number", "timeout.build: must be a number"),
        ("--device cuda: no GPU; use --device cpu", "device cuda: no GPU; use device='cpu'"),
        ("-o x.png: cannot be written; select some: softbench plot - -o NAME.png", None),
        ("--output x: no file of --resume", "output x: no file of --resume"),
    ],
)
def test_errors_name_arguments_and_keep_command_lines(text, shown):
    with pytest.raises(ResultsError) as raised, as_arguments():
        raise ResultsError(text)
    assert str(raised.value) == (shown or f"out {text.removeprefix('-o ')}")


def signature_of_checkers(function):
    """The type of the keywords as the source has it."""
    return eval(function.__annotations__["options"], vars(inspect.getmodule(function)))


@pytest.mark.parametrize(
    ("function", "command", "positional"),
    [(softbench.compare, "run", {"backends", "judge"}), (softbench.run_gate, "gate", set()), (softbench.check, "check", {"backends"})],
)
def test_help_shows_the_options_of_the_command_as_keywords(function, command, positional):
    options = {one.name for one in of_command(command)} - positional
    shown = inspect.signature(function).parameters
    assert options <= shown.keys()
    assert "options" not in shown
    for name, kind in keywords(command).items():  # what editors and type checkers see
        assert name in options and shown[name].annotation == kind
        if SETTINGS[name].kind in (int, float):
            assert SETTINGS[name].kind in (kind, *typing.get_args(kind)), name
    assert signature_of_checkers(function) == typing.Unpack[KEYWORDS[command]]


def test_errors_about_a_configuration_name_it_and_the_key():
    for names, shown in (([], "a.toml: backends: unknown"), (["backends"], "backends: unknown")):
        with pytest.raises(UsageError) as raised, as_arguments(Path("a.toml"), names):
            raise UsageError("--backends: unknown")
        assert str(raised.value) == shown
