"""The paper's toy: one attention head with diagonal weights that learns from another, with batched exact gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.theory.coordinates import Coordinate, Pairing
from rankwise.theory.problem import Problem

if TYPE_CHECKING:
    from jaxtyping import Float, Int

# Samples are taken this many entries at a time: a block, and all that is computed from it, stays in the cache.
BLOCK = 25_000


def attention_output(
    inputs: Float[Tensor, "samples tokens d"], query_key: Float[Tensor, " d"], value_output: Float[Tensor, " d"]
) -> Float[Tensor, "samples tokens d"]:
    """What a head with diagonal weights writes: `softmax(X diag(q_QK) X^T) X diag(q_VO)`, without a scale.

    >>> attention_output(torch.ones(1, 3, 2), torch.zeros(2), torch.tensor([1.0, 2.0]))[0, 0]
    tensor([1., 2.])
    """
    return torch.softmax((inputs * query_key) @ inputs.mT, -1) @ (inputs * value_output)


def attention_head(inputs: Float[Tensor, "samples tokens d"], targets: Float[Tensor, "samples tokens d"]) -> Problem:
    """Learning one diagonal attention head from examples.

        L(q) = mean over samples and tokens of 1/2 |softmax(X diag(q_QK) X^T) X diag(q_VO) - Y|^2,

    the products of keys and queries first, then those of values and outputs: `p = 2 d`.

    Arguments:
        inputs: `X`.
        targets: `Y`, for instance what a teacher writes: `attention_output(inputs, ...)`.

    >>> generator = torch.Generator().manual_seed(0)
    >>> inputs = torch.randn(8, 5, 3, generator=generator, dtype=torch.float64)
    >>> problem = attention_head(inputs, attention_output(inputs, torch.ones(3), torch.ones(3)))
    >>> problem.size, problem.name(4), problem.value(torch.ones(6).double())
    (6, '4 (layer 0 head 0 VO 1)', 0.0)
    """
    inputs, targets = (torch.as_tensor(one, dtype=torch.float64) for one in (inputs, targets))
    if inputs.ndim != 3 or inputs.shape != targets.shape:
        raise UserError(
            f"inputs {tuple(inputs.shape)} and targets {tuple(targets.shape)} were given: give both as "
            "[samples, tokens, width]"
        )
    head = _Head(inputs, targets)
    width = inputs.shape[-1]
    return Problem(
        size=2 * width,
        gradient=head.gradient,
        loss=head.loss,
        hessian=head.hessian,
        sample_gradient=head.sample_gradient,
        samples=len(inputs),
        coordinates=tuple(
            Coordinate(layer=0, head=0, pairing=pairing, channel=channel)
            for pairing in (Pairing.QK, Pairing.VO)
            for channel in range(width)
        ),
    )


@dataclass(frozen=True, kw_only=True)
class HeadToy:
    """A head that is to learn from another one, as in the paper's Figure 2.

    Arguments:
        inputs: independent Gaussian tokens.
        targets: what the teacher writes.
        teacher: its products, keys and queries first.
        problem: the student's loss.
        start: `(u0, v0)`, Gaussian.
    """

    inputs: Float[Tensor, "samples tokens d"] = field(repr=False)
    targets: Float[Tensor, "samples tokens d"] = field(repr=False)
    teacher: Float[Tensor, " p"] = field(repr=False)
    problem: Problem
    start: tuple[Float[Tensor, " p"], Float[Tensor, " p"]] = field(repr=False)


def head_toy(*, width: int = 50, tokens: int = 10, samples: int = 1000, seed: int = 0) -> HeadToy:
    """The paper's toy: a diagonal head with random products teaches another, on random tokens.

    The paper does not say how large the teacher's products are. Those of values and outputs are products of two
    Gaussians, as of two random weights; those of keys and queries are smaller by `sqrt(width)`, so that attention is
    neither uniform nor a choice of single tokens.

    >>> toy = head_toy(width=4, samples=16)
    >>> toy.problem.size, toy.problem.value(toy.teacher)
    (8, 0.0)
    """
    if min(width, tokens, samples) < 1:
        raise UserError(f"width {width}, {tokens} tokens and {samples} samples were asked for: give positive numbers")
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs, teacher = drawn(samples, tokens, width), drawn(2 * width) * drawn(2 * width)
    teacher[:width] /= width**0.5
    targets = attention_output(inputs, *teacher.chunk(2))
    return HeadToy(
        inputs=inputs,
        targets=targets,
        teacher=teacher,
        problem=attention_head(inputs, targets),
        start=(drawn(2 * width), drawn(2 * width)),
    )


class _Block(NamedTuple):
    """Some samples."""

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class _Head:
    """Loss and gradient over all samples, block by block."""

    inputs: Tensor
    targets: Tensor
    blocks: list[_Block] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", list(self._cut(self.inputs, self.targets)))

    def _cut(self, inputs: Tensor, targets: Tensor) -> Iterator[_Block]:
        count = max(1, BLOCK // (inputs.shape[1] * inputs.shape[2]))
        for x, y in zip(inputs.split(count), targets.split(count), strict=True):
            yield _Block(x.contiguous(), y.contiguous())

    @property
    def places(self) -> int:
        """Samples times tokens."""
        return self.inputs.shape[0] * self.inputs.shape[1]

    def loss(self, products: Float[Tensor, " p"]) -> Tensor:
        query_key, value_output = products.chunk(2)
        errors = ((attention_output(x, query_key, value_output) - y).square().sum() for x, y in self.blocks)
        return sum(errors, torch.zeros((), dtype=torch.float64)) / (2 * self.places)

    def gradient(self, products: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
        return self._summed(self.blocks, products) / self.places

    def sample_gradient(self, products: Float[Tensor, " p"], chosen: Int[Tensor, " n"]) -> Float[Tensor, " p"]:
        blocks = self._cut(self.inputs[chosen], self.targets[chosen])
        return self._summed(blocks, products) / (len(chosen) * self.inputs.shape[1])

    def _summed(self, blocks: list[_Block] | Iterator[_Block], products: Tensor) -> Tensor:
        query_key, value_output = products.chunk(2)
        total = torch.zeros_like(products)
        for_query_key, for_value_output = total.chunk(2)
        for x, y in blocks:
            # The logits are symmetric, so a softmax over queries is the attention transposed; over a dimension that
            # is not the last it is four times faster.
            attention = torch.softmax(torch.bmm(x * query_key, x.mT), -2)
            mixed = torch.bmm(attention.mT, x)
            error = (mixed * value_output).sub_(y)
            for_value_output += (mixed * error).sum((0, 1))
            logits = torch.bmm(x, error.mul_(value_output).mT)
            logits.sub_((attention * logits).sum(-2, keepdim=True)).mul_(attention)
            for_query_key += torch.bmm(logits, x).mul_(x).sum((0, 1))
        return total

    def hessian(
        self, products: Float[Tensor, " p"], rows: Int[Tensor, " m"], columns: Int[Tensor, " k"]
    ) -> Float[Tensor, "m k"]:
        """A block of the second derivative, through that of the loss of one query in its logits.

        With `A` the attention of a query, `M` what it mixes, `E` its error, `S = diag(q_VO)`, `D_j = E S (x_j - M)`,

            d2 loss / dl_j dl_k = A_j A_k ((x_j - M) S^2 (x_k - M) - D_j - D_k) + A_j D_j [j = k],
            d2 loss / dl_j dq_VO = A_j (x_j - M) (E + S M),    d2 loss / dq_VO^2 = M^2 on the diagonal.
        """
        query_key, value_output = products.chunk(2)
        width = len(query_key)
        total, squares = products.new_zeros(len(rows), len(columns)), torch.zeros_like(value_output)
        of_logits = [(one < width).nonzero().flatten() for one in (rows, columns)]
        of_values = [(one >= width).nonzero().flatten() for one in (rows, columns)]

        def corner(row: int, column: int) -> tuple[Tensor, Tensor]:
            return (of_logits, of_values)[row][0][:, None], (of_logits, of_values)[column][1]

        for x, y in self.blocks:
            attention = torch.softmax(torch.bmm(x * query_key, x.mT), -1)
            mixed = torch.bmm(attention, x)
            error = mixed * value_output - y
            logits = _Logits(x, attention, mixed, error, value_output)
            here, there = logits.slopes(rows[of_logits[0]]), logits.slopes(columns[of_logits[1]])
            if here.numel() and there.numel():
                total[corner(0, 0)] += here.mT @ logits.curved(there)
            total[corner(1, 0)] += logits.crossed(rows[of_values[0]] - width).mT @ there
            total[corner(0, 1)] += here.mT @ logits.crossed(columns[of_values[1]] - width)
            squares += mixed.square().sum((0, 1))
        total += (rows[:, None] == columns) * torch.cat([torch.zeros_like(squares), squares])[rows][:, None]
        return total / self.places


@dataclass(frozen=True)
class _Logits:
    """How the loss of every query of a block bends with its logits; queries and keys flattened in what it returns."""

    inputs: Float[Tensor, "s n d"]
    attention: Float[Tensor, "s n n"]
    mixed: Float[Tensor, "s n d"]
    error: Float[Tensor, "s n d"]
    value_output: Float[Tensor, " d"]

    def slopes(self, channels: Int[Tensor, " k"]) -> Float[Tensor, "snn k"]:
        """The logits' derivatives by QK products."""
        chosen = self.inputs[..., channels]
        return (chosen[:, :, None] * chosen[:, None]).flatten(0, 2)

    def curved(self, slopes: Float[Tensor, "snn k"]) -> Float[Tensor, "snn k"]:
        """The second derivative by the logits, applied."""
        x, attention, scaled = self.inputs, self.attention, self.mixed * self.value_output
        pull = torch.bmm(self.error * self.value_output, x.mT)
        pull = pull - (attention * pull).sum(-1, keepdim=True)
        values = x * self.value_output
        # What depends on a query and one key, and then on a query alone, taken off the Gram matrix of the values.
        single = pull + torch.bmm(scaled, values.mT)
        inner = torch.bmm(values, values.mT)[:, None] - single[..., None]
        inner -= (single - scaled.square().sum(-1, keepdim=True))[:, :, None]
        inner *= attention[..., None]
        inner *= attention[:, :, None]
        inner.diagonal(dim1=-2, dim2=-1).add_(attention * pull)
        tokens = x.shape[1]
        return torch.bmm(inner.flatten(0, 1), slopes.unflatten(0, (-1, tokens))).flatten(0, 1)

    def crossed(self, channels: Int[Tensor, " k"]) -> Float[Tensor, "snn k"]:
        """The second derivative by the logits and VO products."""
        x, mixed, values = self.inputs[..., channels], self.mixed[..., channels], self.value_output[channels]
        weights = self.error[..., channels] + mixed * values
        return (self.attention[..., None] * (x[:, None] - mixed[:, :, None]) * weights[:, :, None]).flatten(0, 2)
