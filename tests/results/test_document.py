"""Run documents: compressed beside their CSV, and what they record of each unit."""

import gzip
import json
from pathlib import Path

import pytest
from documents import packed, undigested

from softbench.core.errors import ResultsError
from softbench.core.machine import UNIT, Gpu, Machine, same_card, unit_of
from softbench.results import document
from softbench.results.document import beside, csv_of, device_name, digests, environments, lines, load, order, stream, units_of

A, B = "node1/0/0000000a", "node2/3/0000000b"


def machine(**about):
    gpus = tuple(Gpu("H200", f"GPU-{i}", 2, 1, "default", facts) for i, facts in enumerate(about.pop("gpus", ())))
    return Machine("2.13", "", gpus, "EPYC", 9, {}, **about)


def test_a_document_lies_compressed_beside_its_csv():
    assert beside(Path("a/run-1.csv")) == Path("a/run-1.json.gz")
    assert [csv_of(Path(name)) for name in ("a/run.1.json.gz", "a/run.1.json")] == [Path("a/run.1.csv")] * 2


def test_equal_documents_have_equal_bytes_and_are_read_back(tmp_path):
    found = {"run": "run-1", "cells": [{"us": [1.5, 2.25]}]}
    assert packed(found) == packed(dict(found))
    assert packed(found)[4:8] == bytes(4)  # no time of writing
    for name, content in (("a.json.gz", packed(found)), ("b.json", gzip.decompress(packed(found)))):
        (tmp_path / name).write_bytes(content)
        assert load(tmp_path / name) == found


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (packed({"cells": [1, 2, 3]})[:-9], "is a damaged gzip file: .*; copy it again, or measure again"),
        (packed({"cells": [1, 2, 3]})[:20] + bytes(30), "is a damaged gzip file: "),
        (gzip.compress(b"no JSON"), "is damaged or not JSON"),
        (gzip.compress(b"[1]"), "is not a softbench file: its JSON is not an object"),
    ],
    ids=["torn", "damaged", "no JSON", "no object"],
)
def test_a_damaged_file_is_one_line(tmp_path, content, message):
    (tmp_path / "x.json.gz").write_bytes(content)
    with pytest.raises(ResultsError, match=rf"x\.json\.gz: {message}") as found:
        load(tmp_path / "x.json.gz")
    assert "\n" not in str(found.value)


def test_a_small_file_of_a_huge_document_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(document, "MAX_BYTES", 1000)
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(bytes(2000)))
    with pytest.raises(ResultsError, match="is larger than 1000 B, and not in the lines that softbench writes"):
        load(tmp_path / "x.json.gz")


def test_cells_are_read_one_by_one(tmp_path):
    """A file of a million cells would take 10 GB: of one that ends in the middle the first cells are there before it is found."""
    found = {"run": "run-1", "cells": [{"us": [1.5, i]} for i in range(20_000)]}
    content = packed(found)
    (tmp_path / "x.json.gz").write_bytes(content)
    streamed = stream(tmp_path / "x.json.gz")
    assert not isinstance(streamed["cells"], list)
    assert {**streamed, "cells": list(streamed["cells"])} == found
    (tmp_path / "x.json.gz").write_bytes(content[:-9])
    cells = stream(tmp_path / "x.json.gz")["cells"]
    assert [next(cells) for _ in range(3)] == found["cells"][:3]
    with pytest.raises(ResultsError, match="is a damaged gzip file"):
        list(cells)
    (tmp_path / "x.json").write_bytes(gzip.decompress(content).replace(b"[1.5,7]", b"[1.5,NaN]"))
    with pytest.raises(ResultsError, match="is damaged or not JSON"):
        list(stream(tmp_path / "x.json")["cells"])


