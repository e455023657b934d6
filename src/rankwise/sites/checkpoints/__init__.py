"""Checkpoints on disk, on a server or on the Hub: opened by their headers, read by the slice, never trusted."""

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints.checkpoint import Checkpoint
from rankwise.sites.checkpoints.open import open_checkpoint
from rankwise.sites.checkpoints.region import Index
from rankwise.sites.checkpoints.series import open_series
from rankwise.sites.checkpoints.stored import Entry

__all__ = ["Checkpoint", "CheckpointError", "Entry", "Index", "open_checkpoint", "open_series"]
