"""Every layer goes wherever a module goes: copies, files, other types, compilers, exports, several processes."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import rankwise as rw
from tests.layers.draws import compiled
from tests.layers.zoo import ZOO, first, made


@pytest.mark.parametrize("name", ZOO)
def test_copies_and_files_hold_the_whole_layer(name: str, tmp_path: Path) -> None:
    layer, given = made(name)
    expected = first(layer(*given))
    twin = copy.deepcopy(layer)
    assert torch.equal(first(twin(*given)), expected)
    assert not {each.data_ptr() for each in twin.parameters()} & {each.data_ptr() for each in layer.parameters()}
    stored = io.BytesIO()
    torch.save(layer.state_dict(), stored)
    stored.seek(0)
    save_file(layer.state_dict(), tmp_path / "layer.safetensors")
    for state in (torch.load(stored, weights_only=True), load_file(tmp_path / "layer.safetensors")):
        for parameter in twin.parameters():
            nn.init.normal_(parameter)
        twin.load_state_dict(state)
        assert torch.equal(first(twin(*given)), expected)


@pytest.mark.parametrize("name", ZOO)
def test_in_mixed_precision_outputs_are_narrow_and_gradients_are_not(name: str) -> None:
    layer, given = made(name)
    expected = first(layer(*given))
    layer.float()
    given = tuple(each.float() if each.is_floating_point() else each for each in given)
    with torch.autocast("cpu", torch.bfloat16):
        output = first(layer(*given))
    # Rows of a table have the table's type, dense or not.
    assert output.dtype == (torch.float32 if isinstance(layer, rw.FactorizedEmbedding) else torch.bfloat16)
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=0.05 * expected.abs().max().item())
    output.float().square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert bool(parameter.grad.isfinite().all())


# One of every way to compute at once, the others in the slow lane.
SOONER = ("linear", "conv, spatial", "embedding", "attention")


@pytest.mark.parametrize("name", [pytest.param(each, marks=() if each in SOONER else pytest.mark.slow) for each in ZOO])
def test_exported_for_every_batch(name: str) -> None:
    layer, given = made(name)
    layer.eval()
    batch = torch.export.Dim("batch")
    exported = torch.export.export(layer, given, dynamic_shapes=[{0: batch} for _ in given]).module()
    for count in (2, 7):
        other = tuple(torch.cat([each] * 2)[:count] for each in given)
        torch.testing.assert_close(first(exported(*other)), first(layer(*other)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_compiled_as_one_graph_forward_and_backward(name: str) -> None:
    layer, given = made(name)
    fast = compiled(layer)
    for one in (layer, fast):
        layer.zero_grad()
        output = first(one(*given))
        output.square().sum().backward()
        found = output, [parameter.grad.clone() for parameter in layer.parameters()]
        if one is layer:
            expected = found
    torch.testing.assert_close(found, expected)


# ---- two processes ---------------------------------------------------------------------------------------------------

STEPS = 3


def _train(model: nn.Module, given: tuple[Tensor, ...]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        first(model(*given)).square().mean().backward()
        optimizer.step()


def _one_of_two(rank: int, meeting: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    for name in ZOO:
        layer, given = made(name)
        if rank == 1:  # what the first process has is sent to all
            for parameter in layer.parameters():
                nn.init.zeros_(parameter)
        _train(DistributedDataParallel(layer), tuple(each[2 * rank : 2 * rank + 2] for each in given))
        torch.save(layer.state_dict(), Path(folder) / f"{name} {rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_train_as_one_does_on_both_halves(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_one_of_two, (str(tmp_path / "meeting"), str(tmp_path)), nprocs=2)
    for name in ZOO:
        layer, given = made(name)
        before = copy.deepcopy(layer.state_dict())
        _train(layer, given)
        assert any(not torch.equal(before[key], value) for key, value in layer.state_dict().items())
        for rank in (0, 1):
            found = torch.load(tmp_path / f"{name} {rank}.pt", weights_only=True)
            torch.testing.assert_close(found, dict(layer.state_dict()), rtol=1e-9, atol=1e-12)
