from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

import rankwise as rw
from rankwise.watch.alarms import Alarm
from rankwise.watch.recorder import Outcome
from rankwise.watch.sinks.terminal import bars, layers
from tests.watch.training import adamw, gpt, trained


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=100, color_system="truecolor" if terminal else None), file


@pytest.mark.parametrize("terminal", [True, False])
def test_a_training_is_drawn(tmp_path, terminal):
    place, file = console(terminal=terminal)
    model = gpt()
    optimizer = adamw(model)
    panel = rw.Panel(total=7, console=place)
    with panel, rw.Monitor(model, run=tmp_path / "run", every=3, sinks=[panel]) as monitor:
        for step, loss in trained(model, optimizer, range(7)):
            if step == 5:
                with torch.no_grad():
                    model.h[0].c_proj.weight[:, :8] = 0
            monitor.step(step, loss=loss)
    said = file.getvalue()
    rows = list(rw.open_run(tmp_path / "run").rows(6))
    ranks = layers(rows)
    expected = sum(row["effective_rank"] for row in rows if (row["of"], row["site"]) == ("product", "layers.1.qk")) / 3
    assert ranks["product", "qk", 1] == pytest.approx(expected)
    if terminal:
        assert f"{ranks['product', 'qk', 1]:.1f}" in said
        assert f"{ranks['change', 'ov', 0]:.1f}" in said
        assert "qk, change" in said
        assert "step 6: layers.0.ov head 0 is" in said
        assert said.count("effective rank by layer") == 4, "three snapshots, and the last picture stays"
        assert "\x1b[?25h" in said, "the cursor is there again"
    else:
        lines = said.splitlines()
        assert [line.split("  ")[0] for line in lines] == ["step 0 of 7", "step 3 of 7", "step 6 of 7"]
        assert f"effective_rank/qk {sum(ranks['product', 'qk', layer] for layer in (0, 1)) / 2:.4g}" in lines[-1]
        assert "\x1b" not in said
    assert "left" in said


def test_the_time_left_is_that_of_the_steps_to_come():
    place, file = console(terminal=False)
    panel = rw.Panel(total=1000, console=place)
    for step, time in ((100, 50.0), (200, 150.0)):
        panel.write(Outcome(step, time, {"loss": 1.5}, [], []))
    assert file.getvalue().splitlines() == ["step 100 of 1000  loss 1.5", "step 200 of 1000  0:13:20 left  loss 1.5"]


def test_names_are_shown_without_what_a_terminal_obeys():
    place, file = console(terminal=True)
    panel = rw.Panel(console=place)
    alarm = Alarm("dead", site="x", head=0, text="layers\x1b[2J.0 is dead", evidence={})
    row = {"of": "product", "kind": "q\x1b]0;k", "layer": 0, "effective_rank": 2.0}
    panel.write(Outcome(1, 0.0, {}, [alarm], [row]))
    panel.close()
    assert "\x1b[2J" not in file.getvalue()
    assert "\x1b]0;" not in file.getvalue()
    assert "layers?.0 is dead" in file.getvalue()


def test_losses_that_are_none_leave_no_bar():
    assert bars([float("inf"), float("nan")]) == ""
    assert bars([2.0, 2.0]) == "▁▁"
