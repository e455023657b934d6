"""What is installed is what is said: core dependencies, extras, pinned versions, the wheel, and the Makefile."""

from __future__ import annotations

import ast
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, requires, version

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import rankwise
from tests.conftest import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
OURS = {"rankwise", "tests", "benchmarks", "examples"}


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in requirements}


def closure(requirements: list[str]) -> set[str]:
    """The distributions installed here that the requirements bring, directly or not."""
    found: set[str] = set()
    waiting = [Requirement(line) for line in requirements]
    while waiting:
        requirement = waiting.pop()
        key = canonicalize_name(requirement.name)
        if key == "rankwise":
            waiting += [Requirement(line) for extra in requirement.extras for line in EXTRAS[extra]]
            continue
        if key in found:
            continue
        try:
            lines = distribution(requirement.name).requires or []
        except PackageNotFoundError:
            continue
        found.add(key)
        environments = [{"extra": extra} for extra in ("", *requirement.extras)]
        for line in lines:
            inner = Requirement(line)
            if inner.marker is None or any(inner.marker.evaluate(one) for one in environments):
                waiting.append(inner)
    return found


def imported_packages(folder: str) -> Iterator[tuple[str, set[str]]]:
    """Each Python file of a folder with the top-level packages that it imports anywhere, other than our own."""
    for path in sorted((REPOSITORY / folder).rglob("*.py")):
        tops = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                tops |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                tops.add((node.module or "").partition(".")[0])
            elif isinstance(node, ast.Call) and _called(node) in {"require", "importorskip"}:
                tops |= {str(one.value).partition(".")[0] for one in node.args if isinstance(one, ast.Constant)}
        yield path.relative_to(REPOSITORY).as_posix(), tops - OURS - set(sys.stdlib_module_names)


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]


def undeclared(folder: str, allowed: set[str]) -> dict[str, set[str]]:
    provided = packages_distributions()
    found = {}
    for path, tops in imported_packages(folder):
        strange = {top for top in tops if not {canonicalize_name(one) for one in provided.get(top, [top])} & allowed}
        if strange:
            found[path] = strange
    return found


def test_the_core_is_five_packages():
    assert names(PROJECT["dependencies"]) == {"torch", "safetensors", "einops", "rich", "cyclopts"}


def test_the_extra_all_holds_every_extra_for_users():
    (everything,) = EXTRAS["all"]
    assert Requirement(everything).extras == set(EXTRAS) - {"all", "dev"}


def test_the_library_imports_only_what_it_declares():
    declared = names(PROJECT["dependencies"]) | {name for lines in EXTRAS.values() for name in names(lines)}
    assert undeclared("src", declared) == {}


def test_the_tests_import_only_what_is_declared_for_developers():
    installed = [Requirement(line) for line in EXTRAS["dev"]]
    extras = {"dev"} | {extra for one in installed if one.name == "rankwise" for extra in one.extras}
    assert (
        undeclared("tests", names([*PROJECT["dependencies"], *(line for one in extras for line in EXTRAS[one])])) == {}
    )


def with_the_core_alone(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process where every distribution beyond the core's own needs is hidden."""
    core = closure(PROJECT["dependencies"])
    hidden = sorted(
        module
        for module, owners in packages_distributions().items()
        if module != "rankwise" and not {canonicalize_name(owner) for owner in owners} & core
    )
    assert {"transformers", "plotly", "numpy", "pytest"} <= set(hidden)
    hide = f"""
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] in {hidden!r}
        return None if hidden else self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Without, sys.meta_path)
"""
    return subprocess.run(
        [sys.executable, "-c", hide + program, *arguments], capture_output=True, text=True, check=False, timeout=300
    )


def test_every_module_imports_with_the_core_alone():
    modules = [one.name for one in pkgutil.walk_packages(rankwise.__path__, "rankwise.") if "__main__" not in one.name]
    done = with_the_core_alone(
        f"""
import importlib, rankwise
for module in {modules!r}:
    importlib.import_module(module)
for name in rankwise.__all__:
    getattr(rankwise, name)
"""
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "extra"), [((), None), (("--html", "page.html"), "report"), (("--parquet", "scan.parquet"), "report")]
)
def test_the_core_alone_scans_and_names_the_extra_that_is_missing_in_one_line(option, extra, tmp_path):
    torch.save({"layers.0.mlp.weight": torch.ones(4, 3)}, tmp_path / "model.pt")
    words = ["scan", str(tmp_path / "model.pt"), *(str(tmp_path / one) if "." in one else one for one in option)]
    done = with_the_core_alone("from rankwise.cli import main\nsys.exit(main())", *words)
    if extra is None:
        assert done.returncode == 0, done.stderr
        assert "layers.0.mlp" in done.stdout
    else:
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        assert f"it comes with the extra '{extra}' (pip install 'rankwise[{extra}]')" in done.stderr


