"""Names that come out of a file are untrusted text: what may be shown of them."""

from __future__ import annotations

import re
import unicodedata

# A terminal obeys these sequences, so they go as a whole: their visible tail ("[31m") says nothing about the name.
ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
# Control, format (bidirectional overrides, zero width), surrogate, private and unassigned characters, line separators.
HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: object, limit: int = 120) -> str:
    """Text that is safe to show on one line of a terminal: nothing hidden, at most `limit` characters.

    Escape sequences, control characters, bidirectional overrides and the like become `?`; what is cut ends in `…`.
    It does not escape HTML: whoever writes a page does that.

    >>> printable("layers.0.weight")
    'layers.0.weight'
    >>> printable("a" + chr(27) + "[31mred" + chr(0x202E) + "b")
    'a?red?b'
    >>> printable("weight" * 100, limit=10)
    'weightwei…'
    """
    # Only what may be shown is looked at, so a name of megabytes stays cheap.
    shown = ESCAPE_SEQUENCE.sub("?", str(text)[: 8 * limit])
    shown = "".join("?" if unicodedata.category(character) in HIDDEN_CATEGORIES else character for character in shown)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
