"""What the null model says of a spectrum: spikes, collapse, or nothing but random initialization."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankwise.errors import UserError
from rankwise.product.measures import effective_rank, relative
from rankwise.product.null import NullModel, ScaledNull
from rankwise.product.spectrum import Spectrum

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

# A spectrum is collapsed when its effective rank is below this share of a random product's.
COLLAPSED_SHARE = 0.5
# A spectrum looks random when it is within this many standard deviations of the null, in root mean square over ranks.
# Random products themselves lie near 1, and beyond 3 less than once in a hundred. Above 256 values, where the null is
# drawn to scale and its spread is too large, they lie lower, and the verdict is the more lenient.
RANDOM_DISTANCE = 3.0


def spikes(spectrum: Spectrum, null: NullModel | ScaledNull) -> Float[Tensor, "*batch"]:
    """How many singular values stand above the edge of the null, their errors taken off; NaN where the spectrum failed.

    Arguments:
        spectrum: any batch.
        null: scaled to the product, `null.scaled(p)`; a bare model is scaled to the spectrum's own Frobenius norm,
            which counts fewer since the spikes are part of that norm.

    >>> from rankwise.product.null import null_model
    >>> from rankwise.product.product import Product
    >>> flat = Product(torch.diag(torch.tensor([9.0] + [1.0] * 7))).spectrum()
    >>> spikes(flat, null_model((8, 8))).item()
    1.0
    """
    scaled = _scaled(spectrum, null)
    count = (spectrum.values - spectrum.error > scaled.edge[..., None]).sum(-1).to(spectrum.values.dtype)
    return torch.where(spectrum.values[..., 0].isnan(), torch.nan, count)


def rank_share(spectrum: Spectrum, null: NullModel | ScaledNull) -> Float[Tensor, "*batch"]:
    """The effective rank over that of random factors of the same widths."""
    model = _scaled(spectrum, null).model
    return effective_rank(spectrum) / model.value("effective_rank").mean


def collapsed(spectrum: Spectrum, null: NullModel | ScaledNull) -> Bool[Tensor, "*batch"]:
    """Whether `rank_share` is below one half; a spectrum that failed is not called collapsed."""
    return rank_share(spectrum, null) < COLLAPSED_SHARE


def random_distance(spectrum: Spectrum, null: NullModel | ScaledNull) -> Float[Tensor, "*batch"]:
    """The distance of a spectrum from random factors', in units of their own spread.

        sqrt(mean_i ((s_i / |s| - mean_i) / spread_i)^2),

    with the mean and spread of `s_i / |s|` over random products: the scale does not enter. Near 1 for a random product.
    """
    model = _scaled(spectrum, null).model
    drawn = _normalised(model.values).to(spectrum.values.device)
    deviation = (_normalised(spectrum.values) - drawn.mean(0)) / drawn.std(0).clamp_min(torch.finfo(torch.float64).eps)
    return deviation.square().mean(-1).sqrt()


def looks_random(spectrum: Spectrum, null: NullModel | ScaledNull) -> Bool[Tensor, "*batch"]:
    """Whether `random_distance` is below 3; a spectrum that failed is not called random."""
    return random_distance(spectrum, null) < RANDOM_DISTANCE


def _scaled(spectrum: Spectrum, null: NullModel | ScaledNull) -> ScaledNull:
    model = null.model if isinstance(null, ScaledNull) else null
    count = spectrum.values.shape[-1]
    if min(model.widths) != count:
        raise UserError(f"a spectrum of {count} values was held against a null for widths {model.widths}: give its own")
    return null if isinstance(null, ScaledNull) else null.scaled(spectrum)


def _normalised(values: Tensor) -> Tensor:
    values = relative(values)
    norm = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
    return values / torch.where(norm > 0, norm, 1.0)
