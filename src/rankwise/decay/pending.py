"""Weight decay that is still to be attached: nobody can step past it unaware."""

from __future__ import annotations

from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rankwise.errors import UserError

MARK = "rows"
"""The key of a group whose weight decay differs inside its tensors; it stays there, and in saved states."""

_attached: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
_watching = False


class Pending:
    """Stands where a group's weight decay will stand, and refuses to be reckoned with until it is attached."""

    def __repr__(self) -> str:
        return "by rows, not attached yet"

    def _refuse(self, *_: Any) -> NoReturn:
        raise UserError(
            "the weight decay of a group differs inside its tensors, and nothing applies it yet: call "
            "groups.attach(optimizer) on what rankwise.param_groups returned"
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _refuse
    __float__ = __int__ = __index__ = _refuse
    __hash__ = object.__hash__


def watch() -> None:
    """From now on every step of an optimizer that has such groups, and nothing attached for them, is an error.

    The groups' own refusal does not reach a fused optimizer, which hands its options to a kernel, nor one whose saved
    state has replaced them.
    """
    global _watching
    if not _watching:
        register_optimizer_step_pre_hook(_check)
        _watching = True


def mark_attached(optimizer: Optimizer, change: int) -> None:
    """Count what is attached to an optimizer for its marked groups."""
    _attached[optimizer] = _attached.get(optimizer, 0) + change


def _check(optimizer: Optimizer, *_: Any) -> None:
    if any(MARK in group for group in optimizer.param_groups) and not _attached.get(optimizer, 0):
        Pending()._refuse()
