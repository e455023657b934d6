"""Pictures for the documentation: one section of a page, as a browser draws it.

make demo && .venv/bin/python -m tests.report.picture rankwise-demo.html docs/images/scan.png
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.report.browser import chromium

WIDTH, SCALE, MARGIN = 1120, 1.25, 14


def picture(page: Path, target: Path, section: str = "maps") -> None:
    """Photograph a section, that of a scan's heatmaps without the lines about where a head's numbers come from."""
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as browser:
        browser.open(page.resolve(), width=WIDTH, scale=SCALE)
        left, top, width, height = browser.run(
            """
            for (const one of document.querySelectorAll(".facts, #map-notes")) one.style.display = "none";
            const { x, y, width, height } = byId(arguments[0]).getBoundingClientRect();
            return [x, y, width, height];
            """,
            section,
        )
        clip = {"x": left - MARGIN, "y": top - MARGIN, "width": width + 2 * MARGIN, "height": height + 2 * MARGIN}
        target.write_bytes(browser.photograph(clip))
    print(f"{target}: {target.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    picture(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4])