def test_public_names_are_the_same_at_run_time_and_for_type_checkers():
    tree = ast.parse((REPOSITORY / "src/rankwise/__init__.py").read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.asname: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert typed == {**rankwise.HOMES, **dict.fromkeys(rankwise.ROOMS, "rankwise")}
    assert sorted(rankwise.__all__) == sorted({*rankwise.HOMES, *rankwise.ROOMS})
    assert rankwise.theory is sys.modules["rankwise.theory"]
    assert set(rankwise.__all__) <= set(dir(rankwise))
    # Importing a room puts it on the package under its own name, and would hide a function of that name.
    rooms = {one.name for one in pkgutil.iter_modules(rankwise.__path__)}
    assert not rooms & set(rankwise.HOMES)
    with pytest.raises(AttributeError, match="no 'spectra_of_everything'"):
        rankwise.spectra_of_everything  # noqa: B018


def test_the_constraints_pin_what_is_installed():
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pinned = {}
    for pin in pins:
        (one,) = pin.specifier
        assert one.operator == "==", pin
        pinned[canonicalize_name(pin.name)] = Version(one.version)
    assert pinned["torch"] == Version("2.13.0")
    needed = closure(["rankwise[dev]", *PROJECT["dependencies"]])
    # Torch's ordinary build pins the GPU libraries that it brings; setuptools is of Python's choosing.
    needed -= {name for name in closure(["torch", "setuptools"]) if name not in pinned}
    assert needed <= set(pinned), f"not pinned: {sorted(needed - set(pinned))}"
    # Torch is the one that `make TORCH=...` replaces, and brings packages of its own with it.
    differing = {name: version(name) for name in needed - {"torch"} if Version(version(name)) != pinned[name]}
    assert differing == {} or Version(version("torch")).public != str(pinned["torch"])


def test_every_lower_bound_is_met_by_its_pin():
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in lines if "==" in line}
    for line in [*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)]:
        requirement = Requirement(line)
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is None or requirement.specifier.contains(pin), f"{line} against {pin}"


def test_the_installed_metadata_is_that_of_this_checkout():
    installed = {str(Requirement(line)).partition(";")[0].strip() for line in requires("rankwise") or []}
    declared = {str(Requirement(line)) for line in PROJECT["dependencies"]}
    assert declared <= installed, "the environment is older than pyproject.toml: run make test"


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(REPOSITORY)], check=True, capture_output=True)
    (built,) = tmp_path.glob("rankwise-*.whl")
    with zipfile.ZipFile(built) as wheel:
        inside = {one for one in wheel.namelist() if ".dist-info/" not in one}
    source = REPOSITORY / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    assert inside == expected
    assert "rankwise/py.typed" in inside


def make(folder, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in {"TORCH", "MAKEFLAGS", "MAKELEVEL"}}
    return subprocess.run(["make", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(tmp_path):
    """A folder with the files that the Makefile starts from, and a space in its name."""
    folder = tmp_path / "a checkout"
    folder.mkdir()
    for file in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(REPOSITORY / file, folder)
    return folder


def test_make_refuses_an_older_python_in_one_line(checkout):
    old = checkout / "python3.8"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.8.1" && exit 0\nexit 1\n')
    old.chmod(0o755)
    done = make(checkout, "PYTHON=./python3.8", "test")
    assert done.returncode != 0
    assert "make: ./python3.8 is Python 3.8.1: Rankwise needs Python 3.11 or newer" in done.stderr
    assert not (checkout / ".venv").exists()


def test_make_replaces_the_pinned_torch_and_nothing_else(checkout):
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/bin/python").touch()
    derived = checkout / ".venv/constraints.txt"
    given = (checkout / "constraints.txt").read_text()
    assert make(checkout, ".venv/constraints.txt").returncode == 0
    assert derived.read_text() == given
    written = derived.stat().st_mtime_ns
    make(checkout, ".venv/constraints.txt")
    assert derived.stat().st_mtime_ns == written, "an unchanged file would install everything again"
    make(checkout, "TORCH=2.11.0", ".venv/constraints.txt")
    assert derived.read_text() == re.sub(r"^torch==.*$", "torch==2.11.0", given, flags=re.MULTILINE)


def test_make_names_the_lanes(checkout):
    done = make(checkout, "--dry-run", "LANE=quick", "test")
    assert done.returncode != 0
    assert 'LANE is "quick": give fast, slow or all' in done.stderr
