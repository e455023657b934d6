"""The change between two models: real fine-tunes against a dense float64 reference; what cannot be compared is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import rankwise as rw
from rankwise.errors import UserError
from rankwise.scans.difference import Diff
from rankwise.scans.select import Selection
from tests import checkpoints

SETTINGS = rw.Settings(selection=Selection.parse(["layer=0+7"]))


def bert(folder: Path, prefix: str, layers: tuple[int, ...] = (0, 7)) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The attention products of a rxnfp model multiplied out in float64, and its single matrices."""
    state = torch.load(folder / "pytorch_model.bin", weights_only=True, map_location="cpu")
    products = {}
    for layer in layers:
        at = f"{prefix}encoder.layer.{layer}.attention"
        query, key, value = (
            state[f"{at}.self.{name}.weight"].double().unflatten(0, (4, 64)) for name in ("query", "key", "value")
        )
        output = state[f"{at}.output.dense.weight"].double().unflatten(1, (4, 64)).movedim(1, 0)
        products |= {f"layers.{layer}.qk": query.mT @ key, f"layers.{layer}.ov": output @ value}
    return products, {name.removeprefix(prefix): tensor for name, tensor in state.items()}


@pytest.fixture(scope="module")
def rxnfp(rxnfp_directories: dict[str, Path]) -> Diff:
    """From the pretrained model to a fine-tune whose names lack the prefix `bert.`."""
    return rw.diff(rxnfp_directories["pretrained"], rxnfp_directories["ft"], settings=SETTINGS)


