"""Smaller heads for torch's attention: the best there are, trained, and filled up again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import rankwise as rw
from rankwise.errors import UserError


def encoder(layers: int = 2, **settings) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, batch_first=True, **settings)
    return nn.TransformerEncoder(layer, layers).double()


def stream(*batch: int) -> Tensor:
    return torch.randn(*batch, 5, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


PADDED = torch.tensor([[False] * 5, [False, False, False, True, True]])


@pytest.mark.parametrize("training", [True, False])
def test_at_the_size_that_they_have_nothing_changes(training) -> None:
    model = encoder().train(training)
    same = rw.shrink_heads(model, 4)
    assert sum(isinstance(module, rw.FactorizedMultiheadAttention) for module in same.modules()) == 2
    for masks in ({}, {"src_key_padding_mask": PADDED}, {"mask": nn.Transformer.generate_square_subsequent_mask(5)}):
        found, expected = (one(stream(2), **masks) for one in (same, model))
        if masks.keys() == {"src_key_padding_mask"}:  # what is computed at padding is nobody's business
            found, expected = found[~PADDED], expected[~PADDED]
        torch.testing.assert_close(found, expected)


def test_smaller_heads_are_sites_and_train_and_collapse_to_torch_s_own() -> None:
    model = encoder()
    small = rw.shrink_heads(model, 0.5)
    attention = small.layers[1].self_attn
    assert (attention.head_size, attention.value_size, attention.scale) == (2, 2, 4**-0.5)
    assert {site.name for site in rw.find(small) if site.kind in ("qk", "ov")} >= {"layers.0.qk", "layers.1.ov"}
    optimizer = torch.optim.Adam(small.parameters(), lr=1e-2)
    target = stream(4).flip(0)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (small(stream(4)) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    folded = rw.collapse(small)
    assert folded.state_dict().keys() == model.state_dict().keys()
    torch.testing.assert_close(folded(stream(2)), small(stream(2)))


def test_what_is_kept_are_the_leading_singular_values_of_each_head_s_product() -> None:
    model = encoder(1)
    small = rw.shrink_heads(model, 2).layers[0].self_attn
    for kind, found in (("qk", small.qk), ("ov", small.ov)):
        whole = rw.find(model)[f"layers.0.self.{kind}"].effective(model).dense()
        rank = torch.linalg.matrix_rank(found.dense()).max()
        assert rank == 2
        if kind == "ov":
            values = torch.linalg.svdvals(rw.find(model)["layers.0.self.ov"].product(model).dense())
            missed = torch.linalg.matrix_norm(found.dense().squeeze(1) - whole[..., :16])
            torch.testing.assert_close(missed, values[:, 2:].square().sum(-1).sqrt())


def test_by_path() -> None:
    model = encoder(3)
    small = rw.shrink_heads(model, {"layers.1.*": 1, "layers.2.self_attn": 0.75})
    assert type(small.layers[0].self_attn) is nn.MultiheadAttention
    assert [small.layers[at].self_attn.head_size for at in (1, 2)] == [1, 3]
    assert type(model.layers[1].self_attn) is nn.MultiheadAttention


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "a head size is a whole number .* got 0"),
        ("2", "a head size is a whole number .* got '2'"),
        (5, "layers.0.self_attn: head_size must be from 1 to 4"),
        (0.2, "head_size must be from 1 to 4, that of the weights to start from, got 0"),
        ({"layer.*": 2}, r"'layer.\*' matches no torch.nn.MultiheadAttention of the model: layers.0.self_attn, "),
    ],
)
def test_sizes_that_cannot_be_are_refused(size, message) -> None:
    with pytest.raises(UserError, match=message):
        rw.shrink_heads(encoder(), size)


def test_a_model_without_such_attention_is_refused() -> None:
    with pytest.raises(UserError, match=r"matches no torch\.nn\.MultiheadAttention of the model, it has none"):
        rw.shrink_heads(nn.Linear(3, 3), 0.5)
