"""A fine-tune as an adapter: what PEFT makes of it is what was predicted, and the budget is the best that fits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import rankwise as rw
from rankwise.errors import UserError
from rankwise.scans.budget import allocate
from rankwise.scans.extraction import Extraction
from rankwise.scans.lora import linear_layers, parse_size
from tests import checkpoints


@pytest.fixture
def change(tmp_path: Path) -> rw.Diff:
    folders = [checkpoints.write(tmp_path / f"model{seed}", checkpoints.llama(seed=seed)) for seed in range(2)]
    return rw.diff(*folders)


def deltas(folder: Path) -> dict[str, Tensor]:
    """The update of every module, as the adapter's file and configuration say it."""
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    found = {}
    for name, down in tensors.items():
        if name.endswith(".lora_A.weight"):
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            rank = config["rank_pattern"].get(module, config["r"])
            assert down.shape[0] == rank
            scaling = config["alpha_pattern"].get(module, config["lora_alpha"]) / rank
            found[module] = scaling * tensors[name.replace("lora_A", "lora_B")].double() @ down.double()
    assert sorted(found) == config["target_modules"]
    return found


def exact(change: rw.Diff, name: str) -> Tensor:
    return change.tensor(name).double() - change.matched.start[name].double()


def assert_predicted(change: rw.Diff, found: Extraction) -> None:
    """What the written factors miss of every matrix is what the extraction says, and no rank beyond it is used."""
    updates = deltas(found.folder)
    assert {each.module for each in found.matrices if each.rank} == set(updates)
    for each in found.matrices:
        moved = exact(change, f"{each.module}.weight")
        missed = torch.linalg.matrix_norm(moved - updates.get(each.module, torch.zeros_like(moved))).item()
        assert each.norm == pytest.approx(moved.norm().item(), rel=1e-9)
        assert each.error == pytest.approx(missed, rel=1e-9)
        best = torch.linalg.svdvals(moved)[each.rank :].norm().item()
        assert missed == pytest.approx(best, abs=1e-5 * each.norm)


def test_one_rank_everywhere(change: rw.Diff, tmp_path: Path) -> None:
    found = change.extract_lora(tmp_path / "out", rank=3)
    assert {each.rank for each in found.matrices} == {3}
    assert len(found.matrices) == 3 * 5
    assert_predicted(change, found)
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["rank_pattern"] == {}


@pytest.mark.parametrize("energy", [0.5, 0.95, 1.0])
def test_the_least_rank_that_keeps_an_energy(change: rw.Diff, tmp_path: Path, energy: float) -> None:
    found = change.extract_lora(tmp_path / "out", energy=energy)
    assert_predicted(change, found)
    for each in found.matrices:
        values = torch.linalg.svdvals(exact(change, f"{each.module}.weight")).square()
        shares = (values.cumsum(0) / values.sum()).tolist()
        assert shares[each.rank - 1] >= energy - 1e-9
        assert each.rank == 1 or shares[each.rank - 2] < energy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", ["2 KB", "8KB", "40kB", "1MB"])
def test_the_file_stays_within_the_budget_and_spends_it_best(
    change: rw.Diff, tmp_path: Path, size: str, dtype: torch.dtype
) -> None:
    found = rw.extract_lora(change, tmp_path / "out", size=size, dtype=dtype)
    written = (tmp_path / "out" / "adapter_model.safetensors").stat().st_size
    assert found.bytes == written <= parse_size(size)
    assert found.shortfall == 0.0
    if dtype == torch.float32:
        assert_predicted(change, found)
    # No other ranks that take as many bytes of weights keep more.
    kept = [each for each in found.matrices if each.rank]
    values = {each.module: torch.linalg.svdvals(exact(change, f"{each.module}.weight")).square() for each in kept}
    units = [sum(exact(change, f"{each.module}.weight").shape) * dtype.itemsize for each in kept]
    spent = sum(unit * each.rank for unit, each in zip(units, kept, strict=True))
    best = allocate([values[each.module].tolist() for each in kept], units, spent)
    assert sum(values[each.module][: each.rank].sum().item() for each in kept) == pytest.approx(best.kept, rel=1e-9)
    # And what the file has left would not buy another triplet.
    full = all(each.rank == len(values[each.module]) for each in kept)
    assert full or parse_size(size) - written < min(units) + 200 * len(kept)


