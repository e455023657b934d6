"""A ResNet-20 and a vision transformer on real images: every product follows the theory for all of training.

With momentum and noise the laws of gradient flow are approximations: the margins say how good they were. All checks of
a net are one test, because training its four arms takes half a minute and more.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from torch import Tensor

from tests.steer.four_arms import IMAGES, RECIPES, Charge, Course, Start, arms, table
from tests.steer.images import cifar

Arms = dict[tuple[Start, Charge], Course]


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_products_follow_the_theory(name: str, shared_data: Path) -> None:
    courses = arms(name, cifar(shared_data, IMAGES))
    Console(width=150).print(table(name, courses))
    predicted = RECIPES[name].shrinkage
    assert predicted[-1] < 0.06
    every_arm_learns(courses)
    imbalance_is_damped_or_kept(courses, predicted)
    bound_becomes_tight(courses, predicted)
    spectral_start_stays_balanced(courses)
    norms_shrink_less_under_frobenius_decay(courses)


def every_arm_learns(courses: Arms) -> None:
    """Otherwise decay would be all there is, and the laws easy to obey."""
    for course in courses.values():
        assert course.loss[-25:].mean() < course.loss[:25].mean() - 0.15


def imbalance_is_damped_or_kept(courses: Arms, predicted: Tensor) -> None:
    """Decay of the factors damps it at its rate, Frobenius decay keeps it."""
    damped, kept = (
        courses["regular", charge].imbalance / courses["regular", charge].imbalance[0]
        for charge in ("factors", "product")
    )
    ratio = damped / predicted[:, None]
    assert 0.7 < ratio.min() <= ratio.max() < 1.15
    assert 0.7 < kept.min() <= kept.max() < 1.01
    assert bool((kept[-1] > 10 * damped[-1]).all())


def bound_becomes_tight(courses: Arms, predicted: Tensor) -> None:
    """Under decay of the factors the bound comes down to the nuclear norm; under Frobenius decay it is left behind."""
    damped, kept = courses["regular", "factors"], courses["regular", "product"]
    shares = [course.gap / course.gap[0] for course in (damped, kept)]
    assert bool((shares[0] < 1.15 * predicted[:, None]).all())
    assert bool((shares[1][-1] > 10 * predicted[-1]).all())
    # Also as a share of the bound, which falls itself.
    assert damped.slack[-1] < 0.85 * damped.slack[0]
    assert kept.slack[-1] > max(0.8, 2 * kept.slack[0].item())


def spectral_start_stays_balanced(courses: Arms) -> None:
    for charge in ("factors", "product"):
        course = courses["spectral", charge]
        assert bool((course.imbalance[0] < 1e-5 * course.half_sum[0]).all())
        assert course.slack.max() < 0.08


def norms_shrink_less_under_frobenius_decay(courses: Arms) -> None:
    """Values `s` of balanced factors fall at the rates `2 lambda s` and `2 lambda`: slower once they are small."""
    factors, product = (courses["spectral", charge] for charge in ("factors", "product"))
    assert bool((product.kept[-1] > 1.3 * factors.kept[-1]).all())
    # From a regular start it is the other way round at first: the values are large, and the factors' Grams larger.
    factors, product = (courses["regular", charge] for charge in ("factors", "product"))
    assert product.kept[1].mean() < 0.85 * factors.kept[1].mean()
