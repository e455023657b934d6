"""The picture of the README: the heatmaps of the demo's page with one head chosen, as a browser draws them.

make demo && .venv/bin/python -m tests.report.picture rankwise-demo.html docs/images/scan.png
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.report.browser import chromium

WIDTH, SCALE, MARGIN = 1120, 1.25, 14


def picture(page: Path, target: Path) -> None:
    """Photograph the section of the heatmaps, without the lines about where the chosen head's numbers come from."""
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as browser:
        browser.open(page.resolve(), width=WIDTH, scale=SCALE)
        left, top, width, height = browser.run(
            """
            for (const one of document.querySelectorAll(".facts, #map-notes")) one.style.display = "none";
            const { x, y, width, height } = byId("maps").getBoundingClientRect();
            return [x, y, width, height];
            """
        )
        clip = {"x": left - MARGIN, "y": top - MARGIN, "width": width + 2 * MARGIN, "height": height + 2 * MARGIN}
        target.write_bytes(browser.photograph(clip))
    print(f"{target}: {target.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    picture(*map(Path, sys.argv[1:3]))
