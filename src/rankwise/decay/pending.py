"""Weight decay that is still to be attached: nobody can step past it unaware."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakKeyDictionary

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rankwise.errors import UserError

if TYPE_CHECKING:
    from rankwise.decay.regions import RegionDecay

BY_ROWS = "rows"
"""The key of a group whose weight decay differs inside its tensors; it stays there, and in saved states."""
AS_PRODUCTS = "decayed_as_products"
"""The key of a group with parameters that a decay on products acts on."""

_MISSING = {
    BY_ROWS: (
        "the weight decay of a group differs inside its tensors, and nothing applies it yet: call "
        "groups.attach(optimizer) on what rankwise.param_groups returned"
    ),
    AS_PRODUCTS: (
        "a group's parameters were decayed as products, and no decay is attached to this optimizer (a copy? a "
        f"loaded state?): attach one again, or delete {AS_PRODUCTS!r} from its groups and set their weight_decay"
    ),
}
_attached: WeakKeyDictionary[Optimizer, dict[str, int]] = WeakKeyDictionary()
_rows: WeakKeyDictionary[Optimizer, list[RegionDecay]] = WeakKeyDictionary()
_watching = False


class Pending:
    """Stands where a group's weight decay will stand, and refuses to be reckoned with until it is attached."""

    def __repr__(self) -> str:
        return "by rows, not attached yet"

    def _refuse(self, *_: Any) -> NoReturn:
        raise UserError(_MISSING[BY_ROWS])

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _refuse
    __float__ = __int__ = __index__ = _refuse
    __hash__ = object.__hash__


def watch() -> None:
    """From now on every step of an optimizer that has marked groups, and nothing attached for them, is an error.

    The groups' own refusal does not reach a fused optimizer, which hands its options to a kernel, nor one whose saved
    state has replaced them; and a copy of an optimizer has its groups, but not its hooks.
    """
    global _watching
    if not _watching:
        register_optimizer_step_pre_hook(_check)
        _watching = True


def attached(optimizer: Optimizer, mark: str, groups: Iterable[dict[str, Any]] = ()) -> None:
    """Count one more that is attached to an optimizer for the groups of a mark, and mark some more groups."""
    counts = _attached.setdefault(optimizer, {})
    counts[mark] = counts.get(mark, 0) + 1
    for group in groups:
        group[mark] = 1
    watch()


def detached(optimizer: Optimizer, mark: str, *, forget: bool = False) -> None:
    """Count one less; with `forget`, groups lose the mark with the last one."""
    _attached[optimizer][mark] -= 1
    if forget and not _attached[optimizer][mark]:
        for group in optimizer.param_groups:
            group.pop(mark, None)


def set_rows(optimizer: Optimizer, regions: Sequence[RegionDecay]) -> None:
    """Say what decays by rows in the steps of an optimizer."""
    _rows[optimizer] = list(regions)


def rows_of(optimizer: Optimizer) -> Sequence[RegionDecay]:
    """What decays by rows in the steps of an optimizer."""
    return _rows.get(optimizer, ())


def _check(optimizer: Optimizer, *_: Any) -> None:
    for mark, text in _MISSING.items():
        if any(mark in group for group in optimizer.param_groups) and not _attached.get(optimizer, {}).get(mark):
            raise UserError(text)
