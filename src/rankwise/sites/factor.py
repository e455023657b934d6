"""Where one factor of a product lies inside a named tensor, as a view."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from einops import EinopsError, rearrange
from torch import Tensor

from rankwise.errors import UserError


class LayoutError(UserError):
    """A layout does not fit a parameter: the text shows the parameter, its shape and the pattern."""


@dataclass(frozen=True)
class Factor:
    """One factor of a product: a parameter, the rows of it, and an einops pattern that only splits and permutes.

    Arguments:
        parameter: the name of the tensor.
        pattern: an einops pattern from the stored axes to `[*batch, rows, columns]`; an axis called `part` numbers the
            pieces of a fused tensor.
        sizes: the sizes of the named axes that the shape alone does not tell.
        rows: first and last-but-one row of the stored tensor that belong to this factor; all of them by default.
        take: which pieces of the `part` axis: a number drops the axis, a pair `(start, stop)` keeps that range.

    >>> fused = torch.arange(24.0).reshape(6, 4)
    >>> Factor("qkv", "(h part r) d -> h part r d", sizes={"h": 1, "part": 3}, take=1).view(fused).shape
    torch.Size([1, 2, 4])
    """

    parameter: str
    pattern: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    rows: tuple[int, int] | None = None
    take: int | tuple[int, int] | None = None

    def view(self, tensor: Tensor) -> Tensor:
        """The factor as a view of the stored tensor, so that in-place writes reach the parameter."""
        if self.rows is not None:
            first, last = self.rows
            if not 0 <= first < last <= tensor.shape[0]:
                raise LayoutError(
                    f"{self.parameter} has shape {tuple(tensor.shape)}: rows {first} to {last} do not lie inside it"
                )
            tensor = tensor[first:last]
        return self.arrange(tensor)

    def arrange(self, tensor: Tensor) -> Tensor:
        """Split, permute and take, given the tensor's rows that belong to this factor."""
        used = {axis: size for axis, size in self.sizes.items() if axis in self.stored_axes}
        try:
            result = rearrange(tensor, self.pattern, **used)
        except EinopsError as error:
            cause = str(error).strip().splitlines()[-1].strip()
            sizes = ", ".join(f"{axis} = {size}" for axis, size in used.items())
            raise LayoutError(
                f"the pattern '{self.pattern}' with {sizes or 'no sizes'} does not fit {self.parameter} "
                f"of shape {tuple(tensor.shape)}: {cause}"
            ) from None
        if self.take is not None:
            axis = self.target_axes.index("part")
            start, stop = self.take if isinstance(self.take, tuple) else (self.take, self.take + 1)
            if not 0 <= start < stop <= result.shape[axis]:
                raise LayoutError(
                    f"{self.parameter} has {result.shape[axis]} parts under '{self.pattern}': there is no {self.take}"
                )
            result = result.narrow(axis, start, stop - start)
            if isinstance(self.take, int):
                result = result.squeeze(axis)
        if tensor.device.type != "meta" and result.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr():
            raise LayoutError(
                f"the pattern '{self.pattern}' copies {self.parameter} of shape {tuple(tensor.shape)}: a factor must "
                "be a view, so a pattern may split and permute axes but not merge permuted ones"
            )
        return result

    def shape(self, stored: tuple[int, ...]) -> torch.Size:
        """The shape of the factor for a stored shape, or a `LayoutError` where they do not fit."""
        return self.view(torch.empty(stored, device="meta")).shape

    @property
    def stored_axes(self) -> list[str]:
        """The named axes on the stored side of the pattern."""
        return re.findall(r"[A-Za-z_]+", self.pattern.split("->")[0])

    @property
    def target_axes(self) -> list[str]:
        """The axes of the result, unit axes included, before a number is taken from `part`."""
        return self.pattern.split("->")[1].split()

    @property
    def axes(self) -> list[str]:
        """The axes of the factor: the target's, without `part` where one piece was taken."""
        return [axis for axis in self.target_axes if not (axis == "part" and isinstance(self.take, int))]
