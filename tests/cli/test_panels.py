"""The panels of `--help`."""

import re

import pytest

from softbench.cli.main import ORDER


def test_help_groups_options_and_shows_defaults_once(main):
    code, text, _ = main("run", "--help")
    assert code == 0
    panels = re.findall(r"^([A-Z][a-z ]+):$", text, re.M)
    assert panels == ["What to measure", "How long", "Where to", "Several cards", "Output", "Advanced", "Options"]
    assert "[default: 0.005]" in text
    assert "(" not in "".join(re.findall(r"\[default: [^\]]*\]", text))


def test_help_of_gate_names_arguments_first(main):
    code, text, _ = main("gate", "--help")
    assert code == 0
    assert text.index("Arguments:") < text.index("What to judge:") < text.index("Output:") < text.index("Advanced:")


@pytest.mark.parametrize("words", [*((name,) for name in ORDER), ("baseline", "save"), ("baseline", "promote"), ()], ids=" ".join)
def test_an_unknown_option_is_one_line(main, words):
    code, out, err = main(*words, "--nonsense")
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("softbench: " + (" ".join(words) + ": " if words else "") + "no such option")
    assert line.endswith(" ".join(("softbench", *words, "--help")))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rum",), "no such command 'rum'"),
        (("baseline", "saev"), "baseline: no such command 'saev'"),
        (("compare", "a.csv"), "compare: missing argument "),
        (("judge", "--M", "x"), "judge: invalid value for '--M': "),
    ],
)
def test_other_errors_of_the_parser_are_one_line(main, words, said):
    code, out, err = main(*words)
    (line,) = err.splitlines()
    assert (code, out, line.startswith(f"softbench: {said}"), "--help" in line) == (2, "", True, True)


def test_an_option_is_not_the_value_of_another(main):
    code, _, err = main("gate", "--baseline", "b", "--markdown", "--plot", "f.png")
    assert (code, err) == (2, "softbench: --markdown: its value is missing, because --plot is an option\n")
    assert "--json: its value is missing, because -h is an option" in main("check", "--json", "-h")[2]
    assert "--long: No such file" in main("show", "--", "--long")[2]


@pytest.mark.parametrize("words", [(), ("baseline",)])
def test_a_group_without_a_command_shows_its_help(main, words):
    _, out, err = main(*words)
    assert "Commands:" in out + err and "see:" not in out + err
