"""The collection of sites: choosing, naming, telling."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from rankwise.errors import UserError
from rankwise.sites.find import find
from rankwise.sites.sites import Sites
from tests.sites.models import LLAMA, llama_shapes, state


@pytest.fixture
def sites() -> Sites:
    shapes = llama_shapes() | {"layers.0.self_attn.extra.weight": (4, 10)}
    return find(shapes, config=LLAMA)


def test_names_are_in_order_and_each_leads_to_its_site(sites):
    assert sites.names[:4] == ("layers.0.qk", "layers.0.ov", "layers.1.qk", "layers.1.ov")
    assert [site.name for site in sites] == list(sites.names)
    assert len(sites) == 9
    assert "layers.0.qk" in sites
    assert "layers.9.qk" not in sites
    assert sites["layers.1.ov"].kind == "ov"


def test_a_wrong_name_is_answered_with_near_ones(sites):
    with pytest.raises(
        UserError, match=r"there is no site 'layer\.0\.qk' among the 9 found; near it are layers\.0\.qk"
    ):
        sites["layer.0.qk"]
    with pytest.raises(UserError, match=r"there is no site '@' among the 9 found$"):
        sites["@"]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"kind": "qk"}, ["layers.0.qk", "layers.1.qk"]),
        ({"kind": ["qk", "ov"], "layer": 1}, ["layers.1.qk", "layers.1.ov"]),
        ({"layer": [0, 1], "kind": {"ov"}}, ["layers.0.ov", "layers.1.ov"]),
        ({"name": "layers.*.qk"}, ["layers.0.qk", "layers.1.qk"]),
        ({"name": "*up_proj*"}, ["layers.0.mlp.up_proj.mlp", "layers.1.mlp.up_proj.mlp"]),
        ({"stack": "vision"}, []),
        ({"where": lambda site: site.shape[-1] == 14}, ["layers.0.mlp.down_proj.mlp", "layers.1.mlp.down_proj.mlp"]),
    ],
)
def test_selecting(sites, chosen, expected):
    assert list(sites.select(**chosen).names) == expected


def test_a_selection_still_knows_what_was_not_read(sites):
    assert sites.select(kind="qk").unread == sites.unread
    assert [each.parameter for each in sites.unread] == ["layers.0.self_attn.extra.weight"]


def test_by_layer(sites):
    layers = sites.by_layer()
    assert set(layers) == {0, 1, None}
    assert layers[None].names == ("embed_tokens.embed",)
    assert sum(map(len, layers.values())) == len(sites)


def test_covered_names_every_tensor_that_is_read(sites):
    assert sites.covered == {name for name in llama_shapes() if "norm" not in name}


def test_certificates_are_put_in_by_name(sites):
    certified = sites.as_certified({"layers.0.qk": "here", "layers.1.qk": "release"})
    assert [site.certified for site in certified.select(kind="qk")] == ["here", "release"]
    assert certified["layers.0.ov"].certified == "no"
    assert sites["layers.0.qk"].certified == "no"


def test_the_table_shows_every_site_and_takes_names_as_text():
    hostile = find({"evil[red].weight": (3, 4)})
    console = Console(width=200, record=True, file=StringIO())
    console.print(hostile.table())
    assert "evil[red].matrix" in console.export_text()
    console.print(find(llama_shapes(), config=LLAMA))
    text = console.export_text()
    assert "9 sites, 0 parameters unread" in text
    assert "layers.1.ov" in text
    assert "10x10" in text


def test_its_text_counts_kinds(sites):
    assert repr(sites) == "Sites(2 qk, 2 ov, 1 embed, 4 mlp; 1 unread)"
    assert repr(Sites([])) == "Sites(none; 0 unread)"


def test_a_site_whose_tensor_moved_says_where_it_might_be(sites):
    tensors = {f"model.{name}": tensor for name, tensor in state(llama_shapes()).items()}
    message = r"there is no tensor 'layers\.0\.self_attn\.q_proj\.weight' .*did it move to 'model\.layers\.0\.self_attn"
    with pytest.raises(UserError, match=message):
        sites["layers.0.qk"].product(tensors)
