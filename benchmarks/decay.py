"""What decay of all attention products costs in training GPT-2 small: time beside the step it is part of, and memory.

    python benchmarks/decay.py                        on the CPU
    python benchmarks/decay.py --device cuda --dtype bfloat16

Random weights in GPT-2 small's shapes. The whole step is forward, backward, AdamW and the decay of every QK and OV
head; the parts take turns in one run, and the best time counts. On the CPU it is what all threads spent, so that other
work on the machine does not count. Memory is that of all tensors that are alive at once inside the decay.
"""

from __future__ import annotations

import argparse
import platform
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from rankwise.decay.base import Decay
from rankwise.decay.frobenius import FrobeniusDecay
from rankwise.decay.nuclear import NuclearDecay
from rankwise.decay.polar import PolarDecay
from rankwise.sites.find import find

KINDS: tuple[type[Decay], ...] = (FrobeniusDecay, NuclearDecay, PolarDecay)


class Temporaries(TorchDispatchMode):
    """The bytes of the tensors that were made inside and are alive, and the most that they ever were.

    Views count once, and what was there before not at all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._alive = 0
        self._references: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        given = {_place(each) for each in _tensors([args, kwargs])}
        result = func(*args, **(kwargs or {}))
        for each in _tensors(result):
            place = _place(each)
            if place and (place in self._references or place not in given):
                self._made(each, place)
        return result

    def _made(self, tensor: Tensor, place: int) -> None:
        size = tensor.untyped_storage().nbytes()
        if not self._references[place]:
            self._alive += size
            self.peak = max(self.peak, self._alive)
        self._references[place] += 1
        weakref.finalize(tensor, self._gone, place, size)

    def _gone(self, place: int, size: int) -> None:
        self._references[place] -= 1
        if not self._references[place]:
            del self._references[place]
            self._alive -= size


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    if isinstance(found, dict):
        found = list(found.values())
    return [tensor for each in found for tensor in _tensors(each)] if isinstance(found, tuple | list) else []


@dataclass(frozen=True)
class Shape:
    """The sizes of a GPT-2."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    words: int = 50257
    context: int = 1024


class CausalSelfAttention(nn.Module):
    """Attention of fused queries, keys and values, by the names that such modules have in small GPTs."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.n_embd, self.n_head = shape.width, shape.heads
        self.c_attn = nn.Linear(shape.width, 3 * shape.width)
        self.c_proj = nn.Linear(shape.width, shape.width)

    def forward(self, hidden: Tensor) -> Tensor:
        heads = (part.unflatten(-1, (self.n_head, -1)).movedim(-2, -3) for part in self.c_attn(hidden).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.c_proj(mixed.movedim(-3, -2).flatten(-2))


class Block(nn.Module):
    """One layer: attention and a feed-forward network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.attn = CausalSelfAttention(shape)
        self.up, self.down = nn.Linear(shape.width, 4 * shape.width), nn.Linear(4 * shape.width, shape.width)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attn(self.ln_1(hidden))
        return hidden + self.down(F.gelu(self.up(self.ln_2(hidden)), approximate="tanh"))


class GPT2(nn.Module):
    """GPT-2's shapes in plain torch: the output layer is the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(shape.words, shape.width), nn.Embedding(shape.context, shape.width)
        self.h = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.ln_f = nn.LayerNorm(shape.width)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.wte(tokens[:, :-1]) + self.wpe.weight[: tokens.shape[1] - 1]
        for block in self.h:
            hidden = block(hidden)
        logits = F.linear(self.ln_f(hidden), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


class Still(torch.optim.Optimizer):
    """An optimizer that moves nothing, so that its step takes as long as the decay attached to it."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-5})

    def step(self, closure: Any = None) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Cost:
    """Seconds of the decay itself, and the bytes alive inside it."""

    kind: type[Decay]
    seconds: float
    peak: int


