"""Decay of adapters: on the update that the network feels, not on the two matrices that make it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch import Tensor

from rankwise.decay.frobenius import FrobeniusDecay
from rankwise.decay.products import Collected, LiveProduct, listed
from rankwise.decay.stacks import Task
from rankwise.errors import UserError
from rankwise.product.multipliers import Multipliers
from rankwise.sites.site import Site


class AdapterDecay(FrobeniusDecay):
    """Frobenius decay of `s B A`, the update of a LoRA adapter with its scaling `s = alpha / r`: `s^2 |B A|_F^2 / 2`.

    It is decay toward the base weights, as full fine-tuning with `|W - W_0|^2 / 2` would have it, and does not depend
    on `r` or `alpha` beyond the update. Weight decay on `B` and `A` charges the nuclear norm of `B A` instead, and
    starts from the imbalance of `B = 0`, which Frobenius decay leaves in place.

    >>> import rankwise as rw
    >>> from torch import nn
    >>> pair = nn.ModuleDict({"lora_B": nn.Linear(2, 8, bias=False), "lora_A": nn.Linear(8, 2, bias=False)})
    >>> AdapterDecay(rw.find(nn.ModuleDict({"q": pair})), coefficient=0.01)
    AdapterDecay(1 products, coefficient=0.01)
    """

    def alike(self, live: LiveProduct) -> Hashable:
        return _scaling(live.site)

    def multipliers(self, first: Tensor, inner: Sequence[Tensor], last: Tensor, task: Task) -> Multipliers:
        found, square = super().multipliers(first, inner, last, task), _scaling(task.site) ** 2
        return Multipliers(square * found.first, tuple(square * each for each in found.inner), square * found.last)

    def matrix_gradient(self, matrix: Tensor, task: Task) -> Tensor:
        return _scaling(task.site) ** 2 * super().matrix_gradient(matrix, task)

    def value_of(self, live: LiveProduct) -> Tensor:
        return _scaling(live.site) ** 2 * super().value_of(live)

    def _checked(self, collected: Collected) -> Collected:
        others = [live.name for live in collected.products if live.site is None or live.site.kind != "lora"]
        if others or collected.modules:
            others += [path for path, _ in collected.modules]
            raise UserError(
                f"{listed(others)} is no adapter: AdapterDecay acts on sites of kind 'lora' alone, FrobeniusDecay on "
                "every product"
            )
        return collected


def _scaling(site: Site | None) -> float:
    return 1.0 if site is None else site.scaling
