"""What every decay on products shares: where it acts, how strongly, when, and what it takes over from an optimizer."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from rankwise.decay import tensorized
from rankwise.decay.attachment import Attachment, OrdinaryDecay
from rankwise.decay.hooks import Scaling
from rankwise.decay.ordinary import Manner
from rankwise.decay.products import Collected, LiveProduct, Target, collect, shared
from rankwise.decay.stacks import PLAIN, Scale, Task, add_gradients, grouped, is_wide
from rankwise.errors import UserError
from rankwise.product.multipliers import Multipliers, pulled_back
from rankwise.product.product import Product

if TYPE_CHECKING:
    from rich.table import Table

Coefficient = float | Callable[[int], float]


class Decay(ABC):
    """A penalty on products of weights, applied once in every optimizer step, from the small Grams of their factors.

    Coupled, `coefficient * gradient` is added to the parameters' gradients, after clipping; decoupled, the parameters
    move by `-rate * coefficient * gradient` with the learning rate of each one's group, beside what the optimizer does.
    Every gradient is taken at the old factors.

    Arguments:
        target: sites of a model; or a module, or modules, whose products of two factors or more are meant.
        coefficient: a number, or a function from the number of steps made to one. Without it the decay takes over what
            the optimizer to which it is attached would have applied to each parameter, and takes them out of it.
        decoupled: by default as the optimizer applies its own weight decay.
        model: where the sites' parameters are; the module that the sites were found in by default.
    """

    accumulate: ClassVar[torch.dtype] = torch.float32
    """The least type in which Grams are accumulated."""
    from_grams: ClassVar[bool] = True
    """Whether `multipliers` says it all; if not, `gradients_of` is asked for each product."""

    def __init__(
        self,
        target: Target,
        *,
        coefficient: Coefficient | None = None,
        decoupled: bool | None = None,
        model: nn.Module | None = None,
    ) -> None:
        self._collected = self._checked(collect(target, model))
        self.parameters = _named(self._collected)
        self._shared = shared(self._collected.products)
        self.coefficient = _checked_coefficient(coefficient)
        self.decoupled = decoupled
        self.steps = 0
        self._attachment: Attachment | None = None
        self._left_out: Tensor | int = 0
        self._warned = False
        self._stacks: list[list[LiveProduct]] = []
        self._stacked_for: object = None

    @abstractmethod
    def multipliers(self, first: Tensor, inner: Sequence[Tensor], last: Tensor, task: Task) -> Multipliers:
        """The gradient of the penalty from the Grams of the outer factors and the inner factors; a batch of products.

        Arguments:
            first, last: `A^T A` of the first factor and `B B^T` of the last one.
            inner: the factors between them.
            task: what the gradients are for; only methods that are no gradients, or differ by site, need to know.
        """

    @abstractmethod
    def value(self, product: Product) -> Tensor:
        """The penalty of every matrix of a stack, without its coefficient."""

    def matrix_gradient(self, matrix: Tensor, task: Task) -> Tensor:
        """The gradient by a matrix itself, for products of one factor and where forming the matrix is cheaper."""
        wide = matrix.to(torch.promote_types(matrix.dtype, self.accumulate))
        tall = wide if wide.shape[-2] >= wide.shape[-1] else wide.mT
        gram = tall.mT @ tall
        # As many of it as there are matrices: one alone would be a factor that they share.
        identity = torch.eye(tall.shape[-1], dtype=wide.dtype, device=wide.device).expand_as(gram)
        small = self.multipliers(gram, (), identity, task).first
        return tall @ small if tall is wide else (tall @ small).mT

    def gradients(self, product: Product, task: Task = PLAIN) -> tuple[Tensor, ...]:
        """The gradient of the penalty for every factor of a stack, in float32 or better.

        >>> from rankwise.decay.frobenius import FrobeniusDecay
        >>> decay = FrobeniusDecay(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)))
        >>> [each.item() for each in decay.gradients(Product(torch.tensor([[2.0]]), torch.tensor([[3.0]])))]
        [18.0, 12.0]
        """
        dtype = torch.promote_types(product.dtype, self.accumulate)
        factors = [factor.to(dtype) for factor in product.factors]
        if product.depth == 1:
            return (self.matrix_gradient(factors[0], task),)
        if is_wide([factor.shape for factor in factors]):
            wide = Product(*factors)
            return pulled_back(wide, Product(self.matrix_gradient(wide.dense(), task)))
        left, *inner, right = factors
        found = self.multipliers(left.mT @ left, inner, right @ right.mT, task)
        whole = (left @ found.first, *found.inner, found.last @ right)
        return tuple(gradient.sum_to_size(factor.shape) for gradient, factor in zip(whole, factors, strict=True))

    def gradients_of(self, live: LiveProduct, task: Task = PLAIN) -> tuple[Tensor, ...]:
        """The gradient of the penalty for every factor of one of the decay's own products."""
        return self.gradients(live.product(), replace(task, site=live.site))

    def value_of(self, live: LiveProduct) -> Tensor:
        """The penalty of every matrix of one of the decay's own products, without its coefficient."""
        return self.value(live.product())

    def module_gradients(self, module: nn.Module) -> tensorized.Gradients:
        """The gradient of the penalty for every core of a tensorized layer."""
        return tensorized.gradients(module)

    def module_value(self, module: nn.Module) -> Tensor:
        """The penalty of a tensorized layer, without its coefficient."""
        return tensorized.value(module)

    def alike(self, live: LiveProduct) -> Hashable:
        """What must be equal, besides their shapes, for products to be worked on together."""
        return ()

    # ---- where it acts

    @property
    def products(self) -> tuple[LiveProduct, ...]:
        """The products that it acts on."""
        return self._collected.products

    @torch.no_grad()
    def penalty(self) -> Tensor:
        """The sum of the penalty over all products, without the coefficient: a number to log, with no gradient."""
        values = [self.value_of(live).sum().double().cpu() for live in self.products]
        values += [self.module_value(module).double().cpu() for _, module in self._collected.modules]
        return torch.stack(values).sum()

    # ---- when it acts

    def attach(self, optimizer: Any, *, ordinary_decay: OrdinaryDecay = "refuse") -> Self:
        """Act in every step of an optimizer from now on.

        Arguments:
            optimizer: any torch optimizer that holds the parameters, also in accelerate's or Lightning's wrapper.
                Attach before a learning-rate scheduler is made: taking parameters out of the optimizer's weight decay
                may split a group.
            ordinary_decay: what becomes of the optimizer's own weight decay on these parameters where the decay has a
                coefficient of its own: "refuse" if there is any, "replace" it, or "keep" it beside this one.

        Returns:
            the decay itself; `detach()` ends it.
        """
        if self._attachment is not None:
            raise UserError(f"this {type(self).__name__} is attached already: detach() it first, or make another one")
        self._attachment = Attachment(self, optimizer, ordinary_decay)
        return self

    def detach(self) -> None:
        """Stop acting, and give the optimizer its own weight decay back."""
        if self._attachment is None:
            raise UserError(f"this {type(self).__name__} is not attached to an optimizer")
        self._attachment.remove()
        self._attachment = None

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Add `coefficient * gradient` to the parameters' gradients now, so that clipping sees it.

        Call it once a step, after the backward passes (and after `GradScaler.unscale_`), before `clip_grad_norm_`. The
        attached optimizer's step then does not add it again. Without an optimizer attached this is all there is.
        """
        if self._attachment is not None:
            self._attachment.add_early()
            return
        if self.coefficient is None:
            raise UserError(
                "there is no optimizer to take a coefficient over from: give coefficient=, or attach(optimizer)"
            )
        if self.decoupled:
            raise UserError(
                "decoupled=True asks for a step of its own, scaled by a learning rate: attach(optimizer), or leave it "
                "out to add to the gradients"
            )
        coefficient = self._current()
        self._apply("coupled", lambda parameter: coefficient, lambda parameter: None, Scaling())
        self.steps += 1

    @property
    def left_out(self) -> int:
        """How often a product was left out of a step because its gradient was not finite."""
        return int(self._left_out)

    def state_dict(self) -> dict[str, Any]:
        """The number of steps made, what was left out, and the coefficients that were taken over, by parameter name."""
        taken = self._attachment.taken if self._attachment is not None else {}
        return {
            "steps": self.steps,
            "left_out": self.left_out,
            "taken_over": {self.parameters[parameter]: value for parameter, value in taken.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; attach first, so that there is something to take the coefficients over to."""
        self.steps = int(state["steps"])
        self._left_out = int(state["left_out"])
        if self._attachment is not None:
            self._attachment.retake(state["taken_over"])

    def table(self) -> Table:
        """Who decays what: for each parameter its products, the coefficient, and the optimizer's own decay."""
        from rankwise.decay.report import decay_table

        return decay_table(self, self._attachment)

    def __rich__(self) -> Table:
        return self.table()

    def __repr__(self) -> str:
        given = "taken over" if self.coefficient is None else self.coefficient
        modules = f", {len(self._collected.modules)} modules" if self._collected.modules else ""
        return f"{type(self).__name__}({len(self.products)} products{modules}, coefficient={given})"

    def __getstate__(self) -> dict[str, Any]:
        if self._attachment is not None:
            raise UserError(
                f"this {type(self).__name__} is attached to an optimizer, and optimizers are copied without what is "
                "attached to them: save its state_dict(), or detach() it and attach the copy again"
            )
        return {**self.__dict__, "_stacks": [], "_stacked_for": None}

    # ---- how it acts

    def _checked(self, collected: Collected) -> Collected:
        """What a kind of decay cannot act on, it refuses here."""
        if collected.modules:
            raise UserError(
                f"{', '.join(path for path, _ in collected.modules[:4])} offers the closed form of the Frobenius norm "
                f"alone: {type(self).__name__} cannot act on it, FrobeniusDecay can"
            )
        return collected

    def _current(self) -> float:
        """The coefficient of the present step."""
        assert self.coefficient is not None
        if not callable(self.coefficient):
            return self.coefficient
        return _checked_number(self.coefficient(self.steps), f"the schedule at step {self.steps} gave")

    def _apply(
        self,
        manner: Manner,
        strength: Callable[[nn.Parameter], Scale],
        alike: Callable[[nn.Parameter], Hashable],
        scaling: Scaling,
    ) -> None:
        """Once: into the gradients, or onto the parameters by minus `strength`, then rate times coefficient."""
        coupled = manner == "coupled"
        # What several products share moves when all of them have been read.
        moves: dict[nn.Parameter, Tensor] = {}

        def target(parameter: nn.Parameter) -> Tensor | None:
            # Without a gradient an optimizer leaves a parameter alone, and so does its weight decay.
            if parameter.grad is None or not parameter.requires_grad:
                return None
            if coupled:
                return _aligned_gradient(parameter, self.parameters[parameter])
            if parameter not in self._shared:
                return parameter.detach()
            if parameter not in moves:
                moves[parameter] = torch.zeros_like(parameter, memory_format=torch.preserve_format).detach()
            return moves[parameter]

        def scale(parameter: nn.Parameter) -> Scale:
            found = strength(parameter) if coupled else -1 * strength(parameter)
            for factor in (scaling.kept(parameter.device), scaling.lifted(parameter.device) if coupled else None):
                found = found if factor is None else found * factor
            return found

        self.add_to(target, scale, alike)
        for parameter, move in moves.items():
            parameter.add_(move)

    def add_to(
        self,
        target: Callable[[nn.Parameter], Tensor | None],
        scale: Callable[[nn.Parameter], Scale],
        alike: Callable[[nn.Parameter], Hashable],
    ) -> None:
        """Add `scale * gradient` of every parameter to its target, which may be the parameter itself; none for None.

        Parameters with equal `alike` have equal scales.
        """
        for stack in self._by_shape(alike):
            scales = [scale(parameter) for parameter in stack[0].parameters]
            if any(isinstance(each, Tensor) or each for each in scales):
                self._count(self._add_stack(stack, scales, target))
        for _, module in self._collected.modules:
            self._count(tensorized.add_gradients(self.module_gradients(module), target, scale))

    def _add_stack(
        self, stack: list[LiveProduct], scales: Sequence[Scale], target: Callable[[nn.Parameter], Tensor | None]
    ) -> Tensor | None:
        return add_gradients(self, stack, scales, target)

    def _by_shape(self, alike: Callable[[nn.Parameter], Hashable]) -> list[list[LiveProduct]]:
        """Products of equal shapes whose factors are decayed equally, together."""
        keys = {live: tuple((alike(each), each.data_ptr()) for each in live.parameters) for live in self.products}
        if keys != self._stacked_for:
            equal = {live: tuple(one for one, _ in key) for live, key in keys.items()}
            self._stacks = grouped(self.products, lambda live: (self.alike(live), equal[live]))
            self._stacked_for = keys
        return self._stacks

    def _count(self, left_out: Tensor | None) -> None:
        if left_out is None:
            return
        if isinstance(self._left_out, Tensor):
            left_out = left_out.to(self._left_out.device)  # of a model on several
        self._left_out = self._left_out + (left_out if left_out.device.type != "cpu" else int(left_out))
        # On a GPU nobody waits for the count at every step.
        known = isinstance(self._left_out, int) or (
            self.steps % 100 == 99 and not torch.cuda.is_current_stream_capturing()
        )
        if known and not self._warned and self.left_out:
            self._warned = True
            warnings.warn(
                f"{type(self).__name__} left out {self.left_out} products whose gradient is not finite (a factor holds "
                "NaN or Inf, or is too large); it goes on with the others, see .left_out",
                stacklevel=2,
            )


