"""Real models and torch's own: factorize, train, collapse, save and load again."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

import rankwise as rw
from tests.layers.nets import CifarResNet

STEPS = 20


def trained(model: nn.Module, loss: Any, lr: float = 1e-3) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss(model)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def words(batch: int, length: int, vocabulary: int) -> Tensor:
    return torch.randint(5, vocabulary, (batch, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
def test_minilm_recovers_its_embeddings_and_goes_home_as_bert(minilm_directory: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    dense = transformers.BertModel.from_pretrained(minilm_directory).eval()
    tokens = words(4, 16, 20000)
    with torch.no_grad():
        target = dense(tokens).last_hidden_state
    (kept,) = (each for each in rw.factorization_plan(dense, rank=8).dense if "word" in each.parameter)
    assert "the padding row 0 of an embedding is not zero" in kept.reason
    dense.embeddings.word_embeddings.padding_idx = None
    plan = rw.factorization_plan(dense, energy=0.9)
    names = plan.ranks
    assert {"embeddings.word_embeddings", "encoder.layer.5.output.dense"} <= names.keys()
    assert not any("attention" in name for name in names)
    small = plan.apply(dense)
    assert sum(p.numel() for p in small.parameters()) == plan.parameters < plan.dense_parameters
    losses = trained(small, lambda model: (model(tokens).last_hidden_state - target).square().mean(), lr=3e-4)
    assert losses[-1] < 0.5 * losses[0]
    small.eval()
    with torch.no_grad():
        expected = small(tokens).last_hidden_state
    folded = rw.collapse(small)
    folded.save_pretrained(tmp_path)
    back, report = transformers.BertModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        torch.testing.assert_close(back.eval()(tokens).last_hidden_state, expected, rtol=1e-3, atol=1e-4)
    # What attention is stays what it is: all of its sites, proved on the factorized model.
    assert rw.find(small).select(kind={"qk", "ov"}).certify()


@pytest.mark.slow
@pytest.mark.parametrize("select", [None, ["transformer.*", "lm_head"]])
def test_gpt2_with_tied_embeddings(select: list[str] | None, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=120, n_embd=48, n_layer=2, n_head=4, n_positions=32)
    dense = transformers.GPT2LMHeadModel(config)
    tokens = words(8, 24, 120)
    small = rw.factorize(dense, rank=0.4, select=select)
    assert (small.transformer.h[0].attn.c_attn.__class__.__name__ == "FactorizedConv1D") == (select is not None)
    assert small.lm_head.factors[0] is small.transformer.wte.factors[0]
    losses = trained(small, lambda model: model(tokens, labels=tokens).loss, lr=1e-2)
    assert losses[-1] < 0.9 * losses[0]
    small.eval()
    with torch.no_grad():
        expected = small(tokens).logits
    save_model(small, tmp_path / "factors.safetensors")
    twin = rw.factorize(transformers.GPT2LMHeadModel(config), rank=0.4, select=select).eval()
    load_model(twin, tmp_path / "factors.safetensors")
    with torch.no_grad():
        assert torch.equal(twin(tokens).logits, expected)
    # Its library saves it too, once it knows what the tied parameters are called now: what its Trainer does.
    small.save_pretrained(tmp_path / "factorized")
    small.tie_weights()
    assert small.lm_head.factors[0] is small.transformer.wte.factors[0]
    folded = rw.collapse(small)
    assert folded._tied_weights_keys == dense._tied_weights_keys
    assert folded.lm_head.weight is folded.transformer.wte.weight
    folded.save_pretrained(tmp_path / "dense")
    back = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "dense").eval()
    with torch.no_grad():
        torch.testing.assert_close(back(tokens).logits, expected, rtol=1e-4, atol=1e-5)
        generated = [model.generate(tokens[:1, :4], max_new_tokens=8, do_sample=False) for model in (small, back)]
    assert torch.equal(*generated)


@pytest.mark.slow
def test_a_trained_resnet_loses_less_the_wider_it_stays(shared_data: Path, tmp_path: Path) -> None:
    stored = torch.load(shared_data / "resnet-cifar10/resnet20-12fca82f.th", weights_only=True, map_location="cpu")
    dense = CifarResNet(20).eval()
    missing, unexpected = dense.load_state_dict(
        {name.removeprefix("module."): value for name, value in stored["state_dict"].items()}, strict=False
    )
    assert not missing
    assert not unexpected
    torch.manual_seed(0)
    given = torch.randn(32, 3, 32, 32)
    with torch.no_grad():
        target = dense(given)
        missed = [(rw.factorize(dense, rank=share)(given) - target).norm().item() for share in (0.1, 0.3, 0.6, 1.0)]
    assert missed == sorted(missed, reverse=True)
    assert missed[-1] < 1e-3 * target.norm().item()
    small = rw.factorize(dense, budget=0.3)
    losses = trained(small, lambda model: (model(given) - target).square().mean())
    assert losses[-1] < 0.5 * losses[0]
    small.eval()
    folded = rw.collapse(small)
    torch.save(folded.state_dict(), tmp_path / "net.pt")
    back = CifarResNet(20).eval()
    back.load_state_dict(torch.load(tmp_path / "net.pt", weights_only=True))
    with torch.no_grad():
        torch.testing.assert_close(back(given), small(given), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_torchs_transformer_with_smaller_heads_and_thinner_layers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    dense = nn.Sequential(nn.Embedding(50, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 50))
    tokens = words(8, 12, 50)
    small = rw.shrink_heads(rw.factorize(dense, rank=0.5), 0.5)
    expected_types = {rw.FactorizedLinear, rw.FactorizedEmbedding, rw.FactorizedMultiheadAttention}
    assert expected_types <= {type(module) for module in small.modules()}
    losses = trained(
        small, lambda model: nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()), lr=1e-2
    )
    assert losses[-1] < 0.5 * losses[0]
    folded = rw.collapse(small).eval()
    assert folded.state_dict().keys() == dense.state_dict().keys()
    torch.save(folded.state_dict(), tmp_path / "net.pt")
    back = copy.deepcopy(dense).eval()
    back.load_state_dict(torch.load(tmp_path / "net.pt", weights_only=True))
    with torch.no_grad():
        torch.testing.assert_close(back(tokens), small.eval()(tokens), rtol=1e-3, atol=1e-4)
