"""A headless Chromium for the page's tests: what it shows, what it complains of, and what it asks the network."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.conftest import REPOSITORY, absent

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
PROGRAMS = {"browser": ("chromium", "chromium-browser", "google-chrome"), "driver": ("chromedriver",)}
TALLEST_SCREENSHOT = 6000


def _program(kind: str) -> str:
    found = next((path for name in PROGRAMS[kind] if (path := shutil.which(name))), None)
    return found or absent(f"no {PROGRAMS[kind][0]} on this machine (apt-get install chromium chromium-driver)")


def artifacts() -> Path:
    """Where screenshots are kept: `$RANKWISE_ARTIFACTS`, else `artifacts/` in the repository."""
    folder = Path(os.environ.get("RANKWISE_ARTIFACTS", REPOSITORY / "artifacts"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Browser:
    """A window of a given width."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, path: Path, *, width: int = 1440, height: int = 1000, scale: float = 1, dark: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.resize(width, height=height, scale=scale)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": [scheme]})
        # Another address first: a change of the fragment alone would not load the page again.
        self.driver.get("about:blank")
        self.driver.get(path.as_uri())

    def resize(self, width: int, *, height: int = 1000, scale: float = 1) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.one(selector).text

    def click_cell(self, heatmap: int, row: int, column: int) -> None:
        """Move the mouse onto a cell of a heatmap and click it, as a person would."""
        self.point_at_cell(heatmap, row, column)
        ActionChains(self.driver, duration=0).click().perform()

    def point_at_cell(self, heatmap: int, row: int, column: int) -> None:
        """Move the mouse onto a cell of a heatmap."""
        place = self.run(
            """
            const plot = document.querySelectorAll("#grid .plot")[arguments[0]];
            plot.scrollIntoView({ block: "center" });
            const area = plot.querySelector(".nsewdrag").getBoundingClientRect();
            const { xaxis, yaxis } = plot._fullLayout;
            return [Math.round(area.left + xaxis.l2p(arguments[2])), Math.round(area.top + yaxis.l2p(arguments[1]))];
            """,
            heatmap,
            row,
            column,
        )
        mouse = ActionChains(self.driver, duration=0)
        mouse.w3c_actions.pointer_action.move_to_location(*place)
        mouse.perform()

    def hovered(self) -> str:
        """The label that the chart under the mouse shows, once it does."""
        label = WebDriverWait(self.driver, 10).until(lambda _: self.all(".hovertext"))[0]
        return str(label.get_property("textContent"))

    def press(self, key: str) -> None:
        ActionChains(self.driver, duration=0).send_keys(key).perform()

    def complaints(self) -> list[str]:
        """What stands on the console since the last call."""
        return [f"{entry['level']}: {entry['message']}" for entry in self.driver.get_log("browser")]

    def requested(self) -> set[str]:
        """The schemes of every request since the last call."""
        found = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.add(message["params"]["request"]["url"].partition(":")[0])
        return found

    def screenshot(self, name: str) -> Path:
        """The whole page as a picture among the artifacts."""
        width, height = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        path = artifacts() / f"{name}.png"
        path.write_bytes(self.photograph({"x": 0, "y": 0, "width": width, "height": min(height, TALLEST_SCREENSHOT)}))
        return path

    def photograph(self, clip: dict[str, float]) -> bytes:
        """A part of the page as a PNG, beyond the window's edges too."""
        asked = {"captureBeyondViewport": True, "clip": {**clip, "scale": 1}}
        return base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", asked)["data"])


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with a fresh profile, closed at the end."""
    options = webdriver.ChromeOptions()
    options.binary_location = _program("browser")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(_program("driver")))
    try:
        # The page that a browser starts with makes requests of its own, which are not ours.
        driver.get("about:blank")
        yield Browser(driver)
    finally:
        driver.quit()
