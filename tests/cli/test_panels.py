"""The panels of `--help`."""

import re


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
