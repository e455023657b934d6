"""Files may name and fuse weights otherwise than modules do: the sites of both are the same, or nothing is claimed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rankwise.sites.certify.saved import saved_sites
from rankwise.sites.find import find
from rankwise.sites.site import Site
from tests.sites.certify.models import tiny


def attention(model_type: str) -> list[Site]:
    return [site for site in find(tiny(model_type)) if site.attention is not None]


@pytest.mark.parametrize("model_type", ["gpt2", "vit", "mixtral", "bloom", "clip"])
def test_every_site_of_a_model_is_found_again_in_its_files(model_type: str) -> None:
    sites = attention(model_type)
    found = saved_sites(tiny(model_type), sites)
    assert {site.name for site in found} == {site.name for site in sites}


def test_files_that_name_weights_otherwise_are_filed_otherwise() -> None:
    sites = attention("vit")
    found = {site.name: site for site in saved_sites(tiny("vit"), sites)}
    live = sites[0]
    assert found[live.name].parameters != live.parameters
    assert found[live.name].attention.signature != live.attention.signature  # pyright: ignore[reportOptionalMemberAccess]


def test_a_site_with_other_numbers_is_no_equal() -> None:
    left, right = attention("gpt2")[0].factors
    crossed = replace(attention("gpt2")[0], factors=(replace(left, take=1), replace(right, take=0)))
    assert saved_sites(tiny("gpt2"), [crossed]) == []


def test_a_site_with_other_facts_is_no_equal() -> None:
    site = attention("llama")[0]
    assert site.attention is not None
    unscaled = replace(site, attention=replace(site.attention, scale=1.0))
    assert saved_sites(tiny("llama"), [unscaled]) == []
