"""Where backends come from, and which ones a run takes."""

import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from softbench.core.errors import SoftbenchError, UsageError
from softbench.plugins import load as load_module, select
from softbench.plugins.info import BackendInfo, info_from_json, info_to_json
from softbench.plugins.load import load, source_hash
from softbench.plugins.source import GROUP, PluginSource, absolute, beside, origins, split_alias, split_function

CLASS = """
class B:
    name = "{}"
    def available(self): pass
    def supports(self, case): pass
    def prepare(self, case): pass
"""


def offer(name, **fields):
    return BackendInfo(name, PluginSource("file", name, f"/x/{name}.py", f"{name}.py"), **fields)


def test_built_ins_come_through_the_entry_points():
    doors = origins([])
    assert {"copy", "naive", "torch", "compile"} <= {door.label for door in doors}
    assert {point.name for point in metadata.entry_points(group=GROUP)} == {door.label for door in doors}


def test_a_folder_and_a_name_without_suffix_are_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fn.py").write_text("")
    missing = "no such file; did you mean fn.py?"
    name = "'a b' cannot name a backend; names consist of letters, digits and . _ : + -"
    wrong = {tmp_path: "is a folder; name a Python file in it", Path("fn"): missing, Path("nf.py"): missing, Path("a b=fn.py"): name}
    for given, said in wrong.items():
        with pytest.raises(UsageError) as found:
            origins([given])
        assert str(found.value) == f"--plugin {given}: {said}"


def test_the_yardstick_is_always_taken_and_first():
    offers = [offer("torch"), offer("copy"), offer("naive")]
    assert [o.name for o in select.select(offers, ["torch"])] == ["copy", "torch"]
    assert [o.name for o in select.select(offers, None)] == ["copy", "torch", "naive"]


EXCLUSIONS = {
    ("!torch",): ["copy", "naive", "compile"],
    ("all", "!n*", "!compile"): ["copy", "torch"],
    ("!compile:b", "compile:*"): ["copy", "compile:a"],
    ("torch", "naive", "!compile*"): ["copy", "torch", "naive"],
    ("!fast",): ["copy", "torch", "naive", "compile"],
    ("*", "!c*"): ["copy", "torch", "naive"],
}
"""Names, and what they select. `fast` is a backend that `all` may not select, for its operations."""


@pytest.mark.parametrize("names", EXCLUSIONS)
def test_an_exclusion_counts_wherever_it_stands(names):
    offers = [offer(name, extra=":" in name) for name in ("copy", "torch", "naive", "compile", "compile:a", "compile:b")]
    assert [one.name for one in select.select(offers, names, known=[*offers, offer("fast")])] == EXCLUSIONS[names]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["!troch"], "--backends: '!troch' excludes nothing: no backend matches 'troch'; did you mean 'torch'?"),
        (["!x:*"], "--backends: '!x:*' excludes nothing: no backend matches 'x:*'"),
        (["torch", "!t*"], "--backends torch,!t*: no backend is left"),
        (["!*"], "--backends !*: no backend is left"),
        (["!copy"], "--backends: '!copy' excludes the yardstick, which every run measures"),
    ],
)
def test_an_exclusion_of_nothing_of_all_or_of_the_yardstick_is_an_error(names, said):
    with pytest.raises(UsageError) as found:
        select.select([offer("copy"), offer("torch"), offer("naive")], names)
    assert str(found.value).startswith(said)


def test_unknown_names_get_a_did_you_mean():
    with pytest.raises(UsageError, match=r"unknown backend 'troch'; did you mean 'torch'\? known are copy, torch"):
        select.select([offer("torch"), offer("copy")], ["troch"])


def test_two_backends_of_one_name_are_an_error():
    first, second = offer("mine"), BackendInfo("mine", PluginSource("file", "b", "/x/b.py", "b.py"))
    with pytest.raises(UsageError, match=r"two backends are called 'mine': one of mine.py, one of b.py"):
        select.select([first, second], None)


