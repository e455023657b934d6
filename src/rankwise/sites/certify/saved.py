"""The sites of a proved model in a checkpoint of it: files may name and fuse weights otherwise than modules do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import torch

from rankwise.sites.checkpoints import open_checkpoint
from rankwise.sites.find import find
from rankwise.sites.site import Site
from rankwise.sites.source import Source


def saved_sites(model: Any, proved: Sequence[Site]) -> list[Site]:
    """Save a model, find its sites again as a scan does, and give those that equal a proved one.

    Equal means that every factor, bias and gain has the same numbers and that the attention is said to be the same;
    then what was proved of the one holds for the other.

    Arguments:
        model: a model of transformers.
        proved: sites of the live model.
    """
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with open_checkpoint(folder) as checkpoint:
            return [
                site
                for site in find(checkpoint)
                if any(_alike(site, other) and _equal(site, checkpoint, other, model) for other in proved)
            ]


def _alike(one: Site, two: Site) -> bool:
    """Whether all that does not lie in tensors is the same."""
    if one.attention is None or two.attention is None:
        return False
    facts = one.attention
    named = replace(
        two.attention,
        module=facts.module,
        inputs=facts.inputs,
        model_type=facts.model_type,
        signature=facts.signature,
    )
    same = (one.kind, one.shape, one.batch, one.scaling) == (two.kind, two.shape, two.batch, two.scaling)
    return same and facts == named


def _equal(one: Site, source: Source, two: Site, other: Source) -> bool:
    ours, theirs = one.effective(source).factors, two.effective(other).factors
    return len(ours) == len(theirs) and all(
        torch.equal(mine.detach(), their.detach()) for mine, their in zip(ours, theirs, strict=True)
    )
