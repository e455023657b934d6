"""What the tests of this folder share: small losses on products, and descent on them.

The other folders of tests mirror one room each. What stands here belongs to none: that a start of `layers/` and a decay
of `decay/` do together what the papers prove of them shows only when a layer is trained, with torch's own optimizers,
by the names that users have. So these tests take everything from `import rankwise as rw`, and whatever a theorem claims
they also look for where its conditions do not hold: there it has to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

import rankwise as rw

Loss = Callable[[], Tensor]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussian(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def with_values(values: Tensor, *, seed: int) -> Tensor:
    """A square matrix with the given singular values."""
    size = len(values)
    left, right = (torch.linalg.qr(gaussian(size, size, seed=seed + side)).Q for side in (0, 1))
    return left * values @ right.mT


def distance(layer: rw.FactorizedLinear, target: Tensor) -> Loss:
    """Half the squared distance of a layer's weight from a matrix."""
    return lambda: (layer.weight - target).square().sum() / 2


def descend(optimizer: torch.optim.Optimizer, loss: Loss, steps: int) -> Iterator[int]:
    """Make so many steps, and tell after each how many were made."""
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        yield step


def run(optimizer: torch.optim.Optimizer, loss: Loss, steps: int) -> None:
    for _ in descend(optimizer, loss, steps):
        pass


def imbalance(product: rw.Product, *, group: int | None = None) -> Tensor:
    """`A^T A - B B^T` of the factors as they are."""
    return rw.balance(product.detach(), group=group).imbalance


def slope(times: Iterable[float], sizes: Iterable[Tensor]) -> float:
    """The rate `c` of the exponential `exp(c t)` that fits sizes best, by least squares of their logarithms."""
    x = torch.tensor(list(times), dtype=torch.float64)
    y = torch.stack([each.norm() for each in sizes]).log()
    x = x - x.mean()
    return ((x @ (y - y.mean())) / (x @ x)).item()


def classifier(seed: int, *, init: object = nn.init.kaiming_normal_) -> nn.Sequential:
    """Two factorized layers with a nonlinearity between them, in float64; regular starts are far from balanced."""
    torch.manual_seed(seed)
    made = {"bias": True, "dtype": torch.float64, "init": init}
    return nn.Sequential(
        rw.FactorizedLinear(9, 12, rank=3, **made), nn.Tanh(), rw.FactorizedLinear(12, 5, rank=4, **made)
    )