@pytest.fixture(scope="module")
def before(rxnfp_directories: dict[str, Path]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return bert(rxnfp_directories["pretrained"], "bert.")


@pytest.fixture(scope="module")
def after(rxnfp_directories: dict[str, Path]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return bert(rxnfp_directories["ft"], "")


def test_a_real_fine_tune_s_products_equal_the_dense_reference(rxnfp: Diff, before: tuple, after: tuple) -> None:
    record = rxnfp.record
    assert any("start with 'bert.'" in note for note in record["notes"])
    assert [site["name"] for site in record["sites"]] == ["layers.0.qk", "layers.0.ov", "layers.7.qk", "layers.7.ov"]
    for site in record["sites"]:
        change = after[0][site["name"]] - before[0][site["name"]]
        exact = torch.linalg.svdvals(change)
        for head in site["heads"]:
            values, errors = (torch.tensor(head[key], dtype=torch.float64) for key in ("values", "errors"))
            # The change of a product of rank 64 has twice that rank at most.
            assert len(values) == 128
            reference = exact[head["head"], :128]
            assert (values - reference).abs().le(errors + 1e-8 * reference[0]).all()
            start = torch.linalg.matrix_norm(before[0][site["name"]][head["head"]])
            assert head["change"]["relative"] == pytest.approx((exact[head["head"]].norm() / start).item(), rel=1e-6)


def test_the_alignment_is_that_of_the_leading_spaces(rxnfp: Diff, before: tuple, after: tuple) -> None:
    for site in rxnfp.record["sites"]:
        base, change = before[0][site["name"]], after[0][site["name"]] - before[0][site["name"]]
        for head in site["heads"]:
            left, _, right = torch.linalg.svd(base[head["head"]])
            moved_left, _, moved_right = torch.linalg.svd(change[head["head"]])
            exact = {
                "left": (moved_left[:, :8].mT @ left[:, :8]).square().sum() / 8,
                "right": (moved_right[:8] @ right[:8].mT).square().sum() / 8,
            }
            for side, overlap in exact.items():
                found = head["change"]
                assert abs(found[side] - overlap.item()) <= found["error"] + 1e-8
                assert found[side] > 3 * found[f"{side}_chance"] == 3 * 8 / 256


def test_the_ranks_of_real_single_matrices(rxnfp: Diff, before: tuple, after: tuple) -> None:
    matrices = {matrix["parameter"]: matrix for matrix in rxnfp.record["matrices"]}
    assert len(matrices) == 2 * 6
    for name, matrix in matrices.items():
        change = after[1][name].double() - before[1][name].double()
        exact = torch.linalg.svdvals(change)
        share = exact.square().cumsum(0) / exact.square().sum()
        for wanted, rank in matrix["ranks"].items():
            assert rank == int((share < float(wanted[:-1]) / 100).sum()) + 1
        assert matrix["relative"] == pytest.approx((exact.norm() / before[1][name].double().norm()).item(), rel=1e-6)
        torch.testing.assert_close(torch.tensor(matrix["values"]), exact[:256].float(), rtol=1e-5, atol=1e-5)
        for rank, missed in matrix["missed"]:
            assert missed == pytest.approx(exact[rank:].norm().item(), rel=1e-2)
            assert missed >= exact[rank:].norm().item() * (1 - 1e-6)
    assert matrices["encoder.layer.7.attention.self.key.weight"]["sites"] == ["layers.7.qk"]
    assert matrices["encoder.layer.7.intermediate.dense.weight"]["sites"] == []


def test_two_fine_tunes_of_one_base(rxnfp_directories: dict[str, Path]) -> None:
    found = rw.diff(rxnfp_directories["ft"], rxnfp_directories["ft_10k"], settings=SETTINGS)
    assert "the tuned model's names start with 'bert.', the other's do not" in found.record["notes"]
    assert [each.parameter for each in found.unread] == ["classifier.weight"]
    assert all(0 < head["change"]["relative"] < 1 for site in found.record["sites"] for head in site["heads"])


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return checkpoints.write(tmp_path / "base", checkpoints.llama())


def tuned(base: Path, **changed: Tensor | None) -> Path:
    """A copy of the base in which some tensors are others, or none; `_` in a name stands for its dots."""
    tensors = load_file(base / "model.safetensors")
    names = {name.replace(".", "_"): name for name in tensors}
    for key, value in changed.items():
        if value is None:
            del tensors[names[key]]
        else:
            tensors[names.get(key, key)] = value
    return checkpoints.write(base.parent / "tuned", tensors)


def test_nothing_changed_and_it_is_said(base: Path) -> None:
    record = rw.diff(base, base).record
    assert record["base"] == str(base)
    heads = [head for site in record["sites"] for head in site["heads"]]
    assert len(heads) == 3 * 8
    for head in heads:
        assert head["failure"] == "unchanged: the change is exactly zero, it has no rank"
        assert set(head["values"]) == {None}
        assert head["change"]["relative"] == 0.0
        assert head["change"]["left"] is None
    assert {matrix["reason"] for matrix in record["matrices"]} == {heads[0]["failure"]}
    assert {(finding["kind"], finding["head"]) for finding in record["findings"]} == {("unchanged", None)}
    assert json.dumps(record, allow_nan=False)


def test_a_change_within_rounding_has_no_rank(base: Path) -> None:
    query = load_file(base / "model.safetensors")[checkpoints.attention(1, "q")]
    query[0, 0] = torch.nextafter(query[0, 0], torch.tensor(9.0))
    record = rw.diff(base, tuned(base, model_layers_1_self_attn_q_proj_weight=query)).record
    site = next(site for site in record["sites"] if site["name"] == "layers.1.qk")
    assert ["rounding" in head["failure"] for head in site["heads"]] == [True, False, False, False]
    matrix = next(each for each in record["matrices"] if each["parameter"] == checkpoints.attention(1, "q"))
    assert matrix["ranks"] is None
    assert "rounding, it has no rank" in matrix["reason"]
    kinds = [(finding["kind"], finding["site"], finding["head"]) for finding in record["findings"]]
    assert ("unchanged", "layers.1.qk", None) in kinds


def test_one_head_alone(base: Path) -> None:
    """Of a change in the rows of head 2 of the queries only that head's product sees anything, of rank 1."""
    query = load_file(base / "model.safetensors")[checkpoints.attention(0, "q")]
    query[17] += torch.randn(24)
    record = rw.diff(base, tuned(base, model_layers_0_self_attn_q_proj_weight=query)).record
    site = next(site for site in record["sites"] if site["name"] == "layers.0.qk")
    assert [head["failure"] is None for head in site["heads"]] == [False, False, True, False]
    values, errors = site["heads"][2]["values"], site["heads"][2]["errors"]
    assert values[1] <= errors[1]
    assert site["heads"][2]["measures"]["energy_rank"][0] == 1
    (matrix,) = (each for each in record["matrices"] if each["ranks"] is not None)
    assert matrix["ranks"] == {"90%": 1, "95%": 1, "99%": 1}


def test_a_grown_vocabulary_is_listed_and_the_rest_is_compared(base: Path) -> None:
    found = rw.diff(base, tuned(base, model_embed_tokens_weight=torch.randn(93, 24)))
    unread = {each.parameter: each.reason for each in found.unread}
    assert unread == {"model.embed_tokens.weight": "its shape is [90, 24] in the base and [93, 24] here"}
    assert len(found.sites) == 6


def test_another_architecture_is_refused(base: Path, tmp_path: Path) -> None:
    other = {name: torch.cat([tensor, tensor], -1) for name, tensor in checkpoints.llama().items()}
    with pytest.raises(UserError, match=r"shape \(90, 24\) in the base and \(90, 48\) .* 16 of 16 matrices"):
        rw.diff(base, checkpoints.write(tmp_path / "other", other))
    with pytest.raises(UserError, match="no tensor name in common"):
        rw.diff(base, checkpoints.write(tmp_path / "another", {"w": torch.ones(3, 3)}))


def test_what_only_one_of_the_two_has_is_listed(base: Path) -> None:
    head = torch.randn(5, 24)
    found = rw.diff(base, tuned(base, model_layers_2_mlp_up_proj_weight=None, score=head))
    assert {each.parameter: each.reason for each in found.unread} == {
        "score": "the base has no such tensor",
        "model.layers.2.mlp.up_proj.weight": "only the base has this tensor",
    }
    assert "score" not in found.matrices


def test_a_selection_also_chooses_the_matrices(base: Path) -> None:
    other = checkpoints.write(base.parent / "other", checkpoints.llama(seed=1))
    for words, sites, matrices in (("kind=qk,layer=1", 1, ["k", "q"]), ("kind=mlp,layer=0", 0, ["up"])):
        found = rw.diff(base, other, settings=rw.Settings(selection=Selection.parse([words])))
        assert len(found.sites) == sites
        assert sorted(name.split(".")[-2].removesuffix("_proj") for name in found.matrices) == matrices
        assert found.record["settings"]["select"] == words


def test_stacks_of_matrices_are_listed(base: Path) -> None:
    for seed, folder in enumerate(("one", "two")):
        tensors = checkpoints.llama(seed=seed) | {"model.layers.0.mlp.experts.up": torch.randn(3, 5, 6)}
        checkpoints.write(base.parent / folder, tensors)
    (unread,) = rw.diff(base.parent / "one", base.parent / "two").unread
    assert (unread.parameter, unread.shape) == ("model.layers.0.mlp.experts.up", (3, 5, 6))
    assert "a stack of matrices" in unread.reason


def test_models_in_memory(base: Path) -> None:
    one, two = (torch.nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0) for _ in range(2))
    record = rw.diff(one, two).record
    assert {site["kind"] for site in record["sites"]} == {"qk", "ov"}
    assert {matrix["parameter"] for matrix in record["matrices"]} == {
        "self_attn.in_proj_weight",
        "self_attn.out_proj.weight",
        "linear1.weight",
        "linear2.weight",
    }


def adapter(folder: Path, alpha: int, seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    pair = {"A": torch.randn(2, 6), "B": torch.randn(5, 2)}
    folder.mkdir()
    save_file(
        {f"base_model.model.q.lora_{name}.weight": tensor for name, tensor in pair.items()},
        folder / "adapter_model.safetensors",
    )
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": alpha}))
    return pair


def test_adapters_are_compared_as_they_are_applied(tmp_path: Path) -> None:
    one, two = adapter(tmp_path / "one", 4, 0), adapter(tmp_path / "two", 16, 1)
    (site,) = rw.diff(tmp_path / "one", tmp_path / "two").record["sites"]
    exact = torch.linalg.svdvals(8 * two["B"].double() @ two["A"].double() - 2 * one["B"].double() @ one["A"].double())
    torch.testing.assert_close(
        torch.tensor(site["heads"][0]["values"], dtype=torch.float64), exact[:4], rtol=1e-7, atol=0
    )


def test_a_model_and_an_adapter_have_nothing_to_compare(base: Path, tmp_path: Path) -> None:
    adapter(tmp_path / "adapter", 4, 0)
    with pytest.raises(UserError, match=r"adapter is an adapter, which holds the change alone: scan it"):
        rw.diff(base, tmp_path / "adapter")


def test_stopped_between_matrices_and_resumed(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(base.parent / "cache"))
    other = checkpoints.write(base.parent / "other", checkpoints.llama(seed=1))
    whole = rw.diff(base, other).record

    def stop(name: str, read: int, total: int) -> None:
        if name == checkpoints.attention(1, "k"):
            raise KeyboardInterrupt

    first = rw.diff(base, other)
    with first.journal() as journal, pytest.raises(KeyboardInterrupt):
        first.run(journal=journal, progress=stop)
    assert 0 < len(first.record["matrices"]) < len(whole["matrices"])
    # A scan of the same checkpoint, or a comparison with another base, is another thing.
    with rw.scan(other).journal(resume=True) as journal:
        assert journal.done == {}
    again = rw.diff(base, other)
    with again.journal(resume=True) as journal:
        assert journal.resumed == 6 + len(first.record["matrices"])
        record = again.run(journal=journal)
    assert {**record, "created": ""} == {**whole, "created": ""}


def test_the_page_of_a_diff(base: Path) -> None:
    pytest.importorskip("plotly")
    other = checkpoints.write(base.parent / "other", checkpoints.llama(seed=1))
    text = rw.diff(base, other).report(base.parent / "page.html").read_text()
    assert "layers.2.ov" in text
    assert rw.diff(base, base).report(base.parent / "page.html").stat().st_size > 10**6
