"""A decay in the steps of every optimizer: once, at the right rate, instead of the optimizer's own."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankwise.decay.balance import BalanceDecay
from rankwise.decay.frobenius import FrobeniusDecay
from rankwise.decay.groups import param_groups
from rankwise.decay.lamb import Lamb
from rankwise.errors import UserError
from tests.decay import models
from tests.decay.test_frobenius import half_square

Make = Callable[[Any], torch.optim.Optimizer]
RATE = 0.02

COUPLED: dict[str, Make] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=RATE, weight_decay=0.1),
    "SGD, momentum, foreach": lambda params: torch.optim.SGD(
        params, lr=RATE, momentum=0.9, weight_decay=0.1, foreach=True
    ),
    "SGD, fused": lambda params: torch.optim.SGD(params, lr=RATE, weight_decay=0.1, fused=True),
    "Adam": lambda params: torch.optim.Adam(params, lr=RATE, weight_decay=0.1),
    "Adam, fused": lambda params: torch.optim.Adam(params, lr=RATE, weight_decay=0.1, fused=True),
    "NAdam": lambda params: torch.optim.NAdam(params, lr=RATE, weight_decay=0.1),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=RATE, weight_decay=0.1),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=RATE, weight_decay=0.1),
    "Adadelta": lambda params: torch.optim.Adadelta(params, lr=RATE, weight_decay=0.1),
    "Adamax": lambda params: torch.optim.Adamax(params, lr=RATE, weight_decay=0.1),
}
DECOUPLED: dict[str, Make] = {
    "AdamW": lambda params: torch.optim.AdamW(params, lr=RATE, weight_decay=0.1, foreach=False),
    "AdamW, foreach": lambda params: torch.optim.AdamW(params, lr=RATE, weight_decay=0.1, foreach=True),
    "AdamW, fused": lambda params: torch.optim.AdamW(params, lr=RATE, weight_decay=0.1, fused=True),
    "AdamW, rate in a tensor": lambda params: torch.optim.AdamW(params, lr=torch.tensor(RATE), weight_decay=0.1),
    "RAdam, decoupled": lambda params: torch.optim.RAdam(
        params, lr=RATE, weight_decay=0.1, decoupled_weight_decay=True
    ),
    "Adafactor": lambda params: torch.optim.Adafactor(params, lr=RATE, weight_decay=0.1),
    "Muon": lambda params: torch.optim.Muon(params, lr=RATE, weight_decay=0.1),
}


def matrices(model: nn.Module) -> list[nn.Parameter]:
    """What Muon takes: everything with two axes; the others do not learn here."""
    return [each for each in model.parameters() if each.ndim == 2]


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, before: Callable[[], None] = lambda: None
) -> dict[str, Tensor]:
    """Some steps with given gradients, and where they lead."""
    for step in range(steps):
        models.fill_gradients(model, seed=step)
        before()
        optimizer.step()
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def by_hand(make: Make, coefficient: float, manner: str, *, steps: int = 3) -> dict[str, Tensor]:
    """The same training with the dense product's gradient, by autograd, and no decay of the optimizer's own."""
    model = models.llama()
    sites = models.products(model, ("qk", "ov"))
    optimizer = make(matrices(model))
    decayed = {name for site in sites for name in site.parameters}
    rest = [each for name, each in model.named_parameters() if name not in decayed and each.ndim == 2]
    ours = [each for name, each in model.named_parameters() if name in decayed]
    optimizer.param_groups[0]["params"] = rest
    optimizer.add_param_group({"params": ours, "weight_decay": 0.0})

    @torch.no_grad()
    def decay() -> None:
        with torch.enable_grad():
            found = models.dense_gradients(model, sites, half_square)
        for name, parameter in model.named_parameters():
            if manner == "coupled":
                parameter.grad += coefficient * found[name]
            else:
                parameter -= RATE * coefficient * found[name]

    return train(model, optimizer, steps, decay)


def same(one: dict[str, Tensor], two: dict[str, Tensor], **tolerance: float) -> None:
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], **({"rtol": 1e-7, "atol": 1e-7} | tolerance), msg=name)


@pytest.mark.parametrize("name", [*COUPLED, *DECOUPLED])
def test_every_optimizer_takes_the_gradient_of_the_dense_product_in_its_own_manner(name: str) -> None:
    """Without a coefficient: its own weight decay goes to the product, everything else keeps it."""
    make, manner = (COUPLED[name], "coupled") if name in COUPLED else (DECOUPLED[name], "decoupled")
    model = models.llama()
    optimizer = make(matrices(model))
    FrobeniusDecay(models.products(model, ("qk", "ov"))).attach(optimizer)
    # Muon's own step is made in bfloat16.
    tolerance = {"rtol": 1e-2, "atol": 2e-2} if name == "Muon" else {}
    same(train(model, optimizer, 3), by_hand(make, 0.1, manner), **tolerance)


@pytest.mark.parametrize("decoupled", [True, False])
def test_the_manner_and_the_coefficient_can_be_chosen(decoupled: bool) -> None:
    model = models.llama()
    optimizer = COUPLED["Adam"](matrices(model))
    decay = FrobeniusDecay(models.products(model, ("qk", "ov")), coefficient=0.03, decoupled=decoupled)
    decay.attach(optimizer, ordinary_decay="replace")
    same(train(model, optimizer, 3), by_hand(COUPLED["Adam"], 0.03, "decoupled" if decoupled else "coupled"))


def test_where_nothing_is_known_of_an_optimizer_it_asks() -> None:
    model = models.llama()
    decay = FrobeniusDecay(models.products(model, "qk"), coefficient=0.1)
    with pytest.raises(UserError, match=r"how Rprop decays weights is not known here: say decoupled=True"):
        decay.attach(torch.optim.Rprop(model.parameters()))
    with pytest.raises(UserError, match=r"Lamb decays weights inside its trust ratio.* take FLAMBe"):
        decay.attach(Lamb(model.parameters(), weight_decay=0.0))
    with pytest.raises(UserError, match="expected a torch optimizer, got dict"):
        decay.attach({})
    with pytest.raises(UserError, match="ordinary_decay must be one of refuse, replace, keep, got 'drop'"):
        decay.attach(torch.optim.SGD(model.parameters()), ordinary_decay="drop")


def test_beside_lamb_the_trust_ratio_stays() -> None:
    """Lamb's groups without a weight decay have no trust ratio: taking the decay over must not take the ratio away."""
    model, alone = models.llama(), models.llama()
    optimizer = Lamb(model.parameters(), lr=RATE, weight_decay=0.1)
    FrobeniusDecay(models.products(model, "qk"), decoupled=True).attach(optimizer)
    reference = Lamb(alone.parameters(), lr=RATE, weight_decay=0.0, adapted="all")
    sites = models.products(alone, "qk")
    found = models.dense_gradients(alone, sites, half_square)
    decayed = [name for name, each in found.items() if bool(each.any())]
    with torch.no_grad():
        for name, parameter in alone.named_parameters():
            parameter -= RATE * 0.1 * found[name]
    ours, theirs = train(model, optimizer, 1), train(alone, reference, 1)
    same({name: ours[name] for name in decayed}, theirs)


