"""The doctor says what the installed metadata says, and what really imports."""

from __future__ import annotations

import json
from importlib.metadata import requires, version

import pytest
from packaging.requirements import Requirement

from rankwise import cli
from rankwise.cli import doctor


def test_json_names_every_extra_and_the_line_that_brings_it(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["rankwise"] == version("rankwise")
    assert [package["name"] for package in said["core"]] == ["cyclopts", "einops", "rich", "safetensors", "torch"]
    assert all(package["works"] for package in said["core"])
    assert said["devices"][0]["name"] == "cpu"
    assert said["threads"] >= 1
    for extra in said["extras"]:
        assert extra["install"] == f"pip install 'rankwise[{extra['name']}]'"
        assert extra["works"] == all(package["found"] for package in extra["packages"])


def test_tables_name_every_extra(capsys):
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert f"torch {version('torch')}" in shown
    for extra in doctor.diagnose().extras:
        assert f"{extra.name} " in shown


def test_requirements_are_read_as_packaging_reads_them():
    lines = requires("rankwise") or []
    expected = []
    for line in lines:
        requirement = Requirement(line)
        lowest = next((one.version for one in requirement.specifier if one.operator == ">="), None)
        expected.append((requirement.name, lowest))
    read = [(match["name"], match["lowest"]) for match in map(doctor.REQUIREMENT.match, lines) if match]
    assert read == expected


def test_every_extra_of_the_metadata_is_explained():
    lines = [Requirement(line) for line in requires("rankwise") or []]
    named = {
        name for name in doctor.ENABLES if any(one.marker and one.marker.evaluate({"extra": name}) for one in lines)
    }
    assert named == set(doctor.ENABLES)


@pytest.mark.parametrize(
    ("found", "lowest", "works"),
    [
        ("2.13.0+cpu", "2.11", True),
        ("2.9.1", "2.11", False),
        ("5", "5.0", True),
        (None, "1", False),
        ("3.0rc1", "3", True),
    ],
)
def test_a_version_too_old_does_not_work(found, lowest, works):
    package = doctor.Package("torch", found, lowest)
    assert package.works is works
    assert ("missing" in str(package)) == (found is None)
    assert ("needs" in str(package)) == (found is not None and not works)
