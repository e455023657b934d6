"""FLAMBe: LAMB with Frobenius decay of products in place of weight decay of their factors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from rankwise.decay.frobenius import FrobeniusDecay
from rankwise.decay.lamb import Adapted, Lamb
from rankwise.decay.products import Target, covered, listed, per_parameter
from rankwise.decay.regions import narrowed
from rankwise.errors import UserError


class FLAMBe(Lamb):
    """LAMB whose decay of the given products is Frobenius decay, inside the update that the trust ratio scales.

        u = m / (sqrt(v) + eps) + weight_decay * dF/dp,   F = sum |A B|_F^2 / 2 over the products,

    for the factors, and LAMB's own `weight_decay * p` for everything else, also for the part of a tensor that no factor
    covers. It is not LAMB with a Frobenius decay attached to its steps: that one knows nothing of the trust ratio.

    The name is that of Khodak et al. (2021), whose code for BERT was not released. That the term stands inside the
    update, where LAMB's weight decay stands, is our reading of the method from memory of the paper, not of its code.

    Arguments:
        params: parameters, or groups of them; a group's `weight_decay` is the coefficient of the products in it.
        products: sites, a module, or modules, as for `FrobeniusDecay`.
        model: where the sites' parameters are; the module that the sites were found in by default.
        others: as for `Lamb`.

    >>> layer = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False))
    >>> FLAMBe(layer.parameters(), layer, lr=1e-3, weight_decay=0.01).decay
    FrobeniusDecay(1 products, coefficient=1.0)
    """

    def __init__(
        self,
        params: Any,
        products: Target,
        lr: float | Tensor = 1e-3,
        *,
        model: nn.Module | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
        grad_averaging: bool = True,
        max_grad_norm: float | None = None,
        max_trust_ratio: float | None = None,
        adapted: Adapted = "decayed",
    ) -> None:
        super().__init__(
            params,
            lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            bias_correction=bias_correction,
            grad_averaging=grad_averaging,
            max_grad_norm=max_grad_norm,
            max_trust_ratio=max_trust_ratio,
            adapted=adapted,
        )
        self.decay = FrobeniusDecay(products, coefficient=1.0, model=model)
        held = {parameter for group in self.param_groups for parameter in group["params"]}
        missing = [name for each, name in self.decay.parameters.items() if each.requires_grad and each not in held]
        if missing:
            raise UserError(f"the optimizer was not given {listed(missing)}, which the products lie in")
        rests = {each: ~covered(each, factors) for each, factors in per_parameter(self.decay.products).items()}
        self._rest = {each: narrowed(rest.float()) for each, rest in rests.items() if bool(rest.any())}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "decay": self.decay, "_rest": self._rest}

    def _decay(self, groups: Iterable[tuple[dict[str, Any], list[nn.Parameter]]], updates: dict[Any, Tensor]) -> None:
        groups = list(groups)
        ours = self.decay.parameters
        super()._decay([(group, [each for each in found if each not in ours]) for group, found in groups], updates)
        strength = {parameter: group["weight_decay"] for group, found in groups for parameter in found}
        for parameter, rest in self._rest.items():
            if parameter in updates and strength[parameter]:
                updates[parameter].add_(parameter * (strength[parameter] * rest.to(parameter)))
        self.decay.add_to(updates.get, lambda parameter: strength.get(parameter, 0.0), strength.get)
