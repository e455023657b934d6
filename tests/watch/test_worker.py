from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import rankwise as rw
from rankwise.watch import capture
from rankwise.watch.capture import Capture, StuckError
from rankwise.watch.worker import Worker
from tests.watch.training import gpt


def test_tasks_run_in_order_on_one_core_without_gradients():
    worker, seen = Worker(), []
    usual = torch.get_num_threads()
    for number in range(3):
        worker.do(lambda number=number: seen.append((number, torch.get_num_threads(), torch.is_grad_enabled())))
    worker.do(lambda: seen[99])
    worker.do(lambda: seen.append("after an error"))
    assert worker.wait(20)
    worker.close()
    assert seen == [(0, 1, False), (1, 1, False), (2, 1, False), "after an error"]
    assert torch.get_num_threads() == usual
    worker.do(lambda: seen.append("again"))
    worker.close()
    assert seen[-1] == "again"


def test_a_worker_that_is_stuck_does_not_hold_the_training_up(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(capture, "PATIENCE_SECONDS", 0.05)
    free = threading.Event()
    model = gpt()
    with rw.Monitor(model, run=tmp_path / "run", every=1) as monitor:
        monitor.step(0)
        monitor.flush()
        monitor._worker.do(lambda: free.wait(20) and None)
        for step in range(1, 6):
            monitor.step(step)
        free.set()
        monitor.flush()
        monitor.step(6)
    run = rw.open_run(tmp_path / "run")
    assert run.steps == [0, 1, 2, 6]
    assert [gap.step for gap in run.gaps] == [3, 4, 5]
    assert "still being computed or written" in str(run.gaps[0].reason)
    assert sum("no snapshot" in record.getMessage() for record in caplog.records) == 1


def test_copies_are_used_again_and_follow_their_parameters():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    taker = Capture(["0.weight", "1.weight", "0.bias"])
    first = taker.take(model)
    assert first.tensors["0.weight"] is first.tensors["1.weight"], "what is tied is copied once"
    memory = first.tensors["0.weight"].data_ptr()
    taker.release(first)
    with torch.no_grad():
        model[0].weight.fill_(7)
    again = taker.take(model)
    assert again.tensors["0.weight"].data_ptr() == memory
    assert again.tensors["0.weight"].eq(7).all()
    taker.release(again)
    model[1].weight = nn.Parameter(torch.ones(4, 4).T.double())
    last = taker.take(model)
    assert last.tensors["0.weight"].eq(7).all()
    assert last.tensors["1.weight"].dtype == torch.float64
    assert not last.missing


def test_all_copies_in_use_are_waited_for(monkeypatch):
    monkeypatch.setattr(capture, "PATIENCE_SECONDS", 20.0)
    model, taker = nn.Linear(2, 2), Capture(["weight"])
    one, _ = taker.take(model), taker.take(model)
    threading.Timer(0.05, taker.release, [one]).start()
    assert taker.take(model) is one
    monkeypatch.setattr(capture, "PATIENCE_SECONDS", 0.01)
    with pytest.raises(StuckError):
        taker.take(model)


def test_what_cannot_be_read_says_why():
    model = nn.Module()
    model.whole = nn.Parameter(torch.ones(2, 2, dtype=torch.int32), requires_grad=False)
    model.empty = nn.Parameter(torch.ones(2, 2, device="meta"))
    model.sparse = nn.Parameter(torch.eye(2).to_sparse())
    found = Capture(["whole", "empty", "sparse", "gone"]).take(model)
    assert not found.tensors
    assert [reason.split(":")[0] for reason in found.missing.values()] == [
        "whole is torch.int32, torch.strided",
        "empty is on the meta device",
        "sparse is torch.float32, torch.sparse_coo",
        "there is no tensor 'gone' among the 2 given",
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_numbers_are_those_of_the_step(tmp_path):
    """The copies are computed with beside the training, which moves the parameters on: the rows are of their step."""
    model = gpt(width=96).cuda()
    expected = {}
    with rw.Monitor(model, run=tmp_path / "run", every=1) as monitor:
        for step in range(20):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.1)
            expected[step] = rw.find(model)["layers.0.qk"].product(model).spectrum().values.cpu()
            monitor.step(step)
    run = rw.open_run(tmp_path / "run")
    for step, values in expected.items():
        torch.testing.assert_close(run.spectra(step)["layers.0.qk"].values, values, rtol=1e-5, atol=1e-6)
