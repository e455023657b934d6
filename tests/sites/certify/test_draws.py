"""Random streams of a module: repeatable, of the right size, and what the sites predict for them."""

from __future__ import annotations

import torch

from rankwise.sites.certify.draws import WANTED_LOGIT, Draws, Part
from rankwise.sites.find import find
from rankwise.sites.site import Site
from tests.sites.certify.test_gauge import replayed


def largest_logit(site: Site, draws: Draws) -> float:
    assert site.attention is not None
    streams = draws.streams()
    q, k = (draws.predicted(site, side, streams) for side in "qk")
    return float((q @ k.mT).abs().max()) * site.attention.scale


def test_replays_are_made_once_and_kept() -> None:
    _, draws = replayed("gpt2", "layers.0.qk")
    first = draws.take(2)
    assert draws.take(1) == first[:1]
    assert draws.take(2) == first
    assert all(one is two for one, two in zip(draws.take(3), first, strict=False))
    streams = [draw.streams[":x" if ":x" in draw.streams else next(iter(draw.streams))] for draw in first]
    assert not torch.equal(*streams)


def test_the_same_seed_gives_the_same_streams() -> None:
    site, draws = replayed("gpt2", "layers.0.qk")
    again = Draws(draws.replay, draws.shapes)
    assert all(
        torch.equal(one, two) for one, two in zip(draws.streams().values(), again.streams().values(), strict=True)
    )
    assert draws.lead(site, "q") == again.lead(site, "k")


def test_the_size_is_chosen_so_that_logits_can_be_seen() -> None:
    site, draws = replayed("gpt2", "layers.0.qk")
    for size in (1e-4, 1e4):
        other = Draws(draws.replay, draws.shapes, size=size)
        other.fit_size([site])
        assert WANTED_LOGIT / 8 < largest_logit(site, other) < 8 * WANTED_LOGIT


def test_what_a_site_predicts_is_its_effective_product() -> None:
    site, draws = replayed("gpt2", "layers.0.qk")
    stream = torch.randn(5, 48, dtype=torch.float64)
    streams = dict.fromkeys(draws.shapes, stream)
    q, k = (draws.predicted(site, side, streams) for side in "qk")
    ones = torch.cat([stream, torch.ones(5, 1, dtype=torch.float64)], 1)
    dense = site.effective(draws.replay.source).dense()
    torch.testing.assert_close(q @ k.mT, ones @ dense @ ones.T)


def test_still_and_turning_parts_make_up_the_logit_at_offset_zero() -> None:
    site, _ = replayed("gpt_neox", "layers.0.qk")
    q, k = torch.randn(2, 3, 6, 5, 8, dtype=torch.float64).unbind()
    part = Part(site, q, k)
    assert part.pairs == 1
    dots, crosses = part.turning(2, 2)
    whole = part.scale * (q[..., 2, :] * k[..., 2, :]).sum(-1)
    torch.testing.assert_close(part.still()[..., 2, 2] + dots.sum(-1), whole)
    swapped = Part(site, k, q).turning(2, 2)
    torch.testing.assert_close(swapped[0], dots)
    torch.testing.assert_close(swapped[1], -crosses)


def test_gains_behind_the_turn_are_told_apart_for_each_dimension() -> None:
    from tests.sites.certify.models import tiny

    model = tiny("hunyuan_v1_dense")
    site = find(model)["layers.0.qk"]
    assert site.attention is not None
    assert site.attention.norm is not None
    assert site.attention.norm.after_rotary
    assert find(model).certify()["layers.0.qk"].passed
