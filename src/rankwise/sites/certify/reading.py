"""Which keys of a configuration the code of a model type reads: any other key of a `config.json` decides nothing."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from functools import lru_cache
from types import ModuleType

from rankwise.errors import require
from rankwise.sites.certify.release import is_switch

_READ = re.compile(r"""config\w*\.([A-Za-z_]\w*)|["']([A-Za-z_]\w*)["']""")


def homes(kind: type) -> list[ModuleType]:
    """The modules that hold the models of a configuration class, beside it in its package."""
    package = importlib.import_module(kind.__module__.rpartition(".")[0])
    pages = [page.name for page in pkgutil.iter_modules(package.__path__) if page.name.startswith("modeling_")]
    return [importlib.import_module(f"{package.__name__}.{page}") for page in pages]


@lru_cache(maxsize=64)
def switches_read(model_type: str) -> tuple[str, ...]:
    """The switches that the code of a type's models and of its configuration names, whether declared or not.

    A name in quotes counts as well, for what is asked for by `getattr`.
    """
    kind = require("transformers", extra="hf").CONFIG_MAPPING[model_type]
    sources = [inspect.getsource(home) for home in (*homes(kind), inspect.getmodule(kind)) if home is not None]
    names = {one or two for source in sources for one, two in _READ.findall(source)}
    return tuple(sorted(filter(is_switch, names)))
