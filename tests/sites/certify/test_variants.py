"""The configurations that a release tries: each switch turned, alone and with the others."""

from __future__ import annotations

import pytest

from rankwise.sites.certify import variants as page
from rankwise.sites.certify.variants import TOGETHER, WELL_KNOWN, variants


def test_the_own_configuration_comes_first_then_one_turn_then_two() -> None:
    found = list(variants("olmo"))
    assert found[0] == {}
    turned = [len(changes) for changes in found[1:]]
    assert turned == sorted(turned)
    assert {"attention_bias": True} in found
    assert {"attention_bias": True, "num_key_value_heads": 1} in found
    assert len({str(changes) for changes in found}) == len(found)


@pytest.mark.parametrize(
    ("model_type", "change"),
    [
        ("gemma2", {"attn_logit_softcapping": None}),
        ("llama", {"num_key_value_heads": 6}),
        ("falcon", {"alibi": True, "multi_query": False}),
        ("deepseek_v3", {"q_lora_rank": None}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}),
        ("bert", {"add_cross_attention": True, "is_decoder": True}),
    ],
)
def test_switches_of_known_checkpoints_are_among_them(model_type: str, change: dict[str, object]) -> None:
    assert change in list(variants(model_type))


def test_rotary_kinds_that_change_more_than_angles_are_tried() -> None:
    kinds = [changes["rope_parameters"] for changes in variants("deepseek_v3") if set(changes) == {"rope_parameters"}]
    assert {kind["rope_type"] for kind in kinds} == {"default", "yarn"}
    assert any(kind.get("mscale_all_dim") for kind in kinds)
    assert any(kind.get("partial_rotary_factor") == 0.5 for kind in kinds)


def test_what_no_switch_leads_to_is_listed_by_hand() -> None:
    for model_type, together in TOGETHER.items():
        found = list(variants(model_type))
        assert found[1 : 1 + len(together)] == list(together)


def test_there_is_an_end_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_OF_THE_WELL_KNOWN", 5)
    assert len(list(variants("falcon"))) == 5 + len(TOGETHER["falcon"])
    assert len(list(variants("arcee"))) == page.MOST


def test_well_known_types_exist_and_more_of_their_switches_are_turned_together() -> None:
    from rankwise.sites.certify.tiny import model_types

    assert set(model_types()) >= WELL_KNOWN
    assert max(map(len, variants("llama"))) > max(map(len, variants("arcee")))


def test_a_type_without_a_default_configuration_has_its_own_alone() -> None:
    assert list(variants("encoder-decoder")) == [{}]
