"""Parameter groups: everything once, under the name of what it does, and nothing that decays unseen."""

from __future__ import annotations

import copy
import json
import warnings
from importlib.resources import files

import pytest
import torch
from torch import nn

from rankwise.decay.groups import ParameterGroups, param_groups
from rankwise.decay.pending import Pending
from rankwise.errors import UserError
from rankwise.sites.certify.release import TABLE
from rankwise.sites.certify.tiny import TinyError, tiny_models
from tests.decay import models

# Those whose sites passed in a release; the fast ones below are of every kind.
CERTIFIED = sorted(json.loads((files("rankwise.sites") / TABLE).read_text(encoding="utf-8"))["types"])
QUICK = ("gpt2", "llama", "falcon", "t5", "deepseek_v3", "whisper")


def by_name(groups: ParameterGroups) -> dict[str, list[str]]:
    return {group["name"]: [groups.names[each] for each in group["params"]] for group in groups}


def check_once_each(model: nn.Module, groups: ParameterGroups) -> None:
    placed = [groups.names[each] for group in groups for each in group["params"]] + list(groups.frozen)
    assert sorted(placed) == sorted(name for name, _ in model.named_parameters())
    assert len({id(each) for group in groups for each in group["params"]}) == sum(len(g["params"]) for g in groups)


def check_architecture(model_type: str) -> None:
    try:
        _, model = next(iter(tiny_models(model_type)))
    except TinyError as error:
        pytest.skip(str(error)[:100])
    with warnings.catch_warnings():
        # Attention that no product covers is announced; here only the count matters.
        warnings.simplefilter("ignore")
        check_once_each(model, param_groups(model, weight_decay=0.1))
        try:
            groups = param_groups(model, weight_decay=0.1, qk=0.2, ov=0.3, mlp=0.4, embed=0.5, rows="attach")
        except UserError as error:
            if "the same entries" not in str(error):
                raise
            shared = {name: 0.25 for name, _ in model.named_parameters() if "kv" in name or "down" in name}
            groups = param_groups(model, weight_decay=0.1, qk=0.2, ov=0.3, rows="attach", overrides=shared)
    check_once_each(model, groups)
    assert all(isinstance(group["name"], str) for group in groups)


@pytest.mark.parametrize("model_type", QUICK)
def test_every_parameter_is_in_exactly_one_group(model_type: str) -> None:
    check_architecture(model_type)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_every_parameter_of_every_certified_architecture_is_in_exactly_one_group(part: int) -> None:
    failed = {}
    for model_type in CERTIFIED[part::4]:
        try:
            check_architecture(model_type)
        except pytest.skip.Exception:
            continue
        except Exception as error:
            failed[model_type] = f"{type(error).__name__}: {error}"
    assert not failed


def test_groups_carry_the_decay_of_what_the_parameters_do() -> None:
    groups = param_groups(models.llama(), weight_decay=0.1, qk=0.2, ov=0.3, mlp=0.4, embed=0.5)
    assert {group["name"]: group["weight_decay"] for group in groups} == {
        **{"qk": 0.2, "ov": 0.3, "mlp": 0.4, "embed": 0.5, "norm": 0.0}
    }
    names = by_name(groups)
    assert all(name.endswith(("q_proj.weight", "k_proj.weight")) for name in names["qk"])
    assert all(name.endswith(("v_proj.weight", "o_proj.weight")) for name in names["ov"])
    assert all("mlp" in name for name in names["mlp"])
    assert names["embed"] == ["embed_tokens.weight"]