def test_parameters_are_taken_out_by_identity_and_only_they() -> None:
    model = models.gpt2()
    # The groups are named the wrong way round: only identity tells.
    fused = model.get_parameter("h.0.attn.c_attn.weight")
    others = [each for each in model.parameters() if each is not fused]
    optimizer = torch.optim.AdamW(
        [{"params": others, "weight_decay": 0.3, "name": "c_attn"}, {"params": [fused], "weight_decay": 0.2}]
    )
    decay = FrobeniusDecay(models.products(model, ("qk", "ov")).select(layer=0)).attach(optimizer)
    left = {parameter: group["weight_decay"] for group in optimizer.param_groups for parameter in group["params"]}
    assert {name for name, each in model.named_parameters() if left[each] == 0} == set(decay.parameters.values())
    assert [group.get("name") for group in optimizer.param_groups] == ["c_attn", None, "c_attn, as products"]
    assert decay.state_dict()["taken_over"] == {"h.0.attn.c_attn.weight": 0.2, "h.0.attn.c_proj.weight": 0.3}
    decay.detach()
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.3, 0.2}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
    assert not any("decayed_as_products" in group for group in optimizer.param_groups)


def test_what_no_factor_covers_keeps_the_decay_it_had() -> None:
    """Queries and keys alone of a fused tensor: values go on decaying as rows."""
    model = models.gpt2()
    start = {name: each.detach().clone() for name, each in model.named_parameters()}
    sites = models.products(model, "qk")
    found = models.dense_gradients(model, sites, half_square)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1, eps=1e30)  # Adam itself stands still
    FrobeniusDecay(sites).attach(optimizer)
    ended = train(model, optimizer, 1)
    for name, value in ended.items():
        fused = name.endswith("c_attn.weight")
        kept = torch.ones_like(value)
        if fused:
            kept[:, :30] = 0
        torch.testing.assert_close(value, start[name] * (1 - RATE * 0.1 * kept) - RATE * 0.1 * found[name])


