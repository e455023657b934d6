"""The contract between rooms is kept, and breaks when an arrow is turned round."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY


@pytest.fixture
def house(tmp_path):
    """A copy of the package, with the contract that this repository holds it to."""
    shutil.copytree(REPOSITORY / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    return tmp_path


def lint(house) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as lint; lint()"]
    environment = {**os.environ, "PYTHONPATH": str(house / "src")}
    command += ["--no-cache", "--no-logo", "--config", "pyproject.toml"]
    return subprocess.run(command, cwd=house, env=environment, capture_output=True, text=True, check=False)


def test_arrows_point_one_way(house):
    done = lint(house)
    assert done.returncode == 0, done.stdout
    assert "1 kept, 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("file", "line", "arrow"),
    [
        ("product/product.py", "import rankwise.sites", "rankwise.product is not allowed to import rankwise.sites"),
        ("sites/__init__.py", "from rankwise import cli", "rankwise.sites is not allowed to import rankwise.cli"),
        ("report/__init__.py", "import rankwise.product", "rankwise.report is not allowed to import rankwise.product"),
        ("theory/__init__.py", "import rankwise.layers", "rankwise.theory is not allowed to import rankwise.layers"),
        ("errors.py", "import rankwise.product", "rankwise.errors is not allowed to import rankwise.product"),
        ("attic/__init__.py", "import torch", "rankwise.attic"),
    ],
    ids=["product", "sites", "report", "theory", "errors", "a room without a place"],
)
def test_an_arrow_turned_round_is_caught(house, file, line, arrow):
    path = house / "src/rankwise" / file
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as source:
        source.write(f"\n{line}\n")
    done = lint(house)
    assert done.returncode != 0
    assert arrow in " ".join(done.stdout.split())
