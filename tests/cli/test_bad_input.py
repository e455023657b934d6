"""Whatever is wrong with what a user gives: one line that names it and the fix, exit code 2, and nothing lost."""

from __future__ import annotations

import json
import os
import pickle
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rankwise import cli
from rankwise.scans.scan import Scan
from rankwise.sites.registry import forget_layout
from tests import checkpoints

Case = tuple[Callable[[Path], list[str]], str]


class Code:
    """An object whose unpickling would leave a trace."""

    def __reduce__(self) -> tuple:
        return os.system, ("touch pwned",)


def model(folder: Path, seed: int = 0) -> Path:
    return checkpoints.write(folder, checkpoints.llama(layers=2, seed=seed))


def sharded(change: Callable[[Path], object]) -> Callable[[Path], list[str]]:
    """A scan of two shards, one of which something happened to."""

    def make(place: Path) -> list[str]:
        folder = checkpoints.write_sharded(place / "model", checkpoints.llama(layers=2))
        change(folder / "model-00002-of-00002.safetensors")
        return ["scan", "model"]

    return make


def content(data: bytes, name: str = "model.safetensors") -> Callable[[Path], list[str]]:
    """A scan of a directory with one file in it."""

    def make(place: Path) -> list[str]:
        (place / "model").mkdir()
        (place / "model" / name).write_bytes(data)
        return ["scan", "model"]

    return make


def framed(header: dict, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype: str, shape: list[int], offsets: list[int]) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def pickled(value: object, name: str = "pytorch_model.bin") -> Callable[[Path], list[str]]:
    def make(place: Path) -> list[str]:
        (place / "model").mkdir()
        torch.save(value, place / "model" / name)
        return ["scan", "model"]

    return make


def words(*given: str) -> Callable[[Path], list[str]]:
    """A command on two sound models, `base` and `tuned`."""

    def make(place: Path) -> list[str]:
        model(place / "base")
        model(place / "tuned", seed=1)
        return list(given)

    return make


def configured(config: str | bytes) -> Callable[[Path], list[str]]:
    def make(place: Path) -> list[str]:
        model(place / "model")
        (place / "model" / "config.json").write_bytes(config if isinstance(config, bytes) else config.encode())
        return ["scan", "model"]

    return make


def other_shapes(place: Path) -> list[str]:
    model(place / "base")
    wide = {name: torch.cat([each, each], -1) for name, each in checkpoints.llama(layers=2).items()}
    checkpoints.write(place / "tuned", wide)
    return ["diff", "base", "tuned"]


def changed_and_resumed(*options: str, touch: bool) -> Callable[[Path], list[str]]:
    """A scan that was interrupted, and is now resumed with other options or after its checkpoint changed."""

    def make(place: Path) -> list[str]:
        folder = model(place / "model")
        interrupt(["scan", "model", "--tolerance", "1e-5"])
        if touch:
            save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors")
            os.utime(folder / "model.safetensors", ns=(0, 10**18))
        return ["scan", "model", "--tolerance", "1e-5", *options, "--resume"]

    return make


def interrupt(arguments: list[str]) -> None:
    """Run a scan that is stopped before its second site."""
    with pytest.MonkeyPatch.context() as patch:
        steps = Scan._steps

        def stopping(self: Scan, reader: object, done: object) -> list:
            found = steps(self, reader, done)  # pyright: ignore[reportArgumentType]

            def stop() -> dict:
                raise KeyboardInterrupt

            return [found[0], *(type(each)(key=each.key, name=each.name, cost=1, compute=stop) for each in found[1:])]

        patch.setattr(Scan, "_steps", stopping)
        assert cli.main(arguments) == 130


def full_folder(place: Path) -> list[str]:
    words()(place)
    (place / "out").mkdir()
    (place / "out" / "thesis.tex").write_text("all of it")
    return ["extract-lora", "base", "tuned", "out", "--rank", "2"]


def pipe(place: Path) -> list[str]:
    os.mkfifo(place / "model.safetensors")
    return ["scan", "model.safetensors"]


