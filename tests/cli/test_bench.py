"""The bench measures what it says: errors against a reference of its own, bounds that hold, times that are there."""

from __future__ import annotations

import json

import pytest
import torch

from rankwise import cli
from rankwise.cli import bench

SMALL = ["bench", "--count", "6", "--rows", "48", "--inner", "8", "--repeats", "1"]


def test_every_method_is_measured_and_its_bound_holds(capsys):
    assert cli.main([*SMALL, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    timings = {timing["method"]: timing for timing in said["timings"]}
    assert list(timings) == ["naive", *bench.METHODS]
    assert f"torch {torch.__version__}" in said["machine"]
    assert all(timing["seconds"] > 0 for timing in timings.values())
    assert [method for method, timing in timings.items() if timing["extrapolated"]] == ["naive"]
    for method in bench.METHODS:
        # Values are compared with a reference that has an error of its own, of a few float64 roundings.
        assert timings[method]["error"] <= timings[method]["bound"] + 1e-13
    assert timings["auto"]["bound"] <= 1e-6
    assert timings["gram64"]["error"] < 1e-9


def test_the_table_names_the_products_and_every_method(capsys):
    assert cli.main(SMALL) == 0
    shown = capsys.readouterr().out
    assert "6 products of 48 x 8 x 48, float32" in shown
    for method in ("naive", *bench.METHODS):
        assert f"\n{method} " in shown
    assert "about " in shown


def test_one_product_needs_no_scaling_up(capsys):
    assert cli.main(["bench", "--count", "1", *SMALL[3:], "--json"]) == 0
    timings = json.loads(capsys.readouterr().out)["timings"]
    assert not any(timing["extrapolated"] for timing in timings)


def test_products_are_the_same_at_every_call():
    one, two = (bench.random_products(3, 5, 2, "cpu") for _ in range(2))
    assert torch.equal(one.left, two.left)
    assert torch.equal(one.right, two.right)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--count", "0"], "--count is 0"),
        (["--inner", "-3"], "--inner is -3"),
        (["--device", "abacus"], "--device 'abacus' is not here"),
        (["--device", "cuda:99"], "--device 'cuda:99' is not here"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(words, said, capsys):
    assert cli.main(["bench", *words]) == 2
    captured = capsys.readouterr().err
    assert said in captured
    assert captured.count("\n") == 1
