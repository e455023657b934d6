"""Parameter groups by what the parameters do: every parameter in exactly one, for any optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor, nn

from rankwise.decay import pending
from rankwise.decay.hooks import Groups, Scaling, StepHooks, unwrapped
from rankwise.decay.ordinary import chosen_manner
from rankwise.decay.places import Part, parts
from rankwise.decay.products import listed
from rankwise.decay.regions import RegionDecay, narrowed
from rankwise.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

BY_ROWS = "attention, by rows"


class ParameterGroups(list[dict[str, Any]]):
    """Groups for an optimizer, each with a `name`, and what they leave out.

    Arguments:
        groups: the groups.
        names: the name of every parameter in them.
        rows: for tensors whose parts decay unequally, the coefficients of their entries, to broadcast.
        frozen: names of parameters that do not learn, and so are in no group.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        names: Mapping[nn.Parameter, str],
        rows: Mapping[nn.Parameter, Tensor],
        frozen: tuple[str, ...],
    ) -> None:
        super().__init__(groups)
        self.names = dict(names)
        self.frozen = frozen
        self._rows = dict(rows)
        self._regions: list[RegionDecay] = []
        self._held: Groups | None = None
        self._hooks: StepHooks | None = None

    def attach(self, optimizer: Any, *, decoupled: bool | None = None) -> Self:
        """Apply the weight decay of tensors whose parts decay unequally, in every step of the optimizer.

        As the optimizer decays everything else: as a step of its own where the optimizer is AdamW-like, into the
        gradient where it is SGD-like. For an optimizer that is not known, `decoupled` says which.

        Arguments:
            optimizer: the optimizer that was made from these groups.
            decoupled: how, where it is not to be as the optimizer does by itself.
        """
        if self._hooks is not None:
            raise UserError("these groups are attached already: detach() them first")
        if not self._rows:
            warnings.warn("attach() has no effect: no tensor has parts that decay unequally", stacklevel=2)
            return self
        inner = unwrapped(optimizer)
        held = Groups(inner)
        held.refreshed()
        if missing := [self.names[parameter] for parameter in self._rows if parameter not in held]:
            raise UserError(f"the optimizer does not hold {listed(missing)}: attach to the one made from these groups")
        manner = chosen_manner(inner, decoupled)
        self._regions = [RegionDecay(self.names[each], each, value, manner) for each, value in self._rows.items()]
        for group in inner.param_groups:
            if pending.BY_ROWS in group:
                group["weight_decay"] = 0.0
        self._held = held
        self._hooks = StepHooks(inner, self._apply, lambda: None)
        pending.attached(inner, pending.BY_ROWS)
        pending.set_rows(inner, self._regions)
        return self

    def detach(self) -> None:
        """Stop applying it; a step of the optimizer is an error again."""
        if self._hooks is None or self._held is None:
            raise UserError("these groups are not attached to an optimizer")
        self._hooks.remove()
        pending.detached(self._held.optimizer, pending.BY_ROWS)
        pending.set_rows(self._held.optimizer, ())
        self._hooks = self._held = None

    def _apply(self) -> None:
        assert self._held is not None
        self._held.refreshed()
        scaling = Scaling.of(self._held.optimizer)
        for region in self._regions:
            group = self._held[region.parameter]
            if group.get("weight_decay", 0.0) != 0.0:
                raise UserError(
                    f"the optimizer's own weight decay is back on {region.name}, which decays by rows: keep it at 0"
                )
            region.apply(group["lr"], scaling)

    def __getstate__(self) -> dict[str, Any]:
        # Optimizers are copied without what is attached to them.
        return {**self.__dict__, "_regions": [], "_held": None, "_hooks": None}

    def table(self) -> Table:
        """One line for each group: its name, its decay, how many tensors and numbers, and some of their names."""
        from rich.table import Table
        from rich.text import Text

        count = sum(len(group["params"]) for group in self)
        table = Table(title=f"{count} parameters in {len(self)} groups")
        for column in ("group", "weight decay", "tensors", "numbers", "among them"):
            table.add_column(column, justify="right" if column in ("tensors", "numbers") else "left")
        for group in self:
            found = group["params"]
            numbers = sum(parameter.numel() for parameter in found)
            some = listed((self.names[parameter] for parameter in found), most=2)
            row = (group["name"], self._decay_of(group), str(len(found)), f"{numbers:,}", some)
            table.add_row(*map(Text, row))
        if self.frozen:
            table.add_row(*map(Text, ("in no group", "frozen", str(len(self.frozen)), "", listed(self.frozen, most=2))))
        return table

    def __rich__(self) -> Table:
        return self.table()

    def _decay_of(self, group: dict[str, Any]) -> str:
        if pending.BY_ROWS not in group:
            return f"{group['weight_decay']:g}"
        values = sorted({value for each in group["params"] for value in self._rows[each].unique().tolist()})
        how = f"attached, {self._regions[0].manner}" if self._hooks is not None else "not attached yet"
        return f"{', '.join(f'{value:g}' for value in values)} by rows, {how}"


