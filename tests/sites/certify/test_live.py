"""Certification runs on a user's own live model: it must leave no trace there, and say clearly what it could not do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import rankwise as rw
from rankwise.errors import UserError
from rankwise.sites.certify import Certificates, certify
from rankwise.sites.certify.tiny import tiny_models
from rankwise.sites.find import find
from rankwise.sites.registry import forget_layout
from rankwise.sites.sites import Sites


def fresh(model_type: str = "bert") -> nn.Module:
    return next(iter(tiny_models(model_type)))[1]


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def hooks(model: nn.Module) -> int:
    return sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules())


@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_left_as_it_was(training: bool) -> None:
    model = fresh().train(training)
    model.embeddings.eval()  # modes may differ from module to module
    modes = [each.training for each in model.modules()]
    before, gradients, count = state(model), [each.requires_grad for each in model.parameters()], hooks(model)
    assert rw.find(model).certify()
    assert all(torch.equal(before[name], tensor) for name, tensor in state(model).items())
    assert [each.training for each in model.modules()] == modes
    assert [each.requires_grad for each in model.parameters()] == gradients
    assert hooks(model) == count


def test_a_model_that_raises_is_restored_too_and_its_layers_are_proved_on_their_own() -> None:
    model = fresh().train()
    count = hooks(model)

    def broken(*_: object) -> None:
        raise RuntimeError("no pooling today")

    handle = model.pooler.register_forward_pre_hook(broken)
    certificates = find(model).certify()
    handle.remove()
    assert hooks(model) == count
    assert all(each.training for each in model.modules())
    assert certificates  # the attention had run before the model raised


def test_attention_that_no_run_reaches_is_called_directly() -> None:
    model = fresh()

    def broken(*_: object) -> None:
        raise RuntimeError("no embedding today")

    model.embeddings.register_forward_pre_hook(broken)
    certificates = find(model).certify()
    assert certificates


def test_certificates_mark_the_sites() -> None:
    model = fresh("llama")
    sites = find(model)
    certificates = sites.certify()
    attention = certificates.sites.select(kind={"qk", "ov"})
    assert {site.certified for site in attention} == {"here"}
    assert {site.certified for site in sites.select(kind="mlp")} == {"no"}
    assert len(certificates) == len(attention)


def test_failures_are_said() -> None:
    model = fresh("gpt2")
    sites = find(model)
    broken = sites.marked(lambda site: site if site.kind != "qk" else _swapped(site))
    certificates = certify(broken, model)
    assert not certificates
    assert set(certificates.failures) == {"layers.0.qk", "layers.1.qk"}
    assert "value proof failed" in certificates.failures["layers.0.qk"]
    assert certificates.sites["layers.0.ov"].certified == "here"
    assert certificates.sites["layers.0.qk"].certified != "here"
    assert "2 of 4" in certificates.table().title  # pyright: ignore[reportOperatorIssue]


def _swapped(site: rw.Site) -> rw.Site:
    from dataclasses import replace

    left, right = site.factors
    return replace(site, factors=(replace(left, take=right.take), replace(right, take=left.take)))


def test_no_attention_is_no_certificate() -> None:
    certificates = Certificates(Sites([]), {})
    assert not certificates
    assert not certificates.failures


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_any_precision_of_the_model_will_do(dtype: torch.dtype) -> None:
    model = fresh("llama").to(dtype)
    certificates = find(model).certify()
    assert certificates, certificates.failures
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


def test_given_inputs_are_used() -> None:
    model = fresh("bert")
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8, 9], [9, 8, 7, 6, 5]]), "attention_mask": mask}
    assert find(model).certify(inputs=inputs)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("sizes", [{}, {"kdim": 20, "vdim": 30}])
def test_torch_attention_is_certified_without_any_configuration(batch_first: bool, sizes: dict[str, int]) -> None:
    module = nn.MultiheadAttention(48, 6, batch_first=batch_first, **sizes)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    certificates = find(module).certify()
    assert certificates, certificates.failures


def test_a_state_dict_cannot_be_run() -> None:
    model = fresh("bert")
    sites = find(model.state_dict(), config=model.config.to_dict())
    with pytest.raises(UserError, match=r"needs the live module, not a"):
        sites.certify()
    assert sites.certify(model)


class Turning(nn.Module):
    """Attention whose rotary angles lie in a table of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(*sizes) for sizes in ((20, 24), (20, 24), (20, 24), (24, 20)))
        angles = torch.outer(torch.arange(16.0), 10.0 ** -torch.arange(4.0))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (3, 8)).transpose(1, 2) for each in (self.q, self.k, self.v))
        turned = (torch.view_as_complex(each.unflatten(-1, (4, 2))) * self.turns[: x.shape[1]] for each in (q, k))
        q, k = (torch.view_as_real(each).flatten(-2) for each in turned)
        return self.o(((q @ k.mT * 8**-0.5).softmax(-1) @ v).transpose(1, 2).flatten(-2))


def test_complex_angles_stay_complex() -> None:
    layout = rw.register_layout(
        """
        [turning]
        types = ["turning"]
        sizes = { h = "heads" }
        [turning.attention.self]
        at = "layers.{layer}"
        q = "q: (h r) d"
        k = "k: (h r) d"
        v = "v: (h r) d"
        o = "o: d (h r)"
        rotary = { pairs = "interleaved" }
        """
    )
    model = nn.Sequential()
    model.layers = nn.ModuleList([Turning()])
    sites = find(model, config={"model_type": "turning", "heads": 3}, layouts=layout)
    forget_layout("turning")
    certificates = certify(sites, model)
    assert certificates, certificates.failures
    assert certificates["layers.0.qk"].value.detail.startswith("rotary")
