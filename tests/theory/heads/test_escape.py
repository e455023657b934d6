"""The escape picture on real torch models: what it predicts happens, and what it must not be asked for is left out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from rankwise.errors import UserError
from rankwise.layers.linear import FactorizedLinear
from rankwise.sites.find import find
from rankwise.theory import escape
from rankwise.theory.heads.saddle import Saddle, escaping

VOCABULARY, LENGTH = 40, 16


def second_order_chain(samples: int = 64) -> dict[str, torch.Tensor]:
    """Sequences whose next token mostly follows from the one two places back."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCABULARY, (samples, LENGTH), generator=generator)
    for place in range(2, LENGTH):
        follows = torch.rand(samples, generator=generator) < 0.7
        tokens[:, place] = torch.where(follows, (tokens[:, place - 2] * 3 + 1) % VOCABULARY, tokens[:, place])
    return {"input_ids": tokens, "labels": tokens}


def small_gpt2(alpha: float, *, layers: int = 1) -> GPT2LMHeadModel:
    """A GPT-2 of which only attention trains, from a scale of our choice."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=layers,
        n_head=2,
        n_embd=32,
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        loss_type="ForCausalLM",
    )
    model = GPT2LMHeadModel(config).double()
    with torch.no_grad():
        model.transformer.wte.weight.normal_()
        model.lm_head.weight.normal_(0, 0.2)
        for one in model.parameters():
            one.requires_grad_(False)
        for block in model.transformer.h:
            block.mlp.c_proj.weight.zero_()
            for linear in (block.attn.c_attn, block.attn.c_proj):
                linear.weight.normal_().mul_(alpha)
                linear.bias.zero_()
                linear.weight.requires_grad_()
    return model


def attention_parameters(model: nn.Module) -> list[nn.Parameter]:
    return [one for one in model.parameters() if one.requires_grad]


def test_rates_and_directions_are_those_of_the_gradient_by_the_product() -> None:
    model, batch = small_gpt2(1e-4), second_order_chain(16)
    site = find(model)["layers.0.ov"]
    found = escape(model, batch, directions=2, iterations=8)
    # The same gradient, formed: OV of each head added to the layer's output by a linear map of its own.
    for head in range(2):
        gradient = -_formed_gradient(model, batch, head)
        values = torch.linalg.svdvals(gradient)
        own = [one for one in found.directions if one.site == site.name and one.head == head]
        assert [one.rate for one in own] == pytest.approx(values[:2].tolist(), rel=1e-3)
        for one in own:
            assert float(one.left @ gradient @ one.right) == pytest.approx(one.rate, rel=1e-4)
            assert abs(one.rate - float(values[(values - one.rate).abs().argmin()])) <= one.error + 1e-6


def _formed_gradient(model: GPT2LMHeadModel, batch: dict[str, torch.Tensor], head: int) -> torch.Tensor:
    """`dL/dW` for one head's output-value product at zero, by a hook that adds `W` times what the head attends to."""
    attention = model.transformer.h[0].attn
    extra = torch.zeros(32, 32, dtype=torch.float64, requires_grad=True)

    def add(module, arguments, keywords, output):
        stream = arguments[0] if arguments else keywords["hidden_states"]
        queries, keys, _ = attention.c_attn(stream).split(32, -1)
        mine = slice(16 * head, 16 * head + 16)
        logits = queries[..., mine] @ keys[..., mine].mT / 4
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        weights = logits.masked_fill(~mask, -math.inf).softmax(-1)
        return (output[0] + weights @ stream @ extra.mT, *output[1:])

    handle = attention.register_forward_hook(add, with_kwargs=True)
    model.eval()
    loss = model(**batch).loss
    handle.remove()
    return torch.autograd.grad(loss, extra)[0]


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_the_next_drop_comes_when_it_was_predicted(momentum) -> None:
    model, batch = small_gpt2(3e-3), second_order_chain(32)
    optimizer = torch.optim.SGD(attention_parameters(model), lr=0.1 if not momentum else 0.03, momentum=momentum)
    found = escape(model, batch, optimizer=optimizer)
    assert found.at_plateau
    assert found.directions[0].site == "layers.0.ov"
    # Queries and keys have nothing to gain yet: they wait.
    waiting = [one.rate for one in found.directions if one.site == "layers.0.qk"]
    assert max(waiting, default=0.0) < 1e-3 * found.directions[0].rate
    model.eval()
    losses = [found.loss]
    while losses[-1] > (1 - found.drop) * found.loss and len(losses) < 2 * found.steps:
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(losses) == pytest.approx(found.steps, rel=0.06)


