from __future__ import annotations

import json
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

import rankwise as rw
from rankwise.errors import UserError
from rankwise.product.tangent import tangent
from rankwise.watch.schedules import Schedule
from tests.conftest import REPOSITORY
from tests.watch.training import adamw, batch, gpt, trained


def row_of(run: rw.Run, step: int, of: str, site: str, head: int) -> dict:
    (row,) = [row for row in run.rows(step) if (row["of"], row["site"], row["head"]) == (of, site, head)]
    return row


def warnings_in(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# ---- what is recorded is true


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of real training, with the model as it was at the start, at the end, and its optimizer."""
    folder = tmp_path_factory.mktemp("recorded") / "run"
    model, start = gpt(), gpt()
    optimizer = adamw(model)
    with rw.Monitor(model, run=folder, every=10, optimizer=optimizer, gradients=True) as monitor:
        for step, loss in trained(model, optimizer, range(31)):
            monitor.step(step, loss=loss)
    return rw.open_run(folder), model, start, optimizer, loss.item()


def test_products_are_those_of_the_model(recorded):
    run, model, _, _, loss = recorded
    assert run.steps == [0, 10, 20, 30]
    assert run.snapshots[-1].loss == loss
    assert len(list(run.rows(30))) == 3 * 4 * 3
    for site in rw.find(model).select(kind=("qk", "ov")):
        spectrum = site.product(model).spectrum()
        balance = rw.balance(site.product(model))
        torch.testing.assert_close(run.spectra(30)[site.name].values, spectrum.values, rtol=1e-6, atol=1e-9)
        for head in range(site.heads):
            row = row_of(run, 30, "product", site.name, head)
            assert row["effective_rank"] == pytest.approx(rw.effective_rank(spectrum)[head].item(), rel=1e-8)
            assert row["gap"] == pytest.approx(balance.gap[head].item(), rel=1e-8)
            assert row["half_sum"] == pytest.approx(balance.half_sum[head].item(), rel=1e-8)
            assert row["imbalance"] == pytest.approx(balance.relative_imbalance[head].item(), rel=1e-8)
            assert row["effective_rank_error"] < 1e-4
            assert (row["method"], row["failure"]) == (spectrum.method, None)


def test_changes_are_measured_from_the_start(recorded):
    run, model, start, _, _ = recorded
    for site in rw.find(model).select(kind=("qk", "ov")):
        dense = [site.product(each).to(torch.float64).dense().detach() for each in (model, start)]
        expected = torch.linalg.svdvals(dense[0] - dense[1])[:, :16]
        found = run.spectra(30, of="change")[site.name]
        assert ((found.values - expected).abs() <= found.error + 1e-6 * expected[:, :1]).all()
        row = row_of(run, 30, "change", site.name, 1)
        assert row["frobenius_norm"] == pytest.approx(torch.linalg.matrix_norm(dense[0] - dense[1])[1].item(), rel=1e-5)


def test_the_first_change_is_nothing_or_says_so(tmp_path):
    model = gpt()
    with rw.Monitor(model, run=tmp_path / "run", every=1) as monitor:
        monitor.step(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 1e-7)
        monitor.step(1)
    run = rw.open_run(tmp_path / "run")
    assert row_of(run, 0, "change", "layers.0.qk", 0)["failure"].startswith("unchanged: the change is exactly zero")
    row = row_of(run, 1, "change", "layers.0.qk", 0)
    assert row["failure"] == "the change is below 1e-06 of the start: rounding, it has no rank"
    assert row["effective_rank"] is None
    assert not run.alarms


def test_gradients_move_the_product_as_its_tangent_says(recorded):
    run, model, _, _, _ = recorded
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for site in rw.find(model).select(kind=("qk", "ov")):
        expected = tangent(site.product(model).detach(), site.product(gradients).factors).dense()
        found = run.spectra(30, of="gradient")[site.name]
        dense = torch.linalg.svdvals(expected.double())[:, :16]
        assert ((found.values - dense).abs() <= found.error + 1e-5 * dense[:, :1]).all()


def test_what_the_optimizer_implies(recorded):
    run, model, _, optimizer, _ = recorded
    site = rw.find(model)["layers.1.ov"]
    row = row_of(run, 30, "product", site.name, 2)
    assert row["decay"] == pytest.approx(31 * 3e-3 * 0.1)
    start = row_of(run, 0, "product", site.name, 2)
    assert row["imbalance_predicted"] == pytest.approx(
        start["imbalance_norm"] * math.exp(-2 * 30 * 3e-3 * 0.1), rel=1e-8
    )
    second = {name: optimizer.state[parameter]["exp_avg_sq"] for name, parameter in model.named_parameters()}
    rms = [(factor[2].double().mean() / (1 - 0.999**31)).sqrt() for factor in site.product(second).factors]
    assert row["nuclear_coefficient"] == pytest.approx((0.1 * (rms[0] * rms[1]).sqrt()).item(), rel=1e-6)


def test_gradient_descent_keeps_the_law_of_balance_and_adamw_does_not(tmp_path):
    """`|D|_F exp(-2 sum lr lambda)` is a theorem for gradient descent on a loss of the product alone."""
    misses = {}
    for name, make in {
        "gd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, weight_decay=0.2),
        "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=3e-3, weight_decay=2.0),
    }.items():
        model = gpt()
        for parameter, values in model.named_parameters():
            if parameter.endswith("c_attn.bias"):
                # A bias on queries, keys and values has a share in the law of its own.
                values.detach().zero_()
                values.requires_grad_(False)
        optimizer = make([each for each in model.parameters() if each.requires_grad])
        with rw.Monitor(model, run=tmp_path / name, every=60, optimizer=optimizer, base=None) as monitor:
            for step, _ in trained(model, optimizer, range(61)):
                monitor.step(step)
        rows = [row for row in rw.open_run(tmp_path / name).rows(60) if row["of"] == "product"]
        misses[name] = max(abs(row["imbalance_norm"] / row["imbalance_predicted"] - 1) for row in rows)
        assert rows[0]["decay"] == pytest.approx(61 * 0.05 * 0.2 if name == "gd" else 61 * 3e-3 * 2.0)
        assert (rows[0]["nuclear_coefficient"] == 0.2) == (name == "gd")
    assert misses["gd"] < 0.02, misses
    assert misses["adamw"] > 0.1, misses


# ---- it never breaks a run


def test_a_head_that_is_no_number_is_marked_and_the_others_are_not(tmp_path, caplog):
    model = gpt()
    with rw.Monitor(model, run=tmp_path / "run", every=1) as monitor:
        monitor.step(0)
        with torch.no_grad():
            model.h[1].c_proj.weight[0, 0] = torch.nan
        monitor.step(1, loss=torch.tensor(float("nan")))
        with torch.no_grad():
            model.h[1].c_proj.weight[0, 0] = 0.1
        monitor.step(2, loss=3.0)
    run = rw.open_run(tmp_path / "run")
    assert row_of(run, 1, "product", "layers.1.ov", 0)["failure"] == "a factor holds NaN or Inf"
    assert row_of(run, 1, "product", "layers.1.ov", 1)["effective_rank"] > 1
    assert run.snapshots[1].loss is None
    told = [(alarm["step"], alarm["kind"], alarm["site"], alarm["cleared"]) for alarm in run.alarms]
    assert told == [
        (1, "diverged", None, False),
        (1, "failed", "layers.1.ov", False),
        (2, "diverged", None, True),
        (2, "failed", "layers.1.ov", True),
    ]
    assert "step 1: layers.1.ov head 0 is failed: a factor holds NaN or Inf" in warnings_in(caplog)


def test_parameters_that_are_replaced_are_read_and_those_that_are_gone_are_said(tmp_path, caplog):
    model = gpt()
    with rw.Monitor(model, run=tmp_path / "run", every=1) as monitor:
        monitor.step(0)
        model.h[0].c_proj.weight = nn.Parameter(2 * model.h[0].c_proj.weight.detach())
        monitor.step(1)
        model.h[0].c_proj = nn.Identity()
        monitor.step(2)
        model.h[0].c_proj = nn.Linear(24, 24, dtype=torch.bfloat16)
        monitor.step(3)
    run = rw.open_run(tmp_path / "run")
    norms = [row_of(run, step, "product", "layers.0.ov", 0)["frobenius_norm"] for step in (0, 1, 2, 3)]
    assert norms[1] == pytest.approx(2 * norms[0])
    assert norms[2] is None
    assert norms[3] > 0
    assert "there is no tensor 'h.0.c_proj.weight'" in row_of(run, 2, "product", "layers.0.ov", 0)["failure"]
    assert row_of(run, 2, "product", "layers.0.qk", 0)["effective_rank"] > 1
    assert run.steps == [0, 1, 2, 3]
    assert sum("there is no tensor" in said and "layers" not in said for said in warnings_in(caplog)) == 1


def test_a_run_whose_disk_is_gone_costs_one_warning(tmp_path, caplog):
    model = gpt()
    with rw.Monitor(model, run=tmp_path / "run", every=1) as monitor:
        monitor.step(0)
        monitor.flush()
        shutil.move(tmp_path / "run", tmp_path / "moved")
        for step in range(1, 4):
            monitor.step(step)
        monitor.flush()
        shutil.move(tmp_path / "moved", tmp_path / "run")
        monitor.step(4)
    assert sum("no snapshot of step" in said for said in warnings_in(caplog)) == 1
    run = rw.open_run(tmp_path / "run")
    assert (run.steps, [gap.step for gap in run.gaps]) == ([0, 4], [1, 2, 3])
    assert "spectra does not exist" in str(run.gaps[0].reason)
    assert run.dropped == ()


class Broken(Schedule):
    def due(self, moment: rw.Every) -> bool:
        if moment.step == 1:
            raise RuntimeError("a schedule of somebody's own")
        return True


def test_a_schedule_that_fails_is_a_gap(tmp_path, caplog):
    with rw.Monitor(gpt(), run=tmp_path / "run", every=Broken()) as monitor:
        for step in range(3):
            monitor.step(step)
    run = rw.open_run(tmp_path / "run")
    assert (run.steps, [gap.reason for gap in run.gaps]) == ([0, 2], ["RuntimeError: a schedule of somebody's own"])
    assert len(warnings_in(caplog)) == 1


def test_steps_that_do_not_rise_and_steps_after_the_end_are_ignored(tmp_path, caplog):
    with rw.Monitor(gpt(), run=tmp_path / "run", every=1) as monitor:
        for step in (0, 1, 1, 0, 2, "three", True, -1, 5):
            monitor.step(step)
    monitor.step(6)
    monitor.close()
    assert rw.open_run(tmp_path / "run").steps == [0, 1, 2, 5]
    assert len(warnings_in(caplog)) == 4


def test_gradients_that_were_set_to_none_are_said_once(tmp_path, caplog):
    model = gpt()
    optimizer = adamw(model)
    with rw.Monitor(model, run=tmp_path / "run", every=1, gradients=True) as monitor:
        for step, _ in trained(model, optimizer, range(3)):
            optimizer.zero_grad()
            monitor.step(step)
    run = rw.open_run(tmp_path / "run")
    failure = row_of(run, 2, "gradient", "layers.0.qk", 0)["failure"]
    assert failure == "h.0.c_attn.weight has no gradient: call monitor.step before optimizer.zero_grad()"
    assert row_of(run, 2, "change", "layers.0.qk", 0)["effective_rank"] > 1


def test_an_error_in_the_training_is_the_trainings_and_the_run_is_whole(tmp_path):
    with pytest.raises(ZeroDivisionError), rw.Monitor(gpt(), run=tmp_path / "run", every=1) as monitor:  # noqa: PT012
        monitor.step(0)
        _ = 1 / 0
    run = rw.open_run(tmp_path / "run")
    assert (run.steps, run.is_written, run.dropped) == ([0], False, ())


@pytest.mark.slow
def test_a_forked_child_leaves_the_run_to_its_parent(tmp_path):
    program = (
        "import os, sys; import rankwise as rw; from tests.watch.training import gpt\n"
        "monitor = rw.Monitor(gpt(), run=sys.argv[1], every=1)\n"
        "monitor.step(0); monitor.flush()\n"
        "child = os.fork()\n"
        "if child == 0:\n    monitor.step(1); monitor.flush(); monitor.close(); sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "monitor.step(2)\n"
        # Nobody closes it: the end of the process does.
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "run")], cwd=REPOSITORY, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    run = rw.open_run(tmp_path / "run")
    assert (run.steps, run.dropped) == ([0, 2], ())


def test_a_monitor_that_nobody_holds_finishes_its_run(tmp_path):
    monitor = rw.Monitor(gpt(), run=tmp_path / "run", every=1)
    monitor.step(0)
    monitor.flush()
    del monitor
    deadline = time.monotonic() + 20
    while rw.open_run(tmp_path / "run").is_written and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not rw.open_run(tmp_path / "run").is_written


def test_the_threads_of_the_training_are_left_alone(tmp_path):
    usual = torch.get_num_threads()
    with rw.Monitor(gpt(), run=tmp_path / "run", every=1) as monitor:
        monitor.step(0)
        monitor.flush()
        import threading

        found = []
        other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        other.start()
        other.join()
        assert (torch.get_num_threads(), found) == (usual, [usual])


# ---- models as people train them


# Torch's own compiler looks at gradients of what has none.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    "way",
    [
        pytest.param("compiled", marks=pytest.mark.slow),
        pytest.param("blocks compiled", marks=pytest.mark.slow),
        "autocast",
        "checkpointed",
        "accumulated",
        "tied",
    ],
)
def test_models_as_people_train_them(tmp_path, way):
    model, optimizer = gpt(), None
    if way == "blocks compiled":
        model.h[0] = torch.compile(model.h[0], backend="aot_eager")
    if way == "tied":
        model.h[1].c_proj.weight = model.h[0].c_proj.weight
    optimizer = adamw(model)
    forward = torch.compile(model, backend="aot_eager") if way == "compiled" else model
    context = torch.autocast("cpu", dtype=torch.bfloat16) if way == "autocast" else nullcontext()
    with rw.Monitor(forward, run=tmp_path / "run", every=2, optimizer=optimizer) as monitor, context:
        for step in range(5):
            for part in range(2 if way == "accumulated" else 1):
                x, y = batch(10 * step + part)
                if way == "checkpointed":
                    hidden = model.embedding(x)
                    for block in model.h:
                        hidden = hidden + torch.utils.checkpoint.checkpoint(block, hidden, use_reentrant=False)
                    loss = nn.functional.cross_entropy(model.lm_head(hidden).flatten(0, 1), y.flatten())
                else:
                    _, loss = forward(x, y)
                loss.backward()
            optimizer.step()
            monitor.step(step, loss=loss)
            optimizer.zero_grad(set_to_none=True)
    run = rw.open_run(tmp_path / "run")
    assert run.steps == [0, 2, 4]
    assert not run.gaps
    assert {site["name"] for site in run.sites} >= {"layers.0.qk", "layers.1.qk", "layers.0.ov"}
    assert all("_orig_mod" not in name for site in run.sites for name in site["parameters"])
    rows = list(run.rows(4))
    assert all(row["failure"] is None for row in rows)
    assert all(row["decay"] == pytest.approx(5 * 3e-3 * 0.1) for row in rows if row["of"] == "product")
    plain = rw.find(model)
    expected = {
        site.name.replace("_orig_mod.", ""): site.product(model).spectrum().values
        for site in plain
        if len(site.factors) > 1
    }
    for name, spectrum in run.spectra(4).items():
        torch.testing.assert_close(spectrum.values, expected[name], rtol=1e-6, atol=1e-9)


def test_grouped_rotary_heads_are_judged_by_their_own_law(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=16,
    )
    model = transformers.LlamaForCausalLM(config)
    optimizer = adamw(model)
    with rw.Monitor(model, run=tmp_path / "run", every=1, optimizer=optimizer) as monitor:
        monitor.step(0)
        optimizer.zero_grad()
        model(torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
        optimizer.step()
        monitor.step(1)
    run = rw.open_run(tmp_path / "run")
    assert run.heading["config"]["num_key_value_heads"] == 2
    head, group = row_of(run, 1, "product", "layers.0.qk", 3), row_of(run, 1, "group", "layers.0.ov", 1)
    assert head["pair_sum"] > 0
    assert head["imbalance_predicted"] is None, "rotary queries and keys keep another law"
    assert row_of(run, 1, "product", "layers.0.ov", 3)["imbalance_predicted"] is None, "and heads that share values"
    assert group["imbalance_predicted"] > 0
    expected = rw.balance(rw.find(model)["layers.0.ov"].product(model), group=1)
    assert group["gap"] == pytest.approx(expected.gap.flatten()[1].item(), rel=1e-8)


def test_single_matrices_are_watched_where_they_are_chosen(tmp_path):
    model = gpt()
    with rw.Monitor(
        model, run=tmp_path / "run", every=1, sites=rw.find(model).select(name="lm_head*"), keep="measures", base=None
    ) as monitor:
        monitor.step(0)
    run = rw.open_run(tmp_path / "run")
    (row,) = run.rows(0)
    assert row["gap"] is None
    assert row["frobenius_norm"] == pytest.approx(model.lm_head.weight.norm().item())
    assert list((tmp_path / "run/spectra").iterdir()) == []


def test_changes_can_be_measured_from_a_checkpoint(tmp_path):
    model, base = gpt(), gpt(seed=1)
    torch.save({f"module.{name}": tensor for name, tensor in base.state_dict().items()}, tmp_path / "base.pt")
    with rw.Monitor(model, run=tmp_path / "run", every=1, base=tmp_path / "base.pt") as monitor:
        monitor.step(0)
    site = rw.find(model)["layers.0.qk"]
    found = row_of(rw.open_run(tmp_path / "run"), 0, "change", site.name, 0)["frobenius_norm"]
    expected = (site.product(model).dense() - site.product(base).dense())[0].norm().item()
    assert found == pytest.approx(expected, rel=1e-5)
    torch.save({"other": torch.ones(2, 2)}, tmp_path / "other.pt")
    with pytest.raises(UserError, match=r"has no tensor for h.0.c_attn.weight and 5 more: give a checkpoint of this"):
        rw.Monitor(model, run=tmp_path / "run2", base=tmp_path / "other.pt")
    assert not (tmp_path / "run2").exists()


# ---- going on


def schedules() -> Schedule:
    return (
        rw.LossPlateau(patience=4, every=1, by=0.2) | rw.LogSpaced(4) | rw.RankChange(shortest=2, longest=8, by=0.001)
    )


def train(folder: Path, steps: range, *, keep_at: int | None = None) -> None:
    """Train from the start, with a checkpoint on the way."""
    model = gpt()
    optimizer = adamw(model)
    with rw.Monitor(model, run=folder, every=schedules(), optimizer=optimizer) as monitor:
        for step, loss in trained(model, optimizer, steps):
            monitor.step(step, loss=loss)
            if step == keep_at:
                torch.save(
                    (monitor.state_dict(), model.state_dict(), optimizer.state_dict()), folder.with_suffix(".pt")
                )


def test_a_run_that_goes_on_from_a_checkpoint_has_the_same_rows(tmp_path):
    train(tmp_path / "whole", range(40))
    train(tmp_path / "parts", range(29), keep_at=22)
    monitor_state, weights, optimizer_state = torch.load(tmp_path / "parts.pt", weights_only=True)
    model = gpt(seed=5)
    model.load_state_dict(weights)
    optimizer = adamw(model)
    optimizer.load_state_dict(optimizer_state)
    with rw.Monitor(model, run=tmp_path / "parts", every=schedules(), optimizer=optimizer, resume=True) as monitor:
        monitor.load_state_dict(monitor_state)
        for step, loss in trained(model, optimizer, range(23, 40)):
            monitor.step(step, loss=loss)
    whole_run, parts = rw.open_run(tmp_path / "whole"), rw.open_run(tmp_path / "parts")
    assert len(whole_run.steps) > 12
    assert parts.steps == whole_run.steps
    assert (tmp_path / "parts/products.csv").read_bytes() == (tmp_path / "whole/products.csv").read_bytes()
    assert parts.alarms == whole_run.alarms
    for step in parts.steps:
        assert torch.equal(parts.spectra(step)["layers.0.qk"].values, whole_run.spectra(step)["layers.0.qk"].values)


def test_a_run_that_starts_over_measures_from_where_it_starts(tmp_path):
    for seed, resume in ((0, False), (1, True)):
        model = gpt(seed=seed)
        with rw.Monitor(model, run=tmp_path / "run", every=1, resume=resume) as monitor:
            monitor.step(0)
            monitor.step(1)
    run = rw.open_run(tmp_path / "run")
    assert run.steps == [0, 1]
    assert row_of(run, 1, "change", "layers.0.qk", 0)["failure"].startswith("unchanged")


PROGRAM = """
import os, sys, torch
import rankwise as rw
from tests.watch.training import adamw, gpt, trained

folder, steps, slow = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "slow"
torch.set_num_threads(1)
model = gpt()
optimizer = adamw(model)
first, kept = 0, None
if os.path.exists(folder + ".pt"):
    first, kept, weights, state = torch.load(folder + ".pt", weights_only=True)
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
with rw.Monitor(model, run=folder, every=3, optimizer=optimizer, resume=True) as monitor:
    if kept is not None:
        monitor.load_state_dict(kept)
    for step, loss in trained(model, optimizer, range(first, steps)):
        monitor.step(step, loss=loss)
        if step % 10 == 9:
            torch.save((step + 1, monitor.state_dict(), model.state_dict(), optimizer.state_dict()), folder + ".tmp")
            os.replace(folder + ".tmp", folder + ".pt")
        print(step, flush=True)
"""


@pytest.mark.slow
def test_training_that_is_killed_goes_on_with_the_same_rows(tmp_path):
    def begun(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / name), "60", "slow"]
        return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    process = begun("whole")
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    for last in (14, 37):
        process = begun("killed")
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == last:
                process.send_signal(signal.SIGKILL)
                break
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    process = begun("killed")
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    killed, whole_run = rw.open_run(tmp_path / "killed"), rw.open_run(tmp_path / "whole")
    assert killed.steps == whole_run.steps == list(range(0, 60, 3))
    assert (tmp_path / "killed/products.csv").read_bytes() == (tmp_path / "whole/products.csv").read_bytes()
    assert [entry.loss for entry in killed.snapshots] == [entry.loss for entry in whole_run.snapshots]


# ---- what is given is looked at before training begins


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"every": 0}, "every=0 is no number of steps"),
        ({"every": 10, "overhead": 0.01}, "give every= or overhead=, not both"),
        ({"overhead": 1.5}, r"overhead=1.5: give a share of the training's time, 0.005"),
        ({"measures": ["rnak"]}, "there is no measure 'rnak'"),
        ({"keep": "all"}, "keep='all': give 'spectra', or 'measures'"),
        ({"on_alarm": "shout"}, "on_alarm='shout': give 'log', 'stop' or a function"),
        ({"sites": ["layers.0.qk"]}, r"sites= takes Sites, got list: give rankwise.find\(model\)"),
        ({"optimizer": 3}, "optimizer= takes a torch optimizer, got int"),
        ({"base": "nowhere"}, "nowhere"),
    ],
)
def test_bad_arguments_are_one_line_and_leave_nothing(tmp_path, given, says):
    with pytest.raises(UserError, match=says) as caught:
        rw.Monitor(gpt(), run=tmp_path / "run", **given)
    assert "\n" not in str(caught.value)
    with rw.Monitor(gpt(), run=tmp_path / "run", resume=True) as monitor:
        monitor.step(0)


def test_a_model_without_products_is_one_line(tmp_path):
    with pytest.raises(UserError, match="there is nothing to watch: no product of two factors or more"):
        rw.Monitor(nn.Linear(3, 3), run=tmp_path / "run")


def test_alarms_that_nothing_feeds_are_said(tmp_path, caplog):
    rw.Monitor(gpt(), run=tmp_path / "run", measures=["effective_rank", "stable_rank"]).close()
    assert warnings_in(caplog) == ["Alarms(dead=...) has no effect: frobenius_norm is not among the measures"]


# ---- alarms and sinks on the training's thread


def test_an_alarm_reaches_whoever_listens(tmp_path):
    model, heard = gpt(), []

    def listen(alarm: rw.Alarm) -> None:
        heard.append(alarm)
        raise ValueError("a listener of somebody's own")

    with rw.Monitor(model, run=tmp_path / "run", every=1, on_alarm=listen) as monitor:
        monitor.step(0)
        with torch.no_grad():
            model.h[0].c_proj.weight[:, :8] = 0
        monitor.step(1)
        monitor.flush()
        assert not heard, "a listener is called where the training calls, not on another thread"
        monitor.step(2)
    kinds = {(alarm.kind, alarm.site, alarm.head) for alarm in heard}
    assert kinds == {(kind, "layers.0.ov", 0) for kind in ("dead", "collapsed", "unbalanced")}
    dead = next(alarm for alarm in heard if alarm.kind == "dead")
    assert dead.evidence["value"] == 0
    assert dead.evidence["median"] > 0


def test_an_alarm_can_stop_the_run(tmp_path):
    model = gpt()
    with pytest.raises(rw.RunStopped, match=r"stopped by an alarm: layers.0.qk head 0 is collapsed: effective rank"):  # noqa: PT012, SIM117
        with rw.Monitor(
            model, run=tmp_path / "run", every=1, on_alarm="stop", alarms=rw.Alarms(spike=None, imbalance=None)
        ) as monitor:
            monitor.step(0)
            with torch.no_grad():
                model.h[0].c_attn.weight[1:8] *= 1e-4
            monitor.step(1)
            monitor.flush()
            monitor.step(2)
            pytest.fail("it went on")
    assert rw.open_run(tmp_path / "run").steps == [0, 1]


def test_sinks_get_a_few_numbers_in_order(tmp_path, caplog):
    class Kept:
        def __init__(self) -> None:
            self.values: list = []

        def write(self, outcome) -> None:
            self.values.append((outcome.step, outcome.values))
            assert len(outcome.rows) == 2 * 4 * 3

    class Failing:
        def write(self, outcome) -> None:
            raise OSError("the tracker is away")

    kept, model = Kept(), gpt()
    optimizer = adamw(model)
    with rw.Monitor(model, run=tmp_path / "run", every=2, sinks=[Failing(), kept], alarms=None) as monitor:
        for step, loss in trained(model, optimizer, range(5)):
            monitor.step(step, loss=loss)
    assert [step for step, _ in kept.values] == [0, 2, 4]
    assert set(kept.values[-1][1]) == {
        "loss",
        "effective_rank/qk",
        "effective_rank/ov",
        "change_effective_rank/qk",
        "change_effective_rank/ov",
    }
    assert len(warnings_in(caplog)) == 1


@pytest.mark.slow
def test_only_the_first_of_several_processes_records(tmp_path):
    program = (
        "import os, sys, torch; import rankwise as rw; from tests.watch.training import gpt\n"
        "rank = int(sys.argv[2])\n"
        "place = 'file://' + sys.argv[1] + '.sync'\n"
        "torch.distributed.init_process_group('gloo', init_method=place, rank=rank, world_size=2)\n"
        "model = torch.nn.parallel.DistributedDataParallel(gpt())\n"
        "with rw.Monitor(model, run=sys.argv[1], every=1) as monitor:\n"
        "    monitor.step(0, loss=1.0 + rank); monitor.load_state_dict(monitor.state_dict())\n"
        "    assert (monitor.overhead is None) or rank == 0\n"
        "torch.distributed.destroy_process_group()\n"
    )
    commands = [[sys.executable, "-c", program, str(tmp_path / "run"), str(rank)] for rank in (0, 1)]
    processes = [subprocess.Popen(each, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) for each in commands]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    run = rw.open_run(tmp_path / "run")
    assert [entry.loss for entry in run.snapshots] == [1.0]
    assert run.sites[0]["parameters"] == ["h.0.c_attn.weight"]


def test_the_process_is_named_where_it_writes(tmp_path):
    with rw.Monitor(gpt(), run=tmp_path / "run", every=1):
        owner = json.loads((tmp_path / "run/lock").read_text())
        assert owner["pid"] == os.getpid()
        with pytest.raises(UserError, match="is being written by this process already"):
            rw.Monitor(gpt(), run=tmp_path / "run", resume=True)
