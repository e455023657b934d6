"""What part every parameter plays, in models of several kinds."""

from __future__ import annotations

import torch
from torch import nn

from rankwise.decay.places import parts
from tests.decay import models


def roles(model: nn.Module) -> dict[str, str]:
    return {part.name: part.role for part in parts(model)}


def test_a_fused_transformer() -> None:
    found = roles(models.gpt2())
    assert found["h.0.attn.c_attn.weight"] == "qk+ov"
    assert found["h.0.attn.c_proj.weight"] == "ov"
    assert found["h.0.attn.c_attn.bias"] == found["h.1.attn.c_proj.bias"] == "bias"
    assert found["h.0.mlp.c_fc.weight"] == "mlp"
    assert found["wte.weight"] == found["wpe.weight"] == "embed"
    assert found["h.0.ln_1.weight"] == "norm"


def test_masks_tell_where_in_a_tensor() -> None:
    part = next(part for part in parts(models.gpt2()) if part.name == "h.0.attn.c_attn.weight")
    assert part.is_whole
    assert part.mask("qk")[:, :30].all()
    assert not part.mask("qk")[:, 30:].any()
    assert torch.equal(part.mask("ov"), ~part.mask("qk"))


def test_norms_are_known_by_their_module_and_biases_by_their_name() -> None:
    class RMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(3))

    model = nn.ModuleDict({"first": nn.Linear(3, 3), "second": RMSNorm(), "conv": nn.Conv2d(2, 2, 3)})
    model.register_parameter("in_bias_q", nn.Parameter(torch.zeros(3)))
    model.register_parameter("temperature", nn.Parameter(torch.zeros(())))
    found = roles(model)
    assert found["second.bias"] == found["temperature"] == "norm"
    assert found["first.bias"] == found["conv.bias"] == found["in_bias_q"] == "bias"
    assert found["conv.weight"] in ("mlp", "other")


def test_adapters_and_factorized_layers_are_matrices_like_others() -> None:
    for model in (models.adapter(), models.chain(9, 3, 7)):
        assert set(roles(model).values()) <= {"mlp", "other"}