def test_biases_and_gains_do_not_decay_unless_asked() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.PReLU())
    groups = {group["name"]: group for group in param_groups(model, weight_decay=0.1)}
    assert groups["bias"]["weight_decay"] == groups["norm"]["weight_decay"] == 0.0
    asked = {group["name"]: group for group in param_groups(model, weight_decay=0.1, norm=0.01, bias=0.02)}
    assert (asked["norm"]["weight_decay"], asked["bias"]["weight_decay"]) == (0.01, 0.02)
    # The bias of a normalization belongs to it; a bias is not known by its place.
    assert by_name(param_groups(model, weight_decay=0.1)) == {
        **{"mlp": ["0.weight"], "norm": ["1.weight", "1.bias", "2.weight"], "bias": ["0.bias"]}
    }


def test_tied_parameters_appear_once() -> None:
    model = models.llama()
    model.register_module("lm_head", nn.Module())
    model.lm_head.weight = model.embed_tokens.weight
    groups = param_groups(model, weight_decay=0.1)
    check_once_each(model, groups)
    assert by_name(groups)["embed"] == ["embed_tokens.weight"]


def test_frozen_parameters_are_in_no_group_and_said_so() -> None:
    model = models.llama()
    model.embed_tokens.weight.requires_grad_(False)
    groups = param_groups(model, weight_decay=0.1)
    assert groups.frozen == ("embed_tokens.weight",)
    assert "frozen" in [str(cell) for cell in groups.table().columns[1]._cells]
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(UserError, match="no parameter that learns"):
        param_groups(model, weight_decay=0.1)


def test_overrides_win_and_the_last_one_holds() -> None:
    patterns = {"layers.*": 0.7, "layers.0.self_attn.*": 0.8}
    groups = param_groups(models.llama(), weight_decay=0.1, overrides=patterns)
    names = by_name(groups)
    assert len(names["layers.0.self_attn.*"]) == 4
    assert all(name.startswith("layers.") for name in names["layers.*"])
    assert {group["name"]: group["weight_decay"] for group in groups}["layers.0.self_attn.*"] == 0.8
    with pytest.warns(UserWarning, match=r"'layer.9.\*' fits no parameter"):
        param_groups(models.llama(), weight_decay=0.1, overrides={"layer.9.*": 0.0})


def test_a_fused_tensor_is_not_split_silently() -> None:
    model = models.gpt2()
    with pytest.raises(UserError, match=r"h.0.attn.c_attn.weight is one tensor .*qk=0.2, ov=0.1.*rows='attach'"):
        param_groups(model, weight_decay=0.1, qk=0.2)
    assert "qk+ov" in by_name(param_groups(model, weight_decay=0.1))
    assert "qk+ov" in by_name(param_groups(model, weight_decay=0.1, qk=0.3, ov=0.3))
    with pytest.raises(UserError, match="finite number of at least 0"):
        param_groups(model, weight_decay=-0.1)


@pytest.mark.parametrize(("kind", "decoupled"), [(torch.optim.AdamW, True), (torch.optim.SGD, False)])
def test_rows_decay_as_if_they_were_tensors_of_their_own(kind: type[torch.optim.Optimizer], decoupled: bool) -> None:
    """Against the same optimizer on queries, keys and values kept apart."""
    fused = models.gpt2()
    weight = fused.get_parameter("h.0.attn.c_attn.weight")
    apart = [nn.Parameter(each.clone()) for each in weight.detach().split(15, 1)]
    groups = param_groups(fused, weight_decay=0.1, qk=0.5, ov=0.0, rows="attach")
    optimizer = kind(groups, lr=0.03)
    groups.attach(optimizer)
    values = [0.5, 0.5, 0.0]
    reference = kind([{"params": [p], "weight_decay": v} for p, v in zip(apart, values, strict=True)], lr=0.03)
    for step in range(3):
        models.fill_gradients(fused, seed=step)
        for one, gradient in zip(apart, weight.grad.split(15, 1), strict=True):
            one.grad = gradient.clone()
        optimizer.step()
        reference.step()
    torch.testing.assert_close(weight, torch.cat([each.detach() for each in apart], 1), rtol=1e-7, atol=1e-7)
    assert ("attached, decoupled" if decoupled else "attached, coupled") in str(groups.table().columns[1]._cells)


