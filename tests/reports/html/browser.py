"""A headless Chromium for the tests of a page; where there is none, they are skipped."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
AXE = Path(__file__).parent / "axe" / "axe.min.js"
_ALL_DRAWN = """(() => {
  const next = document.querySelector('.plot:not([data-drawn])');
  if (next) next.scrollIntoView();
  return !next;
})()"""
"""A chart is drawn when it is scrolled to."""


class Browser:
    """One tab, with what it logged and what it asked the network for."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path) -> None:
        """Loads a page of the disk and has all its charts drawn."""
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(path.as_uri())
        self.wait(_ALL_DRAWN)
        self.run("window.scrollTo(0, 0)")

    def run(self, script: str) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script)

    def value(self, expression: str) -> Any:
        """What an expression is."""
        return self.run(f"return {expression}")

    def wait(self, condition: str) -> None:
        """Until an expression is true, for twenty seconds at most."""
        waiting = importlib.import_module("selenium.webdriver.support.wait").WebDriverWait(
            self.driver, 20, poll_frequency=0.05
        )
        waiting.until(lambda _: self.value(condition), f"never true: {condition}")

    def media(self, **features: str) -> None:
        """Emulates what the reader prefers."""
        listed = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": listed})

    def click(self, selector: str) -> None:
        """Clicks what a CSS selector finds first, as a mouse does."""
        element = self.driver.find_element("css selector", selector)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def press(self, selector: str, keys: str) -> None:
        """Types into what a CSS selector finds first."""
        self.driver.find_element("css selector", selector).send_keys(keys)

    def errors(self) -> list[str]:
        """What the page logged since it was opened, warnings and violations included."""
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] in ("SEVERE", "WARNING")
        ]

    def requests(self) -> list[str]:
        """Addresses that the page asked for since it was opened, without those within itself."""
        messages = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        urls = [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith(("data:", "blob:"))]


@contextmanager
def headless_chromium() -> Iterator[Browser]:
    """Starts it; skips the test, saying why, where it or selenium is missing."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium and chromedriver are not installed (Debian: chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size=1200,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
