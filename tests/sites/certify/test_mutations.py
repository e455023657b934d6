"""Certification is itself put to the proof: every way to read a weight wrongly must be caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rankwise.sites.certify import Certificate, certify
from rankwise.sites.factor import Factor
from rankwise.sites.find import find
from rankwise.sites.site import RotaryFacts, Site
from tests.sites.certify.models import tiny


def judged(model_type: str, name: str, mutate: Callable[[Site], Site]) -> Certificate:
    """The certificate of one site of a model after it was changed; unchanged it passes."""
    model = tiny(model_type)
    site = find(model).select(name=name)
    assert certify(site, model), "the site must pass as it is"
    return certify(site.marked(mutate), model)[name]


def with_factors(site: Site, *factors: Factor) -> Site:
    return replace(site, factors=factors)


def swapped(site: Site) -> Site:
    left, right = site.factors
    return with_factors(
        site,
        replace(left, parameter=right.parameter, take=right.take),
        replace(right, parameter=left.parameter, take=left.take),
    )


def swapped_with_biases(site: Site) -> Site:
    left, right = site.biases
    assert left is not None
    assert right is not None
    biases = (replace(left, take=right.take), replace(right, take=left.take))
    return replace(swapped(site), biases=biases)


def interleaved_heads(site: Site) -> Site:
    """The head axis inside the head size: every head boundary is wrong."""
    return with_factors(site, *(replace(each, pattern=each.pattern.replace("h r)", "r h)")) for each in site.factors))


def shifted_boundary(site: Site) -> Site:
    """Three heads of twice the size: every second boundary is missing."""
    halved = {"h": 3, "r": 16}
    factors = tuple(replace(each, sizes={**each.sizes, **halved}) for each in site.factors)
    biases = tuple(bias and replace(bias, sizes={**bias.sizes, **halved}) for bias in site.biases)
    return replace(site, factors=factors, biases=biases, batch=(("h", 3),))


def moved_rows(site: Site) -> Site:
    """Every head begins one row late: the first row of the next head is taken for the last of this one."""
    left, right = site.factors
    assert left.rows is not None
    first, last = left.rows
    return with_factors(site, replace(left, rows=(first + 1, last + 1)), right)


def transposed(site: Site) -> Site:
    """The projection of the query or the output read along the other axis; only a square one can be."""
    left, right = site.factors
    return with_factors(
        site,
        replace(left, pattern="d (h r) -> h d r" if left.pattern.startswith("(h r) d") else "(h r) d -> h d r"),
        right,
    )


def keys_for_values(site: Site) -> Site:
    left, right = site.factors
    return with_factors(site, left, replace(right, take=1))


def wrong_pairs(site: Site) -> Site:
    facts = site.attention
    assert facts is not None
    assert facts.rotary is not None
    other = "interleaved" if facts.rotary.pairs == "half" else "half"
    return replace(site, attention=replace(facts, rotary=replace(facts.rotary, pairs=other)))


def no_rotary(site: Site) -> Site:
    assert site.attention is not None
    return replace(site, attention=replace(site.attention, rotary=None))


def rotary(site: Site) -> Site:
    assert site.attention is not None
    return replace(site, attention=replace(site.attention, rotary=RotaryFacts("half", 8)))


def without_query_bias(site: Site) -> Site:
    return replace(site, biases=(None, *site.biases[1:]))


def without_key_bias(site: Site) -> Site:
    return replace(site, biases=(*site.biases[:-1], None))


def wrong_group(site: Site) -> Site:
    """Queries numbered with the group inside: head 1 then meets the keys of another group."""
    left, right = site.factors
    return with_factors(site, replace(left, pattern=left.pattern.replace("(g q r)", "(q g r)")), right)


def wrong_scale(site: Site) -> Site:
    assert site.attention is not None
    return replace(site, attention=replace(site.attention, scale=2 * site.attention.scale))


def doubled(site: Site) -> Site:
    return replace(site, scaling=2 * site.scaling)


def other_latent_eps(site: Site) -> Site:
    assert site.attention is not None
    return replace(site, attention=replace(site.attention, latent_eps=1e-3))


def without_norm(site: Site) -> Site:
    assert site.attention is not None
    return replace(site, attention=replace(site.attention, norm=None))


def norm_of_each_head(site: Site) -> Site:
    """Of queries and keys that are normalized over the whole width."""
    assert site.attention is not None
    assert site.attention.norm is not None
    return replace(site, attention=replace(site.attention, norm=replace(site.attention.norm, over="head")))


def without_gain(site: Site) -> Site:
    return replace(site, gains=(None, *site.gains[1:]))


def gain_without_offset(site: Site) -> Site:
    return replace(site, gains=tuple(gain and replace(gain, offset=0.0) for gain in site.gains))


def whole_rotary(site: Site) -> Site:
    """Of heads that turn in a part of their dimensions only."""
    assert site.attention is not None
    return replace(site, attention=replace(site.attention, rotary=RotaryFacts("half", 8)))


def turned_elsewhere(site: Site) -> Site:
    assert site.attention is not None
    assert site.attention.rotary is not None
    start = 8 - site.attention.rotary.rotated
    return replace(site, attention=replace(site.attention, rotary=replace(site.attention.rotary, start=start)))


def without_cap(site: Site) -> Site:
    assert site.attention is not None
    return replace(
        site, attention=replace(site.attention, softcap=site.attention.softcap and 3 * site.attention.softcap)
    )


VALUE = [
    ("gpt2", "layers.0.qk", swapped),
    ("gpt2", "layers.0.qk", swapped_with_biases),
    ("gpt2", "layers.0.qk", interleaved_heads),
    ("gpt2", "layers.0.qk", without_query_bias),
    ("gpt2", "layers.0.qk", without_key_bias),
    ("gpt2", "layers.0.qk", wrong_scale),
    ("gpt2", "layers.0.qk", rotary),
    ("gpt2", "layers.0.ov", interleaved_heads),
    ("gpt2", "layers.0.ov", transposed),
    ("gpt2", "layers.0.ov", keys_for_values),
    ("gpt2", "layers.0.ov", without_key_bias),
    ("bert", "layers.0.qk", transposed),
    ("phi3", "layers.0.qk", moved_rows),
    ("olmo2", "layers.0.qk", norm_of_each_head),
    ("qwen3", "layers.0.qk", without_norm),
    ("qwen3", "layers.0.qk", without_gain),
    ("gemma3_text", "layers.0.qk", gain_without_offset),
    ("gpt_neox", "layers.0.qk", whole_rotary),
    ("gpt_neox", "layers.0.qk", turned_elsewhere),
    ("llama", "layers.0.qk", wrong_pairs),
    ("llama", "layers.0.qk", no_rotary),
    ("llama", "layers.0.qk", wrong_group),
    ("llama", "layers.0.qk", wrong_scale),
    ("llama", "layers.0.ov", wrong_group),
    ("gptj", "layers.0.qk", wrong_pairs),
    ("gemma2", "layers.0.qk", without_cap),
    ("bloom", "layers.0.qk", without_query_bias),
    ("t5", "encoder.layers.0.self.qk", wrong_scale),
    ("layoutlmv3", "layers.0.qk", swapped),
    ("layoutlmv3", "layers.0.qk", wrong_scale),
    ("layoutlmv3", "layers.0.qk", without_query_bias),
    ("lilt", "layers.0.layout.qk", wrong_scale),
    ("granite_swa", "layers.0.ov", wrong_group),
    ("granite_swa", "layers.0.ov", doubled),
    ("deepseek_v3", "layers.0.ov", other_latent_eps),
]


@pytest.mark.parametrize(("model_type", "name", "mutate"), VALUE, ids=lambda each: getattr(each, "__name__", str(each)))
def test_a_wrong_reading_fails_the_value_proof(model_type: str, name: str, mutate: Callable[[Site], Site]) -> None:
    certificate = judged(model_type, name, mutate)
    assert certificate.value.status == "failed"
    assert not certificate.passed


GAUGE = [
    ("gpt2", "layers.0.qk", interleaved_heads),
    ("gpt2", "layers.0.qk", shifted_boundary),
    ("gpt2", "layers.0.qk", without_query_bias),
    ("gpt2", "layers.0.ov", transposed),
    ("gpt2", "layers.0.ov", without_key_bias),
    ("bert", "layers.0.qk", transposed),
    ("phi3", "layers.0.qk", moved_rows),
    ("gpt_neox", "layers.0.qk", whole_rotary),
    ("gpt_neox", "layers.0.qk", turned_elsewhere),
    ("llama", "layers.0.qk", no_rotary),
    ("llama", "layers.0.qk", wrong_pairs),
    ("llama", "layers.0.qk", wrong_group),
    ("llama", "layers.0.ov", wrong_group),
]


@pytest.mark.parametrize(("model_type", "name", "mutate"), GAUGE, ids=lambda each: getattr(each, "__name__", str(each)))
def test_a_wrong_reading_fails_the_gauge_proof(model_type: str, name: str, mutate: Callable[[Site], Site]) -> None:
    certificate = judged(model_type, name, mutate)
    assert certificate.gauge.status == "failed"
    assert not certificate.passed


def test_the_gauge_cannot_tell_queries_from_keys() -> None:
    certificate = judged("gpt2", "layers.0.qk", swapped_with_biases)
    assert certificate.gauge.status == "passed"
    assert not certificate.orientation


def test_the_gauge_does_not_feel_the_bias_of_keys() -> None:
    # It adds one number to each row of logits, which the softmax takes off again; the value proof sees it.
    certificate = judged("gpt2", "layers.0.qk", without_key_bias)
    assert certificate.gauge.status == "passed"
    assert certificate.value.status == "failed"


def test_rotary_that_the_model_does_not_have_fails_the_gauge_too() -> None:
    assert judged("gpt2", "layers.0.qk", rotary).gauge.status == "failed"


def test_a_wrong_rotary_part_of_latent_attention_fails_with_the_part_it_is_added_to() -> None:
    model = tiny("deepseek_v3")
    sites = find(model).select(name="layers.0.*qk")
    assert set(sites.names) == {"layers.0.qk", "layers.0.rotary.qk"}
    assert certify(sites, model)
    for name in sites.names:
        change = wrong_pairs if name.endswith(".rotary.qk") else wrong_scale
        wrong = sites.marked(lambda site, name=name, change=change: change(site) if site.name == name else site)
        assert {each.value.status for each in certify(wrong, model).values()} == {"failed"}
