"""Tables of who decays what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankwise.decay.products import per_parameter

if TYPE_CHECKING:
    from rich.table import Table

    from rankwise.decay.attachment import Attachment
    from rankwise.decay.base import Decay


def decay_table(decay: Decay, attachment: Attachment | None) -> Table:
    """One line for each parameter: the products in it, what decays them, and what is left to the optimizer."""
    from rich.table import Table
    from rich.text import Text

    manner = "not attached" if attachment is None else attachment.manner
    table = Table(title=f"{type(decay).__name__}, {manner}, {decay.steps} steps")
    for column in ("parameter", "products", "coefficient", "the rest of it", "the optimizer's own"):
        table.add_column(column)
    products = per_parameter(decay.products)
    for parameter, name in decay.parameters.items():
        inside = ", ".join(dict.fromkeys(live.name for live, _ in products.get(parameter, ()))) or "tensorized"
        row = (name, inside, _coefficient(decay, attachment, parameter), *_ordinary(attachment, parameter))
        table.add_row(*map(Text, row))
    return table


def _coefficient(decay: Decay, attachment: Attachment | None, parameter: object) -> str:
    if not getattr(parameter, "requires_grad", True):
        return "frozen"
    if decay.coefficient is None:
        taken = {} if attachment is None else attachment.taken
        return f"{taken.get(parameter, 0.0):g}, taken over" if attachment is not None else "to be taken over"  # pyright: ignore[reportArgumentType, reportCallIssue]
    scheduled = " now, by its schedule" if callable(decay.coefficient) else ""
    return f"{decay._current():g}{scheduled}"


def _ordinary(attachment: Attachment | None, parameter: object) -> tuple[str, str]:
    if attachment is None or parameter not in attachment.groups:
        return "", ""
    regions = [region for region in attachment.regions if region.parameter is parameter]
    rest = ", ".join(f"{region.values[0]:g} on {region.share:.0%}, {region.manner}" for region in regions)
    return rest, f"{float(attachment.groups[parameter].get('weight_decay', 0.0)):g}"  # pyright: ignore[reportArgumentType]
