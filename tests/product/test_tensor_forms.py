"""CP, Tucker and tensor trains: the tensor they stand for, its norm without it, and their balance."""

from __future__ import annotations

from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.balance import balance
from rankwise.product.cp import CP
from rankwise.product.tensor_forms import TensorForm, all_but_one, mode_product
from rankwise.product.tensor_train import TensorTrain
from rankwise.product.tucker import Tucker

KINDS = (CP, Tucker, TensorTrain)
sizes = st.lists(st.integers(1, 5), min_size=2, max_size=4)
seeds = st.integers(0, 2**31)
kinds = st.sampled_from(KINDS)


def drawn(kind: type[TensorForm], sizes: list[int], seed: int, *, dtype: torch.dtype = torch.float64) -> TensorForm:
    """A form with normal cores of uneven scales and ranks."""
    generator = torch.Generator().manual_seed(seed)

    def core(*shape: int) -> Tensor:
        scale = 10 ** (torch.rand((), generator=generator) * 2 - 1)
        return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)

    ranks = torch.randint(1, 4, (len(sizes),), generator=generator).tolist()
    if kind is CP:
        return CP(tuple(core(size, ranks[0]) for size in sizes))
    if kind is Tucker:
        return Tucker((core(*ranks), *(core(size, rank) for size, rank in zip(sizes, ranks, strict=True))))
    bonds = [1, *ranks[1:], 1]
    return TensorTrain(tuple(core(bonds[place], size, bonds[place + 1]) for place, size in enumerate(sizes)))


def by_hand(form: TensorForm) -> Tensor:
    """The tensor by an einsum written out for the form."""
    modes = "abcd"[: len(form.shape)]
    if isinstance(form, CP):
        return torch.einsum(",".join(f"{mode}r" for mode in modes) + "->" + modes, *form.cores)
    if isinstance(form, Tucker):
        inner = modes.upper()
        return torch.einsum(",".join([inner, *(f"{m}{m.upper()}" for m in modes)]) + "->" + modes, *form.cores)
    bonds = "zyxwv"
    terms = [f"{bonds[place]}{mode}{bonds[place + 1]}" for place, mode in enumerate(modes)]
    return torch.einsum(",".join(terms) + "->" + modes, *form.cores)


def leaves(form: TensorForm) -> TensorForm:
    return type(form)(tuple(core.clone().requires_grad_() for core in form.cores))


def squares(form: TensorForm) -> float:
    return sum(core.square().sum().item() for core in form.cores)


@settings(max_examples=60)
@given(kind=kinds, sizes=sizes, seed=seeds)
def test_the_tensor_and_every_unfolding_are_those_of_the_definition(kind, sizes: list[int], seed: int) -> None:
    form = drawn(kind, sizes, seed)
    expected = by_hand(form)
    assert form.shape == expected.shape == torch.Size(sizes)
    torch.testing.assert_close(form.dense(), expected)
    for rows in range(1, len(sizes)):
        product = form.unfolded(rows)
        assert product.depth == 2
        torch.testing.assert_close(product.dense(), expected.reshape(prod(sizes[:rows]), -1))


@settings(max_examples=80)
@given(kind=kinds, sizes=sizes, seed=seeds)
def test_the_penalty_has_the_value_and_gradients_of_the_rebuilt_tensor(kind, sizes: list[int], seed: int) -> None:
    ours, dense = leaves(drawn(kind, sizes, seed)), leaves(drawn(kind, sizes, seed))
    penalty, expected = ours.frobenius_penalty(), by_hand(dense).square().sum() / 2
    assert penalty.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-12 * squares(ours))
    (0.3 * penalty).backward()
    (0.3 * expected).backward()
    for one, two, closed in zip(ours.cores, dense.cores, ours.gradients(), strict=True):
        scale = max(two.grad.abs().max().item(), 1e-9)
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-8, atol=1e-9 * scale)
        torch.testing.assert_close(0.3 * closed.detach(), one.grad)


