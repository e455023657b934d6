"""Many small computations on all cores: torch loops over a batch of decompositions on one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

Task = TypeVar("Task")
Result = TypeVar("Result")

# Below this many matrices for each thread, starting the threads costs more than they save.
SMALLEST_SHARE = 4


def share_out(function: Callable[[Task], Result], tasks: Sequence[Task], device: torch.device) -> list[Result]:
    """Call a function on every task, with as many threads as torch has, and return the results in order.

    Torch releases the interpreter while it computes. Each thread computes on one core of its own, so they never wait
    for one another. On a GPU, and with fewer tasks than would keep all threads busy, the tasks run one after another.

    >>> share_out(lambda number: number**2, [1, 2, 3], torch.device("cpu"))
    [1, 4, 9]
    """
    workers = torch.get_num_threads()
    if device.type != "cpu" or workers < 2 or len(tasks) < workers:
        return [function(task) for task in tasks]
    # Modes belong to a thread: tensors made in inference mode may be written to in inference mode alone.
    quiet = torch.inference_mode() if torch.is_inference_mode_enabled() else torch.no_grad()
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(quiet(function), tasks))


def on_all_cores(decompose: Callable[[Tensor], Tensor], matrices: Tensor) -> Tensor:
    """Apply a batched function to `[*batch, m, n]`, the batch shared out over the cores.

    >>> on_all_cores(torch.linalg.eigvalsh, torch.eye(2).expand(64, 2, 2)).shape
    torch.Size([64, 2])
    """
    batch = matrices.shape[:-2]
    shares = min(torch.get_num_threads(), batch.numel() // SMALLEST_SHARE)
    if matrices.device.type != "cpu" or shares < 2:
        return decompose(matrices)
    parts = matrices.reshape(-1, *matrices.shape[-2:]).tensor_split(shares)
    results = torch.cat(share_out(decompose, parts, matrices.device))
    return results.reshape(*batch, *results.shape[1:])
