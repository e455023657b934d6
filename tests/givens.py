"""What a documentation page may take as given: checkpoints where its text says they lie, a model, a training loop.

A block names it in a comment right above, `<!-- given: a checkpoint -->`; a reader has one of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.outputs import place

Given = Callable[[pytest.FixtureRequest], dict[str, Any]]
"""Puts files into the working directory, and returns names for the page's namespace."""


def _checkpoint(request: pytest.FixtureRequest) -> dict[str, Any]:
    place(Path("path/to"), {"checkpoint": request.getfixturevalue("minilm_directory")})
    return {}


def _fine_tune(request: pytest.FixtureRequest) -> dict[str, Any]:
    stored = request.getfixturevalue("rxnfp_directories")
    place(Path("path/to"), {"base": stored["pretrained"], "tuned": stored["ft"]})
    return {}


def _model(request: pytest.FixtureRequest) -> dict[str, Any]:
    transformers = pytest.importorskip("transformers")
    return {"model": transformers.AutoModel.from_pretrained(request.getfixturevalue("minilm_directory"))}


def _training(_: pytest.FixtureRequest) -> dict[str, Any]:
    torch.manual_seed(0)
    model = GPT(vocabulary=32, n_embd=24, n_head=3, layers=2)
    optimizer = torch.optim.AdamW(model.parameters())
    text = (
        torch.tensor(list(itertools.islice(itertools.cycle(b"to be or not to be, that is the question "), 4000))) % 32
    )

    def get_batch(_: str) -> tuple[Tensor, Tensor]:
        start = torch.randint(len(text) - 17, (4, 1)) + torch.arange(17)
        return text[start[:, :-1]], text[start[:, 1:]]

    return {"model": model, "optimizer": optimizer, "get_batch": get_batch, "max_iters": 101}


def _trainer(_: pytest.FixtureRequest) -> dict[str, Any]:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 3, "n_embd": 24, "vocab_size": 32, "n_positions": 16}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM")
    quiet = {"save_strategy": "no", "report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False}
    arguments = transformers.TrainingArguments(output_dir="trained", max_steps=2, use_cpu=True, **quiet)
    dataset = [{"input_ids": each, "labels": each} for each in torch.randint(32, (16, 9))]
    return {"model": transformers.GPT2LMHeadModel(config), "arguments": arguments, "dataset": dataset}


GIVENS: dict[str, Given] = {
    "a checkpoint": _checkpoint,
    "a fine-tune": _fine_tune,
    "a model": _model,
    "a training loop": _training,
    "a Trainer": _trainer,
}


class CausalSelfAttention(nn.Module):
    """Attention in the form of small GPTs that people train themselves: queries, keys and values in one layer."""

    def __init__(self, *, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.n_embd, self.n_head = n_embd, n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)

    def forward(self, tokens: Tensor) -> Tensor:
        heads = (one.unflatten(-1, (self.n_head, -1)).movedim(-2, -3) for one in self.c_attn(tokens).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.c_proj(mixed.movedim(-3, -2).flatten(-2))


class GPT(nn.Module):
    """A model that returns logits and loss, as a training loop of this kind expects."""

    def __init__(self, *, vocabulary: int, n_embd: int, n_head: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, n_embd)
        self.h = nn.ModuleList(CausalSelfAttention(n_embd=n_embd, n_head=n_head) for _ in range(layers))
        self.lm_head = nn.Linear(n_embd, vocabulary)

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.embedding(tokens)
        for attention in self.h:
            hidden = hidden + attention(hidden)
        logits = self.lm_head(hidden)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())
