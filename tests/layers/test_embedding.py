"""The factorized embedding looks up what its table says, keeps its padding, and refuses what it cannot keep."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import rankwise as rw
from rankwise.errors import UserError
from rankwise.layers.embedding import FactorizedEmbedding

WAYS = ("two-step", "one-step", "auto")
INDICES = torch.tensor([[3, 0, 3], [9, 1, 0]])


@given(rank=st.integers(1, 8), depth=st.integers(0, 2), padding=st.sampled_from([None, 0, -1]))
def test_every_way_looks_up_the_table(rank, depth, padding):
    made = FactorizedEmbedding(
        10, 6, rank=rank, depth=depth, padding_idx=padding, overcomplete=rank > 6, dtype=torch.float64
    )
    expected = made.weight[INDICES]
    for execution in WAYS:
        made.execution = execution
        torch.testing.assert_close(made(INDICES), expected)
    torch.testing.assert_close(made.fold()(INDICES), expected)


@pytest.mark.parametrize("init", ["spectral", nn.init.normal_])
@pytest.mark.parametrize("execution", ["two-step", "one-step"])
def test_the_padding_row_is_zero_and_stays_zero(execution, init):
    made = FactorizedEmbedding(10, 6, rank=9, overcomplete=True, padding_idx=2, execution=execution, init=init)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        made(torch.tensor([2, 4, 2, 5])).sin().sum().backward()
        optimizer.step()
    assert torch.equal(made(torch.tensor([2])), torch.zeros(1, 6))
    assert made(torch.tensor([4])).abs().min() > 0


def test_nothing_is_learned_from_padding():
    made = FactorizedEmbedding(10, 6, rank=4, padding_idx=2)
    made(torch.tensor([2, 2])).sum().backward()
    assert all(torch.equal(factor.grad, torch.zeros_like(factor)) for factor in made.factors)


def test_a_dense_embedding_is_taken_as_it_is():
    dense = nn.Embedding(10, 6, padding_idx=-1).double()
    made = FactorizedEmbedding.from_dense(dense, rank=6)
    assert made.padding_idx == 9
    torch.testing.assert_close(made(INDICES), dense(INDICES))
    assert repr(made.fold()) == repr(dense)
    torch.testing.assert_close(made.fold().weight, dense.weight)


def test_sparse_gradients_are_those_of_the_rows_that_were_looked_up():
    dense = nn.Embedding(10, 6, sparse=True)
    made = FactorizedEmbedding.from_dense(dense, rank=3)
    assert made.execution_at(torch.zeros(10_000, dtype=torch.long)) == "two-step"
    made(INDICES).sum().backward()
    assert made.factors[0].grad.is_sparse
    assert made.factors[0].grad.coalesce().indices().tolist() == [[0, 1, 3, 9]]


def test_it_is_one_site():
    made = FactorizedEmbedding(10, 6, rank=3, depth=1)
    assert list(made.state_dict()) == ["factors.0", "factors.1", "factors.2"]
    (site,) = rw.find(nn.ModuleDict({"words": made}))
    assert (site.name, site.shape) == ("words.linear", (10, 6))


@pytest.mark.parametrize("execution", ["two-step", "one-step"])
def test_rows_have_the_table_s_type_whichever_way_is_taken(execution):
    made = FactorizedEmbedding(10, 6, rank=3, execution=execution)
    with torch.autocast("cpu", torch.bfloat16):
        assert made(INDICES).dtype == nn.Embedding(10, 6)(INDICES).dtype == torch.float32


def test_the_cheaper_way_is_taken():
    made = FactorizedEmbedding(100, 64, rank=16)
    assert made.execution_at(torch.zeros(10, dtype=torch.long)) == "two-step"
    # More positions than rows: the table is smaller than what it is looked up for.
    assert made.execution_at(torch.zeros(1000, dtype=torch.long)) == "one-step"


@pytest.mark.parametrize(
    ("dense", "message"),
    [
        (nn.Embedding(10, 6, max_norm=1.0), "max_norm=1.0 renormalizes rows"),
        (nn.Embedding(10, 6, scale_grad_by_freq=True), "scale_grad_by_freq scales gradients of rows"),
        (
            nn.Embedding.from_pretrained(torch.ones(10, 6), padding_idx=2),
            "the padding row 2 of an embedding is not zero",
        ),
    ],
)
def test_what_a_product_cannot_keep_is_refused(dense, message):
    with pytest.raises(UserError, match=message):
        FactorizedEmbedding.from_dense(dense, rank=2)


def test_sparse_and_one_step_do_not_go_together():
    with pytest.raises(UserError, match="sparse=True needs rows that are looked up one by one"):
        FactorizedEmbedding(10, 6, rank=2, sparse=True, execution="one-step")
