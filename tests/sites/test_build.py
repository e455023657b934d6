"""From layout lines to sites: every product equals what the attention computes, written out by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankwise.sites.find import find
from rankwise.sites.sites import Sites
from rankwise.sites.tables import parse_layouts
from tests.sites.models import GPT2, LLAMA, gpt2_shapes, llama_shapes, state

TOY = """
[toy]
types = ["toy"]
sizes = { h = "heads" }
[toy.attention.self]
at = "blocks.{layer}.attn"
q = "q: (h r) d"
k = "k: (h r) d"
v = "v: (h r) d"
o = "o: d (h r)"
"""


def toy(lines: str, shapes: dict[str, tuple[int, ...]], config: dict[str, object] | None = None) -> Sites:
    """Find sites with the toy layout and further lines of its block, in one layer."""
    layouts, _ = parse_layouts(TOY + lines, origin="toy.toml")
    names = {f"blocks.0.attn.{name}": shape for name, shape in shapes.items()}
    return find(names, config={"model_type": "toy", "heads": 3, **(config or {})}, layouts=layouts)


SHAPES: dict[str, tuple[int, ...]] = {"q.weight": (6, 5), "k.weight": (6, 5), "v.weight": (6, 5), "o.weight": (5, 6)}


def test_grouped_queries_share_their_keys_without_a_copy():
    tensors = state(llama_shapes())
    sites = find(tensors, config=LLAMA)
    site = sites["layers.1.qk"]
    assert site.batch == (("g", 2), ("q", 3))
    assert site.heads == 6
    assert site.shape == (2, 3, 10, 10)
    product = site.product(tensors)
    assert [tuple(factor.shape) for factor in product.factors] == [(2, 3, 10, 4), (2, 1, 4, 10)]
    query, key = (tensors[f"layers.1.self_attn.{name}.weight"] for name in ("q_proj", "k_proj"))
    for head in range(6):
        rows = slice(4 * (head // 3), 4 * (head // 3) + 4)
        expected = query[4 * head : 4 * head + 4].T @ key[rows]
        torch.testing.assert_close(product.dense()[head // 3, head % 3], expected)


def test_values_and_outputs_make_ov():
    tensors = state(llama_shapes())
    site = find(tensors, config=LLAMA)["layers.0.ov"]
    value, output = (tensors[f"layers.0.self_attn.{name}.weight"] for name in ("v_proj", "o_proj"))
    dense = site.product(tensors).dense()
    for head in range(6):
        group = head // 3
        expected = output[:, 4 * head : 4 * head + 4] @ value[4 * group : 4 * group + 4]
        torch.testing.assert_close(dense[group, head % 3], expected)
    assert site.orientation == "left index: output, right index: the attended token's input"


def test_a_transposed_fused_weight_is_split_at_the_right_places():
    tensors = state(gpt2_shapes())
    sites = find(tensors, config=GPT2)
    fused, output = tensors["h.1.attn.c_attn.weight"], tensors["h.1.attn.c_proj.weight"]
    query, key, value = fused.split(15, 1)
    for head in range(3):
        own = slice(5 * head, 5 * head + 5)
        torch.testing.assert_close(sites["layers.1.qk"].product(tensors).dense()[head], query[:, own] @ key[:, own].T)
        ov = output[own].T @ value[:, own].T
        torch.testing.assert_close(sites["layers.1.ov"].product(tensors).dense()[head], ov)


def test_biases_make_the_augmented_product():
    tensors = state(gpt2_shapes())
    sites = find(tensors, config=GPT2)
    fused, bias = tensors["h.0.attn.c_attn.weight"], tensors["h.0.attn.c_attn.bias"]
    augmented = torch.cat([fused, bias[None]])
    query, key, value = augmented.split(15, 1)
    effective = sites["layers.0.qk"].effective(tensors).dense()
    assert effective.shape == (3, 16, 16)
    ov = sites["layers.0.ov"].effective(tensors).dense()
    assert ov.shape == (3, 15, 16)
    for head in range(3):
        own = slice(5 * head, 5 * head + 5)
        torch.testing.assert_close(effective[head], query[:, own] @ key[:, own].T)
        torch.testing.assert_close(ov[head], tensors["h.0.attn.c_proj.weight"][own].T @ value[:, own].T)


def test_an_end_without_a_bias_stays_as_wide_as_it_was():
    sites = toy("", {**SHAPES, "q.bias": (6,)})
    tensors = state(
        {**{f"blocks.0.attn.{name}": shape for name, shape in SHAPES.items()}, "blocks.0.attn.q.bias": (6,)}
    )
    assert sites["layers.0.qk"].effective(tensors).dense().shape == (3, 6, 5)


def test_gains_are_folded_in_with_their_offset():
    sites = toy(
        'q_norm = "qn: r"\nk_norm = "kn: (h r)"\nnorm = { kind = "rms", offset = 1 }\n',
        {**SHAPES, "qn.weight": (2,), "kn.weight": (6,)},
    )
    names = {**SHAPES, "qn.weight": (2,), "kn.weight": (6,)}
    tensors = state({f"blocks.0.attn.{name}": shape for name, shape in names.items()})
    site = sites["layers.0.qk"]
    query, key = (tensors[f"blocks.0.attn.{name}.weight"].reshape(3, 2, 5) for name in "qk")
    gained = (1 + tensors["blocks.0.attn.qn.weight"])[:, None] * query
    other = (1 + tensors["blocks.0.attn.kn.weight"]).reshape(3, 2, 1) * key
    torch.testing.assert_close(site.effective(tensors).dense(), gained.mT @ other)
    torch.testing.assert_close(site.product(tensors).dense(), query.mT @ key)
    assert site.attention is not None
    assert site.attention.norm_offset == 1.0
    assert any("scale of this product means nothing" in note for note in site.notes)
    assert sites["layers.0.ov"].attention.norm is None


@pytest.mark.parametrize(("used", "expected"), [(True, True), (False, False), (None, False)])
def test_a_norm_holds_only_where_its_condition_does(used, expected):
    lines = 'norm = { kind = "rms", when = "use_norm" }\n'
    site = toy(lines, SHAPES, {} if used is None else {"use_norm": used})["layers.0.qk"]
    assert (site.attention.norm is not None) is expected


def test_values_may_be_scaled():
    names = {f"blocks.0.attn.{name}": shape for name, shape in SHAPES.items()}
    tensors = state(names)
    sites = toy('value_scale = "gain or 1"\n', SHAPES, {"gain": 0.25})
    plain, scaled = sites["layers.0.ov"].product(tensors).dense(), sites["layers.0.ov"].effective(tensors).dense()
    torch.testing.assert_close(scaled, 0.25 * plain)
    assert sites["layers.0.qk"].scaling == 1.0


@pytest.mark.parametrize(
    ("lines", "config", "expected"),
    [
        ("", {}, None),
        ("rotary = {}", {}, ("half", 2, 0)),
        ('rotary = { pairs = "interleaved" }', {}, ("interleaved", 2, 0)),
        ('rotary = { pairs = "interleaved if woven else half" }', {"woven": True}, ("interleaved", 2, 0)),
        ('rotary = { pairs = "interleaved if woven else half" }', {}, ("half", 2, 0)),
        ('rotary = { rotated = "r * 0.5 * 2", start = "offset" }', {"offset": 1}, ("half", 2, 1)),
        ("rotary = { rotated = \"r if kinds[layer] == 'window' else 0\" }", {"kinds": ["window"]}, ("half", 2, 0)),
        ("rotary = { rotated = \"r if kinds[layer] == 'window' else 0\" }", {"kinds": ["full"]}, None),
    ],
)
def test_rotary_facts_follow_the_configuration(lines, config, expected):
    facts = toy(lines + "\n", SHAPES, config)["layers.0.qk"].attention
    assert facts is not None
    found = facts.rotary
    assert (None if found is None else (found.pairs, found.rotated, found.start)) == expected


def test_pairs_that_are_neither_kind_are_refused():
    sites = toy('rotary = { pairs = "half if a else b" }\n', SHAPES)
    assert not [site for site in sites if site.kind in ("qk", "ov")]
    assert "rotary pairs are half or interleaved; 'half if a else b' makes them None" in sites.unread[0].reason


def test_scale_and_cap_are_computed_with_the_head_size():
    facts = toy('scale = "r ** -1 * 3"\nsoftcap = "cap"\n', SHAPES, {"cap": 30})["layers.0.qk"].attention
    assert (facts.scale, facts.softcap) == (1.5, 30.0)
    assert toy('softcap = "cap"\n', SHAPES)["layers.0.qk"].attention.softcap is None


def test_sizes_may_come_from_the_stored_rows_and_in_any_order():
    layouts, _ = parse_layouts(
        TOY.replace('{ h = "heads" }', '{ g = "k_rows // r", q = "heads // g", r = "q_rows // heads" }')
        .replace("q: (h r) d", "q: (g q r) d")
        .replace("k: (h r) d", "k: (g r) d")
        .replace("v: (h r) d", "v: (g r) d")
        .replace("o: d (h r)", "o: d (g q r)"),
        origin="toy.toml",
    )
    shapes = {"q.weight": (12, 5), "k.weight": (4, 5), "v.weight": (4, 5), "o.weight": (5, 12)}
    names = {f"blocks.0.attn.{name}": shape for name, shape in shapes.items()}
    site = find(names, config={"model_type": "toy", "heads": 6}, layouts=layouts)["layers.0.qk"]
    assert site.batch == (("g", 2), ("q", 3))


def test_sizes_that_name_each_other_are_refused():
    layouts, _ = parse_layouts(TOY.replace('h = "heads"', 'h = "g", g = "h"'), origin="toy.toml")
    names = {f"blocks.0.attn.{name}": shape for name, shape in SHAPES.items()}
    sites = find(names, config={"model_type": "toy"}, layouts=layouts)
    assert "makes the size of 'h' None from 'g'" in sites.unread[0].reason


@pytest.mark.parametrize(
    ("shapes", "config", "reason"),
    [
        (SHAPES, {"heads": None}, "layout 'toy' makes the size of 'h' None from 'heads'"),
        (SHAPES, {"heads": 0}, "makes the size of 'h' 0 from 'heads'"),
        (SHAPES, {"heads": 2.5}, "makes the size of 'h' 2.5"),
        (SHAPES, {"heads": True}, "makes the size of 'h' True"),
        (SHAPES, {"heads": 4}, "with h = 4 does not fit blocks.0.attn.q.weight of shape (6, 5)"),
        ({**SHAPES, "k.weight": (9, 5)}, {}, "2 columns meet 3 rows"),
    ],
)
def test_what_does_not_fit_is_unread_with_the_reason(shapes, config, reason):
    sites = toy("", shapes, config)
    assert len(sites) == 0
    assert {each.parameter for each in sites.unread} == {f"blocks.0.attn.{name}" for name in SHAPES}
    assert all(reason in each.reason for each in sites.unread)


LATENT = """
[latent]
types = ["latent"]
sizes = { h = "3", n = "2", p = "2", m = "3", l = "4" }
[latent.attention.self]
at = "layers.{layer}.attn"
q_down = "qa: c d"
q_down_norm = "qan: c"
q = "qb: (h part) c, part 0:n as r"
q_rotary = "qb: (h part) c, part n:n+p as r"
k_down = "kva: c d, rows 0 to l"
k_down_norm = "kvan: c"
k = "kvb: (h part) c, part 0:n as r"
k_rotary = "kva: r d, rows l to l + p"
v_down = "kva: c d, rows 0 to l"
v_down_norm = "kvan: c"
v = "kvb: (h part) c, part n:n+m as r"
o = "o: d (h r)"
rotary = { pairs = "interleaved" }
scale = "(n + p) ** -0.5"
rotary_scale = 7
"""


def test_latent_attention_is_a_chain_of_four_and_a_rotary_product_beside_it():
    layouts, _ = parse_layouts(LATENT, origin="latent.toml")
    shapes = {
        "qa": (5, 7),
        "qan": (5,),
        "qb": (12, 5),
        "kva": (6, 7),
        "kvan": (4,),
        "kvb": (15, 4),
        "o": (7, 9),
    }
    tensors = state({f"layers.0.attn.{name}.weight": shape for name, shape in shapes.items()})
    sites = find(tensors, config={"model_type": "latent"}, layouts=layouts)

    def get(name: str) -> Tensor:
        return tensors[f"layers.0.attn.{name}.weight"]

    query, keys = get("qb").reshape(3, 4, 5), get("kvb").reshape(3, 5, 4)
    down, up = get("kva")[:4], get("kva")[4:]
    content = (get("qa").T @ query[:, :2].mT) @ (keys[:, :2] @ down)
    torch.testing.assert_close(sites["layers.0.qk"].product(tensors).dense(), content)
    positional = (get("qa").T @ query[:, 2:].mT) @ up
    torch.testing.assert_close(sites["layers.0.rotary.qk"].product(tensors).dense(), positional)
    values = get("o").reshape(7, 3, 3).permute(1, 0, 2) @ keys[:, 2:] @ down
    torch.testing.assert_close(sites["layers.0.ov"].product(tensors).dense(), values)
    gained = (get("qa").T * get("qan")) @ query[:, :2].mT @ (keys[:, :2] @ (get("kvan")[:, None] * down))
    torch.testing.assert_close(sites["layers.0.qk"].effective(tensors).dense(), gained)
    content_facts, rotary_facts = sites["layers.0.qk"].attention, sites["layers.0.rotary.qk"].attention
    assert (content_facts.rotary, content_facts.scale) == (None, 0.5)
    assert (rotary_facts.rotary.pairs, rotary_facts.rotary.rotated, rotary_facts.scale) == ("interleaved", 2, 7.0)
    assert content_facts.inputs == {"q": "layers.0.attn.qa", "k": "layers.0.attn.kva", "v": "layers.0.attn.kva"}
    assert all("latent" in note for note in sites["layers.0.ov"].notes)


@settings(max_examples=30)
@given(
    groups=st.integers(1, 3),
    queries=st.integers(1, 3),
    size=st.integers(1, 4),
    width=st.integers(1, 6),
    order=st.permutations(["g", "q", "r"]),
)
def test_any_order_of_heads_is_read_as_it_is_stored(groups, queries, size, width, order):
    layouts, _ = parse_layouts(
        f"""
[toy]
types = ["toy"]
sizes = {{ g = "{groups}", q = "{queries}", r = "{size}" }}
[toy.attention.self]
at = "blocks.{{layer}}.attn"
q = "q: ({" ".join(order)}) d"
k = "k: (g r) d"
""",
        origin="toy.toml",
    )
    tensors = state(
        {"blocks.0.attn.q.weight": (groups * queries * size, width), "blocks.0.attn.k.weight": (groups * size, width)}
    )
    site = find(tensors, config={"model_type": "toy"}, layouts=layouts)["layers.0.qk"]
    sizes = {"g": groups, "q": queries, "r": size}
    query = tensors["blocks.0.attn.q.weight"].reshape(*(sizes[axis] for axis in order), width)
    query = query.permute(order.index("g"), order.index("q"), 3, order.index("r"))
    key = tensors["blocks.0.attn.k.weight"].reshape(groups, size, width)
    dense = site.product(tensors).dense()
    names = [name for name, _ in site.batch]
    expected = torch.einsum("gqdr,gre->gqde", query, key)
    torch.testing.assert_close(dense, expected if names == ["g", "q"] else expected.transpose(0, 1))
