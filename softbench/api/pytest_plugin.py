"""The pytest plugin: the fixture `softbench`, the option `--softbench-skip`, and a summary at the end.

pytest loads it through the entry point `pytest11`. It imports nothing but the standard library and pytest until a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from softbench.api.assertions import Softbench

PROPERTY = "softbench"
"""The property of a test's report that has a line of the summary. pytest-xdist passes it on, and JUnit files have it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    group = parser.getgroup("softbench")
    group.addoption("--softbench-skip", action="store_true", help="skip the tests that use the fixture softbench")


@pytest.fixture
def softbench(request: pytest.FixtureRequest, tmp_path: Path) -> Softbench:
    """Assertions on kernels: `assert_correct`, `assert_not_slower` and `assert_bandwidth`. Results are in the test's `tmp_path`."""
    if request.config.getoption("--softbench-skip"):
        pytest.skip("--softbench-skip")
    from softbench.api.assertions import Softbench

    return Softbench(tmp_path / "softbench", lambda line: request.node.user_properties.append((PROPERTY, line)))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A section with a line per assertion, by the name of the test."""
    if lines := sorted(_lines(terminalreporter.stats), key=lambda line: line[0]):
        terminalreporter.section("softbench")
        for test, line in lines:
            terminalreporter.line(f"{test}: {line}")


def _lines(stats: dict[str, list[Any]]) -> Iterator[tuple[str, str]]:
    """Names of tests, and what their assertions found."""
    for reports in stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                yield from ((report.nodeid, text) for name, text in report.user_properties if name == PROPERTY)
