"""How weights are read: as matrices that become products, or as tensors that become cores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, get_args

from torch import nn

from rankwise.errors import UserError
from rankwise.layers.base import Execution, check_depth, check_execution
from rankwise.layers.candidates import Candidate
from rankwise.layers.dense import Form, MatrixForm, TensorForm, is_tensor_form, matrix_of, matrix_shape_of
from rankwise.layers.initialization import check_rank
from rankwise.layers.ranks import Rank, RankRule, Shape, factor_parameters
from rankwise.layers.tensor_ranks import checked_ranks, core_parameters, kernel_ranks, matrix_ranks, near_equal_modes
from rankwise.product.measures import energy_rank
from rankwise.product.product import Product

# Below every scale that makes a rank larger than one.
_LEAST = 1e-9


class Reading(ABC):
    """What a weight is taken for, and all that follows from that for its ranks."""

    def obstacle(self, candidate: Candidate) -> str | None:
        """Why a weight cannot be read in this way, or None."""
        return None

    @abstractmethod
    def shape(self, candidate: Candidate) -> tuple[int, ...]:
        """The shape of the matrix, or the modes of the tensor."""

    @abstractmethod
    def rank_at(self, scale: float, candidate: Candidate) -> Rank:
        """The rank at a scale that all layers share: at least 1."""

    @abstractmethod
    def checked(self, rank: Rank, candidate: Candidate) -> Rank:
        """A rank that the weight can have, or one line that says why it cannot."""

    @abstractmethod
    def too_thin(self, rank: int, candidate: Candidate) -> str | None:
        """Why a weight cannot have the one rank that was asked for all, or None."""

    @abstractmethod
    def parameters(self, rank: Rank, candidate: Candidate) -> int:
        """The numbers that are stored in the weight's place."""

    @abstractmethod
    def notes(self, rank: Rank, candidate: Candidate) -> list[str]:
        """What the reader of a plan should know."""


def reading_of(
    form: Form, *, depth: int, overcomplete: bool, execution: Execution, energy: float | None, rule: RankRule | None
) -> Reading:
    """The reading that a form asks for, or one line that says which other setting has no meaning for it."""
    check_depth(depth)
    check_execution(execution)
    known = (*get_args(MatrixForm), *get_args(TensorForm))
    if form not in known:
        raise UserError(f"form must be one of {', '.join(known)}, got {form!r}")
    if not is_tensor_form(form):
        return Matrices(form=form, depth=depth, overcomplete=overcomplete, rule=rule or RankRule())
    for setting, given, why in (
        ("depth", depth != 0, "it has no inner factors"),
        ("energy", energy is not None, "its ranks belong to no single spectrum; give rank=0.2 or budget=0.1"),
        ("overcomplete", overcomplete, "a rank above what its neighbours fill is never reached"),
        ("rule", rule is not None, "a scale is a share of each of its ranks"),
    ):
        if given:
            raise UserError(f"{setting}= has no meaning for form={form!r}: {why}")
    return Tensors(form=form, execution=execution)


@dataclass(frozen=True, kw_only=True)
class Matrices(Reading):
    """Weights as matrices, which become products."""

    form: MatrixForm
    depth: int
    overcomplete: bool
    rule: RankRule

    def shape(self, candidate: Candidate) -> Shape:
        return matrix_shape_of(candidate.modules[0], self.form)

    def rank_at(self, scale: float, candidate: Candidate) -> int:
        return self.rule.rank(scale, candidate.kind, self.shape(candidate))

    def rank_that_keeps(self, energy: float, candidate: Candidate) -> int:
        """The smallest rank that keeps a share of the squared singular values."""
        matrix = matrix_of(candidate.modules[0], self.form)
        if matrix.is_meta:
            raise UserError("energy= reads the weights: the model is on the meta device, and has none")
        rank = energy_rank(Product(matrix), energy).item()
        if rank != rank:
            raise UserError(f"the weight of {candidate.names[0]} holds NaN or Inf: it has no energy to keep")
        return max(1, int(rank))

    def checked(self, rank: Any, candidate: Candidate) -> Rank:
        check_rank(rank, self.shape(candidate), overcomplete=self.overcomplete)
        return rank

    def too_thin(self, rank: int, candidate: Candidate) -> str | None:
        limit = min(self.shape(candidate))
        if self.overcomplete or rank <= limit:
            return None
        return f"its largest rank is {limit}, and {rank} were asked for"

    def parameters(self, rank: Rank, candidate: Candidate) -> int:
        assert isinstance(rank, int)
        return factor_parameters(self.shape(candidate), rank, self.depth)

    def notes(self, rank: Rank, candidate: Candidate) -> list[str]:
        assert isinstance(rank, int)
        tied = ["tied: its factors are shared"] if len(candidate.names) > 1 else []
        return [*tied, "wide"] if rank > min(self.shape(candidate)) else tied


@dataclass(frozen=True, kw_only=True)
class Tensors(Reading):
    """Weights as tensors, which become cores: the entries of a linear layer, or the kernel of a convolution."""

    form: TensorForm
    execution: Execution

    def obstacle(self, candidate: Candidate) -> str | None:
        if others := candidate.names[1:]:
            return f"it is tied to {', '.join(others)}, and cores are one layer's own: a product can be shared"
        kind = type(candidate.modules[0])
        if kind not in (nn.Linear, nn.Conv2d):
            return f"its layer is of type {kind.__name__}, which has no tensor form: it can be a product"
        if kind is nn.Linear and self.execution == "two-step":
            return "in a tensor form it would be rebuilt in every pass, and execution='two-step' was asked for"
        return None

    def shape(self, candidate: Candidate) -> tuple[int, ...]:
        if candidate.kind == "conv":
            outputs, inputs, height, width = candidate.weight_shape
            return (outputs, height, width, inputs)
        return near_equal_modes(candidate.parameters)

    def rank_at(self, scale: float, candidate: Candidate) -> tuple[int, ...]:
        share = kernel_ranks if candidate.kind == "conv" else matrix_ranks
        return share(self.form, self.shape(candidate), scale or _LEAST)

    def checked(self, rank: Rank, candidate: Candidate) -> Rank:
        return checked_ranks(self.form, self.shape(candidate), rank)

    def too_thin(self, rank: int, candidate: Candidate) -> str | None:
        try:
            checked_ranks(self.form, self.shape(candidate), rank)
        except UserError as error:
            return str(error)
        return None

    def parameters(self, rank: Rank, candidate: Candidate) -> int:
        assert isinstance(rank, tuple)
        return core_parameters(self.form, self.shape(candidate), rank)

    def notes(self, rank: Rank, candidate: Candidate) -> list[str]:
        if candidate.kind == "conv":
            return []
        return [f"modes {'x'.join(map(str, self.shape(candidate)))}, rebuilt in every pass"]