def test_two_decays_are_refused_with_the_list_unless_asked_for() -> None:
    model = models.llama()
    sites = models.products(model, "qk").select(layer=0)
    decay = FrobeniusDecay(sites, coefficient=0.01)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    with pytest.raises(UserError, match=r"act on .*layers.0.self_attn.q_proj.weight \(weight_decay=0.1\)") as raised:
        decay.attach(optimizer)
    assert "\n" not in str(raised.value)
    assert len(optimizer.param_groups) == 1
    decay.attach(optimizer, ordinary_decay="keep")
    assert optimizer.param_groups[0]["weight_decay"] == 0.1
    with pytest.raises(UserError, match="attached already"):
        decay.attach(optimizer)
    decay.detach()
    with pytest.raises(UserError, match="is not attached"):
        decay.detach()
    with pytest.warns(UserWarning, match="there is none on these parameters: it has no effect"):
        FrobeniusDecay(sites).attach(torch.optim.SGD(model.parameters(), lr=0.1))


def test_the_same_decay_twice_is_refused_and_two_kinds_are_not() -> None:
    """A cell of a notebook that is run again must not double a decay."""
    model = models.gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    first = FrobeniusDecay(models.products(model, "qk"), coefficient=0.1).attach(optimizer)
    with pytest.raises(UserError, match=r"a FrobeniusDecay acts on layers.0.qk, layers.1.qk already"):
        FrobeniusDecay(models.products(model, ("qk", "ov")), coefficient=0.1).attach(optimizer)
    FrobeniusDecay(models.products(model, "ov"), coefficient=0.2).attach(optimizer)  # of the same fused tensor
    second = BalanceDecay(models.products(model, "qk"), coefficient=0.1).attach(optimizer)
    first.detach()
    train(model, optimizer, 1)  # the others go on, and the groups stay marked
    second.detach()
    assert all(group.get("decayed_as_products") for group in optimizer.param_groups)
    FrobeniusDecay(models.products(model, "qk"), coefficient=0.1).attach(optimizer)


def test_rows_that_decay_already_are_two_decays_as_well() -> None:
    """`param_groups(rows="attach")` shows a weight decay of 0 in the group: it must not look like none."""
    model = models.gpt2()
    groups = param_groups(model, weight_decay=0.1, qk=0.2, rows="attach")
    optimizer = torch.optim.AdamW(groups)
    for coefficient in (None, 0.01):
        with pytest.raises(UserError, match=r"call groups.attach\(optimizer\)"):
            FrobeniusDecay(models.products(model, "qk"), coefficient=coefficient).attach(optimizer)
    groups.attach(optimizer)
    for coefficient in (None, 0.01):
        with pytest.raises(UserError, match=r"two decays would act on h.0.attn.c_attn.weight, .*rows decay already"):
            FrobeniusDecay(models.products(model, "qk"), coefficient=coefficient).attach(optimizer)
    groups.detach()
    groups = param_groups(model, weight_decay=0.1, qk=0.0, rows="attach")
    optimizer = torch.optim.AdamW(groups)
    groups.attach(optimizer)
    FrobeniusDecay(models.products(model, "qk"), coefficient=0.01).attach(optimizer)
    train(model, optimizer, 1)


