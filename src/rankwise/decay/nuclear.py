"""Nuclear decay: the rank pressure of weight decay on the factors, whatever the balance of the factors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rankwise.decay.base import Decay
from rankwise.decay.stacks import PLAIN, Task, is_wide
from rankwise.product.groups import concatenated
from rankwise.product.multipliers import Multipliers, multipliers
from rankwise.product.penalties import nuclear_penalty
from rankwise.product.polar import nuclear_at_junction
from rankwise.product.product import Product
from rankwise.product.two_factors import two_factors


class NuclearDecay(Decay):
    """The nuclear norm of every product, the sum of its singular values, with the polar factor as its gradient.

        F = |A B|_*,   dF/dA = U V^T B^T,   dF/dB = A^T U V^T   for A B = U S V^T.

    Every singular value has `coefficient` taken off at equilibrium, as under weight decay of the same coefficient on
    balanced factors, and what it takes to zero is gone from the rank. The polar factor comes from Newton-Schulz steps
    on the small core (`rankwise.product.polar`), in float64; directions of singular values below a millionth of the
    factors' sizes are left out. A group of heads that shares its keys is one product, the concatenation of its heads,
    as it is for weight decay. Chains are charged the nuclear norm too, where weight decay on `L` factors would charge
    Schatten norms of order `2 / L`.

    >>> layer = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)).double()
    >>> two, three = (torch.full((1, 1), size).double() for size in (2.0, 3.0))
    >>> [round(each.item(), 6) for each in NuclearDecay(layer).gradients(Product(two, three))]
    [3.0, 2.0]
    """

    accumulate = torch.float64

    def multipliers(self, first: Tensor, inner: Sequence[Tensor], last: Tensor, task: Task) -> Multipliers:
        return multipliers(first, inner, last, nuclear_at_junction)

    def gradients(self, product: Product, task: Task = PLAIN) -> tuple[Tensor, ...]:
        if not is_wide([factor.shape for factor in product.factors]) or joined(product).shape == product.shape:
            return super().gradients(product, task)
        # Where the matrix itself is formed, it has to be that of the whole group.
        leaves = [factor.detach().to(self.accumulate).requires_grad_() for factor in product.factors]
        with torch.enable_grad():
            whole = joined(Product(*leaves))
            return torch.autograd.grad(whole.factors, leaves, super().gradients(whole.detach(), task))

    def value(self, product: Product) -> Tensor:
        return nuclear_penalty(joined(product))


def joined(product: Product) -> Product:
    """The product of two factors with every group that shares one of them concatenated, as its Grams gather it.

    >>> joined(Product(torch.randn(8, 4, 64, 16), torch.randn(8, 1, 16, 64)))
    Product(8x1 of 256x16x64, float32)
    """
    left, right = product.factors if product.depth == 2 else two_factors(product)
    if left is None or right is None:
        return product
    halves = Product(left, right)
    for axis in range(len(halves.batch_shape)):
        sizes = [factor.shape[axis] if factor.ndim > axis + 2 else 1 for factor in halves.factors]
        if min(sizes) == 1 < max(sizes):
            one = concatenated(halves, axis)
            halves = Product(*(factor.unsqueeze(axis) for factor in one.factors))
    return halves
