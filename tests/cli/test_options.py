"""The texts of options: configurations, deadlines and defaults equal those of the code."""

import pytest
import typer

from softbench.cli import options
from softbench.cli.main import app
from softbench.plan.config_file import shipped
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
    from softbench.gate.self_test.measure import REPETITIONS

    assert default_text(options.Margin) == f"{100 * unpaired.MARGIN:g}; {100 * paired.MARGIN:g} with --candidate"
    assert default_text(options.Families) == str(REPETITIONS)
    assert default_text(options.GateRounds) == str(paired.ROUNDS)


def test_every_option_of_the_long_commands_has_a_panel():
    group = typer.main.get_command(app)
    for name in ("run", "gate", "check", "inspect"):
        for param in group.commands[name].params:
            if param.param_type_name == "option" and param.name != "help":
                assert param.rich_help_panel, (name, param.name)