def test_too_small_a_budget_says_what_is_needed(change: rw.Diff, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="100 bytes hold no rank of any matrix: give at least") as caught:
        change.extract_lora(tmp_path / "out", bytes=100)
    least = int(str(caught.value).rsplit(" ", 1)[-1].replace(",", ""))
    assert change.extract_lora(tmp_path / "out", bytes=least).bytes <= least


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({}, "by one of three"),
        ({"rank": 2, "energy": 0.5}, "by one of three"),
        ({"rank": 0}, "1 or more, got 0"),
        ({"energy": 0.0}, "above 0 and at most 1, got 0"),
        ({"energy": 1.5}, r"got 1\.5"),
        ({"bytes": "many"}, "'many' is no size"),
        ({"bytes": "-3MB"}, "'-3MB' is no size"),
    ],
)
def test_a_wish_that_means_nothing_is_one_line_and_nothing_is_written(
    change: rw.Diff, tmp_path: Path, wish: dict, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        change.extract_lora(tmp_path / "out", **wish)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_is_left_alone(change: rw.Diff, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("all of it")
    before = sorted(os.listdir(tmp_path))
    for place in ("full", "full/thesis.tex"):
        with pytest.raises(UserError, match="exists already: name a new folder"):
            change.extract_lora(tmp_path / place, rank=1)
    with pytest.raises(UserError, match="cannot write to /proc/out"):
        change.extract_lora("/proc/out", rank=1)
    assert sorted(os.listdir(tmp_path)) == before
    (tmp_path / "empty").mkdir()
    change.extract_lora(tmp_path / "empty", rank=1)
    files = sorted(path.name for path in (tmp_path / "empty").iterdir())
    assert files == ["adapter_config.json", "adapter_model.safetensors", "rankwise.json"]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "empty").iterdir()} == {0o644}


def test_what_is_kept_is_written_beside_it(change: rw.Diff, tmp_path: Path) -> None:
    found = change.extract_lora(tmp_path / "out", rank=2)
    record = json.loads((tmp_path / "out" / "rankwise.json").read_text())
    assert record == {key: value for key, value in found.record().items() if key != "folder"}
    energy = sum(each.error**2 for each in found.matrices) / sum(each.norm**2 for each in found.matrices)
    assert record["relative_error"] == pytest.approx(energy**0.5, rel=1e-8)


def test_unchanged_layers_stay_out_and_what_no_lora_carries_is_named(tmp_path: Path) -> None:
    tensors = checkpoints.llama(layers=2) | {"model.norm.weight": torch.ones(24), "steps": torch.tensor(3)}
    base = checkpoints.write(tmp_path / "base", tensors)
    moved = dict(tensors)
    moved[checkpoints.attention(1, "v")] = tensors[checkpoints.attention(1, "v")] + 0.1 * torch.randn(16, 24)
    moved["model.norm.weight"] = torch.full((24,), 1.5)
    moved["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"] * 1.01
    moved["score.weight"] = torch.ones(2, 24)
    change = rw.diff(base, checkpoints.write(tmp_path / "tuned", moved))
    found = change.extract_lora(tmp_path / "out", rank=4)
    assert [each.module for each in found.matrices] == ["model.layers.1.self_attn.v_proj"]
    assert len(found.unchanged) == 9
    assert set(found.left_out) == {"model.norm.weight", "model.embed_tokens.weight", "score.weight"}
    assert found.left_out["model.norm.weight"] == pytest.approx(0.5 * 24**0.5)
    assert found.left_out["score.weight"] == pytest.approx(48**0.5)
    with pytest.raises(UserError, match="no linear layer differs"):
        rw.diff(base, base).extract_lora(tmp_path / "none", rank=4)
    assert not (tmp_path / "none").exists()


def test_a_change_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    tensors = checkpoints.llama(layers=1)
    base = checkpoints.write(tmp_path / "base", tensors)
    broken = tensors[checkpoints.attention(0, "q")].clone()
    broken[0, 0] = float("inf")
    change = rw.diff(base, checkpoints.write(tmp_path / "tuned", tensors | {checkpoints.attention(0, "q"): broken}))
    with pytest.raises(UserError, match=r"self_attn\.q_proj\.weight': the change holds NaN or Inf"):
        change.extract_lora(tmp_path / "out", rank=4)


def test_embeddings_and_norms_are_no_linear_layers(tmp_path: Path) -> None:
    names = {
        "shared.weight": False,
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": False,
        "embeddings.position_embeddings.weight": False,
        "wte.weight": False,
        "layers.0.mlp.up_proj.weight": True,
        "classifier.weight": True,
        "layers.0.mlp.experts.gate": False,
    }
    folders = []
    for seed in range(2):
        torch.manual_seed(seed)
        folders.append(checkpoints.write(tmp_path / str(seed), {name: torch.randn(4, 6) for name in names}, None))
    assert set(linear_layers(rw.diff(*folders))) == {name for name, linear in names.items() if linear}


