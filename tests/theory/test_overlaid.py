"""Predictions over recorded runs: right for gradient descent, marked where they are no theorem, left out where void."""

from __future__ import annotations

import math

import pytest
import torch
from rich.console import Console
from torch import nn

import rankwise as rw
from rankwise.errors import UserError
from rankwise.theory import overlay


def recorded(folder, *, scale: float, kind: str, rate: float, decay: float, steps: int, every: int) -> rw.Run:
    """A factorized layer that learns a matrix from an unbalanced start, watched."""
    generator = torch.Generator().manual_seed(0)
    layer = rw.FactorizedLinear(6, 5, rank=4, bias=False).double()
    with torch.no_grad():
        for weight, size in zip(layer.parameters(), (2.0, 1.0), strict=True):
            weight.copy_(scale * size * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    target = torch.randn(6, 5, generator=generator, dtype=torch.float64) / 2
    model = nn.Sequential(layer)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=rate, weight_decay=decay)
    with rw.Monitor(model, run=folder, every=every, optimizer=optimizer) as monitor:
        monitor.step(0)
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            loss = (model(torch.eye(6, dtype=torch.float64)) - target).square().sum() / 2
            loss.backward()
            optimizer.step()
            monitor.step(step, loss=loss)
    return rw.open_run(folder)


def test_the_imbalance_of_gradient_descent_decays_as_predicted(tmp_path) -> None:
    run = recorded(tmp_path / "a", scale=0.5, kind="SGD", rate=0.01, decay=0.1, steps=600, every=100)
    found = overlay(run, optimizer="SGD")
    (product,) = found.products
    assert product.factor == pytest.approx(1.0, rel=0.05)
    assert found.score < 0.05
    assert product.imbalance.predicted[-1].item() < 0.4 * product.imbalance.predicted[0].item()
    assert product.within == 1.0
    assert product.escape is None
    assert "exact for gradient descent" in found.caution


@pytest.mark.slow
def test_the_moment_of_escape_is_told_from_early_growth(tmp_path) -> None:
    run = recorded(tmp_path / "b", scale=1e-5, kind="SGD", rate=0.05, decay=0.0, steps=500, every=10)
    (product,) = overlay(run).products
    assert product.escape is not None
    assert product.escape.relative_error < 0.05
    assert product.escape.simulated.item() > 50
    assert "is not known: overlay(run, optimizer=" in overlay(run).caution


def test_under_adam_it_is_called_a_comparison(tmp_path) -> None:
    run = recorded(tmp_path / "c", scale=0.5, kind="AdamW", rate=0.01, decay=0.1, steps=200, every=50)
    found = overlay(run, optimizer="AdamW")
    assert "no theorem" in found.caution
    assert all(one.escape is None for one in found.products)
    console = Console(record=True, width=110)
    console.print(found)
    assert "under AdamW this is a comparison" in console.export_text()
    # And rightly so: decay alone does not explain what Adam did.
    assert abs(math.log(found.products[0].factor)) > 0.02


def test_where_no_law_was_stated_it_says_why(tmp_path) -> None:
    model = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    with rw.Monitor(model, run=tmp_path / "d", every=1) as monitor:
        monitor.step(0)
    found = overlay(rw.open_run(tmp_path / "d"))
    assert not found.products
    assert math.isnan(found.score)
    assert all("does not know its optimizer" in reason for reason in found.left_out.values())
    assert found.left_out


def test_rotary_heads_and_groups(tmp_path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, weight_decay=0.1)
    with rw.Monitor(model, run=tmp_path / "e", every=1, optimizer=optimizer) as monitor:
        for step in range(2):
            model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
            optimizer.step()
            monitor.step(step)
            optimizer.zero_grad()
    found = overlay(rw.open_run(tmp_path / "e"), optimizer="SGD")
    assert "each frequency" in found.left_out["layers.0.qk"]
    groups = [one for one in found.products if one.site == "layers.0.ov"]
    assert [(one.of, one.head) for one in groups] == [("group", 0), ("group", 1)]
    assert all(one.factor == pytest.approx(1.0, rel=1e-2) for one in groups)


def test_a_run_without_products_gets_one_line(tmp_path) -> None:
    class Empty:
        heading = {"sites": []}  # noqa: RUF012
        snapshots = ()

        def rows(self):
            return iter(())

    with pytest.raises(UserError, match="holds no snapshots of products"):
        overlay(Empty())  # pyright: ignore[reportArgumentType]
