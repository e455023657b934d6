"""See, steer and explain the rank of every weight product inside a neural network."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankwise import theory as theory
    from rankwise.decay.adapters import AdapterDecay as AdapterDecay
    from rankwise.decay.balance import BalanceDecay as BalanceDecay
    from rankwise.decay.compression import CompressionRateDecay as CompressionRateDecay
    from rankwise.decay.controls.qk_clip import QKClip as QKClip
    from rankwise.decay.controls.rank_cap import RankCap as RankCap
    from rankwise.decay.controls.rebalancing import Rebalancing as Rebalancing
    from rankwise.decay.controls.spectral_cap import SpectralCap as SpectralCap
    from rankwise.decay.controls.thresholding import SingularValueThresholding as SingularValueThresholding
    from rankwise.decay.flambe import FLAMBe as FLAMBe
    from rankwise.decay.frobenius import FrobeniusDecay as FrobeniusDecay
    from rankwise.decay.groups import ParameterGroups as ParameterGroups
    from rankwise.decay.groups import param_groups as param_groups
    from rankwise.decay.lamb import Lamb as Lamb
    from rankwise.decay.nuclear import NuclearDecay as NuclearDecay
    from rankwise.decay.polar import PolarDecay as PolarDecay
    from rankwise.decay.target import InitializationDecay as InitializationDecay
    from rankwise.decay.target import TargetDecay as TargetDecay
    from rankwise.layers.attention import FactorizedAttention as FactorizedAttention
    from rankwise.layers.conv2d import FactorizedConv2d as FactorizedConv2d
    from rankwise.layers.embedding import FactorizedEmbedding as FactorizedEmbedding
    from rankwise.layers.factorize import factorize as factorize
    from rankwise.layers.head_weights import HeadWeights as HeadWeights
    from rankwise.layers.heads import shrink_heads as shrink_heads
    from rankwise.layers.initialization import Spectral as Spectral
    from rankwise.layers.linear import FactorizedLinear as FactorizedLinear
    from rankwise.layers.multihead import FactorizedMultiheadAttention as FactorizedMultiheadAttention
    from rankwise.layers.plan import Plan as Plan
    from rankwise.layers.planning import factorization_plan as factorization_plan
    from rankwise.layers.rebalance import balance_ as balance_
    from rankwise.layers.rebalanced import Rebalanced as Rebalanced
    from rankwise.layers.surgery import collapse as collapse
    from rankwise.layers.tensorized_conv2d import TensorizedConv2d as TensorizedConv2d
    from rankwise.layers.tensorized_linear import TensorizedLinear as TensorizedLinear
    from rankwise.layers.tensorized_separable import TensorizedSeparableConv2d as TensorizedSeparableConv2d
    from rankwise.product.balance import Balance as Balance
    from rankwise.product.balance import balance as balance
    from rankwise.product.bucket import spectra as spectra
    from rankwise.product.catalogue import MEASURES as MEASURES
    from rankwise.product.catalogue import Measured as Measured
    from rankwise.product.catalogue import measure as measure
    from rankwise.product.eigen import copying_score as copying_score
    from rankwise.product.eigen import eigenvalues as eigenvalues
    from rankwise.product.measures import condition as condition
    from rankwise.product.measures import effective_rank as effective_rank
    from rankwise.product.measures import energy_rank as energy_rank
    from rankwise.product.measures import frobenius_norm as frobenius_norm
    from rankwise.product.measures import nuclear_frobenius_ratio as nuclear_frobenius_ratio
    from rankwise.product.measures import nuclear_norm as nuclear_norm
    from rankwise.product.measures import nuclear_ratio as nuclear_ratio
    from rankwise.product.measures import numerical_rank as numerical_rank
    from rankwise.product.measures import operator_norm as operator_norm
    from rankwise.product.measures import participation_ratio as participation_ratio
    from rankwise.product.measures import pseudo_rank as pseudo_rank
    from rankwise.product.measures import schatten as schatten
    from rankwise.product.measures import stable_rank as stable_rank
    from rankwise.product.null import NullModel as NullModel
    from rankwise.product.null import null_model as null_model
    from rankwise.product.pairs import PairBalance as PairBalance
    from rankwise.product.pairs import RotaryPairs as RotaryPairs
    from rankwise.product.pairs import pair_balance as pair_balance
    from rankwise.product.penalties import frobenius_penalty as frobenius_penalty
    from rankwise.product.penalties import nuclear_penalty as nuclear_penalty
    from rankwise.product.product import Product as Product
    from rankwise.product.spectrum import Spectrum as Spectrum
    from rankwise.product.vectors import SingularVectors as SingularVectors
    from rankwise.product.verdicts import collapsed as collapsed
    from rankwise.product.verdicts import looks_random as looks_random
    from rankwise.product.verdicts import spikes as spikes
    from rankwise.scans.difference import Diff as Diff
    from rankwise.scans.difference import diff as diff
    from rankwise.scans.lora import extract_lora as extract_lora
    from rankwise.scans.scan import Scan as Scan
    from rankwise.scans.scan import scan as scan
    from rankwise.scans.settings import Settings as Settings
    from rankwise.sites.checkpoints import open_checkpoint as open_checkpoint
    from rankwise.sites.find import find as find
    from rankwise.sites.layout import Layout as Layout
    from rankwise.sites.registry import register_layout as register_layout
    from rankwise.sites.site import Site as Site
    from rankwise.sites.sites import Sites as Sites
    from rankwise.watch.alarms import Alarm as Alarm
    from rankwise.watch.alarms import Alarms as Alarms
    from rankwise.watch.alarms import RunStopped as RunStopped
    from rankwise.watch.callbacks.huggingface import TrainerMonitor as TrainerMonitor
    from rankwise.watch.callbacks.lightning import LightningMonitor as LightningMonitor
    from rankwise.watch.monitor import Monitor as Monitor
    from rankwise.watch.run import Run as Run
    from rankwise.watch.run import open_run as open_run
    from rankwise.watch.schedules import Every as Every
    from rankwise.watch.schedules import EverySeconds as EverySeconds
    from rankwise.watch.schedules import LogSpaced as LogSpaced
    from rankwise.watch.schedules import LossPlateau as LossPlateau
    from rankwise.watch.schedules import RankChange as RankChange
    from rankwise.watch.sinks.terminal import Panel as Panel

# Each module with the public names that live in it. They are imported at first use, so that the command line can answer
# `--help` at once and nobody pays for a room that they never enter; the block above tells type checkers the same.
_MODULES = {
    "rankwise.decay.adapters": ("AdapterDecay",),
    "rankwise.decay.balance": ("BalanceDecay",),
    "rankwise.decay.compression": ("CompressionRateDecay",),
    "rankwise.decay.controls.qk_clip": ("QKClip",),
    "rankwise.decay.controls.rank_cap": ("RankCap",),
    "rankwise.decay.controls.rebalancing": ("Rebalancing",),
    "rankwise.decay.controls.spectral_cap": ("SpectralCap",),
    "rankwise.decay.controls.thresholding": ("SingularValueThresholding",),
    "rankwise.decay.flambe": ("FLAMBe",),
    "rankwise.decay.frobenius": ("FrobeniusDecay",),
    "rankwise.decay.groups": ("ParameterGroups", "param_groups"),
    "rankwise.decay.lamb": ("Lamb",),
    "rankwise.decay.nuclear": ("NuclearDecay",),
    "rankwise.decay.polar": ("PolarDecay",),
    "rankwise.decay.target": ("InitializationDecay", "TargetDecay"),
    "rankwise.layers.attention": ("FactorizedAttention",),
    "rankwise.layers.conv2d": ("FactorizedConv2d",),
    "rankwise.layers.embedding": ("FactorizedEmbedding",),
    "rankwise.layers.factorize": ("factorize",),
    "rankwise.layers.head_weights": ("HeadWeights",),
    "rankwise.layers.heads": ("shrink_heads",),
    "rankwise.layers.initialization": ("Spectral",),
    "rankwise.layers.linear": ("FactorizedLinear",),
    "rankwise.layers.multihead": ("FactorizedMultiheadAttention",),
    "rankwise.layers.plan": ("Plan",),
    "rankwise.layers.planning": ("factorization_plan",),
    "rankwise.layers.rebalance": ("balance_",),
    "rankwise.layers.rebalanced": ("Rebalanced",),
    "rankwise.layers.tensorized_conv2d": ("TensorizedConv2d",),
    "rankwise.layers.tensorized_linear": ("TensorizedLinear",),
    "rankwise.layers.tensorized_separable": ("TensorizedSeparableConv2d",),
    "rankwise.layers.surgery": ("collapse",),
    "rankwise.product.balance": ("Balance", "balance"),
    "rankwise.product.bucket": ("spectra",),
    "rankwise.product.catalogue": ("MEASURES", "Measured", "measure"),
    "rankwise.product.eigen": ("copying_score", "eigenvalues"),
    "rankwise.product.measures": (
        "condition",
        "effective_rank",
        "energy_rank",
        "frobenius_norm",
        "nuclear_frobenius_ratio",
        "nuclear_norm",
        "nuclear_ratio",
        "numerical_rank",
        "operator_norm",
        "participation_ratio",
        "pseudo_rank",
        "schatten",
        "stable_rank",
    ),
    "rankwise.product.null": ("NullModel", "null_model"),
    "rankwise.product.pairs": ("PairBalance", "RotaryPairs", "pair_balance"),
    "rankwise.product.penalties": ("frobenius_penalty", "nuclear_penalty"),
    "rankwise.product.product": ("Product",),
    "rankwise.product.spectrum": ("Spectrum",),
    "rankwise.product.vectors": ("SingularVectors",),
    "rankwise.product.verdicts": ("collapsed", "looks_random", "spikes"),
    "rankwise.scans.difference": ("Diff", "diff"),
    "rankwise.scans.lora": ("extract_lora",),
    "rankwise.scans.scan": ("Scan", "scan"),
    "rankwise.scans.settings": ("Settings",),
    "rankwise.sites.checkpoints": ("open_checkpoint",),
    "rankwise.sites.find": ("find",),
    "rankwise.sites.layout": ("Layout",),
    "rankwise.sites.registry": ("register_layout",),
    "rankwise.sites.site": ("Site",),
    "rankwise.sites.sites": ("Sites",),
    "rankwise.watch.alarms": ("Alarm", "Alarms", "RunStopped"),
    "rankwise.watch.callbacks.huggingface": ("TrainerMonitor",),
    "rankwise.watch.callbacks.lightning": ("LightningMonitor",),
    "rankwise.watch.monitor": ("Monitor",),
    "rankwise.watch.run": ("Run", "open_run"),
    "rankwise.watch.schedules": ("Every", "EverySeconds", "LogSpaced", "LossPlateau", "RankChange"),
    "rankwise.watch.sinks.terminal": ("Panel",),
}
HOMES = {name: module for module, names in _MODULES.items() for name in names}
# Rooms that are entered by their own name, `rankwise.theory.flow(...)`, imported at first use as well.
ROOMS = ("theory",)

__all__ = [*HOMES, *ROOMS]  # pyright: ignore[reportUnsupportedDunderAll]


if not TYPE_CHECKING:  # A type checker would take any name for one of ours.

    def __getattr__(name: str) -> Any:
        if name in ROOMS:
            return import_module(f"rankwise.{name}")
        if name not in HOMES:
            raise AttributeError(f"rankwise has no {name!r}: its public names are {', '.join(__all__)}")
        value = getattr(import_module(HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
