"""Options: help, panels, lists, hints, and errors of one line."""

import os
import re

import pytest
import typer

from softbench import __version__
from softbench.cli.main import COMMANDS, app
from softbench.plan.config_file import shipped
from softbench.plan.settings import from_flags


def params(command):
    return {param.name: param for param in typer.main.get_command(app).get_command(None, command).params}


def test_the_defaults_of_settings_are_in_the_help(main):
    text = " ".join(main("run", "--help")[1].split())
    for shown in ("0.005", "10", "queued", "import=60,build=300,check=120,time=120", "fp32", "softmax", "torch's own number"):
        assert f"[default: {shown}]" in text


def test_help_names_every_shipped_configuration():
    for name in shipped():
        assert f"{name}, " in params("run")["config"].help, name


def test_gate_help_names_the_gates_defaults():
    from softbench.gate import paired, unpaired
    from softbench.gate.self_test_run import REPETITIONS

    shown = {name: param.show_default for name, param in params("gate").items()}
    assert shown["margin"] == f"{100 * unpaired.MARGIN:g}; {100 * paired.MARGIN:g} with --candidate"
    assert (shown["families"], shown["rounds"]) == (str(REPETITIONS), str(paired.ROUNDS))


def test_every_option_of_the_long_commands_has_a_panel():
    group = typer.main.get_command(app)
    for name in ("run", "gate", "check", "inspect"):
        for param in group.get_command(None, name).params:
            if param.param_type_name == "option" and param.name != "help":
                assert param.rich_help_panel, (name, param.name)


def test_output_has_a_short_name_in_every_command():
    group = typer.main.get_command(app)
    found = {name: param.opts for name in COMMANDS for param in group.get_command(None, name).params if "--output" in param.opts}
    assert sorted(found) == ["bisect", "board", "export", "gate", "history", "inspect", "merge", "plot", "report", "run", "tune"]
    assert all("-o" in names for names in found.values())


def test_the_list_of_commands_has_the_first_sentence_of_each():
    group = typer.main.get_command(app)
    assert {name: group.get_command(None, name).get_short_help_str() for name in COMMANDS} == {
        name: text for name, (_, text) in COMMANDS.items()
    }


@pytest.mark.parametrize("command", ["run", "show", "check", "gate"])
def test_lists_can_be_given_as_repeated_options(command):
    lists = {param.name for param in params(command).values() if getattr(param, "multiple", False)}
    assert lists >= {"M", "N", "backends", "dtype", "direction"} & params(command).keys()


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
        (("baseline", "sav"), "'save'"),
        (("run", "--dtpye", "fp32"), "--dtype"),
        (("compare", "--exit-cod"), "--exit-code"),
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
        ('relative_to = "none"\nbackends = "torch"', (), "sweep.toml: relative_to: unknown backend of this run 'none'; known are"),
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


def test_help_groups_options_and_shows_defaults_once(main):
    code, text, _ = main("run", "--help")
    assert code == 0
    panels = re.findall(r"^([A-Z][a-z ]+):$", text, re.M)
    assert panels == ["What to measure", "How long", "Where to", "Output", "Options", "Rarely needed"]
    assert "(" not in "".join(re.findall(r"\[default: [^\]]*\]", text))


RARE = {
    "run": ["ray", "shard", "spread", "force", "l2", "timer", "judge", "profile", "rounds", "precision", "seed", "timeout"],
    "gate": ["self-test", "families", "max-ambiguous", "allow-env-mismatch", "seed", "timeout"],
    "check": ["seed", "timeout"],
    "judge": ["key", "timeout"],
}


@pytest.mark.parametrize("command", RARE)
def test_what_few_need_stands_last_in_the_help(main, command):
    text = main(command, *(["--candidate"] if command == "gate" else []), "--help")[1]
    common, rare = text.split("\nOptions:\n")
    for name in RARE[command]:
        assert f"--{name} " not in common, name
    elsewhere = {"self-test", "families"} if command == "gate" else set()  # in the help of the self-test
    assert {name for name in RARE[command] if f"  --{name} " not in rare} <= elsewhere


def test_the_first_screen_of_run_has_what_most_users_need(main, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    first = main("run", "--help")[1].splitlines()
    assert max(map(len, first)) <= 80
    for name in ("backends", "plugin", "M", "N", "dtype", "direction", "op, --problem"):
        assert any(line.startswith(f"  --{name} ") for line in first[:28]), name


def test_help_of_gate_names_arguments_first(main):
    code, text, _ = main("gate", "--candidate", "--help")
    assert code == 0
    assert text.index("Arguments:") < text.index("What to judge:") < text.index("Output:") < text.index("Rarely needed:")


@pytest.mark.parametrize("words", [*((name,) for name in COMMANDS), ("baseline", "save"), ("baseline", "show"), ()], ids=" ".join)
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
    assert "Input" not in line and "parse" not in line  # words of pydantic


def test_an_option_is_not_the_value_of_another(main):
    code, _, err = main("gate", "--baseline", "b", "--markdown", "--plot", "f.png")
    assert (code, err) == (2, "softbench: --markdown: its value is missing, because --plot is an option\n")
    assert main("check", "--json", "-h")[1] == main("check", "-h")[1]  # --json alone is --json -
    assert "--long: No such file" in main("show", "--", "--long")[2]


@pytest.mark.parametrize("words", [(), ("baseline",)])
def test_a_group_without_a_command_shows_its_help(main, words):
    _, out, err = main(*words)
    assert "Commands:" in out + err and "see:" not in out + err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--devices", "all", "--ray", "auto"), "--devices all and --ray auto: give one of them"),
        (("--devices", "all", "--device", "cpu"), "--device cpu and --devices all: give one of them"),
        (("--spread", "shard"), "--spread goes with --devices or --ray"),
        (("--force",), "--force goes with --devices or --ray"),
        (("--devices", "all", "--spread", "shart"), "--spread: unknown spread 'shart'; did you mean 'shard'?"),
        (("--devices", "all", "--spread", ""), "--spread: unknown spread ''"),
    ],
)
def test_options_that_contradict_each_other_are_one_line(main, options, why):
    code, out, err = main("run", *options)
    assert (code, out) == (2, "")
    assert err.startswith(f"softbench: {why}") and err.count("\n") == 1


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_cards_that_do_not_exist_are_one_line(cli, more):
    done = cli("run", "--devices", "70,90", *more)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("softbench: --devices 70,90: ") and done.stderr.count("\n") == 1
    assert not list(cli.folder.iterdir())


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_more_threads_than_a_card_has_processors_are_refused(cli):
    """As for a run on one processor; the folder of the results is not created."""
    cards = ",".join(f"cpu:{number}" for number in range(len(os.sched_getaffinity(0))))
    done = cli("run", "--devices", cards, "--backends", "torch", "--M", 8, "--N", 8, "--threads", 2)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "softbench: --threads 2: must be at most 1, the processors of the card cpu"
    assert not list(cli.folder.iterdir())


@pytest.mark.slow
def test_a_dry_run_shows_the_cases_of_each_card(cli):
    done = cli("run", "--devices", "cpu:0", "--backends", "torch", "--M", 8, "--N", "8,16,24", "--dry-run")
    assert done.returncode == 0, done.stderr
    *_, whole, card = done.stdout.splitlines()
    assert whole.startswith("3 cases x 2 backends (copy, torch) = 6 cells") and " on 1 card (" in whole
    assert (
        card.startswith("cpu:0 (")
        and ": 3 cases, about " in card
        and card.endswith("forward-fp32-8x8, forward-fp32-8x16, forward-fp32-8x24")
    )
    assert not list(cli.folder.iterdir())
