"""Real images for training: a part of CIFAR-10, at half its resolution."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Images:
    """Images of mean 0 and variance 1, `[count, 3, 16, 16]`, with the number of each one's class."""

    pixels: Tensor
    labels: Tensor

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images drawn with replacement, each mirrored or not."""
        chosen = torch.randint(len(self.labels), (size,), generator=generator)
        mirrored = torch.rand(size, 1, 1, 1, generator=generator) < 0.5
        pixels = self.pixels[chosen]
        return torch.where(mirrored, pixels.flip(-1), pixels), self.labels[chosen]


def cifar(folder: Path, count: int) -> Images:
    """The first images of CIFAR-10's training set, as the Hub stores them: JPEG bytes in a Parquet file."""
    # Imported here: most tests of this folder need neither.
    from PIL import Image
    from pyarrow import parquet

    file = parquet.ParquetFile(folder / "cifar10" / "train-00000-of-00001.parquet")
    rows = next(file.iter_batches(batch_size=count)).to_pylist()
    decoded = [numpy.asarray(Image.open(io.BytesIO(row["img"]["bytes"])).convert("RGB")) for row in rows]
    pixels = torch.from_numpy(numpy.stack(decoded)).permute(0, 3, 1, 2).float()
    pixels = F.avg_pool2d(pixels, 2)
    mean, spread = pixels.mean((0, 2, 3), keepdim=True), pixels.std((0, 2, 3), keepdim=True)
    return Images((pixels - mean) / spread, torch.tensor([row["label"] for row in rows]))
