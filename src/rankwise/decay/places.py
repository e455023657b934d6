"""What part every parameter of a model plays: query and key, value and output, feed-forward, gain, bias."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rankwise.sites.factor import Factor
from rankwise.sites.find import find
from rankwise.sites.singles import is_matrix, looks_like_attention

_BIAS = re.compile(r"(.*_)?bias(_[a-z]+)?|b_[a-z]+", re.IGNORECASE)
_NORM = re.compile("norm", re.IGNORECASE)
_ATTENTION = ("qk", "ov")
_OWN = ("mlp", "embed")
_ADDED = ("lora", "linear", "conv")


@dataclass(frozen=True)
class Part:
    """One parameter and its part.

    Arguments:
        name: the parameter's (first) name.
        parameter: the parameter.
        role: qk, ov, mlp, embed, norm, bias or other; "qk+ov" where both kinds of products lie in it.
        factors: for roles qk and ov, where they lie.
        aside: an attention matrix that no site covers.
    """

    name: str
    parameter: nn.Parameter
    role: str
    factors: dict[str, list[Factor]] = field(default_factory=dict)
    aside: bool = False

    def mask(self, kind: str) -> Tensor:
        """Which entries of the parameter belong to the products of a kind."""
        found = torch.zeros(self.parameter.shape, dtype=torch.bool)
        for factor in self.factors.get(kind, ()):
            factor.view(found).fill_(True)
        return found

    @property
    def is_whole(self) -> bool:
        """Whether the products cover every entry."""
        return bool((self.mask("qk") | self.mask("ov")).all())


def parts(model: nn.Module) -> Iterator[Part]:
    """Every parameter of a model, once, with the part it plays.

    Matrices play the part of the site that they lie in. A bias is what is called one and holds no matrix; gains of
    normalizations, and all other vectors and numbers, are "norm".
    """
    factors: dict[str, dict[str, list[Factor]]] = {}
    kinds: dict[str, str] = {}
    sites = find(model)
    for site in sites:
        for factor in site.factors:
            name = sites.tied.get(factor.parameter, factor.parameter)
            kinds.setdefault(name, site.kind)
            if site.kind in _ATTENTION:
                factors.setdefault(name, {}).setdefault(site.kind, []).append(factor)
    norms = {
        id(parameter)
        for module in model.modules()
        if _NORM.search(type(module).__name__)
        for parameter in module.parameters(recurse=False)
    }
    for name, parameter in model.named_parameters():
        inside = factors.get(name, {})
        if inside:
            yield Part(name, parameter, "+".join(kind for kind in _ATTENTION if kind in inside), inside)
        elif not is_matrix(tuple(parameter.shape)):
            is_bias = id(parameter) not in norms and _BIAS.fullmatch(name.rpartition(".")[2])
            yield Part(name, parameter, "bias" if is_bias else "norm")
        else:
            kind = kinds.get(name, "other")
            aside = kind not in _ADDED and looks_like_attention(name)
            yield Part(name, parameter, kind if kind in _OWN else "other", aside=aside)
