"""Small models for the tests of certification, built once."""

from __future__ import annotations

from functools import cache

from torch import nn

from rankwise.sites.certify.tiny import tiny_models


@cache
def tiny(model_type: str) -> nn.Module:
    """The first small model of a type that builds; tests must not change it."""
    return next(iter(tiny_models(model_type)))[1]
