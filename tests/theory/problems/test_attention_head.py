"""The diagonal head's batched derivatives against autograd, its blocks, and the same head with full matrices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise import theory
from rankwise.errors import UserError
from rankwise.theory.problems import attention_head as module


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def example(seed: int, samples: int, tokens: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return drawn(seed, samples, tokens, width), drawn(seed + 1, samples, tokens, width), drawn(seed + 2, 2 * width)


def test_the_output_is_that_of_attention_with_diagonal_matrices() -> None:
    x, _, q = example(0, 3, 5, 4)
    key, value = q[:4].exp(), q[4:].exp()
    query, output = q[:4] / key, q[4:] / value
    w_k, w_q, w_v, w_o = (torch.diag(one) for one in (key, query, value, output))
    expected = torch.softmax((x @ w_k) @ (x @ w_q).mT, -1) @ (x @ w_v @ w_o.mT)
    torch.testing.assert_close(theory.attention_output(x, q[:4], q[4:]), expected, rtol=1e-12, atol=1e-13)


@settings(max_examples=25)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 5), st.integers(0, 999), st.sampled_from([0.0, 0.1, 2.0]))
def test_derivatives_are_those_of_autograd(samples: int, tokens: int, width: int, seed: int, scale: float) -> None:
    x, y, q = example(seed, samples, tokens, width)
    q = scale * q
    problem = theory.attention_head(x, y)

    def loss(products: torch.Tensor) -> torch.Tensor:
        return (theory.attention_output(x, *products.chunk(2)) - y).square().sum(-1).mean() / 2

    assert problem.value(q) == pytest.approx(loss(q).item(), rel=1e-12)
    torch.testing.assert_close(problem.force(q), -torch.func.grad(loss)(q), rtol=1e-11, atol=1e-12)
    everyone = torch.arange(2 * width)
    hessian = torch.autograd.functional.hessian(loss, q)
    torch.testing.assert_close(problem.hessian_block(q, everyone, everyone), hessian, rtol=1e-10, atol=1e-11)
    rows, columns = torch.randperm(2 * width)[: width + 1], torch.randperm(2 * width)[:width]
    torch.testing.assert_close(
        problem.hessian_block(q, rows, columns), hessian[rows][:, columns], rtol=1e-10, atol=1e-11
    )


def test_blocks_of_samples_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, q = example(5, 11, 4, 3)
    whole = theory.attention_head(x, y)
    monkeypatch.setattr(module, "BLOCK", 3 * 12)
    blocks = theory.attention_head(x, y)
    everyone = torch.arange(6)
    assert blocks.value(q) == pytest.approx(whole.value(q))
    torch.testing.assert_close(blocks.force(q), whole.force(q))
    torch.testing.assert_close(blocks.hessian_block(q, everyone, everyone), whole.hessian_block(q, everyone, everyone))


def test_gradients_of_samples_average_to_that_of_all() -> None:
    x, y, q = example(7, 6, 4, 3)
    problem = theory.attention_head(x, y)
    assert problem.sample_gradient is not None
    assert problem.samples == 6
    each = torch.stack([problem.sample_gradient(q, torch.tensor([one])) for one in range(6)])
    torch.testing.assert_close(each.mean(0), -problem.force(q))
    some = problem.sample_gradient(q, torch.tensor([0, 3]))
    torch.testing.assert_close(some, each[[0, 3]].mean(0))


def test_keys_and_queries_feel_nothing_while_nothing_is_written() -> None:
    x, y, q = example(9, 6, 4, 3)
    silent = torch.cat([q[:3], torch.zeros(3, dtype=torch.float64)])
    assert theory.attention_head(x, y).force(silent)[:3].tolist() == [0.0] * 3


def test_a_teacher_is_a_minimum() -> None:
    x, _, q = example(11, 6, 4, 3)
    problem = theory.attention_head(x, theory.attention_output(x, *q.chunk(2)))
    assert problem.value(q) == 0
    assert problem.force(q).abs().max() < 1e-14
    everyone = torch.arange(6)
    assert torch.linalg.eigvalsh(problem.hessian_block(q, everyone, everyone)).min() > 0


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match=r"give both as \[samples, tokens, width\]"):
        theory.attention_head(torch.ones(3, 2), torch.ones(3, 2))
    with pytest.raises(UserError, match=r"inputs \(1, 2, 3\) and targets \(1, 2, 4\)"):
        theory.attention_head(torch.ones(1, 2, 3), torch.ones(1, 2, 4))
