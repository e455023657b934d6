"""Reading a checkpoint beside reading its bytes: throughput and peak memory, each way in a process of its own.

    python benchmarks/checkpoint_reading.py [--gigabytes 2] [--folder DIR]

`warm` is with the file in the page cache; `cold` asks the system to drop it first, so the disk is what is measured.
"""

from __future__ import annotations

import argparse
import mmap
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from rankwise.sites.checkpoints import open_checkpoint

WIDTH = 4096
REPEATS = 3


def plain(path: Path) -> None:
    """The floor: the bytes in order, into one buffer that is used again and again."""
    buffer = bytearray(2**24)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def rankwise(path: Path) -> None:
    """Every tensor, one after the other."""
    with open_checkpoint(path) as checkpoint:
        for name in checkpoint:
            checkpoint[name]


def rankwise_rows(path: Path) -> None:
    """Every tensor by blocks of 128 rows, as heads are read."""
    with open_checkpoint(path) as checkpoint:
        for name in checkpoint:
            for first in range(0, WIDTH, 128):
                checkpoint.read(name, (slice(first, first + 128),))


def safetensors_copies(path: Path) -> None:
    """The safetensors library, each tensor copied out of its memory map."""
    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 (it is no mapping)
            file.get_tensor(name).clone()


def memory_map(path: Path) -> None:
    """A memory map whose every page is touched: no copy is made, and every page counts as resident."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for position in range(0, len(mapped), mmap.PAGESIZE):
            mapped[position]


WAYS: dict[str, Callable[[Path], None]] = {
    way.__name__: way for way in (plain, rankwise, rankwise_rows, safetensors_copies, memory_map)
}


def measure(way: str, path: Path) -> str:
    """Seconds, and bytes of memory at its peak beyond what the process began with, as text for the parent."""
    before = peak_memory()
    start = time.perf_counter()
    WAYS[way](path)
    seconds = time.perf_counter() - start
    return f"{seconds} {peak_memory() - before}"


def peak_memory() -> int:
    """The most bytes that this process had resident; `getrusage` would count the parent's before `exec` as well."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def drop_from_cache(path: Path) -> None:
    """Ask the system to forget the file, which it does once everything is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--folder", type=Path, default=None, help="where the file is written for a while")
    parser.add_argument("--measure", nargs=2, metavar=("WAY", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(measure(given.measure[0], Path(given.measure[1])))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        path = Path(folder) / "model.safetensors"
        count = max(1, round(given.gigabytes * 1e9 / (2 * WIDTH**2)))
        save_file({f"layers.{at}.w": torch.randn(WIDTH, WIDTH).bfloat16() for at in range(count)}, path)
        size = path.stat().st_size
        print(f"{size / 1e9:.2f} GB, {count} tensors; {os.cpu_count()} cores, {platform.system()} {platform.release()}")
        print(f"{'':20} {'warm GB/s':>10} {'cold GB/s':>10} {'peak MB':>8}")
        for way in WAYS:
            speeds = {}
            for state in ("warm", "cold"):
                results = []
                for _ in range(REPEATS):
                    if state == "cold":
                        drop_from_cache(path)
                    else:
                        plain(path)
                    command = [sys.executable, __file__, "--measure", way, str(path)]
                    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                    results.append(tuple(float(number) for number in said.split()))
                speeds[state] = size / 1e9 / statistics.median(seconds for seconds, _ in results)
                peak = max(memory for _, memory in results)
            print(f"{way:20} {speeds['warm']:10.2f} {speeds['cold']:10.2f} {peak / 1e6:8.0f}")


if __name__ == "__main__":
    main()
