"""The gradient by a product, applied without ever being formed: second derivatives along a spare inner direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rankwise.sites.site import Site

if TYPE_CHECKING:
    from jaxtyping import Float

# Directions beyond those asked for that the subspace carries along, so that the asked ones settle soon.
SPARE_DIRECTIONS = 2
# A rate below this share of the fastest one is none.
FLOOR = 1e-4


class Escaping(NamedTuple):
    """A direction in which one head (or group of heads that share a factor) grows."""

    head: int
    rate: float
    error: float
    left: Float[Tensor, " m"]
    right: Float[Tensor, " n"]
    amplitude: float
    emptiness: float


@dataclass(frozen=True)
class Saddle:
    """The factors of a stack of products, the gradient of the loss by them, and the emptiest inner direction of each.

    For a unit `z` with `A z = 0` and `z^T R = 0`, moving `R` by `z v^T` leaves the product alone and changes the
    gradient by `A` by `M v z^T`: so `M = dL/dW` is applied by one second derivative for all heads at once, exactly.
    Where `z` is only nearly empty, curvature enters with the square of what it holds.

    Arguments:
        site: where the factors are.
        names: of their parameters.
        parameters: themselves.
        gradients: of the loss, with their graph.
        factors: `A [*batch, m, r]` and `R [*batch, r, n]`, batch axes padded to the same number.
        inner: `z`, `[*common, r]`, of size 1 along axes that one factor shares.
        emptiness: the share of the factors' squared norms that lies along `z`.
    """

    site: Site
    names: tuple[str, ...]
    parameters: tuple[Tensor, ...] = field(repr=False)
    gradients: tuple[Tensor, ...] = field(repr=False)
    factors: tuple[Tensor, Tensor] = field(repr=False)
    inner: Tensor = field(repr=False)
    emptiness: Tensor = field(repr=False)

    @classmethod
    def of(cls, site: Site, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> Saddle:
        """The saddle at a site."""
        names = site.parameters
        left, right = _padded(site.product({name: parameters[name].detach() for name in names}).factors)
        shared = _shared_axes(left, right)
        grams = [(left.mT @ left).double(), (right @ right.mT).double()]
        total = sum(gram.sum(shared, keepdim=True) if shared else gram for gram in grams)
        values, vectors = torch.linalg.eigh(total)
        whole = values.sum(-1)
        return cls(
            site,
            names,
            tuple(parameters[name] for name in names),
            tuple(gradients[name] for name in names),
            (left, right),
            vectors[..., :, 0].to(left.dtype),
            values[..., 0].clamp_min(0) / torch.where(whole > 0, whole, 1.0),
        )

    @property
    def shared(self) -> list[int]:
        """The batch axes along which one factor is shared."""
        return _shared_axes(*self.factors)

    def applied(self, left: Tensor | None, right: Tensor | None) -> tuple[Tensor, Tensor]:
        """`G right` and `G^T left` for `G = -M`, for every head, by one second derivative.

        Arguments:
            left: vectors `[*batch, m]`, or none.
            right: vectors `[*batch, n]`.
        """
        moves = {name: torch.zeros_like(one) for name, one in zip(self.names, self.parameters, strict=True)}
        by_left, by_right = _padded(self.site.product(moves).factors)
        if left is not None:
            by_left.copy_(left[..., :, None] * self.inner[..., None, :])
        if right is not None:
            by_right.copy_(self.inner[..., :, None] * right[..., None, :])
        changes = torch.autograd.grad(
            self.gradients,
            self.parameters,
            [moves[name] for name in self.names],
            retain_graph=True,
            materialize_grads=True,
        )
        found = _padded(self.site.product(dict(zip(self.names, changes, strict=True))).factors)
        return (
            -(found[0] @ self.inner[..., :, None])[..., 0],
            -(self.inner[..., None, :] @ found[1])[..., 0, :],
        )


def escaping(saddle: Saddle, *, directions: int, iterations: int, seed: int) -> list[Escaping]:
    """The fastest-growing directions of every head, by subspace iteration on `G`.

    Heads that share a factor are one matrix, their other factors one above the other: what grows, grows for the group.
    """
    left, right = saddle.factors
    shared = saddle.shared
    ends = left.shape[:-1], (*right.shape[:-2], right.shape[-1])
    groups = saddle.inner.shape[:-1].numel()
    widths = [torch.Size(end).numel() // groups for end in ends]
    block = min(directions + SPARE_DIRECTIONS, *widths)
    generator = torch.Generator().manual_seed(seed)
    columns = torch.randn(groups, widths[1], block, generator=generator).to(left)

    def forward(vectors: Tensor) -> Tensor:
        pieces = [saddle.applied(None, _spread(one, ends[1], shared))[0] for one in vectors.unbind(-1)]
        return torch.stack([_gathered(one, shared, groups) for one in pieces], -1)

    def backward(vectors: Tensor) -> Tensor:
        pieces = [saddle.applied(_spread(one, ends[0], shared), None)[1] for one in vectors.unbind(-1)]
        return torch.stack([_gathered(one, shared, groups) for one in pieces], -1)

    columns = torch.linalg.qr(columns).Q
    for _ in range(iterations):
        rows = torch.linalg.qr(forward(columns)).Q
        columns = torch.linalg.qr(backward(rows)).Q
    images = forward(columns)
    u, values, vt = torch.linalg.svd(images, full_matrices=False)
    v = columns @ vt.mT
    residual = _residual(saddle, u, v, values, ends)
    factors = [_stacked(one, shared, groups) for one in (left, right.mT)]
    empty = saddle.emptiness.flatten()
    fastest = float(values.max())
    found = []
    for head in range(groups):
        for place in range(min(directions, block)):
            if not float(values[head, place]) > FLOOR * fastest:
                continue
            mode = factors[0][head].mT @ u[head, :, place] + factors[1][head].mT @ v[head, :, place]
            found.append(
                Escaping(
                    head,
                    float(values[head, place]),
                    float(residual[head, place]),
                    u[head, :, place].clone(),
                    v[head, :, place].clone(),
                    float(mode.norm()) / 2**0.5,
                    float(empty[head]),
                )
            )
    return found


def _residual(saddle: Saddle, u: Tensor, v: Tensor, values: Tensor, ends: Sequence[Sequence[int]]) -> Tensor:
    """How far each pair of vectors is from being one of the second derivative itself, curvature included."""
    shared, groups = saddle.shared, len(values)
    found = []
    for place in range(values.shape[1]):
        one, two = saddle.applied(
            _spread(u[..., place], ends[0], shared).contiguous(), _spread(v[..., place], ends[1], shared).contiguous()
        )
        missing = _gathered(one, shared, groups) - values[:, place, None] * u[..., place]
        other = _gathered(two, shared, groups) - values[:, place, None] * v[..., place]
        found.append((missing.square().sum(-1) + other.square().sum(-1)).sqrt() / 2**0.5)
    return torch.stack(found, -1)


def _padded(factors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    most = max(one.ndim for one in factors)
    left, right = (one[(None,) * (most - one.ndim)] for one in factors)
    return left, right


def _shared_axes(left: Tensor, right: Tensor) -> list[int]:
    sizes = zip(left.shape[:-2], right.shape[:-2], strict=True)
    return [axis for axis, (one, two) in enumerate(sizes) if one != two]


def _order(dimensions: int, shared: Sequence[int]) -> list[int]:
    return [*(axis for axis in range(dimensions - 1) if axis not in shared), *shared, dimensions - 1]


def _gathered(vectors: Tensor, shared: Sequence[int], groups: int) -> Tensor:
    """`[*batch, m]` as one vector for each group."""
    return vectors.permute(_order(vectors.ndim, shared)).reshape(groups, -1)


def _spread(vectors: Tensor, shape: Sequence[int], shared: Sequence[int]) -> Tensor:
    """The inverse of `_gathered`."""
    order = _order(len(shape), shared)
    back = [order.index(axis) for axis in range(len(order))]
    return vectors.reshape([shape[axis] for axis in order]).permute(back)


def _stacked(factor: Tensor, shared: Sequence[int], groups: int) -> Tensor:
    """`[*batch, m, r]` as one matrix `[group's rows, r]` for each group."""
    order = [*_order(factor.ndim - 1, shared), factor.ndim - 1]
    return factor.permute(order).reshape(groups, -1, factor.shape[-1])
