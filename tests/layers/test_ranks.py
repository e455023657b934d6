"""Scales, ranks and budgets; the paper's tables, integer for integer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rankwise as rw
from rankwise.errors import UserError
from rankwise.layers.ranks import PAPER_RULE, RankRule, output_side, scale_within, smaller_side
from tests.layers.nets import CifarResNet, on_meta, parameters, vgg19, wide_resnet

CIFAR_RESNETS = {
    # depth: dense, at the scales .037, .111, .333, 1, 3, 9, and at 1 with an inner factor
    20: (269_722, [23_482, 63_850, 188_314, 560_026, 1_675_162, 5_020_570], 850_330),
    32: (464_154, [38_970, 107_370, 318_234, 947_994, 2_837_274, 8_505_114], 1_431_834),
    56: (853_018, [69_946, 194_410, 578_074, 1_723_930, 5_161_498, 15_474_202], 2_594_842),
    110: (1_727_962, [139_642, 390_250, 1_162_714, 3_469_786, 10_391_002, 31_154_650], 5_211_610),
}
WIDE, NARROW = (64, 128, 256), (32, 64, 128)
BUDGETS = [
    # net, classes, dense, then for each budget: parameters, and the scale to as many digits as the table has
    ("resnet64", 10, 7_427_914, {0.02: (150_090, 0.0088), 0.05: (373_194, 0.0239), 0.10: (743_370, 0.0479)}),
    ("resnet64", 100, 7_451_044, {0.02: (154_404, 0.0073), 0.05: (370_020, 0.0220), 0.10: (751_524, 0.0469)}),
    ("resnet64", 200, 7_476_744, {0.05: (380_360, 0.0205), 0.10: (754_760, 0.0454), 0.15: (1_117_448, 0.0693)}),
    ("resnet32", 10, 1_860_522, {0.02: (35_498, 0.0068), 0.05: (93_962, 0.0225), 0.10: (186_602, 0.0479)}),
    ("resnet32", 100, 1_872_132, {0.02: (39_620, 0.0039), 0.05: (90_404, 0.0186), 0.10: (188_804, 0.0449)}),
    ("resnet32", 200, 1_885_032, {0.05: (92_072, 0.0156), 0.10: (190_280, 0.0410), 0.15: (280_904, 0.0654)}),
    ("vgg19", 10, 20_035_018, {0.10: (1_996_618, 0.0476), 0.05: (992_650, 0.0237), 0.02: (397_642, 0.0093)}),
    ("vgg19", 100, 20_081_188, {0.10: (2_013_220, 0.0469), 0.05: (1_008_868, 0.0227), 0.02: (412_900, 0.0083)}),
    ("vgg19", 200, 20_132_488, {0.10: (2_011_144, 0.0459), 0.05: (1_005_448, 0.0215), 0.02: (410_440, 0.0071)}),
    ("wrn", 10, 36_479_194, {0.01667: (610_282, 0.00757), 0.06667: (2_435_034, 0.0320)}),
]


def net(name: str, classes: int):
    if name == "vgg19":
        return on_meta(vgg19, classes)
    if name == "wrn":
        return on_meta(wide_resnet, 28, 10, classes)
    widths = WIDE if name == "resnet64" else NARROW
    return on_meta(CifarResNet, 32, widths=widths, classes=classes, projected=True)


@pytest.mark.parametrize("depth", CIFAR_RESNETS)
@pytest.mark.parametrize("classes", [10, 100])
def test_parameters_at_the_papers_scales(depth, classes):
    dense, totals, deep = CIFAR_RESNETS[depth]
    model = on_meta(CifarResNet, depth, classes=classes)
    more = 0 if classes == 10 else 5_850
    assert parameters(model) == dense + more
    for exponent, total in zip(range(-3, 3), totals, strict=True):
        scale = round(3.0**exponent, 3)
        plan = rw.factorization_plan(model, rank=scale, rule=PAPER_RULE, overcomplete=True)
        assert plan.parameters == total + more
    assert rw.factorization_plan(model, rank=1.0, depth=1, rule=PAPER_RULE, overcomplete=True).parameters == deep + more


def test_the_factorized_net_has_as_many_parameters_as_the_plan_says():
    model = CifarResNet(20)
    plan = rw.factorization_plan(model, rank=0.111, rule=PAPER_RULE)
    assert {layer.weight_shape[0]: layer.rank for layer in plan.layers} == {16: 5, 32: 11, 64: 21}
    assert parameters(plan.apply(model)) == plan.parameters == 63_850
    assert plan.ratio == pytest.approx(0.2367, abs=5e-5)


@pytest.mark.parametrize(("name", "classes", "dense", "found"), BUDGETS)
def test_budgets_are_met_with_the_papers_ranks(name, classes, dense, found):
    model = net(name, classes)
    assert parameters(model) == dense
    for budget, (total, scale) in found.items():
        plan = rw.factorization_plan(model, budget=budget, rule=PAPER_RULE)
        assert plan.parameters == total
        assert plan.scale == pytest.approx(scale, abs=6e-6 if scale == 0.00757 else 6e-5)


def test_a_budget_below_rank_one_says_what_can_be_reached():
    message = r"a budget of 37,701 parameters \(0.02 of 1,885,032\) cannot be met: .* 45,032 \(0.02389\) are left"
    for rule in (PAPER_RULE, None):
        with pytest.raises(UserError, match=message):
            rw.factorization_plan(net("resnet32", 200), budget=0.02, rule=rule)


@settings(max_examples=20)
@given(side=st.sampled_from([smaller_side, output_side]), budget=st.floats(0.03, 0.95))
def test_a_budget_is_an_upper_limit_unless_told_otherwise(side, budget):
    model = on_meta(CifarResNet, 20)
    plan = rw.factorization_plan(model, budget=budget, rule=RankRule(side=side), overcomplete=True)
    assert plan.ratio <= budget
    # One step of the scale further, some layer is one rank wider, and the budget is not kept.
    more = rw.factorization_plan(model, rank=plan.scale + 2e-6, rule=RankRule(side=side), overcomplete=True)
    ranks = [one.rank for one in plan.layers], [one.rank for one in more.layers]
    assert ranks[0] == ranks[1] or more.ratio > budget or plan.ratio > budget - 1e-6


def test_a_count_is_a_budget_too():
    model = on_meta(CifarResNet, 20)
    assert rw.factorization_plan(model, budget=26_972).parameters <= 26_972
    assert (
        rw.factorization_plan(model, budget=26_972).ranks == rw.factorization_plan(model, budget=26_972 / 269_722).ranks
    )


def test_a_budget_beyond_the_dense_net_makes_layers_wide_only_if_asked():
    model = on_meta(CifarResNet, 20)
    with pytest.warns(UserWarning, match=r"budget=5.0 has no effect beyond 525,466 parameters"):
        exact = rw.factorization_plan(model, budget=5.0)
    assert all(layer.rank == layer.limit for layer in exact.layers)
    wide = rw.factorization_plan(model, budget=5.0, overcomplete=True)
    assert 4.9 < wide.ratio <= 5.0
    assert all(layer.rank > layer.limit for layer in wide.layers)


def test_the_search_ends_on_an_exact_hit():
    asked = []

    def count(scale: float) -> int:
        asked.append(scale)
        return 100 + round(1000 * scale)

    assert scale_within(count, budget=0.6, dense=1000) == 0.5
    assert len(asked) == 3


@pytest.mark.parametrize("budget", [0, -0.1, 0.0, True])
def test_a_budget_that_is_none_is_refused(budget):
    with pytest.raises(UserError, match="budget must be a share of the parameters"):
        rw.factorization_plan(on_meta(CifarResNet, 8), budget=budget)
