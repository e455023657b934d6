"""Find every product of weights in a set of named tensors."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from rankwise.errors import UserError
from rankwise.sites.build import Place, build, parameters
from rankwise.sites.certify.release import marked
from rankwise.sites.expression import evaluate
from rankwise.sites.layout import AttentionLayout, Layout
from rankwise.sites.registry import known_layouts
from rankwise.sites.roots import Attributes, Root, config_roots, module_roots, owner
from rankwise.sites.singles import adapters, core_of, factorized, is_matrix, looks_like_attention, single
from rankwise.sites.site import Site
from rankwise.sites.sites import Sites, Unread
from rankwise.sites.source import not_real, shapes_of

_NUMBER = re.compile(r"\{(\w+)\}")
_WRAPPERS = {
    "model",
    "module",
    "_orig_mod",
    "transformer",
    "base_model",
    "backbone",
    "net",
    "network",
    "blocks",
    "layers",
    "layer",
    "h",
}


def find(
    source: nn.Module | Mapping[str, Any],
    *,
    config: Mapping[str, Any] | None = None,
    layouts: Iterable[Layout] | None = None,
) -> Sites:
    """Find the products of a live module, a state dict, a checkpoint, or a mapping of names to shapes.

    Arguments:
        source: where the tensors are; a module brings its configuration with it.
        config: the model's configuration (what `config.json` holds), for sources that bring none or a wrong one.
        layouts: the layouts to try; all known ones by default.

    Returns:
        The sites, and in `.unread` every matrix parameter that no site covers, with the reason.
    """
    shapes = shapes_of(source)
    tied = _tied(source)
    given: Any = config if config is not None else getattr(source, "config", None)
    if hasattr(given, "to_dict"):
        given = given.to_dict()
    if config is None and not isinstance(given, Mapping):
        given = None  # A live model's own record of settings, nanoGPT's say: its modules' attributes tell the same.
    if given is not None and not isinstance(given, Mapping):
        raise UserError(f"config must be a mapping, as read from config.json, got {type(given).__name__}")
    search = _Search(shapes, tied, tuple(layouts) if layouts is not None else known_layouts())
    # A configuration that the user gives is meant; the module's own tells more precisely which part it governs.
    own = module_roots(source) if config is None and isinstance(source, nn.Module) else []
    roots = own or config_roots(given)
    classes = _classes(source) if isinstance(source, nn.Module) else []
    # In the order of the table, where what is matched by class comes after what a configuration says more exactly.
    for layout in search.layouts:
        search.by_config(layout, roots)
        search.by_class(layout, classes)
    search.sites += adapters(shapes, getattr(source, "adapter", None) or _adapter_config(source))
    search.sites += [site for site in factorized(shapes) if not tied.keys() >= set(site.parameters)]
    search.rest(roots)
    covered = {name for site in search.sites for name in site.parameters}
    unread = [each for name, each in search.unread.items() if name not in covered] + _unreadable(source)
    return Sites(_distinct(search.sites), unread=unread, tied=tied, source=source)


@dataclass
class _Search:
    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str]
    layouts: tuple[Layout, ...]
    sites: list[Site] = field(default_factory=list)
    unread: dict[str, Unread] = field(default_factory=dict)
    places: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    ordered: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ordered = sorted(self.shapes)

    def by_class(self, layout: Layout, classes: list[tuple[str, nn.Module, set[str]]]) -> None:
        """Match a layout by the classes of the modules; sizes come from the modules' attributes."""
        for path, module, names in classes if layout.classes else ():
            if names.isdisjoint(layout.classes):
                continue
            for block in layout.attention.values():
                inner = _submodule(module, block.at)
                if inner is None:
                    continue
                at = ".".join(filter(None, (path, block.at)))
                prefix, layer, stack = _path_name(at)
                place = Place(
                    layout=layout,
                    block=block,
                    module=at,
                    values={**Attributes(module), **Attributes(inner), **_properties(inner, layout), "layer": layer},
                    shapes=self.shapes,
                    site=block.site.replace("{path}", prefix).format(layer=layer),
                    layer=layer,
                    stack=stack,
                )
                self._try(place)

    def by_config(self, layout: Layout, roots: list[Root]) -> None:
        """Match a layout by the model type of the configuration that governs each attention module."""
        for root in roots:
            if not _fits(layout, root):
                continue
            for block in layout.attention.values():
                for module, numbers in self._modules(block):
                    part = owner(roots, module)
                    if part is None or root not in (part, part.around):
                        continue
                    values = {**root.values, **numbers}
                    layer = numbers.get("layer")
                    site = "" if block.unread is not None else block.site.format(**numbers)
                    place = Place(
                        layout=layout,
                        block=block,
                        module=module,
                        values=values,
                        shapes=self.shapes,
                        site=f"{root.stack}.{site}" if root.stack else site,
                        layer=layer,
                        stack=root.stack or (site.split(".")[0] if not site.startswith("layers") else ""),
                    )
                    self._try(place)

    def rest(self, roots: list[Root]) -> None:
        """Read every other matrix as a product of one factor; attention that no layout fits is listed as unread."""
        covered = {name for site in self.sites for name in site.parameters}
        types = sorted({str(root.type) for root in roots if root.type})
        of = f" of model type {', '.join(types)}" if types else ""
        for name, shape in self.shapes.items():
            if name in covered or name in self.unread or name in self.tied or not is_matrix(shape):
                continue
            if any(self.tied.get(each) == name and each in covered for each in self.tied):
                continue
            if (form := core_of(name)) is not None:
                reason = (
                    f"a core of a {form} form: the weight is a contraction of cores, no product of stored matrices; "
                    "decay it by the layer's frobenius_penalty()"
                )
                self.unread[name] = Unread(name, shape, reason)
            elif looks_like_attention(name):
                reason = (
                    f"attention{of} that no layout fits: describe it in a TOML table and give it to "
                    "rankwise.register_layout (--layouts FILE on the command line)"
                )
                self.unread[name] = Unread(name, shape, reason)
            else:
                self.sites.append(single(name, shape))

    def _modules(self, block: AttentionLayout) -> list[tuple[str, dict[str, int]]]:
        """The modules whose path and parameter names fit a block, with the numbers in their paths."""
        at = re.escape(block.at).replace(r"\{", "{").replace(r"\}", "}")
        path = _NUMBER.sub(lambda found: rf"(?P<{found[1]}>\d+)", at)
        first = None if block.unread is not None else block.q or block.v or block.k or block.o
        name = re.escape(first.name) + r"(?:\.base_layer)?(?:\.weight)?" if first is not None else r".+"
        pattern = re.compile(rf"(?P<module>(?:.*\.)?{path})\.{name}")
        found: dict[str, dict[str, int]] = {}
        for parameter in self.shapes:
            if (match := pattern.fullmatch(parameter)) is not None:
                numbers = {key: int(value) for key, value in match.groupdict().items() if key != "module"}
                found.setdefault(match["module"], numbers)
        return list(found.items())

    def _try(self, place: Place) -> None:
        block = place.block
        key = f"{place.module}:{parameters(place).get('q')}"
        if key in self.places:
            return
        try:
            if block.when is not None and not evaluate(block.when, place.values):
                return
            if block.unread is not None:
                # A layout may list what its other blocks leave: the same path holds linear attention in some layers.
                if place.module in self.read:
                    return
                self._refuse(self._below(place.module), block.unread)
            elif all(name in self.tied for name in parameters(place).values()):
                pass  # A layer that is used again: its weights are read where they stand first.
            elif all(name in self.shapes for name in parameters(place).values()):
                below = self._below(place.module)
                built = [marked(each, place.values, below, self.shapes, place.layout) for each in build(place)]
                self.sites += built
                if block.rest is not None:
                    covered = {name for site in built for name in site.parameters}
                    self._refuse([name for name in below if name not in covered], block.rest)
            else:
                return
        except UserError as error:
            self._refuse([name for name in parameters(place).values() if name in self.shapes], str(error))
        self.places.add(key)
        self.read.add(place.module)

    def _below(self, module: str) -> list[str]:
        if not module:
            return self.ordered
        # "/" is the character behind ".": all names that start with the module and a dot lie between.
        return self.ordered[bisect_left(self.ordered, f"{module}.") : bisect_left(self.ordered, f"{module}/")]

    def _refuse(self, names: Iterable[str], reason: str) -> None:
        for name in names:
            if is_matrix(self.shapes[name]) and name not in self.tied:
                self.unread.setdefault(name, Unread(name, self.shapes[name], reason))


