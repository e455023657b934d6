"""Moves of factors: what they are, what they leave alone, and that they leave no trace."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rankwise.sites.certify.calls import candidates, record
from rankwise.sites.certify.draws import Draws
from rankwise.sites.certify.gauge import _commuting, _gauge_shape, _moved, prove_gauge
from rankwise.sites.certify.prediction import keys, queries
from rankwise.sites.certify.replay import Replay
from rankwise.sites.find import find
from rankwise.sites.site import RotaryFacts, Site
from tests.sites.certify.models import tiny


def replayed(model_type: str, name: str) -> tuple[Site, Draws]:
    """A site of a small model, and draws of its module on made-up arguments."""
    model = tiny(model_type)
    site = find(model)[name]
    assert site.attention is not None
    calls, _ = record(model, (site.attention.module,), None)
    call = next(candidates(model, calls, site.attention.module, [site]))
    replay = Replay(model.get_submodule(call.path), call, dtype=torch.float64, sites=[site])
    return site, Draws(replay, {replay.key(site, side): replay.plain.inputs[replay.key(site, side)] for side in "qk"})


@pytest.mark.parametrize("pairs", ["half", "interleaved"])
def test_a_rotary_gauge_commutes_with_every_turn(pairs: str) -> None:
    facts = RotaryFacts(pairs, 4, start=2)  # pyright: ignore[reportArgumentType]
    site, _ = replayed("llama", "layers.0.qk")
    assert site.attention is not None
    site = replace(site, attention=replace(site.attention, rotary=facts))
    maps = _commuting(site, (3, 8, 8), torch.float64)
    turn = torch.eye(8, dtype=torch.float64)
    for pair, angle in zip(facts.index().tolist(), (0.3, 1.7), strict=True):
        one, two = pair
        turn[one, one] = turn[two, two] = torch.tensor(angle).cos()
        turn[one, two] = -torch.tensor(angle).sin()
        turn[two, one] = torch.tensor(angle).sin()
    torch.testing.assert_close(maps @ turn, turn @ maps)
    # It is all that commutes: where nothing turns it mixes everything, and it is no multiple of the identity.
    still = [position for position in range(8) if position not in facts.index().flatten().tolist()]
    assert (maps[:, still][:, :, still].abs() > 0).all()
    assert torch.linalg.cond(maps).max() < 10


def test_a_move_keeps_the_product_and_is_taken_back_exactly() -> None:
    site, draws = replayed("gpt2", "layers.0.qk")
    source = draws.replay.source
    before = {name: tensor.clone() for name, tensor in source.items()}
    left = torch.randn(6, 8, 8, dtype=torch.float64)
    stream = torch.randn(5, 48, dtype=torch.float64)

    def logits() -> Tensor:
        return queries(site, source, stream) @ keys(site, source, stream).mT

    plain = logits()
    with _moved(site, source, left, torch.linalg.inv(left)):
        assert not torch.equal(source[site.factors[0].parameter], before[site.factors[0].parameter])
        torch.testing.assert_close(logits(), plain)
    assert all(torch.equal(before[name], tensor) for name, tensor in source.items())


def test_a_move_is_taken_back_when_the_module_raises() -> None:
    site, draws = replayed("gpt2", "layers.0.qk")
    source = draws.replay.source
    before = source[site.factors[0].parameter].clone()
    eye = torch.eye(8, dtype=torch.float64).expand(6, 8, 8)
    with pytest.raises(RuntimeError, match="no more"), _moved(site, source, 2 * eye, eye):
        raise RuntimeError("no more")
    assert torch.equal(source[site.factors[0].parameter], before)


def test_heads_that_share_keys_share_their_map() -> None:
    site, draws = replayed("llama", "layers.0.qk")
    proof = prove_gauge(site, [site], draws, 1e-5)
    assert proof.status == "passed"
    assert proof.detail == "per rotary pair"
    assert _gauge_shape(site, draws) == (2, 1, 8, 8)


def test_a_factor_that_another_product_uses_has_no_gauge_of_its_own() -> None:
    site, draws = replayed("gpt2", "layers.0.qk")
    other = replace(site, kind="ov", factors=(site.factors[1], site.factors[0]))
    proof = prove_gauge(site, [site, other], draws, 1e-5)
    assert proof.status == "absent"
    assert "another product of the module uses the same factor" in proof.detail
