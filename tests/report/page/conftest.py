"""One browser for all tests of pages."""

from collections.abc import Iterator

import pytest
from browser import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    made = Browser()
    yield made
    made.close()
