"""What every computation on a product needs: factors that hold values, and the arithmetic that its error counts on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import torch

from rankwise.errors import UserError

if TYPE_CHECKING:
    from rankwise.product.product import Product

Rest = ParamSpec("Rest")
Result = TypeVar("Result")


def computes(function: Callable[Concatenate[Product, Rest], Result]) -> Callable[Concatenate[Product, Rest], Result]:
    """Mark a function that computes with the values of its first argument, a product.

    It refuses a product on the meta device, and runs outside autocast: what is written for float32 would silently run
    in bfloat16 inside a training step with mixed precision.

    >>> from rankwise.product.product import Product
    >>> computes(lambda product: product.left.sum())(Product(torch.eye(2, device="meta")))
    Traceback (most recent call last):
    rankwise.errors.UserError: Product(2x2, float32) is on the meta device: it has shapes and no values, load them first
    """

    @wraps(function)
    def computed(product: Product, *args: Rest.args, **kwargs: Rest.kwargs) -> Result:
        if product.device.type == "meta":
            raise UserError(f"{product!r} is on the meta device: it has shapes and no values, load them first")
        with without_autocast(product.device):
            return function(product, *args, **kwargs)

    return computed


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which operations on a device run in the types that they are given."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
