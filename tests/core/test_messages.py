"""Messages cross a process boundary unchanged, and what is no message is refused with its place."""

import json

import pytest
import torch

from softbench.core.case import Case, Direction
from softbench.core.json import from_json, to_json
from softbench.core.messages import (
    BuildCase,
    CheckOutputs,
    Failure,
    Graded,
    ListUnsupported,
    LoadSource,
    RunCheckCase,
    Timed,
    reply_from_json,
    request_from_json,
)
from softbench.core.outcome import Accuracy, Grade, Profile, Status, Telemetry

CASE = Case(8, 16, "fp32", Direction.BACKWARD, "cpu")


def sent(message):
    return json.loads(json.dumps(to_json(message)))


@pytest.mark.parametrize(
    "request_",
    [
        BuildCase(CASE, 3),
        ListUnsupported(("a", "b"), (CASE, CASE)),
        LoadSource({"kind": "file"}, "cpu", None, ("x.py",)),
        RunCheckCase("softmax", "shape 1x1", Direction.FORWARD, "fp32", 0),
    ],
    ids=lambda one: one.op,
)
def test_a_request_crosses_processes_unchanged(request_):
    assert request_from_json(sent(request_)) == request_


@pytest.mark.parametrize("reply", [Graded(Accuracy.wrong("off")), Failure(Status.OOM, "check", "r", poisoned=True)])
def test_a_reply_is_read_as_one_of_its_request(reply):
    assert reply_from_json(CheckOutputs(), sent(reply)) == reply
    with pytest.raises(ValueError, match="Timed"):
        reply_from_json(CheckOutputs(), sent(Timed((1.0,))))


@pytest.mark.parametrize(
    ("kind", "data", "place"),
    [
        (Profile, {"device_us": [1.0, float("nan")]}, r"device_us\[1\]"),
        (Profile, {"kernels": [3]}, r"kernels\[0\]"),
        (Telemetry, {"power_w": True}, "power_w"),
        (Accuracy, {"grade": "fine", "worst": 1.0, "detail": ""}, "grade"),
        (Accuracy, {"grade": "pass", "worst": 1.0}, "detail"),
        (Timed, {"reply": "Timed", "samples_us": [1.0], "timer": "host"}, "timer"),
    ],
)
def test_an_invalid_value_is_refused_with_its_place(kind, data, place):
    with pytest.raises(ValueError, match=place) as error:
        from_json(kind, data)
    assert "\n" not in str(error.value)


def test_whole_numbers_and_subclasses_of_text_and_numbers_are_sent_as_they_are():
    class Us(float):
        pass

    assert from_json(Telemetry, sent(Telemetry(1980, power_w=Us(500.5)))) == Telemetry(1980, power_w=500.5)
    assert type(sent(Telemetry(1980))["sm_clock_mhz"]) is int
    assert sent(Failure(Status.FAILED, "build", torch.__version__))["reason"] == str(torch.__version__)
    assert sent(Accuracy(Grade.PASS, 0.5, "")) == {"grade": "pass", "worst": 0.5, "detail": ""}
