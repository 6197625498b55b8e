"""The texts of options: configurations, deadlines and defaults equal those of the code."""

import re

import pytest
import typer

from softbench import __version__
from softbench.cli import options
from softbench.cli.main import app
from softbench.plan.config_file import shipped
from softbench.plan.flags import from_flags
from softbench.plan.settings import PHASES, Settings


def default_text(option) -> object:
    (found,) = option.__metadata__
    return found.show_default


def test_help_names_the_default_deadlines():
    assert default_text(options.Timeout) == ",".join(f"{phase}={seconds:g}" for phase, seconds in PHASES.items())


def test_help_names_every_shipped_configuration():
    (option,) = options.Config.__metadata__
    for name in shipped():
        assert f"{name}, " in option.help, name


@pytest.mark.parametrize(
    ("option", "field"),
    [
        *[(options.MaxRounds, "max_rounds"), (options.Precision, "precision"), (options.Processes, "processes"), (options.Seed, "seed")],
        *[(options.RelativeTo, "relative_to"), (options.Timer, "timer"), (options.L2, "l2"), (options.Profile, "profile")],
        *[(options.Device, "device")],
    ],
)
def test_text_defaults_equal_the_settings(option, field):
    assert default_text(option) == str(getattr(Settings(), field))


def test_gate_help_names_the_gates_defaults():
    from softbench.gate import paired, unpaired
    from softbench.gate.self_test_run import REPETITIONS

    assert default_text(options.Margin) == f"{100 * unpaired.MARGIN:g}; {100 * paired.MARGIN:g} with --candidate"
    assert default_text(options.Families) == str(REPETITIONS)
    assert default_text(options.GateRounds) == str(paired.ROUNDS)


def test_every_option_of_the_long_commands_has_a_panel():
    group = typer.main.get_command(app)
    for name in ("run", "gate", "check", "inspect"):
        for param in group.commands[name].params:
            if param.param_type_name == "option" and param.name != "help":
                assert param.rich_help_panel, (name, param.name)


def test_output_has_a_short_name_in_every_command():
    group = typer.main.get_command(app)
    found = {name: param.opts for name, command in group.commands.items() for param in command.params if "--output" in param.opts}
    assert sorted(found) == ["gate", "inspect", "merge", "plot", "report", "run"]
    assert all("-o" in names for names in found.values())


def test_commands_stand_in_the_order_of_use(main):
    code, text, _ = main("--help")
    commands = [line.split()[0] for line in text.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()]
    assert code == 0
    assert commands == [
        "run",
        "check",
        "show",
        "plot",
        "report",
        "compare",
        "merge",
        "gate",
        "baseline",
        "judge",
        "list",
        "doctor",
        "inspect",
    ]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        *[("run", f"--{name}") for name in ("backends", "M", "N", "dtype", "direction", "timeout")],
        *[("show", f"--{name}") for name in ("backends", "M", "N", "dtype", "direction")],
        *[("check", f"--{name}") for name in ("backends", "dtype", "direction")],
        *[("gate", f"--{name}") for name in ("M", "N", "dtype", "direction")],
    ],
)
def test_lists_can_be_given_as_repeated_options(command, option):
    (param,) = [param for param in typer.main.get_command(app).commands[command].params if option in param.opts]
    assert param.multiple


def test_repeated_options_are_one_list(main):
    joined, repeated = (
        from_flags({"backends": backends, "M": rows, "dtype": dtypes, "direction": directions, "timeout": timeouts})
        for backends, rows, dtypes, directions, timeouts in (
            (["naive,torch"], ["8,16:64:*2"], ["half,bf16"], ["forward,both"], ["build=9,check=8"]),
            (["naive", "torch"], ["8", "16:64:*2"], ["half", "bf16"], ["forward", "both"], ["build=9", "check=8"]),
        )
    )
    assert joined == repeated
    given = ("run", "--device", "cpu", "--M", "8", "--dry-run")
    once = main(*given, "--backends", "naive,torch", "--N", "16,32")
    assert main(*given, "--backends", "naive", "--backends", "torch", "--N", "16", "--N", "32") == once
    assert "(copy, naive, torch)" in once[1]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("rn",), "'run'"),
        (("baseline", "promot"), "'promote'"),
        (("run", "--dtpye", "fp32"), "--dtype"),
        (("compare", "--only-change"), "--only-changed"),
    ],
)
def test_mistyped_commands_and_options_get_a_hint(main, words, part):
    code, _, text = main(*words)
    assert code == 2
    assert re.search(rf"(Did you mean|Possible options:) .*{part}", text), text


def test_version_has_a_short_name(main):
    assert main("-V") == main("--version") == (0, f"softbench {__version__}\n", "")


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ('backends = "troch"', (), "sweep.toml: backends: unknown backend 'troch'; did you mean 'torch'?"),
        ('backends = "troch*"', (), "sweep.toml: backends: no backend matches 'troch*'"),
        ('backends = "torch"', ("--backends", "troch"), "--backends: unknown backend 'troch'"),
        ('relative_to = "none"\nbackends = "torch"', (), "sweep.toml: relative_to: unknown backend 'none'"),
        ('op = "none.py"', (), "sweep.toml: [[sweep]] 1 op none.py: no such file"),
        ('op = "softmax"', ("--op", "none.py"), "--op none.py: no such file"),
        ('direction = "fused"', (), "sweep.toml: direction fused: softmax has only"),
        ('dtype = "fp32"', ("--direction", "fused"), "--direction fused: softmax has only"),
    ],
)
def test_an_error_names_the_flag_or_the_files_key(main, tmp_path, text, flags, message):
    settings, sweep = (text, "") if text.startswith(("backends", "relative_to")) else ("", text)
    (tmp_path / "sweep.toml").write_text(f"{settings}\n[[sweep]]\nM = 8\nN = 8\n{sweep}\n")
    code, _, err = main("run", "--config", "sweep.toml", "--device", "cpu", "--dry-run", *flags)
    assert (code, err.startswith(f"softbench: {message}")) == (2, True), err
