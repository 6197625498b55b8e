"""Configuration files, flags, and which of them wins."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from softbench.core.case import Direction
from softbench.core.errors import ConfigError, UsageError
from softbench.plan.config_file import load as load_config, shipped
from softbench.plan.plan import cases_of
from softbench.plan.settings import PHASES, QUICK_SHAPES, Settings, from_flags, parse_timeout, seconds
from softbench.plan.sweep import Sweep
from softbench.plugins.source import beside, origins, split_alias


def write(folder: Path, text: str) -> str:
    path = folder / "sweep.toml"
    path.write_text(text)
    return str(path)


def test_every_shipped_configuration_loads_and_says_what_it_is():
    assert {"cpu", "powers", "tutorial"} <= set(shipped())
    for name, about in shipped().items():
        assert load_config(name)["sweep"], name
        assert len(about) > 20, name


def test_flags_override_the_file_and_the_file_the_defaults(tmp_path):
    file = load_config(write(tmp_path, 'rounds = 7\nseed = 3\n[[sweep]]\nM = [8, 16]\nN = "32:128:*2"\ndirection = "both"\n'))
    flags = from_flags({"rounds": 2, "N": "5", "seed": None})
    settings = Settings.from_sources(file, flags)
    assert (settings.rounds, settings.seed, settings.processes) == (2, 3, 1)
    assert (settings.sweep[0].M, settings.sweep[0].N, settings.sweep[0].direction) == ((8, 16), (5,), (Direction.BOTH,))


def test_timeouts_of_file_and_flag_are_merged_phase_by_phase(tmp_path):
    file = load_config(write(tmp_path, "[timeout]\nbuild = 7\ncheck = 8\n"))
    settings = Settings.from_sources(file, from_flags({"timeout": "build=9"}))
    assert settings.timeout == {**PHASES, "build": 9.0, "check": 8.0}
    assert parse_timeout("3") == dict.fromkeys(PHASES, 3.0)


def test_a_duration_has_a_unit_or_is_seconds():
    assert [seconds(text, "wait") for text in ("90", "90s", "10m", "2h", 0.5)] == [90, 90, 600, 7200, 0.5]
    for bad in ("", "m", "10d", "-1m", "inf", "nan", True, None):
        with pytest.raises(UsageError, match="wait: must be"):
            seconds(bad, "wait")


def test_rounds_is_exact_unless_max_rounds_is_given(tmp_path):
    def rounds(file, flags, **more):
        settings = Settings.from_sources(load_config(write(tmp_path, file)), from_flags(flags), **more)
        return settings.rounds, settings.max_rounds

    assert rounds("seed = 1", {}) == (3, 10)
    assert rounds("rounds = 7", {}) == (7, 7)
    assert rounds("rounds = 2\nmax_rounds = 9", {}) == (2, 9)
    assert rounds("rounds = 2\nmax_rounds = 9", {"rounds": 4}) == (4, 4)
    assert rounds("rounds = 2\nmax_rounds = 9", {"max_rounds": 5}) == (2, 5)
    assert rounds("rounds = 2\nmax_rounds = 9", {}, quick=True) == (3, 3)
    with pytest.raises(UsageError, match="--max-rounds 2: less than the 3 rounds that are always taken; lower those too"):
        rounds("seed = 1", {"max_rounds": 2})


def test_quick_thins_the_sweep_unless_its_shapes_were_given(tmp_path):
    file = load_config("tutorial")
    assert len(Settings.from_sources(file, {}, quick=True).sweep[0].N) == QUICK_SHAPES
    assert len(Settings.from_sources(file, from_flags({"N": "1:20:1"}), quick=True).sweep[0].N) == 20
    assert Settings.from_sources(file, from_flags({"rounds": 9}), quick=True).rounds == 9


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("M = 3", "M belongs in a [[sweep]]"),
        ("round = 3", "unknown key 'round'; did you mean 'rounds'?"),
        ("yardstick = false", "unknown key 'yardstick'; known are backends, batch_ms, "),
        ("rounds = 0", "rounds: must be a whole number from 1"),
        ("rounds = true", "rounds: must be a whole number"),
        ('rounds = "3"', "rounds: must be a whole number"),
        ("rounds = [", "not valid TOML"),
        ("[[sweep]]\nM = 1\nN = 2\ndtpye = 'fp32'", "unknown key 'dtpye'; did you mean 'dtype'?"),
        ("[[sweep]]\nM = 1", "N is missing"),
        ("[[sweep]]\nM = 0\nN = 2", "out of range"),
        ("[[sweep]]\nM = 1.5\nN = 2", "must be a number, a text or a list"),
        ("sweep = 3", "must be a table"),
        ("[timeout]\nbiuld = 3", "did you mean 'build'?"),
        ("timeout = 3", "must be a table"),
        ("device = 'tpu'", "known are auto, cpu, cuda, cuda:K"),
        pytest.param("a." * 100_000 + "a = 1", "is longer than 64 KiB", id="deep key"),
        pytest.param("# é" * 50_000, "is longer than 64 KiB", id="many characters of two bytes"),
        pytest.param("timeout = {" + "a." * 100_000 + "a = 1}", "is longer than 64 KiB", id="deep inline key"),
        pytest.param("a." * 900 + "a = 1", "unknown key 'a'", id="nested key"),
        ("backends = []", "must be a text or a list of texts"),
        (r"""backends = '\!torch'""", r"backends: \!torch has a backslash that the shell kept; write '!torch' in single quotes"),
        ("backends = ['all', '!']", "backends: ! stands without a name; write '!torch'"),
        ("# rounds = 3", ": is empty; write [[sweep]] and then M = ..., N = ..., or leave out --config"),
        ("plugins = ['none.py']", ": no such file"),
        ("plugins = ['no.module:f']", ": plugins no.module:f: Python finds no module no.module"),
    ],
)
def test_the_error_of_a_bad_file_is_one_line(tmp_path, text, part):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        load_config(path)
    assert str(raised.value).startswith(path)
    assert part in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_configuration_names_the_shipped_ones(tmp_path):
    with pytest.raises(ConfigError, match=r"did you mean 'tutorial'\?"):
        load_config("tutrial")
    with pytest.raises(ConfigError, match="No such file"):
        load_config(str(tmp_path / "none.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(str(tmp_path / "binary.toml"))


@given(st.text(max_size=80))
def test_no_toml_text_raises_anything_but_a_config_error(text):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.toml"
        path.write_text(text, encoding="utf-8", errors="replace", newline="")
        try:
            load_config(str(path))
        except UsageError as error:
            assert error.exit_code == 2


def test_a_plugins_name_ends_at_the_first_equals_sign(tmp_path):
    for name in ("a=b.py", "mine.py"):
        (tmp_path / name).touch()
    for folder in (tmp_path, tmp_path / "sub" / ".."):
        (tmp_path / "sub").mkdir(exist_ok=True)
        assert beside(folder, "new=a=b.py") == Path(f"new={folder / 'a=b.py'}")
        assert beside(folder, "a=b.py") == folder / "a=b.py"
    assert split_alias(beside(tmp_path, "new=a=b.py")) == ("new", tmp_path / "a=b.py")
    layer = load_config(write(tmp_path, "plugins = ['new=a=b.py', 'mine.py']"))
    assert layer["plugins"] == (Path(f"new={tmp_path / 'a=b.py'}"), tmp_path / "mine.py")
    (source,) = (source for source in origins(layer["plugins"][:1]) if source.kind == "file")
    assert (source.alias, source.target) == ("new", str(tmp_path / "a=b.py"))


def test_a_device_without_an_end_is_refused():
    with pytest.raises(ConfigError, match="is longer than 64 KiB"):
        load_config("/dev/zero")


def test_threads_are_one_to_the_processors_here(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 3})
    assert Settings.from_sources({}, from_flags({"threads": 2})).measuring()["threads"] == 2
    assert Settings().measuring()["threads"] is None
    for threads in (0, 3):
        with pytest.raises(UsageError, match=f"--threads: must be a whole number from 1 to 2, the processors .*, not {threads}") as raised:
            from_flags({"threads": threads})
        assert not isinstance(raised.value, ConfigError)


def test_a_run_records_empty_caches(tmp_path):
    assert "caches" not in Settings().measuring()
    given = load_config(write(tmp_path, 'caches = "empty"\n[[sweep]]\nM = 8\nN = 8\n'))
    assert Settings.from_sources(given, {}).measuring()["caches"] == "empty"


def test_threads_are_refused_on_a_gpu():
    settings = Settings.from_sources({"sweep": (Sweep((8,), (8,)),)}, from_flags({"threads": 1}))
    assert len(cases_of(settings, "cpu")) == 1
    with pytest.raises(UsageError, match="--threads sets the threads of a CPU run"):
        cases_of(settings, "cuda")


SHAPES = {"sweep": (Sweep(shape=("8x4x2",), dim=(0, 1)),)}


def keys(config, **flags):
    return [case.key.removeprefix("forward-fp32-") for case in cases_of(Settings.from_sources(config, from_flags(flags)), "cpu")]


def test_flags_of_shapes_replace_rows_and_columns_and_are_replaced():
    assert keys(SHAPES) == ["8x4x2@dim0", "8x4x2@dim1"]
    assert keys(SHAPES, dim=["-1"]) == ["8x4x2"]
    assert keys(SHAPES, shape=["5x6x7"]) == ["5x6x7@dim0", "5x6x7@dim1"]
    assert keys(SHAPES, M=["8"], N=["4"]) == ["8x4"]
    assert keys({"sweep": (Sweep((8,), (4,)), Sweep((9,), (4,)))}, shape=["2x3x4"]) == ["2x3x4"]


@pytest.mark.parametrize(
    ("config", "flags", "message"),
    [
        (SHAPES, {"shape": ["2x3"], "N": ["4"]}, "--shape gives all sizes of the tensor; leave out --M and --N"),
        (SHAPES, {"N": ["4"]}, "--M is missing: the sweep has shapes, which --M and --N replace together"),
        ({"sweep": (Sweep((8,), (4,)),)}, {"dim": ["1"]}, "--dim is a dimension of --shape; without a shape the rows are along N"),
    ],
)
def test_shape_and_rows_do_not_go_together(config, flags, message):
    with pytest.raises(UsageError) as raised:
        keys(config, **flags)
    assert str(raised.value) == message


def test_a_file_gives_shapes_and_dimensions(tmp_path):
    file = tmp_path / "shapes.toml"
    file.write_text('[[sweep]]\nshape = ["8x16x4", "6x5x7"]\ndim = [-1, 1]\n[[sweep]]\nshape = "2x3@dim0"\n')
    assert keys(load_config(str(file))) == ["8x16x4", "8x16x4@dim1", "6x5x7", "6x5x7@dim1", "2x3@dim0"]
    for text, message in (
        ('shape = "2x3"\nN = 4', "shape gives all sizes of the tensor; leave out M and N"),
        ("M = 4\nN = 4\ndim = 1", "dim is a dimension of shape, which is missing"),
        ("shape = [8, 16]", "[[sweep]] 1 shape: '8' is no shape of 2 to 8 sizes"),
        ("dim = 1", "dim is a dimension of shape"),
    ):
        file.write_text(f"[[sweep]]\n{text}\n")
        with pytest.raises(ConfigError) as raised:
            load_config(str(file))
        assert message in str(raised.value)
