"""Give the attention of a model smaller heads: what factorizing is to its projections."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from rankwise.errors import UserError
from rankwise.layers.candidates import check_module
from rankwise.layers.multihead import FactorizedMultiheadAttention
from rankwise.layers.surgery import copied

HeadSize = int | float


def shrink_heads(model: nn.Module, head_size: HeadSize | Mapping[str, HeadSize]) -> Any:
    """A copy of a model in which every `torch.nn.MultiheadAttention` has smaller heads; the model is left alone.

    The projections of attention are factors already, of `Q_h^T K_h` and `O_h V_h`, whose rank is the head size: putting
    factors in the place of each would cut it twice. Here every head's two products are cut to their leading singular
    values, and balanced; logits keep the scale of the larger heads. `rankwise.collapse` fills the heads up again.

    Attention of other libraries reads its head size from a configuration: make a model with smaller heads, and fill it
    from `rankwise.HeadWeights(...).truncated(...)`.

    Arguments:
        model: any module tree.
        head_size: the size of every head (32), the share of the size that it has (0.5, rounded down as in the paper),
            or a mapping of paths or globs to one of them, which leaves all other attention as it is.

    >>> model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    >>> small = shrink_heads(model, 0.5)
    >>> small.self_attn.head_size, small.self_attn.query.weight.shape
    (4, torch.Size([8, 16]))
    """
    check_module(model)
    sizes = head_size if isinstance(head_size, Mapping) else {"*": head_size}
    found = {name: module for name, module in model.named_modules() if type(module) is nn.MultiheadAttention}
    for glob in sizes:
        if not any(fnmatchcase(name, glob) for name in found):
            some = f": {', '.join(list(found)[:5])}" if found else ", it has none"
            raise UserError(f"'{glob}' matches no torch.nn.MultiheadAttention of the model{some}")
    replacements: dict[int, Any] = {}
    for name, module in found.items():
        size = next((size for glob, size in sizes.items() if fnmatchcase(name, glob)), None)
        if size is not None:
            replacements[id(module)] = _shrunk(name, module, size)
    small = copied(model, replacements)
    for module in small.modules():
        # Its fast path packs padded batches for a kernel that reads the weights of torch's own attention.
        if isinstance(module, nn.TransformerEncoder) and _is_among(FactorizedMultiheadAttention, module):
            module.use_nested_tensor = False
    return small


def _is_among(kind: type[nn.Module], model: nn.Module) -> bool:
    return any(isinstance(module, kind) for module in model.modules())


def _shrunk(name: str, module: nn.MultiheadAttention, size: HeadSize) -> FactorizedMultiheadAttention:
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size < math.inf:
        raise UserError(f"a head size is a whole number (32) or a share of the size that it has (0.5), got {size!r}")
    if isinstance(size, float):
        size = int(size * module.head_dim)
    try:
        return FactorizedMultiheadAttention.from_multihead(module, head_size=size)
    except UserError as error:
        raise UserError(f"{name or 'the model'}: {error}") from None
