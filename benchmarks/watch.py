"""What watching costs: a GPT-2-small in training, with the monitor at every step, at every tenth, and without it.

    python benchmarks/watch.py training              on this machine's cores; --rounds, --batch, --length, --threads
    python benchmarks/watch.py opening               how fast a run of 10,000 snapshots of 288 products opens

The three ways take turns within one run, ten steps each, so that whatever else the machine does falls on all of them
alike; rounds are compared with one another, and the median of their ratios is printed, of the clock and of processor
time, which depends less on who else computes. The weights of the runs of `opening` are made up;
their files are as large as real ones.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import rankwise as rw
from rankwise.watch.log import Entry
from rankwise.watch.rows import columns, written
from rankwise.watch.store import create

WIDTH, HEADS, LAYERS, VOCABULARY, CONTEXT = 768, 12, 12, 50257, 1024
ROUND = 10
MEASURES = ("effective_rank", "stable_rank", "nuclear_norm", "frobenius_norm", "operator_norm")


class CausalSelfAttention(nn.Module):
    """Queries, keys and values in one layer, as in GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.n_embd, self.n_head = WIDTH, HEADS
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        heads = (one.unflatten(-1, (HEADS, -1)).movedim(-2, -3) for one in self.c_attn(tokens).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.c_proj(mixed.movedim(-3, -2).flatten(-2))


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = CausalSelfAttention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attn(self.ln_1(hidden))
        return hidden + self.mlp(self.ln_2(hidden))


class GPT(nn.Module):
    """The shape of GPT-2-small, 124 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            hidden = block(hidden)
        return F.cross_entropy(self.lm_head(self.ln_f(hidden)).flatten(0, 1), targets.flatten())


def training(*, rounds: int, batch: int, length: int, device: str) -> None:
    """Time rounds of ten steps, the ways in turn."""
    torch.manual_seed(0)
    model = GPT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    folder = Path(tempfile.mkdtemp())
    ways = {"off": None, "every 10": 10, "every step": 1}
    monitors = {
        name: None if every is None else rw.Monitor(model, run=folder / name, every=every, optimizer=optimizer)
        for name, every in ways.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    processor: dict[str, list[float]] = {name: [] for name in ways}
    counts = dict.fromkeys(ways, 0)

    def step(monitor: rw.Monitor | None, number: int) -> None:
        tokens = torch.randint(VOCABULARY, (batch, length + 1), device=device)
        loss = model(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if monitor is not None:
            monitor.step(number, loss=loss)

    step(None, 0)
    try:
        for _ in range(rounds):
            for name, monitor in monitors.items():
                began, busy = time.perf_counter(), time.process_time()
                for _ in range(ROUND):
                    step(monitor, counts[name])
                    counts[name] += 1
                if monitor is not None:
                    # What it has put off is its cost as well.
                    monitor.flush()
                if device == "cuda":
                    torch.cuda.synchronize()
                seconds[name].append((time.perf_counter() - began) / ROUND)
                processor[name].append((time.process_time() - busy) / ROUND)
                print(
                    f"  {name:>10}: {seconds[name][-1]:.3f} s a step, {processor[name][-1]:.3f} s of processors",
                    flush=True,
                )
        print(f"\n{machine()}, batches of {batch} x {length} tokens, {rounds} rounds of {ROUND} steps, 288 products")
        for name, monitor in monitors.items():
            line = f"{name:>10}: {statistics.median(seconds[name]):.3f} s a step"
            if monitor is not None:
                monitor.close()
                clock, busy = (
                    statistics.median(one / other - 1 for one, other in zip(taken[name], taken["off"], strict=True))
                    for taken in (seconds, processor)
                )
                costs = [entry.seconds for entry in rw.open_run(folder / name).snapshots]
                here, worker = (1e3 * statistics.median(cost[key] for cost in costs) for key in ("step", "worker"))
                line += (
                    f", {clock:+.2%} by the clock, {busy:+.2%} in processor time, {monitor.overhead:.2%} by its own "
                    f"count; a snapshot takes {here:.0f} ms of the step and {worker:.0f} ms of a core beside it"
                )
            print(line)
    finally:
        for monitor in monitors.values():
            if monitor is not None:
                monitor.close()
        shutil.rmtree(folder)


def opening(*, snapshots: int) -> None:
    """Write a long run as fast as the disk lets, and time how it is opened and read."""
    folder = Path(tempfile.mkdtemp())
    try:
        names = columns(MEASURES, optimizer=True)
        sites = [
            {"name": f"layers.{layer}.{kind}", "kind": kind, "layer": layer, "widths": [768, 64, 768], "heads": 12}
            for layer in range(12)
            for kind in ("qk", "ov")
        ]
        heading = {"measures": list(MEASURES), "keep": "spectra", "base": None, "columns": list(names)}
        store = create(folder / "run", heading, sites)
        numbers = dict.fromkeys(names[8:], 12.3456789)
        rows = [
            {**numbers, "step": 0, "of": "product", "site": site["name"], "kind": site["kind"], "layer": site["layer"]}
            | {"head": head, "method": "gram64", "failure": None}
            for site in sites
            for head in range(12)
        ]
        lines = written(rows, names).splitlines(keepends=True)
        spectra = {f"product/{site['name']}": torch.rand(12, 64) for site in sites}
        spectra |= {f"product errors/{site['name']}": torch.rand(12, 64).bfloat16() for site in sites}
        # Nobody waits for the disk here: how fast a run is written is not what is asked.
        os.fsync = lambda _: None
        print(f"writing {snapshots} snapshots of {len(rows)} products ...", flush=True)
        for step in range(snapshots):
            at = str(step).encode()
            store.append(
                Entry(step, time=0.0, loss=1.0, seconds={"step": 0.02, "worker": 0.3}),
                rows=b"".join(at + line[1:] for line in lines),
                spectra=spectra,
            )
        store.close()
        size = sum(path.stat().st_size for path in (folder / "run").rglob("*") if path.is_file())
        began, busy = time.perf_counter(), time.process_time()
        run = rw.open_run(folder / "run")
        opened, busy = time.perf_counter() - began, time.process_time() - busy
        began = time.perf_counter()
        count = len(list(run.rows(snapshots - 1))) + len(run.spectra(snapshots // 2))
        read = time.perf_counter() - began
        began = time.perf_counter()
        table = run.to_arrow()
        arrow = time.perf_counter() - began
        print(f"\n{machine()}: {len(run.snapshots)} snapshots x {len(rows)} products, {size / 1e9:.2f} GB")
        print(f"opened in {opened:.2f} s, {busy:.2f} s of them on a processor")
        print(f"rows of one snapshot and spectra of another ({count}) in {1e3 * read:.0f} ms")
        print(f"all {table.num_rows:,} rows as an Arrow table in {arrow:.1f} s")
    finally:
        shutil.rmtree(folder)


def machine() -> str:
    """What this was measured on."""
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} CPU cores"
    return f"{where}, torch {torch.__version__.split('+')[0]}, {platform.system()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("training", "opening"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="of the training; one where processor time is to be compared")
    parser.add_argument("--snapshots", type=int, default=10_000)
    given = parser.parse_args()
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    if given.what == "training":
        training(rounds=given.rounds, batch=given.batch, length=given.length, device=given.device)
    else:
        opening(snapshots=given.snapshots)


if __name__ == "__main__":
    main()