def _fits(layout: Layout, root: Root) -> bool:
    if root.type is not None:
        return root.type in layout.types
    return bool(layout.keys) and all(key in root.values for key in layout.keys)


def _classes(model: nn.Module) -> list[tuple[str, nn.Module, set[str]]]:
    """Every module by path, with the names of its class and of those it inherits from, qualified and bare."""
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    names = {kind: {f"{kind.__module__}.{kind.__qualname__}", kind.__name__} for kind in kinds}
    return [
        (path, module, set().union(*(names[kind] for kind in type(module).__mro__)))
        for path, module in model.named_modules()
    ]


def _submodule(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def _properties(module: nn.Module, layout: Layout) -> dict[str, Any]:
    """Attributes that the class computes (properties), which `vars` does not list but an expression may name."""
    names: set[str] = set()
    sizes = [layout.sizes, *(block.sizes for block in layout.attention.values())]
    for line in (line for each in sizes for line in each.values()):
        names |= set(re.findall(r"[A-Za-z_]\w*", line)) if isinstance(line, str) else set()
    for block in layout.attention.values():
        for line in (block.when, block.scale):
            names |= set(re.findall(r"[A-Za-z_]\w*", line)) if isinstance(line, str) else set()
    values = {name: getattr(module, name, None) for name in names}
    return {name: value for name, value in values.items() if isinstance(value, int | float | str | bool)}


def _path_name(path: str) -> tuple[str, int | None, str]:
    """A site prefix from a module path by the grammar `[stack.]layers.N[.self|.cross]`, its layer, and its stack."""
    parts = path.split(".") if path else []
    numbers = [position for position, part in enumerate(parts) if part.isdigit()]
    if not numbers:
        return path or "attention", None, ""
    last = numbers[-1]
    before = [part for part in parts[: last - 1] if part not in _WRAPPERS] if last else []
    layer = int(parts[last])
    return ".".join([*before, "layers", str(layer)]), layer, before[0] if before else ""


def _distinct(sites: list[Site]) -> list[Site]:
    """Give sites of the same name the path of their module in front, or their parameter: every name is said once."""
    seen = Counter(site.name for site in sites)
    return [
        site
        if seen[site.name] == 1
        else site.renamed(f"{site.attention.module if site.attention else site.parameters[0]}.{site.kind}")
        for site in sites
    ]


def _tied(source: Any) -> dict[str, str]:
    """Names that share one tensor, each with the name under which it is read."""
    if not isinstance(source, nn.Module):
        return {}
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in source.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            tied[name] = first[id(parameter)]
    return tied


def _adapter_config(source: Any) -> Mapping[str, Any] | None:
    configs = getattr(source, "peft_config", None)
    if not isinstance(configs, Mapping) or not configs:
        return None
    config = next(iter(configs.values()))
    return config.to_dict() if hasattr(config, "to_dict") else config


def _unreadable(source: Any) -> list[Unread]:
    """What the source itself could not offer: unknown types, quantized formats, numbers that are not real ones."""
    unknown = [Unread(name, (), reason) for name, reason in getattr(source, "unreadable", {}).items()]
    return unknown + [
        Unread(name, shape, f"{kind} numbers, which no product is made of")
        for name, (shape, kind) in not_real(source).items()
        if is_matrix(shape)
    ]