def test_every_drop_of_a_factorized_layer_is_told_from_the_plateau_before_it() -> None:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(FactorizedLinear(4, 4, rank=4, bias=False).double())
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(1e-6 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    target = torch.diag(torch.tensor([2.0, 1.0, 0.5, 0.25], dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def error(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return (model(batch) - target).square().sum() / 2

    def step() -> float:
        optimizer.zero_grad()
        loss = error(model, torch.eye(4, dtype=torch.float64))
        loss.backward()
        optimizer.step()
        return loss.item()

    for rate, left in ((2.0, 0.65625), (1.0, 0.15625), (0.5, 0.03125)):
        found = escape(
            model, torch.eye(4, dtype=torch.float64), loss=error, optimizer=optimizer, directions=1, iterations=9
        )
        assert found.at_plateau
        assert found.directions[0].rate == pytest.approx(rate, rel=2e-3)
        losses = [step()]
        while losses[-1] > 0.99 * found.loss and len(losses) < 999:
            losses.append(step())
        assert len(losses) - 1 == pytest.approx(found.steps, rel=0.03)
        while losses[-1] > left * 1.001 and len(losses) < 999:
            losses.append(step())


def test_under_adam_there_are_directions_and_no_times() -> None:
    model, batch = small_gpt2(1e-3), second_order_chain(8)
    found = escape(model, batch, optimizer=torch.optim.AdamW(attention_parameters(model)), directions=1, iterations=1)
    assert found.directions
    assert all(one.time is None and one.steps is None for one in found.directions)
    assert found.steps is found.time is None
    assert "no times under AdamW" in found.why_no_time
    rates = [one.rate for one in found.directions]
    assert rates == sorted(rates, reverse=True)


def test_what_is_not_a_plateau_is_said() -> None:
    model, batch = small_gpt2(0.5), second_order_chain(8)
    found = escape(model, batch, directions=1, iterations=1)
    assert not found.at_plateau
    from rich.console import Console

    console = Console(record=True, width=100)
    console.print(found)
    text = console.export_text()
    assert "this is not a plateau" in text
    assert "a heuristic" in text


def test_rotary_queries_and_keys_are_left_out_with_the_reason_and_groups_are_one_matrix() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model, batch = LlamaForCausalLM(config).double(), second_order_chain(4)
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
            linear.weight.mul_(1e-3)
    found = escape(model, batch, directions=2, iterations=6)
    assert "rotary" in found.skipped["layers.0.qk"]
    grown = [one for one in found.directions if one.site == "layers.0.ov"]
    assert {one.head for one in grown} == {0, 1}
    # The values are shared by two heads of 32 outputs each: the left vectors hold both.
    assert {(len(one.left), len(one.right)) for one in grown} == {(64, 32)}
    assert all(one.error < 0.05 * one.rate for one in grown if one.rate > 0.5 * grown[0].rate)


def test_products_may_be_chosen() -> None:
    model, batch = small_gpt2(1e-3, layers=2), second_order_chain(4)
    chosen = find(model).select(kind="ov", layer=1)
    found = escape(model, batch, sites=chosen, directions=1, iterations=1)
    assert {one.site for one in found.directions} == {"layers.1.ov"}
    assert not found.skipped


def test_training_mode_and_weights_are_left_as_they_were() -> None:
    model, batch = small_gpt2(1e-3), second_order_chain(4)
    model.train()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    escape(model, batch, directions=1, iterations=1)
    assert model.training
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())


def test_bad_input_gets_one_line() -> None:
    model, batch = small_gpt2(1e-3), second_order_chain(4)
    for call, text in (
        (lambda: escape(model, batch, directions=0), "0 directions"),
        (lambda: escape(model, batch["input_ids"]), "in a mapping, or"),
        (lambda: escape(model, {"input_ids": batch["input_ids"]}), "no .loss for this batch"),
        (lambda: escape(model, batch, loss=lambda model, batch: model(**batch).logits), "not a differentiable scalar"),
        (lambda: escape(model, batch, loss=lambda model, batch: -model(**batch).loss), "positive, finite one"),
    ):
        with pytest.raises(UserError, match=text) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_saddle_is_applied_without_forming_it() -> None:
    model, batch = small_gpt2(1e-5), second_order_chain(4)
    site, parameters = find(model)["layers.0.ov"], dict(model.named_parameters())
    names = site.parameters
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        loss = model.eval()(**batch).loss
        slopes = torch.autograd.grad(loss, [parameters[name] for name in names], create_graph=True)
    saddle = Saddle.of(site, parameters, dict(zip(names, slopes, strict=True)))
    left, right = (torch.randn(2, 32, dtype=torch.float64) for _ in range(2))
    # It is symmetric: u^T (G v) and (G^T u)^T v agree for every head.
    forward, backward = saddle.applied(None, right)[0], saddle.applied(left, None)[1]
    assert torch.allclose((left * forward).sum(-1), (backward * right).sum(-1), rtol=1e-6)
    assert [one.head for one in escaping(saddle, directions=1, iterations=2, seed=0)] == [0, 1]