def closed_port(place: Path) -> list[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return ["scan", f"http://127.0.0.1:{port}/model.safetensors"]


def index_of(weight_map: object) -> Callable[[Path], list[str]]:
    def make(place: Path) -> list[str]:
        folder = model(place / "model")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        return ["scan", "model"]

    return make


def layout(text: str) -> Callable[[Path], list[str]]:
    def make(place: Path) -> list[str]:
        model(place / "model")
        (place / "mine.toml").write_text(text)
        return ["scan", "model", "--layouts", "mine.toml"]

    return make


TEN_GIGABYTES = struct.pack("<Q", 10 * 10**9) + b"{}"
OVERLAP = framed({"a": tensor("F32", [2], [0, 8]), "b": tensor("F32", [2], [4, 12])}, bytes(12))
HOSTILE = framed({"\x1b[2J\x1b]0;title\x07<script>\n": tensor("F32", [9, 9], [0, 8])}, bytes(8))

CASES: dict[str, Case] = {
    # Files that are missing or damaged.
    "nothing given": (lambda place: ["scan"], r"nothing to scan: give a checkpoint"),
    "no such path": (lambda place: ["scan", "nowhere"], r"nowhere does not exist"),
    "an empty name": (lambda place: ["scan", ""], r"the path of a checkpoint is empty"),
    "a missing shard": (sharded(Path.unlink), r"names model-00002-of-00002\.safetensors, which does not exist .*fetch"),
    "a truncated shard": (sharded(lambda shard: os.truncate(shard, shard.stat().st_size - 9)), r"truncated, fetch it"),
    "an empty shard": (sharded(lambda shard: shard.write_bytes(b"")), r"00002-of-00002\.safetensors is empty"),
    "an index out of its folder": (index_of({"a": "../../etc/passwd"}), r"not a plain name inside its folder: refused"),
    "an index of a missing tensor": (index_of({"b": "model.safetensors"}), r"places 'b' in model\.safetensors, which"),
    "an index of nothing": (index_of({}), r"has no weight_map"),
    "a header larger than the file": (
        content(struct.pack("<Q", 10**6) + b"{}"),
        r"its header claims 1000000 bytes but the file has only 10",
    ),
    "a header of ten gigabytes": (content(TEN_GIGABYTES), r"its header claims 10000000000 bytes, more than"),
    "overlapping offsets": (content(OVERLAP), r"tensor 'b' overlaps the one before it"),
    "bytes that belong to nobody": (
        content(framed({"a": tensor("F32", [2], [0, 8])}, bytes(9))),
        r"1 bytes at its end belong to no tensor",
    ),
    "an unknown dtype alone": (
        content(framed({"a.weight": tensor("Q7", [2, 2], [0, 8])}, bytes(8))),
        r"nothing of model can be read: a\.weight: dtype Q7 is not one this version can read",
    ),
    "a quantized format alone": (
        content(b"GGUF" + bytes(60), "model.gguf"),
        r"nothing of model can be read: model\.gguf: a GGUF file",
    ),
    "a hostile name": (content(HOSTILE), r"tensor '\?\?<script>\?' of shape \[9, 9\]"),
    "a pickle with code": (pickled({"w": torch.ones(2, 2), "x": Code()}), r"a pickle with code in it .*: refused"),
    "a bare pickle with code": (
        content(pickle.dumps({"w": Code()}), "pytorch_model.bin"),
        r"weights_only refuses it",
    ),
    "a whole module": (pickled(torch.nn.Linear(2, 2)), r"a pickle with code in it .*Linear.*: refused"),
    "a list": (pickled([torch.ones(2)]), r"holds a list, a table of named tensors was expected"),
    "a truncated archive": (content(b"PK\x03\x04" + bytes(90), "model.pt"), r"is not a usable PyTorch file"),
    "a Git LFS pointer": (content(b"version https://git-lfs.github.com/spec/v1\n"), r"fetch them with 'git lfs pull'"),
    "a web page": (content(b"<!DOCTYPE html>"), r"is a web page, not weights"),
    "a directory without weights": (
        content(b"hello", "readme.txt"),
        r"model holds no weights: expected a \.safetensors",
    ),
    "only small tensors": (
        content(framed({"a": tensor("F32", [], [0, 4])}, bytes(4))),
        r"model holds no matrix: there is nothing to scan",
    ),
    "a device": (lambda place: ["scan", "/dev/zero"], r"/dev/zero is a device, not a regular file"),
    "a pipe": (pipe, r"is a pipe, not a regular file"),
    "a server that is not there": (closed_port, r"cannot be fetched"),
    "a configuration that is no JSON": (configured("{nope"), r"config\.json is not valid JSON in UTF-8: mend it"),
    "a configuration of a list": (configured("[]"), r"config\.json holds a JSON list, an object was expected"),
    "a configuration that never ends": (configured('{"a":' + "[" * 10**5), r"config\.json is not valid JSON"),
    # Options.
    "no such command": (lambda place: ["scann"], r"scann"),
    "no such option": (words("scan", "base", "--htlm", "x"), r"--htlm"),
    "a selection of nothing": (
        words("scan", "base", "--select", "kind=qk,layer=7"),
        r"'kind=qk,layer=7' selects none of the 7 sites: there are embed, mlp, ov, qk in layers 0 to 1",
    ),
    "a selection in other words": (words("scan", "base", "--select", "queries"), r"cannot select by 'queries': write"),
    "a range backwards": (words("scan", "base", "--select", "layer=3-1"), r"write the smaller number first"),
    "an unknown kind": (words("scan", "base", "--select", "kind=heads"), r"there is no kind 'heads': choose from qk"),
    "an unknown measure": (words("scan", "base", "--measure", "niceness"), r"there is no measure 'niceness': choose"),
    "an unknown method": (words("scan", "base", "--method", "fast"), r"there is no method 'fast': choose from auto"),
    "a tolerance of two": (words("scan", "base", "--tolerance", "2"), r"between 0 and 1, got 2"),
    "unknown weights": (words("scan", "base", "--weights", "raw"), r"weights are 'stored' or 'effective', not 'raw'"),
    "unknown spectra": (words("scan", "base", "--spectra", "heads"), r"there is no kind 'heads' of site: choose from"),
    "an unknown device": (
        words("scan", "base", "--device", "abacus"),
        r"cannot compute on device 'abacus': Expected one",
    ),
    "a device without numbers": (words("scan", "base", "--device", "meta"), r"cannot compute on device 'meta'"),
    "fewer rows than none": (words("scan", "base", "--rows", "-1"), r"Must be >= 0"),
    "a layout that is missing": (
        words("scan", "base", "--layouts", "no.toml"),
        r"cannot read the layout file no\.toml",
    ),
    "a layout that is no TOML": (layout("[mine"), r"mine\.toml"),
    "a layout that lacks everything": (layout("[mine]\ntypes = ['x']\n"), r"mine"),
    "a series of models without steps": (
        words("scan", "base", "tuned"),
        r"base has no step number in its name.* compare two with 'rankwise diff'",
    ),
    "a glob of nothing": (lambda place: ["scan", "run/step*"], r"no checkpoint matches run/step\*"),
    # Outputs: said before any work is done.
    "a page into a missing folder": (
        words("scan", "base", "--html", "no/page.html"),
        r"the folder .*no does not exist",
    ),
    "a page that is a directory": (words("scan", "base", "--html", "tuned"), r"cannot write tuned: it is a directory"),
    "a page where nothing can be": (
        words("scan", "base", "--html", "/proc/page.html"),
        r"cannot write /proc/page\.html",
    ),
    "rows into a missing folder": (words("diff", "base", "tuned", "--parquet", "no/x"), r"the folder .*no does not"),
    "an adapter over something": (full_folder, r"out exists already: name a new folder"),
    "an adapter where nothing can be": (
        words("extract-lora", "base", "tuned", "/proc/out", "--rank", "1"),
        r"cannot write to /proc/out",
    ),
    # Two models.
    "other shapes": (other_shapes, r"shape \(90, 24\) in the base and \(90, 48\) in the tuned .*not one architecture"),
    "no name in common": (
        lambda place: [
            "diff",
            str(checkpoints.write(place / "a", {"x": torch.ones(2, 2)}).name),
            str(checkpoints.write(place / "b", {"y": torch.ones(2, 2)}).name),
        ],
        r"no tensor name in common \(as in x and y\): give two of one architecture",
    ),
    "nothing to extract": (words("extract-lora", "base", "base", "out", "--rank", "1"), r"there is nothing to extract"),
    "an adapter of no size": (words("extract-lora", "base", "tuned", "out"), r"by one of three: a rank"),
    "an adapter of two sizes": (
        words("extract-lora", "base", "tuned", "out", "--rank", "1", "--energy", "0.5"),
        r"by one of three: a rank",
    ),
    "an adapter of few bytes": (words("extract-lora", "base", "tuned", "out", "--bytes", "9"), r"give at least \d+"),
    "an adapter of any type": (
        words("extract-lora", "base", "tuned", "out", "--rank", "1", "--dtype", "int4"),
        r"--dtype is one of float32, bfloat16, float16, not 'int4'",
    ),
    # Resuming.
    "resumed with other settings": (
        changed_and_resumed("--select", "kind=qk", touch=False),
        r"was interrupted with select none \(now kind=qk\): say the same, or leave out --resume to start anew",
    ),
    "resumed on another checkpoint": (
        changed_and_resumed(touch=True),
        r"has changed since its scan was interrupted; leave out --resume to start anew",
    ),
}


def listing(place: Path) -> dict[str, int]:
    return {str(path.relative_to(place)): path.lstat().st_mtime_ns for path in sorted(place.rglob("*"))}


@pytest.mark.parametrize(("make", "says"), CASES.values(), ids=CASES.keys())
def test_one_line_exit_code_2_and_nothing_touched(
    make: Callable[[Path], list[str]], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    arguments = make(tmp_path)
    before = listing(tmp_path)
    capfd.readouterr()
    assert cli.main(arguments) == 2
    printed = capfd.readouterr()
    assert printed.err.count("\n") == 1, printed.err
    assert printed.err.startswith("rankwise: ")
    assert printed.err[:-1].isprintable()
    assert re.search(says, printed.err), printed.err
    after = listing(tmp_path)
    assert {name: when for name, when in after.items() if not name.startswith(".cache")} == {
        name: when for name, when in before.items() if not name.startswith(".cache")
    }
    # What an interrupted run found stays where it is.
    assert {name for name in before if name.endswith(".jsonl")} <= set(after)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    return tmp_path


def scanned(capsys: pytest.CaptureFixture, *arguments: str) -> dict:
    assert cli.main(["scan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_nan_weights_are_reported_per_site_and_the_scan_goes_on(here: Path, capsys: pytest.CaptureFixture) -> None:
    tensors = checkpoints.llama(layers=2)
    tensors[checkpoints.attention(1, "k")][3, 4] = float("nan")
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = float("inf")
    checkpoints.write(here / "model", tensors)
    record = scanned(capsys, "model")
    failed = {(site["name"], head["head"]): head["failure"] for site in record["sites"] for head in site["heads"]}
    assert {place for place, reason in failed.items() if reason} == {
        ("layers.1.qk", 0),
        ("layers.1.qk", 1),
        ("model.layers.0.mlp.up_proj.mlp", 0),
    }
    assert all("NaN or Inf" in reason for reason in failed.values() if reason)
    assert len(record["sites"]) == 4 + 3
    assert cli.main(["scan", "model"]) == 0
    assert "3 failed: their numbers could not be computed" in capsys.readouterr().out


def test_an_unknown_architecture_is_read_by_matrix_and_says_how_to_add_it(here: Path, capsys) -> None:
    checkpoints.write(here / "model", checkpoints.llama(layers=2), {"model_type": "my-own"})
    record = scanned(capsys, "model")
    assert {site["kind"] for site in record["sites"]} == {"embed", "mlp"}
    assert len(record["unread"]) == 8
    for entry in record["unread"]:
        assert "attention of model type my-own that no layout fits" in entry["reason"]
        assert "--layouts FILE" in entry["reason"]
    (here / "mine.toml").write_text(
        '[mine]\ntypes = ["my-own"]\nsizes = { g = "2", q = "2", r = "8" }\n'
        '[mine.attention.self]\nat = "model.layers.{layer}.self_attn"\n'
        'q = "q_proj: (g q r) d"\nk = "k_proj: (g r) d"\nv = "v_proj: (g r) d"\no = "o_proj: d (g q r)"\n'
    )
    try:
        kinds = [site["kind"] for site in scanned(capsys, "model", "--layouts", "mine.toml")["sites"]]
    finally:
        forget_layout("mine")
    assert kinds.count("qk") == kinds.count("ov") == 2


def test_one_tensor_of_an_unknown_dtype_is_listed_and_the_others_are_read(here: Path, capsys) -> None:
    content(
        framed({"a.weight": tensor("F32", [2, 2], [0, 16]), "b.weight": tensor("Q7", [2, 2], [16, 24])}, bytes(24))
    )(here)
    record = scanned(capsys, "model")
    assert [site["name"] for site in record["sites"]] == ["a.matrix"]
    assert record["unread"] == [
        {"parameter": "b.weight", "shape": [], "reason": "dtype Q7 is not one this version can read"}
    ]


def test_hostile_names_reach_neither_the_terminal_nor_the_page(here: Path, capsys) -> None:
    name = "layers.0.\x1b[2J\x1b]0;title\x07<script>alert(1)</script>\n[bold].weight"
    checkpoints.write(here / "model", {name: torch.randn(5, 6)}, None)
    assert cli.main(["scan", "model", "--html", "page.html"]) == 0
    shown = capsys.readouterr().out
    assert all(line.isprintable() for line in shown.splitlines())
    assert "[bold]" in shown
    page = (here / "page.html").read_text()
    assert "<script>alert(1)" not in page
    assert "\x1b" not in page
    assert scanned(capsys, "model")["sites"][0]["parameters"] == [name]


def test_numbers_that_json_does_not_know_stay_out_of_the_record(here: Path, capsys) -> None:
    configured(json.dumps({**checkpoints.CONFIG, "rope": float("inf"), "eps": float("nan"), "note": "\ud800"}))(here)
    record = scanned(capsys, "model")
    assert record["model"]["type"] == "llama"
    assert not {"rope", "eps"} & record["model"]["config"].keys()
    assert cli.main(["scan", "model", "--html", "page.html"]) == 0


def test_a_folder_whose_name_is_no_unicode(here: Path, capsys) -> None:
    folder = Path(os.fsdecode(os.fsencode(here) + b"/caf\xe9 \xe6\x97\xa5"))
    model(folder)
    assert cli.main(["scan", str(folder), "--html", "page.html"]) == 0
    assert cli.main(["diff", str(folder), str(folder)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--json"], []], ids=["json", "table"])
def test_a_full_disk_under_stdout(here: Path, options: list[str], capfd: pytest.CaptureFixture) -> None:
    """Results that cannot be printed are no bug of ours, and what was found is kept for --resume."""
    model(here / "model")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "rankwise", "scan", "model", *options]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "rankwise: cannot write the output: No space left on device\n"
    (journal,) = here.rglob("*.jsonl")
    assert len(journal.read_text().splitlines()) == 1 + 7


def test_a_checkpoint_that_changes_while_it_is_read(here: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model(here / "model") / "model.safetensors"
    of_site = Scan._of_site

    def meddling(self, site, following, reader) -> dict:
        if site.name == "layers.1.ov":
            os.utime(path, ns=(0, 10**18))
        return of_site(self, site, following, reader)

    monkeypatch.setattr(Scan, "_of_site", meddling)
    assert cli.main(["scan", "model"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "model.safetensors changed while it was read: wait until nothing writes to it" in error
    assert "what was found until then is kept: the same command with --resume" in error