@dataclass(frozen=True)
class Step:
    """Seconds of the forward and backward pass, of AdamW by implementation, and what the decays take beside them."""

    passes: float
    updates: dict[str, float]
    costs: list[Cost]


def measured(model: nn.Module, tokens: Tensor, *, rounds: int) -> Step:
    """The best time of every part of a step, all parts taking turns."""
    parameters = list(model.parameters())
    sites = find(model).select(kind=("qk", "ov"))

    def passes() -> None:
        for parameter in parameters:
            parameter.grad = None
        model(tokens).backward()

    passes()
    adamw = {
        name: torch.optim.AdamW(parameters, lr=1e-5, weight_decay=0.1, **{name: True}) for name in ("fused", "foreach")
    }
    alone: dict[type[Decay], Still] = {}
    peaks = {}
    for kind in KINDS:
        alone[kind] = Still(parameters)
        decay = (
            PolarDecay(sites, coefficient=0.1) if kind is PolarDecay else kind(sites, coefficient=0.1, decoupled=True)
        )
        decay.attach(alone[kind])
        alone[kind].step()  # the first one reads patterns
        with Temporaries() as taken:
            alone[kind].step()
        peaks[kind] = taken.peak
    parts: dict[Any, Callable[[], Any]] = {"passes": passes, **{name: each.step for name, each in adamw.items()}}
    parts |= {kind: each.step for kind, each in alone.items()}
    best = dict.fromkeys(parts, float("inf"))
    for turn in range(rounds + 1):
        for part, work in parts.items():
            seconds = _timed(work, tokens.device)
            if turn:  # the first round allocates
                best[part] = min(best[part], seconds)
    costs = [Cost(kind, best[kind], peaks[kind]) for kind in KINDS]
    return Step(best["passes"], {name: best[name] for name in adamw}, costs)


def _timed(work: Callable[[], Any], device: torch.device) -> float:
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    _wait(device)
    start = clock()
    work()
    _wait(device)
    return clock() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def show(step: Step, *, grams: int, title: str, console: Console) -> None:
    """A line for each decay: its time, as shares of the optimizer's and of the whole step's, and its memory."""
    updates = ", ".join(f"AdamW {name} {_spoken(seconds)}" for name, seconds in step.updates.items())
    console.print(f"{title}\nforward and backward {_spoken(step.passes)}; {updates}")
    table = Table("decay of all QK and OV heads", "time", box=None, padding=(0, 3, 0, 0))
    for name in step.updates:
        table.add_column(f"of AdamW {name}")
        table.add_column("of the step")
    table.add_column("memory")
    for cost in step.costs:
        shares = []
        for update in step.updates.values():
            shares += [f"{cost.seconds / update:.0%}", f"{cost.seconds / (step.passes + update + cost.seconds):.2%}"]
        memory = f"{cost.peak / 2**20:.1f} MiB, {cost.peak / grams:.2f} of the Grams"
        table.add_row(cost.kind.__name__, _spoken(cost.seconds), *shares, memory)
    console.print(table)


def _spoken(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    shape = Shape(layers=given.layers)
    model = GPT2(shape).to(given.device, getattr(torch, given.dtype))
    tokens = torch.randint(shape.words, (max(1, given.tokens // shape.context), min(given.tokens, shape.context) + 1))
    step = measured(model, tokens.to(given.device), rounds=given.rounds)
    inner = shape.width // shape.heads
    grams = 4 * 2 * 2 * shape.layers * shape.heads * inner**2  # two Grams for both products of every head, float32
    machine = (
        torch.cuda.get_device_name()
        if given.device == "cuda"
        else f"{platform.machine()}, time of {given.threads} threads"
    )
    size = f"{shape.layers} layers, {tokens[:, 1:].numel()} tokens, {given.dtype}"
    title = f"GPT-2, {size}, {machine}, torch {torch.__version__}"
    show(step, grams=grams, title=title, console=Console(width=140, highlight=False))


if __name__ == "__main__":
    main()
