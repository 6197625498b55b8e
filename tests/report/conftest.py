"""One browser for all tests of pages."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REQUIRED = "SOFTBENCH_TEST_BROWSER"
"""With the value `required` a missing browser fails a test; otherwise it skips it."""
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--force-device-scale-factor=1"),
)


def program() -> str | None:
    """The path of a Chromium that has its driver beside it; None if there is none."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    return found if found and shutil.which("chromedriver") else None


class Browser:
    """One browser for many pages."""

    def __init__(self) -> None:
        found = program()
        if found is None:
            text = "needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)"
            pytest.fail(text) if os.environ.get(REQUIRED) == "required" else pytest.skip(text)
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = found
        for flag in FLAGS:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))

    def open(self, file: Path, part: str = "", *, width: int = 1400) -> None:
        """Load a page, and show one of its parts. Clears the logs of the page before it."""
        self.driver.set_window_size(width, 1000)
        self.driver.get("about:blank")
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        self.driver.get(f"{file.as_uri()}#{part}")

    def console(self) -> list[str]:
        """What the console of the page has: errors, warnings and violations of the policy."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses that the page asked for. Data that the page has itself are no request."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(("data:", "about:"))]

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> Any:
        """The first element that is shown, which may take some milliseconds after a key; a page may replace elements meanwhile."""
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.wait import WebDriverWait

        return WebDriverWait(self.driver, 30, ignored_exceptions=[StaleElementReferenceException]).until(
            lambda _: next((element for element in self.all(selector) if element.is_displayed()), None)
        )

    def all(self, selector: str) -> list[Any]:
        from selenium.webdriver.common.by import By

        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def click(self, selector: str) -> None:
        """Click the first element that is shown."""
        self.find(selector).click()

    def hover(self, element: Any) -> None:
        """Move the mouse over an element."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).move_to_element(element).perform()

    def keys(self, *keys: str) -> None:
        """Press keys where the focus is."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def close(self) -> None:
        self.driver.quit()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    made = Browser()
    yield made
    made.close()