def test_attached_it_acts_after_clipping_and_add_gradients_before() -> None:
    norms = []
    for early in (False, True):
        model = models.llama()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        sites = models.products(model, "qk")
        expected = models.dense_gradients(model, sites, half_square)
        start = {name: each.detach().clone() for name, each in model.named_parameters()}
        decay = FrobeniusDecay(sites, coefficient=0.01).attach(optimizer)
        plain = models.fill_gradients(model)
        total = {name: plain[name] + 0.01 * expected[name] for name in plain}
        if early:
            decay.add_gradients()
        seen = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norms.append(float(seen))
        optimizer.step()
        for name, value in model.named_parameters():
            wanted = total[name] / seen if early else plain[name] / seen + 0.01 * expected[name]
            torch.testing.assert_close(start[name] - value.detach(), wanted, rtol=1e-5, atol=1e-8)
        assert decay.steps == 1
    assert norms[0] != norms[1]


def test_adding_twice_is_noticed_and_a_skipped_step_is_not() -> None:
    model = models.llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    decay = FrobeniusDecay(models.products(model, "qk"), coefficient=0.01).attach(optimizer)
    models.fill_gradients(model)
    decay.add_gradients()
    before = [each.grad.clone() for each in model.parameters()]
    with pytest.warns(UserWarning, match=r"add_gradients\(\) was called twice"):
        decay.add_gradients()
    assert all(torch.equal(one, two.grad) for one, two in zip(before, model.parameters(), strict=True))
    # A scaler skips the step; the next gradients are others, and are added to.
    plain = models.fill_gradients(model)
    decay.add_gradients()
    assert not all(torch.equal(plain[name], each.grad) for name, each in model.named_parameters())
    optimizer.step()
    assert decay.steps == 1
    decoupled = FrobeniusDecay(models.products(model, "ov"), coefficient=0.01, decoupled=True).attach(optimizer)
    with pytest.raises(UserError, match="is decoupled: it moves the parameters"):
        decoupled.add_gradients()


@pytest.mark.parametrize("manner", ["coupled", "decoupled"])
def test_accumulated_gradients_decay_once(manner: str) -> None:
    ended = []
    for parts in (1, 4):
        model = models.llama()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        FrobeniusDecay(models.products(model, "qk"), coefficient=0.1, decoupled=manner == "decoupled").attach(optimizer)
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(parts):
                sum(each.square().sum() for each in model.parameters()).div(2 * parts).backward()
            optimizer.step()
        ended.append({name: each.detach().clone() for name, each in model.named_parameters()})
    same(*ended)


@pytest.mark.parametrize("how", ["argument", "keyword"])
def test_a_closure_runs_before_the_decay(how: str) -> None:
    """What it is added to are the gradients that the closure leaves, not those from before."""
    model = models.llama()
    optimizer = COUPLED["SGD"](matrices(model))
    FrobeniusDecay(models.products(model, ("qk", "ov"))).attach(optimizer)
    for step in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, torch.nan)

        def closure(step: int = step) -> float:
            models.fill_gradients(model, seed=step)
            return 7.0

        loss = optimizer.step(closure) if how == "argument" else optimizer.step(closure=closure)
        assert loss == 7.0
    ended = {name: each.detach() for name, each in model.named_parameters()}
    same(ended, by_hand(COUPLED["SGD"], 0.1, "coupled"))


def test_lbfgs_is_refused_and_its_recipe_is_right() -> None:
    target = torch.diag(torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64))
    model = models.chain(3, 2, 3)
    factors = model.get_parameter("up.factors.0"), model.get_parameter("up.factors.1")
    optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe", max_iter=200)
    decay = FrobeniusDecay(models.products(model, "linear"), coefficient=0.5)
    with pytest.raises(UserError, match=r"LBFGS evaluates .*add_gradients\(\) at the end of its closure"):
        decay.attach(optimizer)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = half_square(factors[0] @ factors[1] - target)
        loss.backward()
        decay.add_gradients()
        return loss.detach() + 0.5 * decay.penalty()

    optimizer.step(closure)
    values = torch.linalg.svdvals((factors[0] @ factors[1]).detach())
    torch.testing.assert_close(values, torch.tensor([2.0, 2 / 3, 0.0], dtype=torch.float64), rtol=0, atol=1e-5)


