"""The measures by name."""

from __future__ import annotations

import pytest

from rankwise.errors import UserError
from rankwise.product import measures
from rankwise.product.catalogue import MEASURES, find_measure, measure
from tests.product.draws import spectrum


def test_every_measure_says_what_it_is() -> None:
    assert len(MEASURES) == 12
    for name, entry in MEASURES.items():
        assert entry.name == name
        assert entry.title
        assert entry.formula
        assert entry.meaning.endswith(".")
        assert "\n" not in entry.meaning


def test_names_are_those_of_the_functions() -> None:
    target = spectrum([3.0, 1.0, 0.5])
    for name, entry in MEASURES.items():
        assert entry.function(target).item() == getattr(measures, name)(target).item()
        assert measure(name, target).value.item() == entry.function(target).item()


def test_only_norms_scale_with_the_matrix() -> None:
    one, two = spectrum([3.0, 1.0, 0.5]), spectrum([6.0, 2.0, 1.0])
    for entry in MEASURES.values():
        ratio = entry.function(two).item() / entry.function(one).item()
        assert ratio == pytest.approx(2.0 if entry.scales else 1.0)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"'rank'.*stable_rank, pseudo_rank"):
        find_measure("rank")
    with pytest.raises(TypeError):
        MEASURES["rank"] = find_measure("stable_rank")  # type: ignore[index]
