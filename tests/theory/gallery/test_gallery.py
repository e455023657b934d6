"""The record of the figures: everything that a page draws is a number of the lab, and JSON."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import pytest
import torch

from rankwise import theory
from rankwise.errors import UserError
from rankwise.report import gallery as page
from rankwise.theory.gallery import FORMAT, VERSION, gallery

SETTINGS = {"width": 4, "samples": 24, "stages": 4, "seed": 1}
ALPHAS, DECAYS = (1e-8, 1e-32, 1e-2), (0.4, 0.0, 1.0)


@cache
def made() -> dict[str, Any]:
    return gallery(**SETTINGS, alphas=ALPHAS, decays=DECAYS)


@pytest.mark.slow
def test_it_is_json_of_the_format_that_the_page_reads() -> None:
    record = made()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert (FORMAT, VERSION) == (page.FORMAT, page.VERSION)
    assert (record["format"], record["version"]) == (FORMAT, VERSION)
    assert record["settings"] == SETTINGS | {"tokens": 10}


@pytest.mark.slow
def test_the_diagonal_figure_is_flows_beside_their_limit() -> None:
    figure = made()["diagonal"]
    toy = theory.head_toy(width=4, samples=24, seed=1)
    path = theory.greedy(toy.problem, stages=4)
    assert [stage["coordinate"] for stage in figure["path"]] == list(path.coordinates)
    assert [stage["time"] for stage in figure["path"]] == path.times.tolist()
    assert [stage["name"] for stage in figure["path"]] == [str(stage.place) for stage in path.stages]
    assert [run["alpha"] for run in figure["runs"]] == [1e-2, 1e-8, 1e-32]
    times = torch.tensor(figure["times"], dtype=torch.float64)
    assert times[-1] > path.times[-1]
    for run in figure["runs"]:
        exact = theory.flow(
            toy.problem, log_alpha=math.log(run["alpha"]), start=toy.start, until=float(times[-1]), tolerance=1e-10
        ).at(times)
        torch.testing.assert_close(torch.tensor(run["products"]).mT, exact.products.float(), rtol=0, atol=1e-3)
        losses = torch.tensor([toy.problem.value(one) for one in exact.products])
        torch.testing.assert_close(torch.tensor(run["losses"]), losses, rtol=0, atol=1e-3)
        assert run["complete"]
    first, _, last = (torch.tensor([t or math.nan for t in run["stage_times"]]) for run in figure["runs"])
    assert (last - path.times).abs().max() < (first - path.times).abs().nan_to_num(math.inf).max()


@pytest.mark.slow
def test_the_perturbed_return() -> None:
    found = made()["diagonal"]["perturbations"]
    assert found["alpha"] == 1e-32
    for kind in ("plateaus", "activations"):
        assert 1 <= len(found[kind]) <= 3
        for episode in found[kind]:
            before, after = (torch.tensor(episode[name]) for name in ("unperturbed", "perturbed"))
            assert before.shape == after.shape == (len(episode["coordinates"]), len(episode["times"]))
            assert (before[:, 0] - after[:, 0]).abs().max() > 1e-6
            scale = before.abs().max()
            assert (before[:, -1] - after[:, -1]).abs().max() < 0.05 * scale
            assert episode["distance"] >= 0


@pytest.mark.slow
def test_full_matrices_escape_when_they_should_one_after_the_other() -> None:
    figure = made()["matrices"]
    assert [run["alpha"] for run in figure["runs"]] == [1e-2, 1e-8]
    escapes = []
    for run in figure["runs"]:
        values = {name: torch.tensor(lists) for name, lists in run["values"].items()}
        times = torch.tensor(run["times"])
        # Keys and queries wait for values and outputs.
        early = int((values["OV"][0] > 0.02 * values["OV"][0, -1]).int().argmax()) - 1
        ahead, behind = (values[name][0, early] / values[name][0, 0] for name in ("OV", "QK"))
        assert ahead > 10 * behind
        assert run["losses"][-1] < run["losses"][0] / 2
        assert values["OV"][0, -1].item() == pytest.approx(figure["teacher"]["OV"][0], rel=0.2)
        escapes.append(times[early].item() * -math.log(run["alpha"]))
    # In time that is not rescaled, each e-folding of smallness costs as much.
    slope = (escapes[1] - escapes[0]) / math.log(1e-2 / 1e-8)
    assert slope == pytest.approx(figure["escape"], rel=0.05)


@pytest.mark.slow
def test_decayed_values_end_at_the_soft_threshold_and_the_imbalance_on_its_law() -> None:
    figure = made()["decay"]
    assert [run["decay"] for run in figure["runs"]] == [0.0, 0.4, 1.0]
    for run in figure["runs"]:
        predicted = [max(s - run["decay"] / 2, 0) for s in figure["target"]]
        assert run["predicted"] == pytest.approx(predicted)
        assert run["end"] == pytest.approx(predicted, abs=0.02)
        assert run["imbalance"] == pytest.approx(run["law"], rel=1e-6, abs=1e-12)
        assert min(run["gap"]) >= 0
    free, pressed, _ = figure["runs"]
    assert free["gap"][-1] > 0.1 > 1e-6 > pressed["gap"][-1]


@pytest.mark.parametrize(
    "given", [{"alphas": (1.0,)}, {"alphas": ()}, {"decays": (-1.0,)}, {"decays": (math.nan,)}, {"stages": 0}]
)
def test_what_cannot_be_drawn(given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="asked for"):
        gallery(**(SETTINGS | given))


@pytest.mark.slow
def test_progress_names_every_run() -> None:
    said: list[str] = []
    gallery(**SETTINGS, alphas=(0.1,), decays=(0.5,), progress=said.append)
    assert said == [
        "the greedy path",
        "the diagonal head at alpha = 0.1",
        "perturbations",
        "the head with full matrices at alpha = 0.1",
        "two matrices at decay 0.5",
    ]
