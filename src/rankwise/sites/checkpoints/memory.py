"""Memory to read tensors into: given back to the system as soon as the tensor is gone."""

from __future__ import annotations

import mmap
from contextlib import suppress

from rankwise.errors import CheckpointError

# Below this a heap allocation is reused from tensor to tensor; above it fresh pages cost more than the read itself.
LARGE = 4 * 2**20


def allocated(length: int) -> bytearray | mmap.mmap:
    """A zeroed, writable buffer of this many bytes; huge pages, where there are any, halve the cost of filling it.

    >>> len(allocated(10)), len(allocated(LARGE))
    (10, 4194304)
    """
    if length < LARGE:
        return bytearray(length)
    try:
        # Private, because shared memory gets no huge pages.
        memory = mmap.mmap(-1, length, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise CheckpointError(f"there is no memory for {length} bytes: read a part of the tensor") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel built without huge pages refuses: the memory is as good, only slower to fill.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