@pytest.mark.parametrize("kind", KINDS)
def test_finite_differences_agree_and_frozen_cores_get_nothing(kind) -> None:
    form = leaves(drawn(kind, [4, 3, 5], 1))
    assert torch.autograd.gradcheck(lambda *cores: kind(cores).frobenius_penalty(), form.cores)
    some = kind((form.cores[0].detach(), *form.cores[1:]))
    some.frobenius_penalty().backward()
    assert some.cores[0].grad is None
    assert all(core.grad is not None for core in some.cores[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_changes_nothing(kind) -> None:
    form = drawn(kind, [6, 5, 4], 3, dtype=torch.float32)
    plain, mixed = leaves(form), leaves(form)
    plain.frobenius_penalty().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        penalty = mixed.frobenius_penalty()
        torch.testing.assert_close(mixed.dense(), form.to(torch.float64).dense().float())
    penalty.backward()
    for one, two in zip(plain.cores, mixed.cores, strict=True):
        torch.testing.assert_close(one.grad, two.grad)


def test_cancelling_terms_have_no_norm() -> None:
    """`X - X` kept as cores: the norm of what is rebuilt is zero, that of the cores is not."""
    form = drawn(CP, [4, 3, 5], 2)
    gone = CP((torch.cat([form.cores[0], -form.cores[0]], 1), *(torch.cat([core] * 2, 1) for core in form.cores[1:])))
    assert abs(gone.frobenius_penalty().item()) < 1e-12 * squares(gone) ** 3
    assert gone.dense().abs().max().item() < 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_cores_compute_in_float32_or_better(kind, dtype: torch.dtype) -> None:
    form = drawn(kind, [6, 5, 4], 3, dtype=dtype)
    ours, wide = leaves(form), leaves(form.to(torch.float64))
    value, expected = ours.frobenius_penalty(), wide.frobenius_penalty()
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    value.backward()
    expected.backward()
    for one, two in zip(ours.cores, wide.cores, strict=True):
        assert one.grad.dtype == dtype
        scale = two.grad.abs().max().item()
        torch.testing.assert_close(one.grad.double(), two.grad, rtol=2 * torch.finfo(dtype).eps, atol=1e-5 * scale)


@pytest.mark.parametrize(
    "form",
    [
        CP(tuple(torch.randn(size, 2) for size in (300, 200, 100))),
        Tucker((torch.randn(2, 2, 2), *(torch.randn(size, 2) for size in (300, 200, 100)))),
        TensorTrain((torch.randn(1, 300, 2), torch.randn(2, 200, 2), torch.randn(2, 100, 1))),
    ],
)
def test_the_tensor_is_never_rebuilt(form: TensorForm) -> None:
    """Six million entries if rebuilt, about two thousand as cores."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            outputs = result if isinstance(result, tuple | list) else [result]
            largest = max([largest, *(out.numel() for out in outputs if isinstance(out, torch.Tensor))])
            return result

    live = leaves(form)
    with Watch():
        live.frobenius_penalty().backward()
    assert largest <= 2 * max(core.numel() for core in form.cores)


@settings(max_examples=25)
@given(kind=kinds, sizes=sizes, seed=seeds)
def test_balancing_keeps_the_tensor_and_lowers_the_squares(kind, sizes: list[int], seed: int) -> None:
    form = drawn(kind, sizes, seed)
    moved = form.balanced()
    assert [core.shape for core in moved.cores] == [core.shape for core in form.cores]
    scale = form.dense().abs().max().item()
    torch.testing.assert_close(moved.dense(), form.dense(), rtol=0, atol=1e-11 * scale)
    assert squares(moved) <= squares(form) * (1 + 1e-12)
    if all(junction.widths[1] == junction.max_rank for junction in form.junctions()):
        assert squares(moved.balanced()) == pytest.approx(squares(moved), rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_every_junction_of_a_balanced_form_is_balanced(kind, seed: int) -> None:
    """For ranks that every unfolding can hold, the conserved quantities of a flow are all zero."""
    torch.manual_seed(seed)
    cores = {
        CP: [(6, 3), (5, 3), (7, 3)],
        Tucker: [(2, 3, 3), (6, 2), (5, 3), (7, 3)],
        TensorTrain: [(1, 6, 3), (3, 5, 4), (4, 7, 1)],
    }[kind]
    form = kind(tuple(torch.randn(shape, dtype=torch.float64) * 3**place for place, shape in enumerate(cores)))
    assert max(balance(junction).relative.max().item() for junction in form.junctions()) > 0.1
    for junction in form.balanced().junctions():
        assert balance(junction).relative_imbalance.max().item() < 1e-10


def test_a_chain_of_matrices_balances_to_equal_roots_of_the_singular_values() -> None:
    """A tensor train whose inner modes have one index is a matrix product, for which the balanced chain is known."""
    torch.manual_seed(0)
    train = TensorTrain(tuple(torch.randn(s, dtype=torch.float64) for s in [(1, 6, 3), (3, 1, 3), (3, 5, 1)]))
    values = torch.linalg.svdvals(train.dense().reshape(6, 5))[:3]
    assert squares(train.balanced()) == pytest.approx(3 * values.pow(2 / 3).sum().item(), rel=1e-12)


def test_a_term_that_is_zero_is_left_as_it_is() -> None:
    form = CP((torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 5.0]])))
    moved = form.balanced()
    torch.testing.assert_close(moved.cores[0], torch.tensor([[2.0**0.5, 0.0]]))
    torch.testing.assert_close(moved.cores[1], torch.tensor([[2.0**0.5, 5.0]]))


def test_helpers() -> None:
    torch.manual_seed(0)
    tensor, matrix = torch.randn(3, 4, 5), torch.randn(2, 4)
    torch.testing.assert_close(mode_product(tensor, matrix, 1), torch.einsum("abc,xb->axc", tensor, matrix))
    assert [one.item() for one in all_but_one([torch.tensor(0.0), torch.tensor(3.0)])] == [3.0, 0.0]
    form = drawn(CP, [3, 4], 0)
    assert repr(form).startswith("CP(3x4 of rank ")
    assert form.parameters == sum(core.numel() for core in form.cores)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: CP((torch.ones(3, 2), torch.ones(4, 3))), "of one rank, got"),
        (lambda: CP((torch.ones(3, 2),)), "two or more modes"),
        (lambda: Tucker((torch.ones(2, 2), torch.ones(3, 2))), "Tucker needs a core"),
        (lambda: Tucker((torch.ones(2, 2), torch.ones(3, 2), torch.ones(4, 3))), "Tucker needs a core"),
        (lambda: TensorTrain((torch.ones(1, 3, 2), torch.ones(3, 4, 1))), "a tensor train needs a core"),
        (lambda: TensorTrain((torch.ones(2, 3, 2), torch.ones(2, 4, 1))), "a tensor train needs a core"),
        (lambda: CP((torch.ones(3, 2), torch.ones(4, 2).long())), "real floating tensor"),
        (lambda: drawn(CP, [3, 4], 0).unfolded(2), "1 to 1 modes as rows, got 2"),
    ],
)
def test_cores_that_do_not_fit_are_refused(make, text: str) -> None:
    with pytest.raises(UserError, match=text):
        make()
