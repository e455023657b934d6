"""What stands out, on models with one planted fault each."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rankwise.scans.scan import scan

HEADS, SIZE, WIDTH, LAYERS = 4, 8, 64, 3
CONFIG = {"model_type": "llama", "num_attention_heads": HEADS, "head_dim": SIZE, "hidden_size": WIDTH}


def model(spoil: Callable[[dict[str, Tensor]], None]) -> dict[str, Tensor]:
    """A Llama with heads that are neither random nor degenerate: nearly equal singular values, balanced."""
    generator = torch.Generator().manual_seed(0)

    def frame() -> Tensor:
        return torch.linalg.qr(torch.randn(WIDTH, SIZE, generator=generator, dtype=torch.float64))[0]

    tensors = {}
    root = torch.linspace(1.1, 1, SIZE, dtype=torch.float64).sqrt()
    for layer in range(LAYERS):
        at = f"model.layers.{layer}.self_attn"
        for one, two in (("q", "k"), ("o", "v")):
            left = torch.cat([frame() * root for _ in range(HEADS)], 1)
            right = torch.cat([(frame() * root).T for _ in range(HEADS)], 0)
            tensors[f"{at}.{one}_proj.weight"] = left if one == "o" else left.T.contiguous()
            tensors[f"{at}.{two}_proj.weight"] = right
    spoil(tensors)
    return tensors


def found(spoil: Callable[[dict[str, Tensor]], None]) -> list[tuple[str, str | None, int | None]]:
    return [(each["kind"], each["site"], each["head"]) for each in scan(model(spoil), config=CONFIG).findings]


O1, V1 = "model.layers.1.self_attn.o_proj.weight", "model.layers.1.self_attn.v_proj.weight"


def dead(tensors: dict[str, Tensor]) -> None:
    tensors[O1][:, 2 * SIZE : 3 * SIZE] *= 1e-5


def zero(tensors: dict[str, Tensor]) -> None:
    tensors[V1][2 * SIZE : 3 * SIZE] = 0


def collapsed(tensors: dict[str, Tensor]) -> None:
    tensors[V1][2 * SIZE + 2 : 3 * SIZE] *= 1e-4


def spiked(tensors: dict[str, Tensor]) -> None:
    tensors[V1][2 * SIZE] *= 12
    tensors[O1][:, 2 * SIZE] *= 12


def unbalanced(tensors: dict[str, Tensor]) -> None:
    tensors[V1][2 * SIZE : 3 * SIZE] *= 10
    tensors[O1][:, 2 * SIZE : 3 * SIZE] /= 10


def broken(tensors: dict[str, Tensor]) -> None:
    tensors[V1][2 * SIZE, 5] = float("nan")


def test_nothing_stands_out_of_a_sound_model() -> None:
    assert found(lambda tensors: None) == []


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (dead, "dead"),
        (zero, "dead"),
        (collapsed, "collapsed"),
        (spiked, "spiked"),
        (unbalanced, "unbalanced"),
        (broken, "failed"),
    ],
)
def test_a_planted_fault_is_found_and_nothing_else(spoil: Callable[[dict[str, Tensor]], None], kind: str) -> None:
    kinds = found(spoil)
    assert (kind, "layers.1.ov", 2) in kinds
    # A single strong direction also means few directions: nothing but that head may be named.
    assert {(site, head) for _, site, head in kinds} == {("layers.1.ov", 2)}


def test_random_weights_are_said_once_for_the_whole_model() -> None:
    def random(tensors: dict[str, Tensor]) -> None:
        generator = torch.Generator().manual_seed(1)
        for name in tensors:
            tensors[name] = torch.randn(tensors[name].shape, generator=generator) * 0.02

    findings = scan(model(random), config=CONFIG).findings
    assert [each["kind"] for each in findings] == ["untrained"]
    assert "was the trained checkpoint loaded?" in findings[0]["text"]


def test_every_finding_carries_its_evidence() -> None:
    for finding in scan(model(spiked), config=CONFIG).findings:
        assert finding["evidence"]
        assert all(isinstance(value, int | float) for value in finding["evidence"].values())
