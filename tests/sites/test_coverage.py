"""Every model type of transformers, on meta tensors with its default configuration: each matrix is read or listed."""

from __future__ import annotations

import importlib.util
import logging

import pytest
from torch import nn

from rankwise.sites.certify.tiny import large_model
from rankwise.sites.certify.tiny import model_types as every_type
from rankwise.sites.find import find
from rankwise.sites.registry import built_in
from rankwise.sites.roots import module_roots
from rankwise.sites.singles import is_matrix
from rankwise.sites.sites import Sites

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
]

ONLY_BY_CLASS = {layout.name for layout in built_in()[0] if not layout.types and not layout.keys}


def model_types() -> list[str]:
    return every_type() if importlib.util.find_spec("transformers") is not None else []


def build(model_type: str) -> nn.Module:
    """The model of a type as it is by default, without memory for its weights; a skip where it does not build."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        return large_model(model_type)
    except Exception as error:
        pytest.skip(f"{model_type} does not build by default: {type(error).__name__}: {str(error)[:80]}")


@pytest.mark.parametrize("model_type", model_types())
def test_every_matrix_is_read_or_listed_with_a_reason(model_type):
    model = build(model_type)
    sites = find(model)
    matrices = {name for name, parameter in model.named_parameters() if is_matrix(tuple(parameter.shape))}
    unread = [each.parameter for each in sites.unread]
    assert set(sites.covered) | set(unread) >= matrices
    assert not sites.covered & set(unread)
    assert len(unread) == len(set(unread))
    assert all(each.reason and "\n" not in each.reason for each in sites.unread)
    assert len(sites.names) == len(list(sites)) == len(set(sites.names))
    # Tied parameters are counted under one name only.
    assert not set(sites.tied) & (sites.covered | set(unread))
    misread = [each for each in sites.unread if "does not fit" in each.reason or "cannot compute" in each.reason]
    assert misread == []
    if len(module_roots(model)) == 1 and not any(site.layout in ONLY_BY_CLASS for site in sites):
        the_names_and_the_configuration_tell_the_same(model, sites)


def the_names_and_the_configuration_tell_the_same(model: nn.Module, live: Sites) -> None:
    """A scan has no module: only the shapes of the tensors, and what `config.json` holds."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    told = find(shapes, config=model.config.to_dict())  # pyright: ignore[reportCallIssue]
    assert [site for site in told if site.attention] == [site for site in live if site.attention]
    assert set(told.names) == set(live.names)
    assert set(told.unread) == set(live.unread)
