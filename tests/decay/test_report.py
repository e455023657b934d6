"""The table says of every parameter what decays it, before and after attaching."""

from __future__ import annotations

import io

import torch
from rich.console import Console
from torch import nn

from rankwise.decay.frobenius import FrobeniusDecay
from rankwise.decay.target import InitializationDecay
from tests.decay import models


def printed(decay: object) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=200).print(decay)
    return text.getvalue().splitlines()


def line(lines: list[str], name: str) -> str:
    return next(each for each in lines if name in each)


def test_before_and_after_taking_over() -> None:
    model = models.gpt2()
    decay = FrobeniusDecay(models.products(model, "qk"))
    assert "FrobeniusDecay, not attached, 0 steps" in printed(decay)[0]
    assert "to be taken over" in line(printed(decay), "h.0.attn.c_attn.weight")
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    decay.attach(optimizer)
    models.fill_gradients(model)
    optimizer.step()
    lines = printed(decay)
    assert "FrobeniusDecay, decoupled, 1 steps" in lines[0]
    found = line(lines, "h.0.attn.c_attn.weight")
    assert "layers.0.qk" in found
    assert "0.1, taken over" in found
    assert "0.1 on 33%, decoupled" in found  # the values, which are no part of queries and keys


def test_schedules_tensors_and_coefficients_of_its_own() -> None:
    model = nn.ModuleList([models.Tensorized(), models.chain(9, 3, 7)])
    decay = FrobeniusDecay(model, coefficient=lambda step: 0.5)
    assert "0.5 now, by its schedule" in line(printed(decay), "0.cores.1")
    assert "tensorized" in line(printed(decay), "0.cores.1")
    start = InitializationDecay(models.chain(9, 3, 7), coefficient=0.25)
    assert "0.25" in line(printed(start), "up.factors.0")
