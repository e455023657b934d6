"""Train a small GPT on text, the way nanoGPT does, and watch the rank of its attention.

The five lines with a + are all that is new.

    python examples/nanogpt_like.py                      on the source of Python's own library, out/ beside you
    python examples/nanogpt_like.py book.txt --out here --steps 2000
    python examples/nanogpt_like.py --resume             go on from the last checkpoint, however it ended
"""

import argparse
import inspect
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import rankwise as rw  # +


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.n_embd, self.n_head = n_embd, n_head

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (one.view(b, t, self.n_head, c // self.n_head).transpose(1, 2) for one in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size: int, block_size: int, n_layer: int, n_head: int, n_embd: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block(n_embd, n_head) for _ in range(n_layer))
        self.ln_f, self.lm_head = nn.LayerNorm(n_embd), nn.Linear(n_embd, vocab_size, bias=False)
        for name, parameter in self.named_parameters():
            if name.endswith("weight") and parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * n_layer) if "c_proj" in name else 0.02)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("text", nargs="?", help="a file; by default the source of Python's own library")
parser.add_argument("--out", type=Path, default=Path("out"))
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--eval-interval", type=int, default=100)
parser.add_argument("--n-embd", type=int, default=128)
parser.add_argument("--n-layer", type=int, default=4)
parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
text = Path(args.text).read_bytes() if args.text else "".join(map(inspect.getsource, (argparse, inspect))).encode()
data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
block_size, batch_size = 64, 16
args.out.mkdir(parents=True, exist_ok=True)


def get_batch(iter_num: int):
    generator = torch.Generator().manual_seed(iter_num)
    ix = torch.randint(len(data) - block_size - 1, (batch_size, 1), generator=generator)
    window = data[ix + torch.arange(block_size + 1)].long().to(device)
    return window[:, :-1], window[:, 1:]


torch.manual_seed(1337)
model = GPT(256, block_size, args.n_layer, 4, args.n_embd).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
monitor = rw.Monitor(model, run=args.out / "ranks", every=20, optimizer=optimizer, resume=args.resume)  # +
iter_num = 0
if args.resume and (args.out / "ckpt.pt").exists():
    checkpoint = torch.load(args.out / "ckpt.pt", map_location=device, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    monitor.load_state_dict(checkpoint["monitor"])  # +
    iter_num = checkpoint["iter_num"] + 1
forward = torch.compile(model) if args.compile else model

while iter_num < args.steps:
    X, Y = get_batch(iter_num)
    with torch.autocast(device, dtype=torch.bfloat16, enabled=args.dtype == "bfloat16"):
        logits, loss = forward(X, Y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    monitor.step(iter_num, loss=loss)  # +
    if iter_num % args.eval_interval == args.eval_interval - 1:
        print(f"iter {iter_num}: loss {loss.item():.4f}", flush=True)
        checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}
        checkpoint["monitor"] = monitor.state_dict()  # +
        torch.save(checkpoint, args.out / "ckpt.tmp")
        (args.out / "ckpt.tmp").replace(args.out / "ckpt.pt")
    iter_num += 1
