"""QK-clip on live attention: the logits that were seen come down to the threshold, head by head."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from rankwise.decay.controls.qk_clip import QKClip
from rankwise.errors import UserError
from rankwise.sites.certify.tiny import tiny_models
from rankwise.sites.find import find
from tests.decay import models
from tests.givens import GPT


def tiny(model_type: str, implementation: str = "sdpa") -> nn.Module:
    torch.manual_seed(0)
    _, model = next(iter(tiny_models(model_type)))
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and ("q_proj" in name or "k_proj" in name or "c_attn" in name):
                parameter *= 3
    return model.double().eval()


def logits(clip: QKClip, model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    """The largest logits of a pass, by the control's own eyes."""
    with clip.observed():
        model(tokens)
    found = clip.largest_logits
    clip._logits.empty()
    return found


def by_hand(model: nn.Module, tokens: Tensor) -> Tensor:
    """Every head's largest causal logit in a GPT's first layer, from its weights."""
    hidden = model.embedding(tokens)
    attention = model.h[0]
    query, key, _ = (
        one.unflatten(-1, (attention.n_head, -1)).movedim(-2, -3) for one in attention.c_attn(hidden).chunk(3, -1)
    )
    found = query @ key.mT / math.sqrt(query.shape[-1])
    hidden_ones = torch.ones(found.shape[-2:], dtype=torch.bool).triu(1)
    return found.masked_fill(hidden_ones, -torch.inf).amax((0, 2, 3)).detach()


def test_what_it_sees_is_every_heads_largest_logit() -> None:
    torch.manual_seed(0)
    model = GPT(vocabulary=32, n_embd=24, n_head=3, layers=2).double()
    tokens = torch.randint(32, (4, 16))
    clip = QKClip(find(model).select(kind="qk"))
    with clip.observed():
        model(tokens, tokens)
        model(tokens.flip(0, 1), tokens)
    both = torch.maximum(by_hand(model, tokens), by_hand(model, tokens.flip(0, 1)))
    torch.testing.assert_close(clip.largest_logits["layers.0.qk"].double(), both, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_every_head_is_scaled_by_its_own_factor(model_type: str, implementation: str) -> None:
    """Grouped keys, rotary queries, biases: in the first layer, where nothing else has changed."""
    model = tiny(model_type, implementation)
    tokens = torch.randint(99, (2, 9))
    sites = find(model).select(kind="qk").select(layer=0)
    before = logits(QKClip(sites), model, tokens)["layers.0.qk"]
    threshold = float(before.median())
    clip = QKClip(sites, threshold=threshold)
    logits_again = logits(clip, model, tokens)
    assert torch.equal(logits_again["layers.0.qk"], before)
    matrices = sites["layers.0.qk"].product(model).dense().detach()
    with clip.observed():
        model(tokens)
    clip.apply()
    after = logits(clip, model, tokens)["layers.0.qk"]
    factor = torch.where(before > threshold, threshold / before, 1.0).double()
    torch.testing.assert_close(after, before * factor.float(), rtol=1e-4, atol=1e-5)
    assert (factor < 1).any()
    assert (factor == 1).any()
    scaled = sites["layers.0.qk"].product(model).dense().detach()
    torch.testing.assert_close(scaled, matrices * factor.reshape(*scaled.shape[:-2], 1, 1), rtol=1e-6, atol=1e-9)


def test_attached_it_bounds_the_logits_of_a_training() -> None:
    torch.manual_seed(0)
    largest = {}
    for clipped in (False, True):
        torch.manual_seed(0)
        model = GPT(vocabulary=32, n_embd=24, n_head=3, layers=2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        sites = find(model).select(kind="qk")
        if clipped:
            control = QKClip(sites, threshold=2.0).attach(optimizer)
        tokens = torch.randint(32, (4, 17))
        for _ in range(60):
            optimizer.zero_grad()
            _, loss = model(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            optimizer.step()
        if clipped:
            control.detach()
        watch = QKClip(sites, threshold=2.0)
        with watch.observed():
            model(tokens[:, :-1], tokens[:, 1:])
        largest[clipped] = max(float(each.max()) for each in watch.largest_logits.values())
    # The last step came after the last look, so that it may go past a little.
    assert largest[True] < 4.0
    assert largest[False] > 10 * largest[True]


def test_it_says_what_it_cannot_do() -> None:
    model = models.llama()
    with pytest.raises(UserError, match=r"no logits were seen of layers.0.qk, layers.1.qk: run the model"):
        QKClip(find(model).select(kind="qk")).apply()
    with pytest.raises(UserError, match=r"layers.0.ov, layers.1.ov has no logits of its own"):
        QKClip(find(model).select(kind="ov"))
    with pytest.raises(UserError, match="threshold must be a positive number"):
        QKClip(find(model).select(kind="qk"), threshold=0.0)


def test_a_threshold_above_the_cap_has_no_effect_and_says_so() -> None:
    model = tiny("gemma2", "eager")
    sites = find(model).select(kind="qk")
    cap = next(iter(sites)).attention.softcap
    with pytest.warns(UserWarning, match="has no effect on layers.0.qk"):
        QKClip(sites, threshold=cap + 1)
