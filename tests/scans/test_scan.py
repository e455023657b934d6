"""Scans end to end: real weights against a dense float64 reference, streaming, interruption."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import rankwise as rw
from rankwise.errors import UserError
from rankwise.scans.scan import Progress, Scan
from tests import checkpoints

Heads = dict[tuple[str, int], list[float]]


def heads_of(record: dict) -> Heads:
    return {(site["name"], head["head"]): head.get("values") for site in record["sites"] for head in site["heads"]}


def assert_equals_dense(record: dict, dense: dict[str, torch.Tensor]) -> None:
    """Every singular value lies within its own bound of a dense float64 decomposition."""
    for site in record["sites"]:
        if site["name"] not in dense:
            continue
        reference = torch.linalg.svdvals(dense[site["name"]].double())
        for head in site["heads"]:
            values, errors = (torch.tensor(head[key], dtype=torch.float64) for key in ("values", "errors"))
            exact = reference.reshape(-1, reference.shape[-1])[head["head"], : len(values)]
            slack = 1e-8 * exact[0]  # the record rounds to nine digits, and the reference errs as well
            assert (values - exact).abs().le(errors + slack).all(), (site["name"], head["head"])
            assert errors.max() <= 1e-6 * exact[0]


@pytest.fixture(scope="module")
def minilm(minilm_directory: Path) -> dict:
    return rw.scan(minilm_directory).record


def test_minilm_equals_the_dense_reference(minilm: dict, minilm_directory: Path) -> None:
    state = load_file(minilm_directory / "model.safetensors")
    dense = {}
    for layer in range(6):
        at = f"encoder.layer.{layer}.attention"
        query, key, value = (
            state[f"{at}.self.{name}.weight"].unflatten(0, (12, 32)).double() for name in ("query", "key", "value")
        )
        output = state[f"{at}.output.dense.weight"].unflatten(1, (12, 32)).movedim(1, 0).double()
        dense[f"layers.{layer}.qk"], dense[f"layers.{layer}.ov"] = query.mT @ key, output @ value
    assert_equals_dense(minilm, dense)
    assert len(minilm["sites"]) == 12 + 16
    assert minilm["unread"] == []


def test_minilm_norms_of_single_matrices(minilm: dict, minilm_directory: Path) -> None:
    state = load_file(minilm_directory / "model.safetensors")
    for site in minilm["sites"]:
        if site["kind"] in ("qk", "ov"):
            continue
        (head,), matrix = site["heads"], state[site["parameters"][0]].double()
        assert head["measures"]["frobenius_norm"][0] == pytest.approx(matrix.norm().item(), rel=1e-8)
        value, error = head["measures"]["operator_norm"]
        assert abs(value - torch.linalg.matrix_norm(matrix, 2).item()) <= error + 1e-8 * value


def test_minilm_balance_and_null(minilm: dict) -> None:
    for site in minilm["sites"]:
        for head in site["heads"]:
            if head["balance"] is None:
                continue
            balance = head["balance"]
            assert balance["half_sum"] - balance["nuclear"] == pytest.approx(balance["gap"], rel=1e-6)
            assert head["verdicts"]["rank_share"] > 0
        if site["kind"] == "qk":
            assert site["null"]["relative_gap"][0] == pytest.approx(32 / (4 * 384), rel=0.1)


def test_rotary_llama_scans_with_pair_sums(stories15m_state: tuple[dict, dict]) -> None:
    config, state = stories15m_state
    record = rw.scan(state, config=config).record
    kinds = [site["kind"] for site in record["sites"]]
    assert kinds.count("qk") == kinds.count("ov") == 6
    at = "model.layers.{}.self_attn.{}_proj.weight"
    dense = {}
    for layer in range(6):
        query, key, value = (state[at.format(layer, name)].unflatten(0, (6, 48)).double() for name in "qkv")
        output = state[at.format(layer, "o")].unflatten(1, (6, 48)).movedim(1, 0).double()
        dense[f"layers.{layer}.qk"], dense[f"layers.{layer}.ov"] = query.mT @ key, output @ value
    assert_equals_dense(record, dense)
    for site in record["sites"]:
        for head in site["heads"]:
            assert (head["pairs"] is not None) == (site["kind"] == "qk")
            if head["pairs"]:
                # The nuclear norm never exceeds the pair sum, nor the pair sum the half-sum.
                assert head["balance"]["nuclear"] <= head["pairs"]["pair_sum"] <= head["pairs"]["half_sum"]


def test_antiberty_equals_the_dense_reference(antiberty_directory: Path) -> None:
    record = rw.scan(antiberty_directory, select="kind=qk+ov,layer=0-1").record
    state = torch.load(antiberty_directory / "pytorch_model.bin", weights_only=True, map_location="cpu")
    dense = {}
    for layer in range(2):
        at = f"bert.encoder.layer.{layer}.attention"
        query, key, value = (
            state[f"{at}.self.{name}.weight"].unflatten(0, (8, 64)).double() for name in ("query", "key", "value")
        )
        output = state[f"{at}.output.dense.weight"].unflatten(1, (8, 64)).movedim(1, 0).double()
        dense[f"layers.{layer}.qk"], dense[f"layers.{layer}.ov"] = query.mT @ key, output @ value
    assert {site["name"] for site in record["sites"]} == set(dense)
    assert_equals_dense(record, dense)


def small(folder: Path) -> Path:
    return checkpoints.write(folder, checkpoints.llama())


def without_time(record: dict) -> dict:
    return {key: value for key, value in record.items() if key != "created"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where journals lie during a test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def stop_at(wanted: str) -> Progress:
    def stop(name: str, read: int, total: int) -> None:
        if name == wanted:
            raise KeyboardInterrupt

    return stop


def test_stopped_and_resumed_is_the_same_as_in_one_go(tmp_path: Path, cache: Path) -> None:
    folder = small(tmp_path / "model")
    whole = rw.scan(folder).record
    first = rw.scan(folder)
    with first.journal() as journal, pytest.raises(KeyboardInterrupt):
        first.run(journal=journal, progress=stop_at("layers.1.ov"))
    assert first.record["complete"] is False
    assert [site["name"] for site in first.record["sites"]] == ["layers.0.qk", "layers.0.ov", "layers.1.qk"]
    seen: list[tuple[str, int, int]] = []
    second = rw.scan(folder)
    with second.journal(resume=True) as journal:
        assert journal.resumed == 3
        record = second.run(journal=journal, progress=lambda *step: seen.append(step))
        journal.discard()
    names, read, totals = zip(*seen, strict=True)
    assert names[0] == "layers.1.ov"
    # What was found before is not counted again.
    assert read[0] == 0
    assert list(read) == sorted(read)
    assert read[-1] < totals[-1] == totals[0] < sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert without_time(record) == without_time(whole)
    assert list(cache.rglob("*.jsonl")) == []


def test_another_checkpoint_at_the_same_path_is_not_resumed(tmp_path: Path, cache: Path) -> None:
    folder = small(tmp_path / "model")
    first = rw.scan(folder)
    with first.journal() as journal, pytest.raises(KeyboardInterrupt):
        first.run(journal=journal, progress=stop_at("layers.1.ov"))
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor * 2 for name, tensor in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(UserError, match="has changed since its scan was interrupted"):
        rw.scan(folder).journal(resume=True)
    with rw.scan(folder).journal() as journal:
        assert journal.done == {}


def test_a_model_in_memory_has_no_journal() -> None:
    with pytest.raises(UserError, match="only a scan of checkpoints can be resumed"):
        rw.scan(torch.nn.Linear(3, 3)).journal()


def test_a_broken_site_is_marked_and_the_scan_goes_on(tmp_path: Path) -> None:
    folder = small(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.self_attn.k_proj.weight"][3, 4] = float("inf")
    save_file(tensors, folder / "model.safetensors")
    record = rw.scan(folder).record
    failed = {(site["name"], head["head"]) for site in record["sites"] for head in site["heads"] if head["failure"]}
    # Key group 0 serves the queries of heads 0 and 1.
    assert failed == {("layers.1.qk", 0), ("layers.1.qk", 1)}
    assert {(each["kind"], each["site"]) for each in record["findings"]} >= {("failed", "layers.1.qk")}
    assert json.dumps(record, allow_nan=False)


def test_effective_products_fold_biases_in() -> None:
    model = torch.nn.TransformerEncoderLayer(24, 3, 30, dropout=0.0, batch_first=True)
    torch.nn.init.normal_(model.self_attn.in_proj_bias)
    stored = rw.scan(model, select="kind=qk").record["sites"][0]
    settings = rw.Settings(weights="effective")
    effective = rw.scan(model, select="kind=qk", settings=settings).record["sites"][0]
    assert stored["widths"] == [24, 8, 24]
    assert effective["widths"] == [25, 8, 25]


def test_spectra_of_single_matrices_when_asked_for(tmp_path: Path) -> None:
    folder = small(tmp_path / "model")
    record = rw.scan(folder, select="kind=embed", spectra="embed").record
    values = torch.tensor(record["sites"][0]["heads"][0]["values"], dtype=torch.float64)
    exact = torch.linalg.svdvals(load_file(folder / "model.safetensors")["model.embed_tokens.weight"].double())
    torch.testing.assert_close(values, exact, rtol=1e-7, atol=0)


def test_an_unknown_architecture_is_read_matrix_by_matrix(tmp_path: Path) -> None:
    folder = small(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "my-own"}
    (folder / "config.json").write_text(json.dumps(config))
    record = rw.scan(folder).record
    assert {site["kind"] for site in record["sites"]} == {"embed", "mlp"}
    assert len(record["unread"]) == 12
    assert "register_layout" in record["unread"][0]["reason"]


def test_bad_settings_are_said_before_anything_is_read(tmp_path: Path) -> None:
    for wrong, says in (
        ({"method": "fast"}, "no method 'fast'"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"weights": "raw"}, "'stored' or 'effective'"),
        ({"measures": ("niceness",)}, "no measure 'niceness'"),
        ({"device": "abacus"}, "device 'abacus'"),
        ({"spectra": frozenset({"heads"})}, "no kind 'heads'"),
    ):
        with pytest.raises(UserError, match=says):
            rw.Settings(**wrong)


def test_saves_whole_and_shows_itself(tmp_path: Path) -> None:
    opened = rw.scan(small(tmp_path / "model"))
    assert isinstance(opened, Scan)
    assert "3 qk, 3 ov, 1 embed, 3 mlp" in repr(opened)
    path = opened.save(tmp_path / "scan.json")
    assert json.loads(path.read_text())["format"] == "rankwise-scan"
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []
    with pytest.raises(UserError, match="nowhere does not exist"):
        opened.save(tmp_path / "nowhere" / "scan.json")


def test_rows_for_data_frames(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    opened = rw.scan(small(tmp_path / "model"))
    frame = opened.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == 3 * 4 + 3 * 4 + 1 + 3
    one = frame[(frame["site"] == "layers.2.qk") & (frame["head"] == 3)].iloc[0]
    assert one["nuclear_norm"] == pytest.approx(sum(one["values"]), rel=1e-8)
