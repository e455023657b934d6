"""Nuclear decay has the gradient of the sum of singular values, by Newton-Schulz on the small core."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rankwise.decay.nuclear import NuclearDecay, joined
from rankwise.errors import UserError
from rankwise.product.penalties import nuclear_penalty
from rankwise.product.product import Product
from tests.decay import models
from tests.product.draws import gaussian, with_values

CASES = {
    "heads of a fused tensor": (models.gpt2, ("qk", "ov")),
    "an adapter": (models.adapter, "lora"),
    "two factors": (lambda: models.chain(9, 3, 7), "linear"),
    "three factors": (lambda: models.chain(9, 3, 4, 7), "linear"),
    "four factors, one narrow": (lambda: models.chain(9, 5, 2, 4, 7), "linear"),
    "wide": (lambda: models.chain(3, 9, 4), "linear"),
    "single matrices": (models.gpt2, "mlp"),
}


def nuclear(dense: Tensor) -> Tensor:
    return torch.linalg.svdvals(dense).sum(-1)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_dense_product(case: str) -> None:
    make, kind = CASES[case]
    model = make()
    sites = models.products(model, kind)
    before = models.fill_gradients(model)
    decay = NuclearDecay(sites, coefficient=0.3)
    decay.add_gradients()
    expected = models.dense_gradients(model, sites, nuclear)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, before[name] + 0.3 * expected[name], rtol=1e-6, atol=1e-6)
    total = sum(float(nuclear(site.product(model).dense().detach()).sum()) for site in sites)
    assert decay.penalty().item() == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("kind", ["qk", "ov"])
def test_heads_that_share_a_factor_are_one_product(kind: str) -> None:
    """As they are for weight decay: the concatenation of a group, not each head for itself."""

    def of_groups(dense: Tensor) -> Tensor:
        return nuclear(dense.flatten(-3, -2))

    model = models.llama()
    sites = models.products(model, kind)
    before = models.fill_gradients(model)
    NuclearDecay(sites, coefficient=1.0).add_gradients()
    expected = models.dense_gradients(model, sites, of_groups)
    apart = models.dense_gradients(model, sites, nuclear)
    for site in sites:
        for name in site.parameters:
            added = model.get_parameter(name).grad - before[name]
            torch.testing.assert_close(added, expected[name], rtol=1e-6, atol=1e-6)
            assert (added - apart[name]).abs().max() > 1e-2


@pytest.mark.parametrize("shapes", [[(2, 3, 2, 7), (2, 1, 7, 3)], [(2, 1, 2, 7), (2, 3, 7, 3)]])
def test_a_group_is_one_product_also_where_its_matrices_are_small(shapes: list[tuple[int, ...]]) -> None:
    """Inner width above the outer ones: then it is cheaper to form the matrix, but it is the group's that counts."""
    generator = torch.Generator().manual_seed(0)
    factors = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    product = Product(*factors)
    nuclear_penalty(joined(product)).sum().backward()
    decay = NuclearDecay(models.chain(3, 2, 3))
    for found, factor in zip(decay.gradients(product.detach()), factors, strict=True):
        torch.testing.assert_close(found, factor.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("widths", [(5, 4), (3, 7, 4)])
def test_stacks_of_matrices_and_of_wide_products_are_taken_one_by_one(widths: tuple[int, ...]) -> None:
    """As the experts of a mixture are stored: a batch of matrices, which share nothing."""
    product = gaussian(widths, 0, batch=(3,))
    leaves = [factor.clone().requires_grad_() for factor in product.factors]
    nuclear(Product(*leaves).dense()).sum().backward()
    for found, leaf in zip(NuclearDecay(models.chain(3, 2, 3)).gradients(product), leaves, strict=True):
        torch.testing.assert_close(found, leaf.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("values", [[3.0, 1.0, 1e-3], [3.0, 1.0, 0.0], [1.0, 1e-2, 1e-4]])
def test_graded_and_deficient_products_have_the_gradient_of_the_decomposition(values: list[float]) -> None:
    product = with_values(values, 12, 9, 0)
    turn = gaussian((3, 3), 5).left
    product = Product(product.left @ turn, torch.linalg.solve(turn, product.right))
    leaves = [factor.clone().requires_grad_() for factor in product.factors]
    nuclear_penalty(Product(*leaves)).backward()
    decay = NuclearDecay(models.chain(3, 2, 3))
    for found, leaf in zip(decay.gradients(product), leaves, strict=True):
        assert (found - leaf.grad).norm() < 1e-6 * leaf.grad.norm()


def test_on_balanced_factors_it_is_weight_decay() -> None:
    """`dF/dA = A` and `dF/dB = B`: what decay on the factors charges is the nuclear norm there."""
    product = gaussian((9, 3, 7), 0).balanced()
    for found, factor in zip(NuclearDecay(models.chain(3, 2, 3)).gradients(product), product.factors, strict=True):
        torch.testing.assert_close(found, factor, rtol=1e-8, atol=1e-8)


def test_off_balance_it_is_not() -> None:
    product = gaussian((9, 3, 7), 0)
    found = NuclearDecay(models.chain(3, 2, 3)).gradients(product)
    assert (found[0] - product.left).norm() > 0.1 * product.left.norm()
    # But the pull on the product is of the same kind: <dF, factor> is the nuclear norm on both sides.
    size = nuclear(product.dense()).item()
    for gradient, factor in zip(found, product.factors, strict=True):
        assert (gradient * factor).sum().item() == pytest.approx(size, rel=1e-9)


def test_tensorized_layers_have_no_nuclear_norm() -> None:
    with pytest.raises(UserError, match=r"Tensorized offers the closed form of the Frobenius norm alone: NuclearDecay"):
        NuclearDecay(models.Tensorized())


def test_float32_factors_get_float64_cores() -> None:
    product = with_values([1.0, 1e-2, 1e-3], 40, 30, 0)
    leaves = [factor.clone().requires_grad_() for factor in product.factors]
    nuclear_penalty(Product(*leaves)).backward()
    for found, leaf in zip(
        NuclearDecay(models.chain(3, 2, 3)).gradients(product.to(torch.float32)), leaves, strict=True
    ):
        assert (found - leaf.grad).norm() < 1e-3 * leaf.grad.norm()