def test_schedulers_scale_a_decoupled_decay_and_must_come_later() -> None:
    model = models.llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1, eps=1e30)
    start = model.get_parameter("layers.0.self_attn.q_proj.weight").detach().clone()
    sites = models.products(model, "qk")
    FrobeniusDecay(sites).attach(optimizer)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it comes before the optimizer's first step
        scheduler.step()
    expected = models.dense_gradients(model, sites, half_square)["layers.0.self_attn.q_proj.weight"]
    ended = train(model, optimizer, 1)["layers.0.self_attn.q_proj.weight"]
    torch.testing.assert_close(ended, start - RATE / 2 * 0.1 * expected)
    late = models.llama()
    optimizer = torch.optim.AdamW(late.parameters())
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    with pytest.raises(UserError, match="attach the decay before the scheduler is made"):
        FrobeniusDecay(models.products(late, "qk")).attach(optimizer)


def test_a_run_goes_on_from_its_saved_states() -> None:
    def begun(coefficient: float | None) -> tuple[nn.Module, torch.optim.Optimizer, FrobeniusDecay]:
        model = models.llama()
        groups = [{"params": list(model.parameters()), "weight_decay": coefficient or 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=RATE)
        decay = FrobeniusDecay(models.products(model, "qk"), coefficient=None if coefficient else 0.1)
        return model, optimizer, decay.attach(optimizer)

    model, optimizer, decay = begun(0.1)
    train(model, optimizer, 2)
    states = copy.deepcopy([each.state_dict() for each in (model, optimizer, decay)])
    straight = train(model, optimizer, 2)
    resumed = begun(0.3)  # another value, which the state corrects
    for each, state in zip(resumed, states, strict=True):
        each.load_state_dict(state)
    same(train(resumed[0], resumed[1], 2), straight, rtol=1e-12)
    assert resumed[2].steps == 4
    states[2]["taken_over"] = {"elsewhere.weight": 0.1}
    with pytest.raises(UserError, match=r"coefficients for elsewhere.weight, which this decay does not act on"):
        resumed[2].load_state_dict(states[2])


def test_a_decay_that_comes_back_is_an_error_and_not_a_second_decay() -> None:
    model = models.llama()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    before = copy.deepcopy(optimizer.state_dict())
    FrobeniusDecay(models.products(model, ("qk", "ov", "mlp", "embed"))).attach(optimizer)
    train(model, optimizer, 1)
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.1
    with pytest.raises(UserError, match=r"own weight decay is back on layers.0.self_attn.q_proj.weight"):
        train(model, optimizer, 1)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        optimizer.load_state_dict(before)


def test_a_parameter_group_that_comes_later_is_found() -> None:
    model = models.llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    FrobeniusDecay(models.products(model, "qk"), coefficient=0.1).attach(optimizer)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    train(model, optimizer, 1)
    late = torch.optim.SGD([next(model.parameters())], lr=RATE)
    with pytest.raises(
        UserError, match=r"does not hold layers.0.self_attn.q_proj.weight, .* and 4 more: attach to the"
    ):
        FrobeniusDecay(models.products(model, ("qk", "ov")), coefficient=0.1).attach(late)


@pytest.mark.parametrize("kind", ["deepcopy", "pickle"])
def test_copies_are_not_attached_and_say_so(kind: str) -> None:
    def copied(things: tuple) -> tuple:
        return copy.deepcopy(things) if kind == "deepcopy" else pickle.loads(pickle.dumps(things))

    model = models.chain(5, 2, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    decay = FrobeniusDecay(models.products(model, "linear"))
    again, other = copied((model, decay))
    assert {id(each) for each in other.parameters} == {id(each) for each in again.parameters()}
    decay.attach(optimizer)
    train(model, optimizer, 1)
    with pytest.raises(UserError, match="is attached to an optimizer, and optimizers are copied without"):
        copied((decay,))
    # Its weight decay is 0 and its hooks are gone: nobody would notice.
    same_model, lonely = copied((model, optimizer))
    with pytest.raises(UserError, match=r"no decay is attached to this optimizer \(a copy\?"):
        train(same_model, lonely, 1)
    decay.detach()
    train(model, optimizer, 1)


def test_scaled_gradients_of_a_fused_optimizer() -> None:
    """The scaler leaves it to the kernel to unscale: what is added has to be scaled up, and a bad step does nothing."""
    for name in ("SGD, fused", "Adam, fused", "AdamW, fused"):
        ended = []
        for scaled in (False, True):
            model = models.llama().float()
            make = COUPLED.get(name) or DECOUPLED[name]
            optimizer = make(matrices(model))
            FrobeniusDecay(models.products(model, ("qk", "ov"))).attach(optimizer)
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
            for step in range(2):
                models.fill_gradients(model, seed=step)
                if scaled:
                    scaler.scale(torch.zeros(()))  # makes the scale
                    for parameter in model.parameters():
                        parameter.grad *= 1024.0
                scaler.step(optimizer)
                scaler.update()
            ended.append({each: value.detach().clone() for each, value in model.named_parameters()})
        same(*ended, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["SGD", "SGD, fused"])
def test_clipping_sees_the_decay_of_unscaled_gradients(name: str) -> None:
    """`unscale_`, `add_gradients`, clip, step: nothing is scaled, added or divided a second time."""
    ended = []
    for scaled in (False, True):
        model = models.llama().float()
        optimizer = COUPLED[name](matrices(model))
        decay = FrobeniusDecay(models.products(model, ("qk", "ov"))).attach(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        models.fill_gradients(model)
        if scaled:
            scaler.scale(torch.zeros(()))
            for parameter in model.parameters():
                parameter.grad *= 1024.0
        scaler.unscale_(optimizer)
        decay.add_gradients()
        nn.utils.clip_grad_norm_(matrices(model), 1.0)
        scaler.step(optimizer)
        scaler.update()
        ended.append({each: value.detach().clone() for each, value in model.named_parameters()})
    same(*ended, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["SGD", "SGD, fused", "AdamW", "AdamW, fused"])
def test_skipped_steps_decay_nothing(name: str) -> None:
    model = models.llama().float()
    optimizer = (COUPLED.get(name) or DECOUPLED[name])(matrices(model))
    decay = FrobeniusDecay(models.products(model, ("qk", "ov"))).attach(optimizer)
    start = {each: value.detach().clone() for each, value in model.named_parameters()}
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    models.fill_gradients(model)
    scaler.scale(torch.zeros(()))
    next(model.parameters()).grad[0] = torch.inf
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(start[each], value) for each, value in model.named_parameters())
    assert scaler.get_scale() == 4.0
    assert decay.left_out == 0


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_steps_decay_in_every_step(backend: str) -> None:
    model = models.llama()
    optimizer = DECOUPLED["AdamW"](matrices(model))
    decay = FrobeniusDecay(models.products(model, ("qk", "ov")), coefficient=lambda step: 0.1 * (step + 1))
    decay.attach(optimizer, ordinary_decay="replace")
    other = models.llama()
    plain = DECOUPLED["AdamW"](matrices(other))
    FrobeniusDecay(models.products(other, ("qk", "ov")), coefficient=lambda step: 0.1 * (step + 1)).attach(
        plain, ordinary_decay="replace"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what dynamo says of optimizers
        step = torch.compile(optimizer.step, backend=backend)
        for seed in range(3):
            models.fill_gradients(model, seed=seed)
            step()
    assert decay.steps == 3
    same(
        {name: each.detach() for name, each in model.named_parameters()}, train(other, plain, 3), atol=1e-5
    )  # torch's own difference


def test_what_has_no_gradient_or_does_not_learn_is_left_alone() -> None:
    """As every optimizer does with its own weight decay."""
    model = models.llama()
    sites = models.products(model, ("qk", "ov")).select(layer=0)
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    query, key, value, output = (model.get_parameter(f"layers.0.self_attn.{name}.weight") for name in names)
    value.requires_grad_(False)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start = {name: each.detach().clone() for name, each in model.named_parameters()}
    optimizer = torch.optim.SGD(learning, lr=RATE, weight_decay=0.1)
    decay = FrobeniusDecay(sites).attach(optimizer)
    for parameter in learning:
        parameter.grad = torch.zeros_like(parameter)
    key.grad = None
    optimizer.step()
    at = "layers.0.self_attn."
    assert torch.equal(key, start[f"{at}k_proj.weight"])
    assert torch.equal(value, start[f"{at}v_proj.weight"])
    assert not torch.equal(query, start[f"{at}q_proj.weight"])
    assert not torch.equal(output, start[f"{at}o_proj.weight"])
    assert "frozen" in [str(cell) for cell in decay.table().columns[2]._cells]
