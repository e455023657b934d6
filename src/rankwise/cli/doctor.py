"""`rankwise doctor`: what is installed here, and what it enables."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version

ENABLES = {
    "report": "HTML pages, Parquet files and data frames",
    "hub": "checkpoints on the Hugging Face Hub, read by byte ranges",
    "hf": "certifying transformers' models; the Trainer and Accelerate",
    "lightning": "the Lightning callback",
    "peft": "loading the adapters that extract-lora writes",
    "tensor": "CP, Tucker and tensor-train layers",
    "theory": "the stiff flows of the theory",
    "data": "datasets for the reproductions",
    "track": "TensorBoard, W&B and MLflow",
    "serve": "the live page",
    "ray": "reproductions on a cluster",
}
"""What each extra brings, in the user's words; its packages are read from the installed metadata."""

REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(?:\[[^]]*\])?(?:>=(?P<lowest>[\w.]+))?(?:.*extra == ['\"](?P<extra>\w+)['\"])?"
)


@dataclass(frozen=True)
class Package:
    """One package that Rankwise can use: the version found here, if any, and the lowest one that will do."""

    name: str
    found: str | None
    lowest: str | None

    @property
    def works(self) -> bool:
        return self.found is not None and (self.lowest is None or not _older(self.found, self.lowest))

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.name} (missing)"
        return f"{self.name} {self.found}" + ("" if self.works else f" (needs {self.lowest})")


@dataclass(frozen=True)
class Extra:
    """One extra, what it enables, and its packages."""

    name: str
    enables: str
    packages: tuple[Package, ...]

    @property
    def works(self) -> bool:
        return all(package.works for package in self.packages)

    @property
    def install(self) -> str:
        """The line that brings the extra."""
        return f"pip install 'rankwise[{self.name}]'"


@dataclass(frozen=True)
class Device:
    """One place that torch can compute on."""

    name: str
    description: str
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Everything that `rankwise doctor` says, as data."""

    rankwise: str
    python: str
    platform: str
    threads: int
    devices: tuple[Device, ...]
    core: tuple[Package, ...]
    extras: tuple[Extra, ...]


def doctor(*, json: bool = False) -> None:
    """Say what is installed here and what it enables.

    Parameters
    ----------
    json
        Print one JSON object instead of tables.
    """
    diagnosis = diagnose()
    if json:
        print(as_json(diagnosis))
    else:
        _show(diagnosis)


def diagnose() -> Diagnosis:
    """Look at this machine: versions come from the installed metadata, so only torch is imported."""
    import torch

    core, extras = packages_of(requires("rankwise") or ())
    return Diagnosis(
        rankwise=version("rankwise"),
        python=platform.python_version(),
        platform=platform.platform(),
        threads=torch.get_num_threads(),
        devices=_devices(),
        core=core,
        extras=extras,
    )


def packages_of(requirements: Iterable[str]) -> tuple[tuple[Package, ...], tuple[Extra, ...]]:
    """The core packages and the extras that a distribution's requirements name.

    >>> core, extras = packages_of(["torch>=2.0", "nothing-like-it>=1; extra == 'serve'"])
    >>> [package.name for package in core], [(extra.name, extra.works) for extra in extras]
    (['torch'], [('serve', False)])
    """
    core: list[Package] = []
    by_extra: dict[str, list[Package]] = {}
    for requirement in requirements:
        match = REQUIREMENT.match(requirement)
        assert match is not None, requirement
        package = Package(match["name"], _installed(match["name"]), match["lowest"])
        if match["extra"] is None:
            core.append(package)
        elif match["extra"] in ENABLES and package.name != "rankwise":
            by_extra.setdefault(match["extra"], []).append(package)
    extras = [Extra(name, ENABLES[name], tuple(packages)) for name, packages in by_extra.items()]
    return tuple(core), tuple(extras)


def as_json(diagnosis: Diagnosis) -> str:
    """The diagnosis as one JSON object, each package and extra with its verdict."""

    def described(package: Package) -> dict[str, object]:
        return {**asdict(package), "works": package.works}

    record = asdict(diagnosis)
    record["core"] = [described(package) for package in diagnosis.core]
    record["extras"] = [
        {
            "name": extra.name,
            "enables": extra.enables,
            "works": extra.works,
            "install": extra.install,
            "packages": [described(package) for package in extra.packages],
        }
        for extra in diagnosis.extras
    ]
    return json.dumps(record, indent=2)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _older(found: str, lowest: str) -> bool:
    return _numbers(found) < _numbers(lowest)


def _numbers(text: str) -> list[int]:
    """The numbers of a release, without the zeros at its end: 5 and 5.0 are the same one."""
    release = re.match(r"\d+(?:\.\d+)*", text)
    numbers = [int(number) for number in release[0].split(".")] if release else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


def _devices() -> tuple[Device, ...]:
    import torch

    devices = [Device("cpu", platform.processor() or platform.machine())]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append(Device(f"cuda:{index}", properties.name, properties.total_memory))
    if torch.backends.mps.is_available():
        devices.append(Device("mps", "Apple GPU (float64 is not available on it)"))
    return tuple(devices)


def _show(diagnosis: Diagnosis) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"Rankwise {diagnosis.rankwise}, Python {diagnosis.python}, {diagnosis.platform}", markup=False)
    console.print(f"{', '.join(map(str, diagnosis.core))}", markup=False)
    for device in diagnosis.devices:
        memory = "" if device.memory_bytes is None else f", {device.memory_bytes / 2**30:.0f} GiB"
        threads = f", {diagnosis.threads} threads" if device.name == "cpu" else ""
        console.print(f"{device.name}: {device.description}{memory}{threads}", markup=False)
    table = Table("extra", "", "what it enables", "packages", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for extra in diagnosis.extras:
        packages = ", ".join(map(str, extra.packages))
        table.add_row(extra.name, "yes" if extra.works else "no", extra.enables, packages)
    console.print()
    console.print(table)
    missing = [extra for extra in diagnosis.extras if not extra.works]
    if missing:
        names = ",".join(extra.name for extra in missing)
        console.print(
            f"\nTo install what is missing, name what you need of: pip install 'rankwise[{names}]'", markup=False
        )
