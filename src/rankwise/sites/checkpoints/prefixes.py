"""Names as the model itself has them: what wrappers of training put into them is taken off, and said."""

from __future__ import annotations

from collections.abc import Sequence

# Wrappers that may stand anywhere in a name: torch.compile, FSDP, activation checkpointing.
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
# DistributedDataParallel and DataParallel wrap the whole model.
WHOLE_MODEL_PREFIX = "module."


def unwrapped(names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The name of every tensor without the parts that wrappers added, and notes of what was taken off.

    >>> unwrapped(["module.h.weight", "module.bias"])
    ({'module.h.weight': 'h.weight', 'module.bias': 'bias'}, ["prefix 'module.' taken off every name"])
    """
    renamed = {name: name for name in names}
    notes: list[str] = []
    while renamed and all(name.startswith(WHOLE_MODEL_PREFIX) for name in renamed.values()):
        renamed = {name: new.removeprefix(WHOLE_MODEL_PREFIX) for name, new in renamed.items()}
        notes.append(f"prefix '{WHOLE_MODEL_PREFIX}' taken off every name")
    for wrapper in WRAPPERS:
        changed = {name: _without_part(new, wrapper) for name, new in renamed.items()}
        if changed != renamed:
            renamed = changed
            notes.append(f"'{wrapper}.' taken out of the names")
    if len(set(renamed.values())) < len(renamed):
        return {name: name for name in names}, [
            "names were kept as stored: without their wrappers' parts two would be equal"
        ]
    return renamed, notes


def _without_part(name: str, part: str) -> str:
    parts = name.split(".")
    return ".".join(piece for piece in parts if piece != part) if part in parts else name