OPTIMIZERS = {
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.01, foreach=False),
    "AdamW, foreach": lambda groups: torch.optim.AdamW(groups, lr=0.01, foreach=True),
    "AdamW, fused": lambda groups: torch.optim.AdamW(groups, lr=0.01, fused=True),
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.01),
    "Rprop, which has no decay": lambda groups: torch.optim.Rprop(groups, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stepping_groups_that_are_not_attached_is_an_error(name: str) -> None:
    model = models.gpt2()
    groups = param_groups(model, weight_decay=0.1, qk=0.2, rows="attach")
    optimizer = OPTIMIZERS[name](groups)
    assert "not attached yet" in repr(optimizer)
    start = [each.detach().clone() for each in model.parameters()]
    models.fill_gradients(model)
    with pytest.raises(UserError, match="nothing applies it yet"):
        optimizer.step()
    assert all(torch.equal(one, two) for one, two in zip(start, model.parameters(), strict=True))
    groups.attach(optimizer, decoupled=True)
    optimizer.step()
    groups.detach()
    with pytest.raises(UserError, match="nothing applies it yet"):
        optimizer.step()


def test_a_loaded_state_does_not_make_the_error_go_away() -> None:
    """The saved groups hold a weight decay of 0: without the mark nobody would notice that nothing decays."""
    model = models.gpt2()
    groups = param_groups(model, weight_decay=0.1, qk=0.2, rows="attach")
    optimizer = torch.optim.AdamW(groups)
    groups.attach(optimizer)
    models.fill_gradients(model)
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    again = param_groups(model, weight_decay=0.1, qk=0.2, rows="attach")
    resumed = torch.optim.AdamW(again)
    resumed.load_state_dict(saved)
    with pytest.raises(UserError, match="nothing applies it yet"):
        resumed.step()
    again.attach(resumed)
    resumed.step()


def test_what_is_pending_refuses_arithmetic() -> None:
    for use in (
        lambda x: x != 0,
        lambda x: 1 - 0.1 * x,
        lambda x: x * 0.1,
        float,
        bool,
        lambda x: x > 0,
        lambda x: torch.zeros(2).mul_(1 - 0.1 * x),
    ):
        with pytest.raises(UserError, match=r"groups.attach\(optimizer\)"):
            use(Pending())


def test_attaching_is_checked() -> None:
    model = models.gpt2()
    groups = param_groups(model, weight_decay=0.1, qk=0.2, rows="attach")
    with pytest.raises(UserError, match="does not hold"):
        groups.attach(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
    optimizer = torch.optim.SGD(groups, lr=0.1)
    groups.attach(optimizer)
    with pytest.raises(UserError, match="attached already"):
        groups.attach(optimizer)
    optimizer.param_groups[-1]["weight_decay"] = 0.1
    models.fill_gradients(model)
    with pytest.raises(UserError, match="weight decay is back on"):
        optimizer.step()
    with pytest.warns(UserWarning, match="no tensor has parts"):
        param_groups(model, weight_decay=0.1).attach(optimizer)
    with pytest.raises(UserError, match="not attached"):
        groups.detach() or groups.detach()


def test_entries_that_serve_both_products_need_one_value() -> None:
    """A latent projection of keys and values at once."""
    _, model = next(iter(tiny_models("deepseek_v3")))
    with pytest.raises(UserError, match=r"kv_a_proj_with_mqa.weight serves queries and keys .*overrides="):
        param_groups(model, weight_decay=0.1, qk=0.2, ov=0.3, rows="attach")


def test_attention_that_no_product_covers_is_announced() -> None:
    model = models.llama()
    model.register_module("query", nn.Linear(4, 4))
    with pytest.warns(UserWarning, match=r"query.weight belongs to attention but to no product"):
        param_groups(model, weight_decay=0.1, qk=0.2)
