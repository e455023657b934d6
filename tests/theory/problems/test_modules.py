"""Problems from modules: the products stand where the weights stood, and what is not of that form is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rankwise import theory
from rankwise.errors import UserError
from rankwise.theory import Diagonal, DiagonalPair, Pairing


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TwoHeads(nn.Module):
    """Two diagonal heads side by side, their weights stacked in matrices as checkpoints have them."""

    def __init__(self, width: int = 3, *, bias: bool = False, activation: object = nn.functional.gelu) -> None:
        super().__init__()
        for name in ("key", "query", "value"):
            self.register_parameter(name, nn.Parameter(self.stacked(width, 0)))
        self.output = nn.Parameter(self.stacked(width, 1).mT.contiguous())
        self.bias = nn.Parameter(drawn(9, 2 * width)) if bias else None
        self.activation = activation
        self.width = width

    @staticmethod
    def stacked(width: int, seed: int) -> Tensor:
        return torch.cat([torch.diag(drawn(seed + one, width)) for one in (10, 20)])

    def forward(self, x: Tensor) -> Tensor:
        def split(weight: Tensor, bias: Tensor | None = None) -> Tensor:
            return nn.functional.linear(x, weight, bias).unflatten(-1, (2, self.width)).movedim(-2, 1)

        attention = torch.softmax(split(self.query, self.bias) @ split(self.key).mT, -1)
        written = (attention @ split(self.value)).movedim(1, -2).flatten(-2) @ self.output.mT
        return self.activation(x + written)

    def pairs(self) -> list[DiagonalPair]:
        found = []
        for head in range(2):
            row = head * self.width
            for pairing, left, right in (
                (Pairing.QK, Diagonal("key", row=row), Diagonal("query", row=row)),
                (Pairing.VO, Diagonal("value", row=row), Diagonal("output", column=row)),
            ):
                found.append(
                    DiagonalPair(left=left, right=right, width=self.width, layer=0, head=head, pairing=pairing)
                )
        return found


def problem_of(module: TwoHeads, **given: object) -> theory.Problem:
    inputs, targets = drawn(0, 4, 5, 3), drawn(1, 4, 5, 3)
    whole = {"pairs": module.pairs(), "inputs": inputs, "loss": lambda y: (y - targets).square().mean()} | given
    return theory.from_module(module, **whole)


def test_the_problem_is_the_module_as_a_function_of_its_products() -> None:
    module = TwoHeads()
    problem = problem_of(module)
    products = theory.products_of(module, module.pairs())
    assert problem.size == 12
    expected = torch.cat(
        [
            module.key.diagonal() * module.query.diagonal(),
            module.value.diagonal() * module.output.diagonal(),
            module.key[3:].diagonal() * module.query[3:].diagonal(),
            module.value[3:].diagonal() * module.output[:, 3:].diagonal(),
        ]
    )
    torch.testing.assert_close(products, expected.detach())
    inputs, targets = drawn(0, 4, 5, 3), drawn(1, 4, 5, 3)
    loss = (module(inputs) - targets).square().mean()
    assert problem.value(products) == pytest.approx(loss.item(), rel=1e-12)
    # Du = -v * g: the gradient of a weight is that of its product times its partner.
    loss.backward()
    force = problem.force(products)
    torch.testing.assert_close(
        module.key.grad[3:].diagonal(), -force[6:9] * module.query[3:].diagonal().detach(), rtol=1e-10, atol=1e-14
    )
    torch.testing.assert_close(
        module.output.grad[:, 3:].diagonal(), -force[9:] * module.value[3:].diagonal().detach(), rtol=1e-10, atol=1e-14
    )
    assert problem.name(7) == "7 (layer 0 head 1 QK 1)"


def test_its_path_is_that_of_the_same_head_written_by_hand() -> None:
    """A module of one head, through autograd, against the head with derivatives of its own."""
    inputs = drawn(0, 24, 5, 3)
    targets = theory.attention_output(inputs, *drawn(4, 6).chunk(2))
    by_hand = theory.greedy(theory.attention_head(inputs, targets), stages=3)
    module = theory.DiagonalTransformer(layers=1, heads=1, width=3, hidden=0)
    problem = theory.from_module(
        module,
        pairs=module.pairs,
        inputs=inputs,
        loss=lambda y: (y - inputs - targets).square().sum(-1).mean() / 2,
    )
    path = theory.greedy(problem, stages=3)
    assert path.coordinates == by_hand.coordinates
    torch.testing.assert_close(path.times, by_hand.times, rtol=1e-6, atol=0)


def test_the_module_is_left_as_it_was() -> None:
    module = TwoHeads()
    before = {name: one.clone() for name, one in module.state_dict().items()}
    problem_of(module).force(drawn(2, 12))
    assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())
    assert all(one.grad is None for one in module.parameters())


def test_kinks_biases_and_dense_weights_are_refused() -> None:
    with pytest.raises(UserError, match="through ReLU, which has no second derivative"):
        problem_of(TwoHeads(activation=nn.functional.relu))
    with pytest.raises(UserError, match="does not depend on the products alone"):
        problem_of(TwoHeads(bias=True))
    dense = TwoHeads()
    with torch.no_grad():
        dense.value[4, 0] = 0.25
    with pytest.raises(UserError, match=r"value is not diagonal: its largest entry beside the diagonal is 0\.25"):
        problem_of(dense)


def test_wrong_names_places_and_dtypes_are_refused() -> None:
    module, pair = TwoHeads(), TwoHeads().pairs()[0]

    def other(**given: object) -> DiagonalPair:
        whole = {name: getattr(pair, name) for name in ("left", "right", "width", "layer", "head", "pairing")}
        return DiagonalPair(**(whole | given))

    with pytest.raises(UserError, match="no parameter 'keys': choose from key, query, value, output"):
        problem_of(module, pairs=[other(left=Diagonal("keys"))])
    with pytest.raises(UserError, match=r"key has shape \(6, 3\): 3 entries from row 4, column 0 do not fit"):
        problem_of(module, pairs=[other(left=Diagonal("key", row=4))])
    with pytest.raises(UserError, match=r"is torch.float32: convert the module first, module.double\(\)"):
        problem_of(TwoHeads().float())
    wrong = [other(right=Diagonal("value"))]
    with pytest.raises(UserError, match="does not depend on the products alone"):
        problem_of(module, pairs=wrong)
