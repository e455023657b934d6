"""How fast checkpoints are scanned, and in how much memory.

    python benchmarks/scans.py small     a GPT-2-small, beside WeightWatcher.analyze of the same weights
    python benchmarks/scans.py large     shards of Llama-2-7B's shape: its QK and OV, beside a plain read of the files

The weights are random; what a scan does with them does not depend on their values. Files are written to a temporary
folder and removed. Every scan runs in a process of its own, whose peak of resident memory is the system's own count.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

# Llama-2-7B: a layer's attention and feed-forward weights, in bfloat16.
WIDTH, HEADS, HIDDEN = 4096, 32, 11008
READ_PIECE = 8 * 2**20


def write_llama(folder: Path, layers: int) -> int:
    """Shards of one layer each, with their index; returns the bytes written."""
    generator = torch.Generator().manual_seed(0)
    shapes = {f"self_attn.{name}_proj": (WIDTH, WIDTH) for name in "qkvo"}
    shapes |= {"mlp.gate_proj": (HIDDEN, WIDTH), "mlp.up_proj": (HIDDEN, WIDTH), "mlp.down_proj": (WIDTH, HIDDEN)}
    places, total = {}, 0
    for layer in range(layers):
        file = f"model-{layer + 1:05d}-of-{layers:05d}.safetensors"
        tensors = {}
        for name, shape in shapes.items():
            drawn = torch.randn(shape, generator=generator, dtype=torch.float32).mul_(0.02)
            tensors[f"model.layers.{layer}.{name}.weight"] = drawn.to(torch.bfloat16)
        save_file(tensors, folder / file)
        places |= dict.fromkeys(tensors, file)
        total += sum(tensor.numel() * 2 for tensor in tensors.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    config = {"model_type": "llama", "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))
    return total


def write_gpt2(folder: Path) -> None:
    """GPT-2-small with random weights."""
    from transformers import GPT2Config, GPT2Model

    quiet()
    torch.manual_seed(0)
    GPT2Model(GPT2Config()).save_pretrained(folder)


def quiet() -> None:
    """No progress bars between the lines of the benchmark."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def scanned(folder: Path, *words: str) -> dict:
    """A scan in a fresh process: its seconds by its own clock, start-up apart, and its peak of resident memory."""
    program = (
        "import json, sys, time; import rankwise as rw; "
        "from rankwise.scans.settings import Settings; import torch; torch.randn(2, 2) @ torch.randn(2, 2); "
        "start, spent = time.perf_counter(), time.process_time(); "
        "scan = rw.scan(sys.argv[1], settings=Settings.from_words(select=sys.argv[2:])); record = scan.run(); "
        "seconds, cpu = time.perf_counter() - start, time.process_time() - spent; "
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM')); "
        "print(json.dumps({'seconds': seconds, 'cpu': cpu, 'peak_mib': int(peak.split()[1]) / 1024, "
        "'products': sum(len(site['heads']) for site in record['sites'] if len(site['widths']) > 2), "
        "'matrices': sum(len(site['heads']) for site in record['sites'] if len(site['widths']) == 2)}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), *words], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def plain_read(files: list[Path]) -> float:
    """Seconds to read the files from start to end, as fast as a loop of reads does."""
    start = time.perf_counter()
    for file in files:
        with file.open("rb", buffering=0) as stream:
            while stream.read(READ_PIECE):
                pass
    return time.perf_counter() - start


def forget(files: list[Path]) -> None:
    """Drop the files from the page cache, so that the next read comes from the disk."""
    for file in files:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def large(layers: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="rankwise-bench-"))
    try:
        total = write_llama(folder, layers)
        files = sorted(folder.glob("*.safetensors"))
        attention = layers * 4 * WIDTH * WIDTH * 2
        print(
            f"{layers} layers of Llama-2-7B's shape, {total / 1e9:.2f} GB in bfloat16, "
            f"of which attention {attention / 1e9:.2f} GB",
            flush=True,
        )
        for state in ("cold", "warm"):
            if state == "cold":
                forget(files)
            read = plain_read(files)
            if state == "cold":
                forget(files)
            found = scanned(folder, "kind=qk+ov")
            print(
                f"{state}: plain read {total / read / 1e9:.2f} GB/s; scan of {found['products']} products "
                f"{attention / found['seconds'] / 1e9:.2f} GB/s of attention weights ({found['seconds']:.1f} s, "
                f"{found['cpu']:.1f} s of processor time), peak {found['peak_mib']:.0f} MiB resident",
                flush=True,
            )
    finally:
        shutil.rmtree(folder)


def small() -> None:
    folder = Path(tempfile.mkdtemp(prefix="rankwise-bench-"))
    try:
        write_gpt2(folder)
        for words in (("kind=qk+ov",), ()):
            found = scanned(folder, *words)
            what = f"{found['products']} products" + (f" and {found['matrices']} matrices" if found["matrices"] else "")
            print(
                f"rankwise scan: {what} in {found['seconds']:.1f} s ({found['cpu']:.1f} s of processor time), "
                f"peak {found['peak_mib']:.0f} MiB resident",
                flush=True,
            )
        seconds, cpu, count = weightwatcher(folder)
        print(
            f"WeightWatcher.analyze: {count} single matrices in {seconds:.1f} s ({cpu:.1f} s of processor time)",
            flush=True,
        )
    finally:
        shutil.rmtree(folder)


def weightwatcher(folder: Path) -> tuple[float, float, int]:
    """Seconds of WeightWatcher's own analysis with its defaults, by the clock and of processor time; its matrices."""
    import logging

    import weightwatcher
    from transformers import GPT2Model

    logging.disable(logging.WARNING)
    quiet()
    watcher = weightwatcher.WeightWatcher(model=GPT2Model.from_pretrained(folder))
    start, spent = time.perf_counter(), time.process_time()
    details = watcher.analyze()
    return time.perf_counter() - start, time.process_time() - spent, len(details)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=("small", "large"))
    parser.add_argument("--layers", type=int, default=8)
    chosen = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
    if chosen.which == "large":
        large(chosen.layers)
    else:
        small()


if __name__ == "__main__":
    main()