@pytest.mark.parametrize(
    "text", ['{"cells":[{"us":1}],"run":"run-1"}', '{"run":"run-1","cells":[{"us":1}]}', '{"run": "run-1",\n"cells": [{"us": 1}]}']
)
def test_a_document_of_other_lines_is_read_too(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    found = stream(tmp_path / "x.json")
    assert {**found, "cells": list(found["cells"])} == {"run": "run-1", "cells": [{"us": 1}]}


@pytest.mark.parametrize("indented", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("run-1", "run-2"),
        lambda text: text.replace("1.5", "1.4"),
        lambda text: text.replace("digest_of_header", "digest_of_heater"),
        lambda text: text.replace("digest_of_cells", "digest_of_calls"),
        lambda text: text.replace('"cells"', '"calls"'),
        lambda text: json.dumps(json.loads(text)),  # other lines
        lambda text: text + "x",
    ],
)
def test_a_changed_document_is_refused_in_one_line(tmp_path, change, indented):
    head = b'{\n  "run": "run-1"' if indented else b'{"run":"run-1"'
    text = b"".join(lines(head, [b'{"us":[1.5,2]}', b'{"us":[3]}'], indented=indented)).decode()
    found = {"run": "run-1", "cells": [{"us": [1.5, 2]}, {"us": [3]}]}
    (tmp_path / "x.json").write_text(text)
    assert load(tmp_path / "x.json") == found
    assert json.loads(text).keys() == {*found, "digest_of_header", "digest_of_cells"}
    (tmp_path / "x.json").write_text(change(text))
    with pytest.raises(ResultsError, match=r"x\.json: (was changed after softbench wrote it, as|is damaged or not JSON: its end is)"):
        load(tmp_path / "x.json")
    (tmp_path / "x.json").write_text(undigested(text))  # as an earlier version wrote it
    assert (load(tmp_path / "x.json"), digests(tmp_path / "x.json")) == (found, {})


def test_environments_keep_shared_facts_once():
    facts = {A: {"unit": A, "gpu": "H200", "driver": "1"}, B: {"unit": B, "gpu": "H200", "driver": "2", "ecc": True}}
    found = environments(facts)
    assert found == {"environment": {"gpu": "H200"}, "units": [{"unit": A, "driver": "1"}, {"unit": B, "driver": "2", "ecc": True}]}
    assert units_of(found) == facts
    one = environments({A: facts[A]})
    assert (one["environment"], one["units"]) == ({"gpu": "H200", "driver": "1"}, [{"unit": A}])


def test_a_document_without_units_has_one_without_a_name():
    assert units_of({"environment": {"gpu": "H200"}}) == {"": {"gpu": "H200"}}
    assert units_of({}) == {"": {}}


def test_the_device_is_the_gpu_of_a_gpu_run():
    assert [device_name({"device": device, "gpu": "H200", "cpu": "EPYC"}) for device in ("cuda", "cpu")] == ["H200", "EPYC"]
    assert device_name({}, "unknown") == "unknown"


def test_a_unit_hides_the_uuid():
    two = machine(gpus=[{}, {"gpu_index": 7}], host="node1")
    first, second = (unit_of(two, gpu) for gpu in two.gpus)
    assert UNIT.fullmatch(first) and UNIT.fullmatch(second)
    assert (first[:8], second[:8]) == ("node1/0/", "node1/7/")
    assert "GPU-" not in first + second
    assert unit_of(machine(gpus=[{}], host="other"), two.gpus[0]).rpartition("/")[2] == first.rpartition("/")[2]


def test_processors_are_a_unit(monkeypatch):
    found = []
    for some in ({0, 1, 2, 3}, {0, 1}, {5}):
        monkeypatch.setattr("os.sched_getaffinity", lambda pid, some=some: some)
        found.append(unit_of(machine(host="node1"), None))
    assert [unit.split("/")[1] for unit in found] == ["cpu0-3", "cpu0-1", "cpu5"]
    assert len({unit.rpartition("/")[2] for unit in found}) == 3
    assert all(UNIT.fullmatch(unit) for unit in found)


def test_a_card_stays_the_same_on_another_host():
    assert same_card("a/0/12345678", "b/3/12345678")
    assert not same_card("a/0/12345678", "a/0/12345679")
    assert same_card(None, "a/0/12345678") and same_card("", "a/0/12345678")  # not recorded


def test_names_are_sorted_by_time():
    """Earlier versions numbered the runs of a second."""
    names = [f"run-20261129-00000{number}" for number in ("0", "0-2", "0-10", "1")]
    assert max(names, key=order) == names[-1]
    assert sorted(names, key=order) == names
    assert order("mine") < order(names[0])