def _named(collected: Collected) -> dict[nn.Parameter, str]:
    """The parameters that hold the products, and the cores of tensorized layers, with their names."""
    found: dict[nn.Parameter, str] = {}
    for product in collected.products:
        found.update(zip(product.parameters, product.names, strict=True))
    for path, module in collected.modules:
        found |= {parameter: f"{path}.{name}" for parameter, name in tensorized.cores(module).items()}
    return found


def _aligned_gradient(parameter: nn.Parameter, name: str) -> Tensor:
    """The gradient in the parameter's own memory layout; autograd lays it out so, but a user may not have."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.layout != torch.strided:
        raise UserError(
            f"{name} has sparse gradients, and decay of a product reaches every row: make the decay with "
            "decoupled=True, or the embedding with sparse=False"
        )
    if gradient.stride() != parameter.stride():
        gradient = torch.empty_strided(
            parameter.shape, parameter.stride(), dtype=gradient.dtype, device=gradient.device
        ).copy_(gradient)
        parameter.grad = gradient
    return gradient


def _checked_coefficient(coefficient: Coefficient | None) -> Coefficient | None:
    if coefficient is None or callable(coefficient):
        return coefficient
    return _checked_number(coefficient, "coefficient must be 0 or more, or a function of the step, got")


def _checked_number(value: Any, said: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise UserError(f"{said} {value!r}: a decay's coefficient is a finite number of at least 0")
    return float(value)