def test_an_unavailable_backend_is_an_error_only_if_no_other_is_named():
    cuda, broken = offer("cuda", unavailable="no nvcc; install the CUDA toolkit"), offer("x", broken="ImportError: y")
    offers = [offer("copy"), offer("torch"), cuda, broken]
    for names, part, code in ((["cuda"], "cuda: unavailable: no nvcc; install", 1), (["copy", "cuda", "x"], "; x: ImportError: y", 2)):
        with pytest.raises(SoftbenchError, match=part) as found:
            select.select(offers, names)
        assert found.value.exit_code == code
    assert len(select.select(offers, None)) == 4
    assert [one.name for one in select.select(offers[:3], ["cuda", "torch"])] == ["copy", "cuda", "torch"]
    with pytest.raises(UsageError, match="cuda: unavailable"):
        select.select(offers[:3], ["cuda", "torch"], yardstick=False)


def test_an_unknown_name_is_told_with_the_plugin_that_could_not_be_loaded():
    offers = [offer("copy"), offer("torch"), offer("slwo", broken="import: has no function slwo")]
    with pytest.raises(UsageError, match=r"unknown backend 'slow': slwo\.py could not be loaded: import: has no"):
        select.select(offers, ["slow"])


def test_a_function_that_its_file_lacks_is_an_error_beside_others_too():
    source = PluginSource("file", "slwo", "/x/x.py", "x.py:slwo", function="slwo")
    lost = BackendInfo("slwo", source, broken="import: has no function slwo; did you mean 'slow'?")
    with pytest.raises(UsageError, match=r"plugin x\.py:slwo: could not be loaded: import: has no function slwo; did you mean 'slow'"):
        select.select([offer("copy"), offer("torch"), lost], ["torch"])
    assert [one.name for one in select.select([offer("copy"), offer("torch"), lost], ["torch", "!slwo"])] == ["copy", "torch"]


def test_a_broken_backend_is_no_row_beside_others():
    source = PluginSource("file", "x", "/x/x.py", "x.py")
    broken, right = BackendInfo("broken", source, broken="import: ImportError: y"), BackendInfo("right", source)
    assert [one.name for one in select.select([offer("copy"), broken, right], ["right"])] == ["copy", "right"]
    assert [one.name for one in select.select([offer("copy"), broken, right], None)] == ["copy", "broken", "right"]
    assert [one.name for one in select.select([offer("copy"), offer("torch"), broken], ["torch"])] == ["copy", "torch", "broken"]


def test_only_the_doors_that_are_needed_are_opened():
    doors = [PluginSource("entry point", name, f"{name}:b", "x") for name in ("copy", "torch", "naive")]
    assert [door.label for door in select.needed(doors, ["torch"])] == ["copy", "torch"]
    assert [door.label for door in select.needed(doors, ["torch"], yardstick=False)] == ["torch"]
    assert select.needed(doors, None) == tuple(doors)
    assert select.needed(doors, ["all", "torch"]) == select.needed(doors, ["t*"]) == tuple(doors)
    assert [door.label for door in select.needed(doors, ["torch:variant", "mine"])] == ["copy", "torch"]
    assert select.needed(doors, ["!torch"]) == tuple(doors)
    assert [door.label for door in select.needed(doors, ["torch", "!torch:x"])] == ["copy", "torch"]
    plugin = PluginSource("file", "x", "/x.py", "x.py")
    assert select.needed([*doors, plugin], ["mine"])[1] is plugin
    assert select.missing([offer("copy")], ["mine"])
    assert not select.missing([offer("copy"), offer("mine")], ["mine", "!copy"])


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("x = 1", "is missing or empty, and it has no function `softmax`; name a function as FILE:FUNCTION"),
        ("backend = 3", "3 is not a backend"),
        (CLASS.format("b") + "backend = B", r"B is a class and not a backend: write B\(\)"),
        (CLASS.format("b") + "del B.supports\nbackend = B()", "an object of B is not a backend: it lacks the methods supports"),
        (CLASS.format("b") + "del B.name\nbackend = B()", "None is no name"),
        (CLASS.format("all") + "backend = B()", "'all' is no name"),
        ("backends = []", "`backend` or `backends` is missing or empty"),
        (CLASS.format("a b") + "backend = B()", "no name for a backend"),
        (CLASS.format("../b") + "backends = [B()]", "no name for a backend"),
    ],
)
def test_what_is_no_backend_is_refused(tmp_path, code, part):
    path = tmp_path / "plug.py"
    path.write_text(code)
    with pytest.raises(UsageError, match=part):
        load(PluginSource("file", "plug", str(path), "plug.py"))


