"""What all tensorized layers share: a weight kept as the cores of a tensor form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rankwise.errors import UserError
from rankwise.layers.decompositions import decomposed
from rankwise.layers.initialization import Draw, Init, Spectral, checked_init
from rankwise.layers.tensor_ranks import KINDS, LISTS, Form, checked_form, checked_ranks, core_shapes
from rankwise.product.product import Product
from rankwise.product.tensor_forms import TensorForm


class TensorizedLayer(nn.Module):
    """A layer whose weight, read as a tensor, is kept as cores: CP, Tucker or tensor train.

    The cores are parameters named after their form (`cp_cores.0`, `tucker_cores.0`, `tensor_train_cores.0`, ...).
    `rankwise.find` lists them as unread: the weight is no product of matrices that are stored. Decay reaches it through
    `frobenius_penalty`.

    Arguments:
        modes: the size of every mode.
        form: "cp", "tucker" or "tensor-train".
        ranks: the ranks, as `checked_ranks` takes them.
        init: how the cores start: "spectral" decomposes a dense weight, `Spectral(draw=...)` one drawn by a function; a
            function alone fills every core for itself.
    """

    init: Spectral | Draw
    bias: nn.Parameter | None

    def __init__(
        self,
        modes: Sequence[int],
        *,
        form: Form,
        ranks: int | Sequence[int],
        init: Init,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.modes = tuple(modes)
        self.form: Form = checked_form(form)
        self.ranks = checked_ranks(form, self.modes, ranks)
        self.init = _checked(init)
        shapes = core_shapes(form, self.modes, self.ranks)
        cores = nn.ParameterList(nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) for shape in shapes)
        setattr(self, LISTS[form], cores)

    @property
    def cores(self) -> nn.ParameterList:
        """The parameters of the form, in its own order."""
        return getattr(self, LISTS[self.form])

    @property
    def tensor(self) -> TensorForm:
        """The live cores as the tensor that they stand for."""
        return KINDS[self.form](tuple(self.cores))

    @property
    def product(self) -> Product:
        """The tensor, cut in the middle of its modes, as a product of two factors: what has a spectrum.

        Of a kernel it is the spatial matrix, its columns in another order. It is a product of contracted cores, not of
        parameters, and so no site.
        """
        return self.tensor.unfolded(len(self.modes) // 2)

    @property
    def weight(self) -> Tensor:
        """The dense weight in the dense layer's own shape, computed anew and differentiable."""
        return self._as_weight(self.tensor.dense())

    def frobenius_penalty(self) -> Tensor:
        """Half the squared Frobenius norm of the tensor, differentiable, from the cores' Grams alone."""
        return self.tensor.frobenius_penalty()

    @torch.no_grad()
    def fold(self) -> nn.Module:
        """The ordinary dense layer with the same function: the weight is computed in float64, and cast back."""
        dense = self._dense_layer(device="meta")
        weight = self._as_weight(self.tensor.to(torch.float64).dense()).to(self.tensor.dtype)
        dense.weight = nn.Parameter(weight.contiguous(), requires_grad=any(core.requires_grad for core in self.cores))
        if self.bias is not None:
            dense.bias = nn.Parameter(self.bias.detach().clone(), requires_grad=self.bias.requires_grad)
        return dense.train(self.training)

    def reset_parameters(self) -> None:
        """Draw a dense layer in its own scheme and start from it, as a new layer does."""
        if self.cores[0].device.type != "meta":
            self._start_from(self._dense_layer(device=self.cores[0].device))

    @torch.no_grad()
    def _start_from(self, dense: Any) -> None:
        """Take the weight and the bias of a dense layer of the same configuration."""
        self._start_cores(dense.weight.detach())
        for core in self.cores:
            core.requires_grad_(dense.weight.requires_grad)
        if self.bias is not None:
            self.bias.copy_(dense.bias)
            self.bias.requires_grad_(dense.bias.requires_grad)

    def _start_cores(self, weight: Tensor) -> None:
        """Decompose a weight of the dense layer's shape, or fill each core, as `init` says."""
        if not isinstance(self.init, Spectral):
            for core in self.cores:
                self.init(core)
            return
        if self.init.draw is not None:
            weight = torch.empty_like(weight)
            self.init.draw(weight)
        for core, value in zip(
            self.cores, decomposed(self._as_tensor(weight), self.form, self.ranks).cores, strict=True
        ):
            core.copy_(value)

    def settle(self, dense: Any) -> Any:
        """Move from the meta device to that of a dense layer, and start from its weight."""
        self.to_empty(device=dense.weight.device)
        if dense.weight.device.type != "meta":
            self._start_from(dense)
        return self.train(dense.training)

    @abstractmethod
    def _dense_layer(self, device: torch.device | str) -> Any:
        """An ordinary layer of the same configuration, freshly drawn unless on the meta device."""

    def _as_tensor(self, weight: Tensor) -> Tensor:
        """A dense weight as the tensor that is decomposed."""
        return weight.reshape(self.modes)

    @abstractmethod
    def _as_weight(self, tensor: Tensor) -> Tensor:
        """The tensor as a dense weight."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"

    def _words(self) -> str:
        modes, ranks = ("x".join(map(str, sizes)) for sizes in (self.modes, self.ranks))
        return f"form={self.form!r}, modes={modes}, ranks={ranks}, bias={self.bias is not None}"


def chosen_ranks(ranks: int | Sequence[int] | None, scale: float | None, rule: Any) -> int | Sequence[int]:
    """The ranks that were given, or those that a rule makes of a rank scale: one of the two."""
    if (ranks is None) == (scale is None):
        raise UserError("a tensorized layer needs one of ranks= and scale=: for example ranks=8 or scale=0.2")
    return ranks if ranks is not None else rule(scale)


def _checked(init: Init) -> Spectral | Draw:
    checked = checked_init(init)
    if isinstance(checked, Spectral) and checked != Spectral(draw=checked.draw):
        raise UserError(
            "a tensor form has no singular values to set and no inner factors: of Spectral(...) only draw= has a "
            f"meaning for a tensorized layer, got {checked}"
        )
    return checked
