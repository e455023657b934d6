"""Two processes that average gradients decay as one process does, before and after the averaging is seen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from rankwise.decay.frobenius import FrobeniusDecay
from rankwise.decay.groups import param_groups
from rankwise.decay.nuclear import NuclearDecay
from rankwise.sites.find import find
from tests.givens import GPT

CASES = ("coupled", "decoupled", "before clipping", "nuclear", "rows")


def made() -> GPT:
    torch.manual_seed(0)
    return GPT(vocabulary=16, n_embd=12, n_head=3, layers=2)


def batch() -> Tensor:
    return torch.randint(16, (8, 9), generator=torch.Generator().manual_seed(1))


def train(case: str, wrapped: nn.Module, model: GPT, tokens: Tensor) -> dict[str, Tensor]:
    sites = find(model).select(kind=("qk", "ov"))
    decay = None
    if case == "rows":
        groups = param_groups(model, weight_decay=0.1, qk=0.4, ov=0.0, rows="attach")
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=0.01, eps=1e-3)
        groups.attach(optimizer)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        kind = NuclearDecay if case == "nuclear" else FrobeniusDecay
        decay = kind(sites, coefficient=0.1, decoupled=case == "decoupled").attach(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        _, loss = wrapped(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        if case == "before clipping":
            assert decay is not None
            decay.add_gradients()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def process(rank: int, meeting: str, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    try:
        mine = batch().chunk(2)[rank]
        ended = {}
        for case in CASES:
            model = made()
            ended[case] = train(case, DistributedDataParallel(model, gradient_as_bucket_view=True), model, mine)
        torch.save(ended, f"{folder}/{rank}.pt")
    finally:
        distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_decay_as_one(tmp_path) -> None:
    multiprocessing.spawn(process, args=(f"{tmp_path}/meet", str(tmp_path)), nprocs=2)
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    start = {name: each.detach() for name, each in made().named_parameters()}
    for case in CASES:
        model = made()
        alone = train(case, model, model, batch())
        for name, value in alone.items():
            assert torch.equal(found[0][case][name], found[1][case][name])
            torch.testing.assert_close(found[0][case][name], value, rtol=1e-4, atol=1e-5, msg=f"{case}: {name}")
        assert any(not torch.equal(alone[name], start[name]) for name in alone)