def test_weights_that_are_stored_input_first(tmp_path: Path) -> None:
    """GPT-2 keeps its layers transposed, but not a head on top of them."""
    config = {"model_type": "gpt2", "n_embd": 12, "n_head": 3, "n_layer": 1}
    folders = []
    for seed in range(2):
        torch.manual_seed(seed)
        tensors = {
            "h.0.attn.c_attn.weight": torch.randn(12, 36),
            "h.0.attn.c_proj.weight": torch.randn(12, 12),
            "h.0.mlp.c_fc.weight": torch.randn(12, 48),
            "score.weight": torch.randn(2, 12),
        }
        folders.append(checkpoints.write(tmp_path / str(seed), tensors, config))
    change = rw.diff(*folders)
    found = rw.extract_lora(change, tmp_path / "out", energy=1.0, prefix="transformer.")
    updates = deltas(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["fan_in_fan_out"] is True
    assert {each.module for each in found.matrices} == set(updates)
    for name in ("h.0.attn.c_attn", "h.0.mlp.c_fc"):
        torch.testing.assert_close(
            updates[f"transformer.{name}"].mT, exact(change, f"{name}.weight"), rtol=0, atol=1e-5
        )
    torch.testing.assert_close(updates["transformer.score"], exact(change, "score.weight"), rtol=0, atol=1e-5)


def test_layers_whose_names_end_alike_are_kept_apart(tmp_path: Path) -> None:
    """PEFT matches the ends of names: `layers.0.q` also means `vision.layers.0.q`."""
    tensors = {
        f"{lead}layers.0.mlp.{name}.weight": torch.randn(6, 5) for lead in ("", "vision.") for name in ("a", "b")
    }
    base = checkpoints.write(tmp_path / "base", tensors, None)
    moved = {
        name: tensor + torch.randn(6, 5) for name, tensor in tensors.items() if name != "vision.layers.0.mlp.a.weight"
    }
    change = rw.diff(base, checkpoints.write(tmp_path / "tuned", tensors | moved, None))
    change.extract_lora(tmp_path / "out", energy=0.8)
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["exclude_modules"] == ["vision.layers.0.mlp.a"]
    assert list(config["rank_pattern"])[:1] == ["vision.layers.0.mlp.b"] or config["rank_pattern"] == {}


def test_where_the_base_is_from(change: rw.Diff, tmp_path: Path) -> None:
    change.base = "hf://org/name@v2"
    change.extract_lora(tmp_path / "out", rank=1)
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("org/name", "v2")


def test_large_matrices_are_projected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 1,024 singular values only the leading ones are looked for; what is missed is still known exactly."""
    torch.manual_seed(0)
    start = torch.randn(1100, 1040)
    step = torch.randn(1100, 12) @ torch.randn(12, 1040) / 50 + 1e-3 * torch.randn(1100, 1040)
    tensors = [{"layers.0.mlp.up.weight": each} for each in (start, start + step)]
    folders = [checkpoints.write(tmp_path / str(at), each, None) for at, each in enumerate(tensors)]
    change = rw.diff(*folders)
    found = change.extract_lora(tmp_path / "out", rank=12)
    assert_predicted(change, found)
    (matrix,) = change.record["matrices"]
    assert matrix["ranks"]["90%"] <= 12
    assert len(matrix["values"]) == 256
    with pytest.raises(UserError, match="needs more than 256 ranks for 100% of its change"):
        change.extract_lora(tmp_path / "more", energy=1.0)


@pytest.fixture(scope="module")
def rxnfp(rxnfp_directories: dict[str, Path]) -> rw.Diff:
    return rw.diff(rxnfp_directories["pretrained"], rxnfp_directories["ft"])


# What PEFT asks of a model has another name in the latest transformers.
QUIETLY = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@QUIETLY
@pytest.mark.slow
def test_peft_loads_it_onto_the_real_base_and_misses_what_was_predicted(
    rxnfp: rw.Diff, rxnfp_directories: dict[str, Path], tmp_path: Path
) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    found = rxnfp.extract_lora(tmp_path / "out", bytes="4MB")
    assert (tmp_path / "out" / "adapter_model.safetensors").stat().st_size <= 4_000_000
    assert len({each.rank for each in found.matrices}) > 10
    model = transformers.BertForPreTraining.from_pretrained(rxnfp_directories["pretrained"])
    adapted = peft.PeftModel.from_pretrained(model, tmp_path / "out")
    modules = dict(adapted.base_model.model.named_modules())
    for each in found.matrices:
        moved = exact(rxnfp, f"{each.module.removeprefix('bert.')}.weight")
        update = modules[each.module].get_delta_weight("default").double().detach() if each.rank else 0.0
        missed = torch.linalg.matrix_norm(moved - update).item()
        assert missed == pytest.approx(each.error, rel=1e-6)


@QUIETLY
@pytest.mark.slow
def test_a_full_adapter_and_what_it_cannot_carry_make_the_tuned_model(
    rxnfp: rw.Diff, rxnfp_directories: dict[str, Path], tmp_path: Path
) -> None:
    """Base, adapter, and the tensors that were left out: the outputs of the real fine-tune."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    found = rxnfp.extract_lora(tmp_path / "out", energy=1.0)
    words = torch.arange(40).reshape(2, 20) + 10
    tuned = transformers.BertModel.from_pretrained(rxnfp_directories["ft"]).eval()
    model = transformers.BertForPreTraining.from_pretrained(rxnfp_directories["pretrained"])
    adapted = peft.PeftModel.from_pretrained(model, tmp_path / "out").eval()
    wanted = tuned(words).last_hidden_state

    def apart() -> float:
        return (adapted.base_model.model.bert(words).last_hidden_state - wanted).abs().max().item()

    with torch.no_grad():
        alone = apart()
        names = dict(adapted.base_model.model.named_parameters())
        for name in found.left_out:
            place = f"bert.{name}"
            stem, _, last = place.rpartition(".")
            names.get(place, names.get(f"{stem}.base_layer.{last}")).copy_(rxnfp.tensor(name))
        assert apart() < 1e-4 < alone


@QUIETLY
@pytest.mark.slow
def test_a_class_that_puts_a_prefix_before_the_names_and_keeps_weights_input_first(tmp_path: Path) -> None:
    """GPT-2 saved as its body alone, the adapter loaded onto the class with a language-model head."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=24, n_head=3, n_layer=2, vocab_size=50, n_positions=16)
    bodies = []
    for seed in range(2):
        torch.manual_seed(seed)
        bodies.append(transformers.GPT2Model(config))
        bodies[-1].save_pretrained(tmp_path / str(seed))
    found = rw.extract_lora(
        rw.diff(tmp_path / "0", tmp_path / "1"), tmp_path / "out", energy=1.0, prefix="transformer."
    )
    assert len(found.matrices) == 2 * 4
    model = transformers.GPT2LMHeadModel(config)
    model.transformer.load_state_dict(bodies[0].state_dict())
    merged = peft.PeftModel.from_pretrained(model, tmp_path / "out").merge_and_unload()
    for name, wanted in bodies[1].named_parameters():
        if name in found.left_out:
            merged.transformer.get_parameter(name).data.copy_(wanted)
        torch.testing.assert_close(merged.transformer.get_parameter(name), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("variant", ["plain", "rslora", "alphas", "ranks", "dora"])
@pytest.mark.slow
def test_a_scan_of_an_adapter_is_of_what_peft_adds(tmp_path: Path, variant: str) -> None:
    """The spectrum of every adapter site is that of PEFT's own update of the layer, scaling included."""
    peft = pytest.importorskip("peft")
    options = {
        "plain": {},
        "rslora": {"use_rslora": True},
        "alphas": {"alpha_pattern": {r"layers\.1.*": 3, "up": 40}},
        "ranks": {"rank_pattern": {"0.up": 5}, "alpha_pattern": {"0.up": 7}},
        "dora": {"use_dora": True},
    }[variant]
    torch.manual_seed(0)
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(
        torch.nn.ModuleDict({"up": torch.nn.Linear(12, 20), "down": torch.nn.Linear(20, 12)}) for _ in range(2)
    )
    config = peft.LoraConfig(r=3, lora_alpha=10, target_modules=["up", "down"], init_lora_weights=False, **options)
    adapted = peft.get_peft_model(model, config)
    adapted.save_pretrained(tmp_path / "adapter")
    record = rw.scan(tmp_path / "adapter").record
    sites = {site["name"]: site for site in record["sites"] if site["kind"] == "lora"}
    modules = {name: module for name, module in adapted.named_modules() if hasattr(module, "get_delta_weight")}
    assert len(sites) == len(modules) == 4
    for name, module in modules.items():
        site = sites[f"{name.removeprefix('base_model.model.')}.lora"]
        update = torch.linalg.svdvals(module.get_delta_weight("default").double())
        values = torch.tensor(site["heads"][0]["values"], dtype=torch.float64)
        torch.testing.assert_close(values, update[: len(values)], rtol=1e-6, atol=0)
        assert site["scaling"] == module.scaling["default"]
        assert any("DoRA" in note for note in site["notes"]) == (variant == "dora")


def test_an_adapter_alone_needs_no_base(tmp_path: Path) -> None:
    save_file({"q.lora_A.weight": torch.randn(2, 6), "q.lora_B.weight": torch.randn(5, 2)}, tmp_path / "a.safetensors")
    (site,) = rw.scan(tmp_path / "a.safetensors").record["sites"]
    assert (site["kind"], site["widths"], site["scaling"]) == ("lora", [5, 2, 6], 1.0)
    assert any("no adapter configuration says alpha" in note for note in site["notes"])
