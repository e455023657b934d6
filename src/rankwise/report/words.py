"""What the names in a record mean, in the words of the page: kinds of findings, certificates, methods."""

from __future__ import annotations

import re

from rankwise.report.record import Record
from rankwise.text import printable

FINDINGS = {
    "untrained": "nearly every head looks like random factors: was the trained checkpoint read?",
    "failed": "no spectrum could be computed",
    "dead": "so small that the network barely feels it",
    "collapsed": "far fewer directions than random factors of that shape",
    "spiked": "one direction far above the random edge holds most of the energy",
    "unbalanced": "weight decay does not act as the nuclear norm here",
    "random": "a spectrum like that of random factors",
    "unchanged": "the change is zero, or too small to have a rank",
}
CERTIFICATES = {
    "here": "proved on this very model: its logits were reproduced, or moves that must not change it did not",
    "release": "this layout, with these configuration fields, passed in the tests of this release",
    "no": "read by its layout alone; rankwise.find(model).certify() proves it on the live model",
}
METHODS = {
    "gram32": "eigenvalues of the factors' small Gram matrices, accumulated in float32",
    "gram64": "eigenvalues of the factors' small Gram matrices, accumulated in float64",
    "qr": "QR of the factors in float64, and the singular values of the small core",
    "dense": "the product multiplied out in float64, and its singular values",
    "precise": "pivoted QR and one-sided Jacobi: every value to high relative accuracy",
    "krylov": "norms alone: a sum of squares, and a block Krylov iteration for the largest value",
    "sum of squares": "the Frobenius norm alone: a sum of squares in float64",
}

# Folders and files that are called so whatever they hold; the one above tells more.
_PLAIN = re.compile(
    r"models?|weights|(pytorch|adapter)_model|checkpoints?|ckpts?|runs?|outputs?|last|latest|best|final"
)
_STEP = re.compile(r"((global_?)?step|checkpoint|ckpt|epoch|iter)?[-_]?\d+")
_FILE = re.compile(r"(\.index)?\.(safetensors|bin|pt|pth|ckpt|json)$")
_HUB = re.compile(r"models--(?P<owner>[^/\\]+?)--(?P<name>[^/\\]+)")
# Far above the weights a folder says whose they are, not what.
LEVELS = 4


def title_of(record: Record) -> str:
    """What a page calls a checkpoint: the part of its source that tells it from others, else its model type.

    >>> title_of({"source": "runs/small/checkpoints/step-100/model.safetensors"})
    'small'
    >>> title_of({"source": "hub/models--org--name/snapshots/main", "model": {"type": "gpt2"}})
    'org/name'
    """
    source = str(record.get("source", ""))
    cached = _HUB.search(source)
    if cached:
        return printable(f"{cached['owner']}/{cached['name']}", 60)
    parts = [_FILE.sub("", part) for part in re.split(r"[/\\]", source) if part not in ("", ".", "..")]
    telling = [one for one in parts[-LEVELS:] if not _PLAIN.fullmatch(one.lower()) and not _STEP.fullmatch(one.lower())]
    model_type = (record.get("model") or {}).get("type")
    return printable([*(parts or ["model"])[-1:], *filter(None, [model_type]), *telling][-1], 60)
