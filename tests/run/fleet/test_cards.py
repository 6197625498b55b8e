"""The processes of the cards of this host."""

import os
import signal
import time

import pytest

from softbench.core.errors import UsageError
from softbench.core.machine import Gpu, Machine
from softbench.run.fleet import cards
from softbench.run.fleet.cards import LocalCards


@pytest.fixture
def machine(monkeypatch):
    """A machine with four GPUs on two nodes."""
    gpus = tuple(Gpu("H200", f"GPU-{i}", 2, 1, "default", {"gpu_numa_node": i // 2}) for i in range(4))

    class Probed:
        def __init__(self, *about):
            self.machine = Machine("2.13", "torch is built without CUDA", gpus, "EPYC", 9, {})

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *raised: None  # noqa: E731

    monkeypatch.setattr(cards, "Session", Probed)
    return gpus


@pytest.mark.parametrize(
    ("text", "names", "nodes"), [("all", "0123", [0, 0, 1, 1]), ("0,2", "02", [0, 1]), ("cuda:3, 1", "31", [1, 0]), ("1,01", "1", [0])]
)
def test_devices_are_all_or_numbers(machine, text, names, nodes):
    assert cards._devices(text) == ([f"cuda:{number}" for number in names], nodes)


@pytest.mark.parametrize(
    ("text", "why"), [("4", "no such GPU"), ("x", "write all, or the numbers"), *((text, "write all") for text in ("cpu:", "0,cpu:1", ""))]
)
def test_wrong_devices_are_refused(machine, text, why):
    with pytest.raises(UsageError, match=f"--devices {text}: .*{why}|--devices {text}: {why}"):
        cards._devices(text)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "doctor"])
def test_a_host_without_gpus_is_one_line(main, command):
    code, _, err = main(command, "--devices", "all")
    assert code == 2 and err.count("\n") == 1
    assert err.startswith("softbench: --devices all: ") and "leave out --devices" in err


def next_of(found, op):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        number, message = found.events.get(timeout=60)
        if message["op"] == op:
            return number, message
    raise AssertionError(f"no {op}")


def test_a_wrong_message_ends_the_card_with_a_reason():
    found = LocalCards("cpu:0")
    try:
        assert found.opening[0]["device"] == "cpu" and found.opening[0]["processors"]
        found.send(0, {"op": "open"})
        reason = "msgspec.ValidationError: Object missing required field `request`"
        assert next_of(found, "ended")[1]["text"] == f"its process ended with code 1: {reason}"
    finally:
        found.close()


@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGKILL, "SIGKILL"), pytest.param(signal.SIGRTMIN + 1, f"signal {signal.SIGRTMIN + 1}", marks=pytest.mark.slow)],
)
def test_a_killed_card_names_its_signal(number, name):
    found = LocalCards("cpu:0")
    try:
        assert next_of(found, "beat")
        os.kill(found._processes[0].pid, number)
        assert next_of(found, "ended")[1]["text"].startswith(f"its process was killed ({name})")
    finally:
        found.close()


def test_closing_ends_cards_that_wait(tmp_path):
    found = LocalCards("cpu:0")
    process = found._processes[0]
    assert next_of(found, "beat")[0] == 0
    begin = time.monotonic()
    found.close()
    assert process.poll() == 0
    assert time.monotonic() - begin < cards.END_SECONDS
