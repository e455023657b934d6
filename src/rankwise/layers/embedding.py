"""An embedding whose table is a product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankwise.errors import UserError
from rankwise.layers.base import Execution, FactorizedLayer, check_dense
from rankwise.layers.cost import Step, Work
from rankwise.layers.initialization import Init

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class FactorizedEmbedding(FactorizedLayer):
    """`y = V M^T ... U[i]`: an embedding with the table `U M ... V^T`, of which row `i` is looked up.

    Arguments:
        num_embeddings, embedding_dim: as in `torch.nn.Embedding`.
        rank: the inner width `r`.
        depth: how many inner factors there are.
        padding_idx: an index whose row is zero and stays so: nothing is learned from it.
        sparse: whether the left factor, which is looked up, has sparse gradients; it is then always looked up before
            anything is multiplied.
        overcomplete: allow a rank above the smaller side of the table.
        init: how the factors start; see `rankwise.Spectral`.
        execution: multiply the rows that were looked up ("two-step"), the whole table first ("one-step"), or whatever
            is cheaper ("auto").

    >>> layer = FactorizedEmbedding(1000, 64, rank=16, padding_idx=0)
    >>> layer(torch.tensor([[5, 0]])).shape, layer(torch.tensor([0])).abs().max().item()
    (torch.Size([1, 2, 64]), 0.0)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        rank: int,
        depth: int = 0,
        padding_idx: int | None = None,
        sparse: bool = False,
        overcomplete: bool = False,
        init: Init = "spectral",
        execution: Execution = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            num_embeddings,
            embedding_dim,
            rank=rank,
            depth=depth,
            overcomplete=overcomplete,
            init=init,
            execution=execution,
            device=device,
            dtype=dtype,
        )
        if sparse and execution == "one-step":
            raise UserError("sparse=True needs rows that are looked up one by one: give execution='two-step'")
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        # The dense layer checks the index and counts a negative one from the end.
        self.padding_idx = nn.Embedding(num_embeddings, 1, padding_idx, device="meta").padding_idx
        self.sparse = sparse
        self.bias = None
        self.reset_parameters()

    @classmethod
    def from_dense(
        cls,
        dense: nn.Embedding,
        *,
        rank: int,
        depth: int = 0,
        overcomplete: bool = False,
        init: Init = "spectral",
        execution: Execution = "auto",
    ) -> FactorizedEmbedding:
        """A factorized embedding in place of a dense one, which is left alone."""
        check_dense(dense, nn.Embedding)
        if (reason := no_factorized_form(dense)) is not None:
            raise UserError(reason)
        layer = cls.like(dense, rank=rank, depth=depth, overcomplete=overcomplete, init=init, execution=execution)
        return layer.settle(dense)

    @classmethod
    def like(
        cls,
        dense: nn.Embedding,
        *,
        rank: int,
        depth: int = 0,
        overcomplete: bool = False,
        init: Init = "spectral",
        execution: Execution = "auto",
    ) -> FactorizedEmbedding:
        """A factorized embedding of the same configuration, without values, on the meta device."""
        return cls(
            dense.num_embeddings,
            dense.embedding_dim,
            rank=rank,
            depth=depth,
            padding_idx=dense.padding_idx,
            sparse=dense.sparse,
            overcomplete=overcomplete,
            init=init,
            execution=execution,
            device="meta",
            dtype=dense.weight.dtype,
        )

    def execution_at(self, input: Tensor) -> Step:
        # An exported graph serves every number of positions: forming a table for a few would be the worse error.
        if self.sparse or torch.compiler.is_exporting():
            return "two-step"
        return super().execution_at(input)

    def work(self, step: Step) -> Work:
        # Rows are looked up and moved either way, of the table or of the left factor: what decides is the multiplying.
        return Work(0 if step == "one-step" else self.rank * (self.embedding_dim + self.depth * self.rank), moved=0)

    def _positions(self, input: Tensor) -> int:
        return input.numel()

    def _step_by_step(self, input: Int[Tensor, " *batch"]) -> Float[Tensor, "*batch n"]:
        left, *rest = self.factors
        hidden = F.embedding(input, left, self.padding_idx, sparse=self.sparse)
        for factor in rest:
            hidden = hidden @ factor
        # Under autocast too rows are of the table's type, as a dense table's are, whichever way was taken.
        return hidden.to(left.dtype)

    def _at_once(self, input: Int[Tensor, " *batch"]) -> Float[Tensor, "*batch n"]:
        return F.embedding(input, self.weight, self.padding_idx)

    @torch.no_grad()
    def _start_from(self, dense: nn.Embedding) -> None:
        super()._start_from(dense)
        if self.padding_idx is not None:
            self.factors[0][self.padding_idx].zero_()

    def _dense_layer(self, device: torch.device | str) -> nn.Embedding:
        return nn.Embedding(
            self.num_embeddings,
            self.embedding_dim,
            padding_idx=self.padding_idx,
            sparse=self.sparse,
            device=device,
            dtype=self.factors[0].dtype,
        )

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        sparse = ", sparse=True" if self.sparse else ""
        return (
            f"{self.num_embeddings}, {self.embedding_dim}{padding}{sparse}, rank={self.rank}, depth={self.depth}, "
            f"execution={self.execution!r}"
        )


def no_factorized_form(dense: nn.Embedding) -> str | None:
    """Why an embedding cannot be a product and behave as before, or None."""
    if dense.max_norm is not None:
        return f"an embedding with max_norm={dense.max_norm} renormalizes rows of its table, which a product has not"
    if dense.scale_grad_by_freq:
        return "an embedding with scale_grad_by_freq scales gradients of rows, which in a product are shared"
    row = dense.padding_idx
    if row is not None and not dense.weight.is_meta and bool(dense.weight[row].any()):
        return (
            f"the padding row {row} of an embedding is not zero, and would move with the other rows of a product: set "
            "it to zero, or padding_idx to None"
        )
    return None
