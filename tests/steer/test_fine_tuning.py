"""Compress a pretrained transformer and train on under Frobenius decay: real weights, torch's own AdamW."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import rankwise as rw

RATE, COEFFICIENT = 1e-4, 0.5


def words(step: int) -> Tensor:
    return torch.randint(1000, 20000, (4, 16), generator=torch.Generator().manual_seed(step))


def penalty(net: nn.Module) -> Tensor:
    """Half the squared norm of every product, multiplied out: what the decay never does."""
    sites = rw.find(net).select(where=lambda site: len(site.factors) > 1)
    return torch.stack([site.product(net).dense().square().sum() / 2 for site in sites]).sum()


def slopes(net: nn.Module) -> dict[str, Tensor]:
    """The gradient of the penalty by autograd."""
    named = {name: each for name, each in net.named_parameters() if each.requires_grad}
    found = torch.autograd.grad(penalty(net), list(named.values()), allow_unused=True)
    return {name: each for name, each in zip(named, found, strict=True) if each is not None}


@pytest.mark.slow
def test_a_compressed_transformer_trains_on_and_its_penalty_falls_by_what_the_decay_says(
    minilm_directory: Path,
) -> None:
    transformers = pytest.importorskip("transformers")
    dense = transformers.AutoModel.from_pretrained(minilm_directory, dtype=torch.float32).eval()
    select = ("encoder.layer.?.intermediate.dense", "encoder.layer.?.output.dense")
    plain = rw.factorize(dense, rank=0.5, select=select)
    assert sum(isinstance(module, rw.FactorizedLinear) for module in plain.modules()) == 12
    decayed = copy.deepcopy(plain)

    def distance(net: nn.Module, step: int) -> Tensor:
        """How far a batch's outputs are from those of the whole model."""
        with torch.no_grad():
            wanted = dense(words(step))
        found = net(words(step))
        return sum((found[name] - wanted[name]).square().mean() for name in ("last_hidden_state", "pooler_output"))

    optimizers = {}
    for net, value in ((plain, 0.0), (decayed, COEFFICIENT)):
        groups = rw.param_groups(net, weight_decay=value, embed=0.0, norm=0.0, bias=0.0)
        optimizers[net] = torch.optim.AdamW(groups, lr=RATE)
    decay = rw.FrobeniusDecay(decayed).attach(optimizers[decayed])
    # The factors of all layers, and queries, keys, values and outputs of all heads, with the decay of their groups.
    assert len(decay.products) == 12 + 12
    assert decay.penalty().item() == pytest.approx(penalty(decayed).item(), rel=1e-5)
    start = {net: distance(net, 0).item() for net in (plain, decayed)}
    predicted = 0.0
    for step in range(4):
        gradients = slopes(decayed)
        predicted -= RATE * COEFFICIENT * sum(each.square().sum().item() for each in gradients.values())
        before = {name: each.detach().clone() for name, each in decayed.named_parameters()}
        for net, optimizer in optimizers.items():
            optimizer.zero_grad()
            loss = distance(net, 0)
            loss.backward()
            assert loss.isfinite()
            optimizer.step()
        if step == 0:
            moved_together = dict(plain.named_parameters())
            for name, each in decayed.named_parameters():
                by_decay = each.detach() - moved_together[name].detach()
                if name in gradients:
                    expected = -RATE * COEFFICIENT * gradients[name]
                    torch.testing.assert_close(by_decay, expected, rtol=0, atol=2e-7 + 1e-3 * expected.abs().max())
                elif name.endswith("pooler.dense.weight"):
                    # Left to the optimizer's own decay, because it is no product.
                    torch.testing.assert_close(by_decay, -RATE * COEFFICIENT * before[name], rtol=0, atol=1e-7)
                else:
                    assert torch.equal(each, moved_together[name])
    assert decay.left_out == 0
    assert distance(decayed, 0).item() < 0.7 * start[decayed]
    fallen = (penalty(decayed) - penalty(plain)).item()
    assert fallen == pytest.approx(predicted, rel=0.01)
    assert fallen < -0.001 * penalty(plain).item()
    collapsed = rw.collapse(decayed)
    torch.testing.assert_close(
        collapsed(words(1)).last_hidden_state, decayed(words(1)).last_hidden_state, rtol=0, atol=1e-4
    )
