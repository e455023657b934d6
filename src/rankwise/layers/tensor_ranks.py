"""How a weight is cut into modes, and which ranks its tensor form gets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Literal, get_args

from rankwise.errors import UserError
from rankwise.product.cp import CP
from rankwise.product.tensor_forms import TensorForm
from rankwise.product.tensor_train import TensorTrain
from rankwise.product.tucker import Tucker

Form = Literal["cp", "tucker", "tensor-train"]
KINDS: dict[Form, type[TensorForm]] = {"cp": CP, "tucker": Tucker, "tensor-train": TensorTrain}
# A parameter's name says its form, in a state dict as in a module.
LISTS: dict[Form, str] = {"cp": "cp_cores", "tucker": "tucker_cores", "tensor-train": "tensor_train_cores"}


def near_equal_modes(count: int, order: int = 3) -> tuple[int, ...]:
    """A number as a product of nearly equal ones: each time the smallest divisor at or above the root of what is left.

    >>> near_equal_modes(160 * 160), near_equal_modes(320 * 320), near_equal_modes(8)
    ((32, 32, 25), (50, 64, 32), (2, 2, 2))
    """
    modes = []
    for left in range(order, 1, -1):
        # In integers: a floating root of an exact power may fall on either side of it.
        mode = next(size for size in range(1, count + 1) if count % size == 0 and size**left >= count)
        modes.append(mode)
        count //= mode
    return (*modes, count)


def matrix_ranks(form: Form, modes: Sequence[int], scale: float) -> tuple[int, ...]:
    """The ranks of a reshaped matrix at a rank scale, at least 1 each and rounded.

    Tensor train: `scale * min(size_i, size_{i+1})`. Tucker: `scale * size_i`. CP: `scale` times the number of entries
    over the largest mode, which is the rank that every tensor of these modes has at most.

    >>> matrix_ranks("tensor-train", (32, 32, 25), 0.234), matrix_ranks("tucker", (32, 32, 25), 0.211)
    ((7, 6), (7, 7, 5))
    """
    _check_scale(scale)
    if form == "tensor-train":
        return _filled_train(modes, [_share(scale, min(pair)) for pair in pairwise(modes)])
    if form == "tucker":
        return _filled_core([_share(scale, size) for size in modes])
    return _cp_rank(modes, scale)


def kernel_ranks(form: Form, modes: Sequence[int], scale: float) -> tuple[int, ...]:
    """The ranks of a kernel `[out, height, width, in]` at a rank scale, at least 1 each and rounded.

    Tensor train: a share of the rank that each cut through the kernel has at most. Tucker: a share of the channels,
    and the whole window. CP: as for a matrix.

    >>> kernel_ranks("tensor-train", (64, 3, 3, 32), 0.25), kernel_ranks("tucker", (64, 3, 3, 32), 0.25)
    ((16, 24, 8), (16, 3, 3, 8))
    """
    _check_scale(scale)
    if form == "tensor-train":
        largest = (min(prod(modes[:cut]), prod(modes[cut:])) for cut in range(1, len(modes)))
        return _filled_train(modes, [_share(scale, size) for size in largest])
    if form == "tucker":
        return _filled_core([_share(scale, modes[0]), *modes[1:-1], _share(scale, modes[-1])])
    return _cp_rank(modes, scale)


def checked_ranks(form: Form, modes: Sequence[int], ranks: int | Sequence[int]) -> tuple[int, ...]:
    """Ranks that were given, one for all or one each, or one line that says why they cannot be.

    A rank above what its neighbours can fill would only hold directions that nothing ever reaches.
    """
    count = {"cp": 1, "tucker": len(modes), "tensor-train": len(modes) - 1}[form]
    given = tuple(ranks) if isinstance(ranks, Sequence) else (ranks,) * count
    if len(given) != count or any(isinstance(rank, bool) or not isinstance(rank, int) or rank < 1 for rank in given):
        raise UserError(
            f"a {form} form of modes {_times(modes)} takes {count} rank{'s' if count > 1 else ''} of at least 1, or "
            f"one number for all, got {ranks!r}"
        )
    for position, rank in enumerate(given):
        limit = _limit(form, modes, given, position)
        if rank > limit:
            raise UserError(
                f"rank {rank} at position {position} of a {form} form of modes {_times(modes)} is above {limit}, the "
                f"largest that its neighbours can fill: got {given}"
            )
    return given


def core_shapes(form: Form, modes: Sequence[int], ranks: Sequence[int]) -> list[tuple[int, ...]]:
    """The shapes of the cores in order.

    >>> core_shapes("tensor-train", (4, 5, 6), (2, 3)), core_shapes("tucker", (4, 5), (2, 3))
    ([(1, 4, 2), (2, 5, 3), (3, 6, 1)], [(2, 3), (4, 2), (5, 3)])
    """
    if form == "cp":
        return [(size, ranks[0]) for size in modes]
    if form == "tucker":
        return [tuple(ranks), *zip(modes, ranks, strict=True)]
    return list(zip((1, *ranks), modes, (*ranks, 1), strict=True))


def core_parameters(form: Form, modes: Sequence[int], ranks: Sequence[int]) -> int:
    """How many numbers the cores hold.

    >>> core_parameters("tensor-train", (4, 5, 6), (2, 3)), core_parameters("cp", (4, 5, 6), (2,))
    (56, 30)
    """
    return sum(prod(shape) for shape in core_shapes(form, modes, ranks))


def checked_form(form: Form) -> Form:
    """A form that exists, or one line that lists those."""
    if form not in get_args(Form):
        raise UserError(f"form must be one of {', '.join(get_args(Form))}, got {form!r}")
    return form


def _limit(form: Form, modes: Sequence[int], ranks: Sequence[int], position: int) -> int:
    if form == "cp":
        return prod(modes) // max(modes)
    if form == "tucker":
        return min(modes[position], prod(ranks[:position]) * prod(ranks[position + 1 :]))
    before = (1, *ranks)[position] * modes[position]
    after = modes[position + 1] * (*ranks, 1)[position + 1]
    return min(before, after)


def _filled_core(ranks: list[int]) -> tuple[int, ...]:
    """Ranks that the others can fill: a thin tensor has no more along one mode than the others together."""
    for mode, rank in enumerate(ranks):
        ranks[mode] = min(rank, prod(ranks[:mode] + ranks[mode + 1 :]))
    return tuple(ranks)


def _filled_train(modes: Sequence[int], ranks: list[int]) -> tuple[int, ...]:
    """Ranks that the neighbours can fill, from either end."""
    for bond in range(len(ranks)):
        ranks[bond] = min(ranks[bond], (1, *ranks)[bond] * modes[bond])
    for bond in reversed(range(len(ranks))):
        ranks[bond] = min(ranks[bond], modes[bond + 1] * (*ranks, 1)[bond + 1])
    return tuple(ranks)


def _share(scale: float, size: int) -> int:
    return max(1, round(scale * size))


def _cp_rank(modes: Sequence[int], scale: float) -> tuple[int]:
    return (_share(scale, prod(modes) // max(modes)),)


def _check_scale(scale: float) -> None:
    if not 0 < scale <= 1:
        raise UserError(f"a rank scale is above 0 and at most 1, got {scale}")


def _times(modes: Sequence[int]) -> str:
    return "x".join(map(str, modes))
