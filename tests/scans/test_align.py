"""Names of two checkpoints that differ by a prefix."""

import pytest

from rankwise.errors import UserError
from rankwise.scans.align import common_names

PLAIN = [f"encoder.layer.{layer}.{part}.weight" for layer in range(3) for part in ("query", "key")]


@pytest.mark.parametrize("lead", ["", "bert.", "model.language_model.", "base_model.model.model."])
def test_a_prefix_on_either_side_is_seen(lead: str) -> None:
    prefixed = [lead + name for name in PLAIN]
    names, note = common_names([*prefixed, "cls.bias"], [*PLAIN, "classifier.weight"])
    assert names == dict(zip(prefixed, PLAIN, strict=True))
    assert (note is None) == (lead == "")
    turned, _ = common_names(PLAIN, prefixed)
    assert turned == dict(zip(PLAIN, prefixed, strict=True))


def test_nothing_in_common_is_said() -> None:
    with pytest.raises(UserError, match="no tensor name in common"):
        common_names(["a.weight"], ["b.weight"])