def param_groups(
    model: nn.Module,
    *,
    weight_decay: float,
    qk: float | None = None,
    ov: float | None = None,
    mlp: float | None = None,
    embed: float | None = None,
    norm: float = 0.0,
    bias: float = 0.0,
    overrides: Mapping[str, float] | None = None,
    rows: Literal["attach"] | None = None,
) -> ParameterGroups:
    """Every parameter of a model that learns, in exactly one group with its weight decay, for any optimizer.

    Arguments:
        model: any module; what its parameters do is read from its sites.
        weight_decay: for everything that is not named below.
        qk, ov: for the weights of queries and keys, and of values and outputs.
        mlp: for feed-forward matrices, and whatever other matrices stand inside numbered layers.
        embed: for embeddings.
        norm: for gains of normalizations, and all other vectors and numbers.
        bias: for biases.
        overrides: a weight decay for the parameters whose names fit a glob; of several that fit, the last one holds.
        rows: a group cannot split a tensor, so where queries, keys and values are fused and `qk` and `ov` differ this
            raises; with "attach" those tensors come without weight decay, and `.attach(optimizer)` of what is returned
            applies it row by row. A step without it is an error.

    >>> groups = param_groups(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), weight_decay=0.1)
    >>> [(group["name"], group["weight_decay"], len(group["params"])) for group in groups]
    [('mlp', 0.1, 1), ('norm', 0.0, 2), ('bias', 0.0, 1)]
    """
    given = {"qk": qk, "ov": ov, "mlp": mlp, "embed": embed, "norm": norm, "bias": bias, "other": weight_decay}
    values = {role: weight_decay if value is None else value for role, value in given.items()}
    patterns = dict(overrides or {})
    for name, value in {**values, **patterns}.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise UserError(f"the weight decay of {name!r} must be a finite number of at least 0, got {value!r}")
    if rows not in (None, "attach"):
        raise UserError(f"rows must be 'attach' or left out, got {rows!r}")
    every = list(parts(model))
    _warn_of(every, patterns, values)
    learning = [part for part in every if part.parameter.requires_grad]
    if not learning:
        raise UserError(f"{type(model).__name__} has no parameter that learns: there is nothing to group")
    placed: dict[str, list[Part]] = {}
    uneven: dict[nn.Parameter, Tensor] = {}
    for part in learning:
        pattern = next((each for each in reversed(patterns) if fnmatchcase(part.name, each)), None)
        if pattern is None and (coefficients := _unequal(part, values, rows)) is not None:
            uneven[part.parameter] = coefficients
            placed.setdefault(BY_ROWS, []).append(part)
        else:
            placed.setdefault(pattern if pattern is not None else part.role, []).append(part)
    order = ["qk", "ov", "qk+ov", "mlp", "embed", "norm", "bias", "other", *patterns, BY_ROWS]
    groups = [_group(name, placed[name], values, patterns) for name in dict.fromkeys(order) if name in placed]
    if uneven:
        pending.watch()
    return ParameterGroups(
        groups,
        names={part.parameter: part.name for part in every},
        rows=uneven,
        frozen=tuple(part.name for part in every if not part.parameter.requires_grad),
    )


def _group(name: str, found: list[Part], values: Mapping[str, float], patterns: Mapping[str, float]) -> dict[str, Any]:
    parameters = [part.parameter for part in found]
    if name == BY_ROWS:
        return {"params": parameters, "weight_decay": pending.Pending(), "name": name, pending.BY_ROWS: 1}
    value = patterns[name] if name in patterns else values[name.partition("+")[0]]
    return {"params": parameters, "weight_decay": float(value), "name": name}


def _unequal(part: Part, values: Mapping[str, float], rows: str | None) -> Tensor | None:
    """The coefficients of a tensor whose parts decay unequally, to broadcast; None where one number is enough."""
    wanted = {values[kind] for kind in part.factors}
    if not wanted or (len(wanted) == 1 and (wanted == {values["other"]} or part.is_whole)):
        return None
    masks = {kind: part.mask(kind) for kind in part.factors}
    if len(masks) == 2 and len(wanted) == 2 and bool((masks["qk"] & masks["ov"]).any()):
        raise UserError(
            f"{part.name} serves queries and keys (qk={values['qk']:g}) and values (ov={values['ov']:g}) with the same "
            f"entries: give it one weight decay with overrides={{{part.name!r}: ...}}"
        )
    if rows is None:
        named = ", ".join(f"{kind}={values[kind]:g}" for kind in masks)
        rest = "" if part.is_whole else f", and {values['other']:g} for the rest of it"
        raise UserError(
            f"{part.name} is one tensor with parts of unequal weight decay ({named}{rest}), which a group cannot "
            "split: make them equal, or pass rows='attach' and call .attach(optimizer) on the groups"
        )
    coefficients = torch.full(part.parameter.shape, float(values["other"]))
    for kind, mask in masks.items():
        coefficients[mask] = float(values[kind])
    return narrowed(coefficients)


def _warn_of(every: list[Part], patterns: Mapping[str, float], values: Mapping[str, float]) -> None:
    idle = [pattern for pattern in patterns if not any(fnmatchcase(part.name, pattern) for part in every)]
    if idle:
        near = every[0].name if every else ""
        warnings.warn(
            f"overrides={listed(map(repr, idle))} fits no parameter; they are called like {near!r}", stacklevel=3
        )
    aside = [part.name for part in every if part.aside]
    if aside and {values["qk"], values["ov"]} != {values["other"]}:
        warnings.warn(
            f"{listed(aside, most=2)} belongs to attention but to no product that was found, so weight_decay="
            f"{values['other']:g} holds for it and neither qk nor ov; see rankwise.find(model).unread",
            stacklevel=3,
        )