def test_a_source_hash_changes_with_the_source(tmp_path):
    path = tmp_path / "plug.py"
    path.write_text("a = 1")
    origin = PluginSource("file", "plug", str(path), "plug.py")
    before = source_hash(None, origin)
    assert before == source_hash(None, origin)
    path.write_text("a = 2")
    assert before != source_hash(None, origin)


def test_a_source_hash_is_also_of_a_module_beside_the_file_that_it_imports(tmp_path, monkeypatch):
    (path := tmp_path / "plug.py").write_text("import helper")
    (helper := tmp_path / "helper.py").touch()
    monkeypatch.setattr(load_module, "_remembered", set())
    load_module.remember()
    origin = PluginSource("file", "plug", str(path), "plug.py")
    alone = source_hash(None, origin)
    monkeypatch.setitem(sys.modules, "helper", SimpleNamespace(__file__=str(helper)))
    assert source_hash(None, origin) != alone


def test_a_file_of_thousands_of_backends_is_read_once(tmp_path, monkeypatch):
    path = tmp_path / "many.py"
    path.write_text("a = 1")
    origin = PluginSource("file", "many", str(path), "many.py")
    read = []
    monkeypatch.setattr(Path, "read_bytes", lambda self: read.append(self) or b"")
    assert len({source_hash(None, origin) for _ in range(100)}) == len(read) == 1
    with pytest.raises(UsageError, match=r"known are b0, b1, .* and 960 others$"):
        select.select([offer(f"b{i}") for i in range(1000)], ["c"])


def test_a_package_is_read_once_for_all_its_backends(monkeypatch):
    """torch.compile's source offers dozens of backends, and each has the hash of the whole package."""
    from softbench.backends import torch_compile

    read, bytes_of = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read.append(self) or bytes_of(self))
    door = PluginSource("entry point", "compile", "softbench.backends.torch_compile:inductor", "softbench")
    load_module._package_digest.cache_clear()
    hashes = {source_hash(backend, door) for backend in torch_compile.inductor}
    assert len(hashes) == 1 and len(torch_compile.inductor) > 5
    assert read and len(read) == len(set(read))


def test_the_hash_of_our_own_kernels_covers_their_files(monkeypatch):
    from softbench.backends.cuda import backend as cuda
    from softbench.backends.triton import own

    names = {file.name for file in cuda.sources()}
    assert {"softmax.cu", "build.py"} <= names
    door = PluginSource("entry point", "cuda", "softbench.backends.cuda:backend", "softbench")
    before = source_hash(cuda, door)
    assert before != source_hash(own, door)


def test_offers_survive_json():
    told = offer("torch", summary="s")
    assert info_from_json(info_to_json(told), told.origin) == told


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("k.py", ("", "/base/k.py")),
        ("new=k.py", ("new", "/base/k.py")),
        ("new=k.py:fast", ("new", "/base/k.py:fast")),
        ("package.module:fast", ("", "package.module:fast")),
        ("new=package.module:fast", ("new", "package.module:fast")),
        ("/elsewhere/k.py", ("", "/elsewhere/k.py")),
    ],
)
def test_files_are_relative_to_a_folder_and_modules_are_not(given, expected):
    alias, path = split_alias(Path(given), Path("/base"))
    assert (alias, str(path)) == expected
    assert beside(Path("/base"), given) == Path(f"{expected[0]}={expected[1]}" if expected[0] else expected[1])


def test_an_absolute_plugin_keeps_name_and_function():
    assert absolute(Path("new=k.py:fast")) == Path(f"new={Path.cwd()}/k.py:fast")
    assert absolute(Path("new=package.module:fast")) == Path("new=package.module:fast")


@pytest.mark.parametrize(("text", "expected"), [("k.py", ("k.py", "")), ("k.py:a.b", ("k.py", "a.b")), ("k.py:1", ("k.py:1", ""))])
def test_a_function_follows_the_last_colon(text, expected):
    place, function = split_function(Path(text))
    assert (str(place), function) == expected
