"""The named tensors are found wherever a training script put them; nothing is dropped without a word."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rankwise.errors import CheckpointError
from rankwise.sites.checkpoints.nested import find_tensors

ONE, TWO = torch.ones(1), torch.ones(2)


def test_a_plain_state_dict_is_taken_as_it_is() -> None:
    found = find_tensors({"a": ONE, "b": TWO, "step": 3}, "f")
    assert found.tensors == {"a": ONE, "b": TWO}
    assert (found.notes, found.config) == ((), None)


def test_several_models_get_dotted_names() -> None:
    found = find_tensors({"generator": {"w": ONE}, "critic": {"inner": {"w": TWO}}}, "f")
    assert list(found.tensors) == ["generator.w", "critic.inner.w"]


def test_what_stands_beside_the_weights_is_said() -> None:
    content = {"model": {"w": ONE}, "ema": {"w": TWO}, "optimizer": {"state": {0: {"exp_avg": TWO}}}, "epoch": 3}
    found = find_tensors(content, "f")
    assert list(found.tensors) == ["w"]
    assert found.notes == ("f: the weights are those under 'model'", "f: left aside 'ema', 'optimizer'")


def test_weights_under_two_keys_one_inside_the_other() -> None:
    found = find_tensors({"state_dict": {"model": {"w": ONE}}}, "f")
    assert list(found.tensors) == ["w"]
    assert found.notes == ("f: the weights are those under 'state_dict.model'",)


def test_a_table_that_holds_itself_ends() -> None:
    content: dict[str, Any] = {"w": ONE}
    content["model"] = content
    content["config"] = content
    found = find_tensors(content, "f")
    assert list(found.tensors) == ["w"]


def test_a_configuration_becomes_what_json_can_hold() -> None:
    content = {"w": ONE, "hyper_parameters": {"lr": 0.1, "sizes": (1, 2), 3: None, "dtype": torch.float32}}
    assert find_tensors(content, "f").config == {"lr": 0.1, "sizes": [1, 2], "3": None, "dtype": "torch.float32"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([ONE], "holds a list, a table of named tensors was expected"),
        ({"step": 3}, r"holds no tensors under the keys \['step'\]"),
        ({"a.b": ONE, "a": {"b": TWO}}, "holds 'a.b' twice"),
    ],
)
def test_what_has_no_named_tensors_is_told(content: object, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        find_tensors(content, "f")
