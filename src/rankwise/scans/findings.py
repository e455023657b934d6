"""What stands out in a scan, in plain words with the evidence; reads nothing but the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from rankwise.product.spectrum import BELOW_FLOOR, UNCHANGED
from rankwise.product.verdicts import COLLAPSED_SHARE, RANDOM_DISTANCE

# A head whose Frobenius norm is below this share of the median of its kind and stack does next to nothing.
DEAD_SHARE = 1e-3
# One direction dominates when it holds this share of the energy, and stands above the null's edge.
SPIKE_SHARE = 0.5
# Factors are unbalanced when the gap is this share of the half-sum, and this many times the null's.
UNBALANCED_SHARE, UNBALANCED_TIMES = 0.2, 5.0
# A model looks untrained when this share of its attention heads cannot be told from random factors.
UNTRAINED_SHARE = 0.9

ORDER = ("untrained", "failed", "dead", "collapsed", "spiked", "unbalanced", "random", "unchanged")

Finding = dict[str, Any]


def findings(record: Mapping[str, Any]) -> list[Finding]:
    """What stands out, most telling first: failed, dead, collapsed, spiked and unbalanced heads, random ones; in a diff
    those that did not change.

    Each finding is `{kind, site, head, text, evidence}`. Within a kind the most extreme comes first.
    """
    found = [finding for site in record["sites"] for finding in _of_site(site, _typical(record, site))]
    random = [finding for finding in found if finding["kind"] == "random"]
    heads = sum(len(site["heads"]) for site in record["sites"] if site["kind"] in ("qk", "ov"))
    if heads and len(random) >= UNTRAINED_SHARE * heads:
        # Said once for the whole model, not once for each of its heads.
        found = [finding for finding in found if finding["kind"] != "random"]
        text = (
            f"{len(random)} of {heads} attention products cannot be told from random factors: this looks like random "
            "initialization; was the trained checkpoint loaded?"
        )
        evidence = {"random_heads": len(random), "heads": heads, "threshold": RANDOM_DISTANCE}
        found.append({"kind": "untrained", "site": None, "head": None, "text": text, "evidence": evidence, "rank": 0.0})
    found.sort(key=lambda finding: (ORDER.index(finding["kind"]), finding["rank"]))
    return [{key: value for key, value in finding.items() if key != "rank"} for finding in found]


def has_no_change(failure: str | None) -> bool:
    """Whether a head of a diff has no spectrum because there is no change to have one.

    >>> has_no_change(None), has_no_change("unchanged: the change is exactly zero, it has no rank")
    (False, True)
    """
    return failure is not None and failure.startswith((UNCHANGED, BELOW_FLOOR.split("{")[0]))


def _typical(record: Mapping[str, Any], site: Mapping[str, Any]) -> float | None:
    """The median Frobenius norm of the heads of the same kind in the same stack."""
    norms = [
        norm
        for peer in record["sites"]
        if (peer["kind"], peer["stack"]) == (site["kind"], site["stack"])
        for head in peer["heads"]
        if (norm := _measure(head, "frobenius_norm")) is not None
    ]
    return median(norms) if len(norms) > 3 else None


def _of_site(site: Mapping[str, Any], typical: float | None) -> Iterator[Finding]:
    still = [head for head in site["heads"] if has_no_change(head["failure"])]
    if still and len(still) == len(site["heads"]):
        # Said once for the site: what fine-tuning left alone is no failure.
        text = f"{site['name']} did not change, or by less than rounding"
        evidence = {"heads": len(still)}
        yield {"kind": "unchanged", "site": site["name"], "head": None, "text": text, "evidence": evidence, "rank": 0.0}
        return
    for head in site["heads"]:
        if has_no_change(head["failure"]):
            yield _finding("unchanged", site, head, "did not change, or by less than rounding", {}, 0.0)
            continue
        if head["failure"] is not None:
            yield _finding("failed", site, head, f"has no spectrum: {head['failure']}", {}, 0.0)
            continue
        norm = _measure(head, "frobenius_norm")
        if norm == 0 or (norm is not None and typical is not None and norm < DEAD_SHARE * typical):
            evidence = {"frobenius_norm": norm, "median": typical}
            beside = f", the median of its kind {_short(typical)}" if typical is not None else ""
            yield _finding("dead", site, head, f"is dead: its norm is {_short(norm)}{beside}", evidence, norm)
            continue
        if "values" in head and site["null"] is not None:
            yield from _against_null(site, head)


def _against_null(site: Mapping[str, Any], head: Mapping[str, Any]) -> Iterator[Finding]:
    verdicts = head["verdicts"] or {}
    share, distance = verdicts.get("rank_share"), verdicts.get("random_distance")
    values = [value for value in head["values"] if value is not None]
    energy = sum(value * value for value in values)
    if share is not None and share < COLLAPSED_SHARE:
        expected = site["null"]["measures"].get("effective_rank", [None])[0]
        rank = _measure(head, "effective_rank")
        words = (
            f"effective rank {_short(rank)} where random factors have {_short(expected)}"
            if rank is not None
            else f"{share:.0%} of the random effective rank"
        )
        yield _finding(
            "collapsed",
            site,
            head,
            f"is collapsed: {words}",
            {"effective_rank": rank, "null": expected, "share": share},
            share,
        )
    if energy > 0 and len(values) > 1:
        top = values[0] ** 2 / energy
        if top > SPIKE_SHARE and verdicts.get("spikes"):
            ratio = values[0] / values[1] if values[1] else None
            text = f"is spiked: one direction holds {top:.0%} of the energy"
            text += f", {_short(ratio)} times the next" if ratio is not None else ""
            yield _finding("spiked", site, head, text, {"share": top, "ratio": ratio}, -top)
    gap, null = _gap(site, head)
    if gap is not None and gap > UNBALANCED_SHARE and gap > UNBALANCED_TIMES * (null or 0.0):
        beside = f", {null:.1%} for random factors" if null is not None else ""
        text = f"is unbalanced: the half-sum of its factors exceeds the product's norm by {gap:.0%} of itself{beside}"
        yield _finding("unbalanced", site, head, text, {"relative_gap": gap, "null": null}, -gap)
    if distance is not None and distance < RANDOM_DISTANCE and site["kind"] in ("qk", "ov"):
        text = f"looks random: its spectrum is {distance:.1f} spreads from random factors"
        yield _finding(
            "random", site, head, text, {"random_distance": distance, "threshold": RANDOM_DISTANCE}, distance
        )


def _gap(site: Mapping[str, Any], head: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """The relative gap that the law of this head speaks of: over frequency pairs where the head is rotary."""
    if head.get("pairs") is not None:
        return head["pairs"]["relative"], None
    null = (site["null"]["relative_gap"] or [None])[0]
    # Heads that share keys or values are balanced as a group, not one by one.
    if head.get("balance") is None or site.get("group"):
        return None, null
    return head["balance"]["relative"], null


def _finding(
    kind: str, site: Mapping[str, Any], head: Mapping[str, Any], text: str, evidence: Mapping[str, Any], rank: float
) -> Finding:
    alone = len(site["heads"]) == 1
    name = site["name"] if alone else f"{site['name']} head {head['head']}"
    return {
        "kind": kind,
        "site": site["name"],
        "head": head["head"],
        "text": f"{name} {text}",
        "evidence": {key: value for key, value in evidence.items() if value is not None},
        "rank": rank,
    }


def _measure(head: Mapping[str, Any], name: str) -> float | None:
    return head["measures"].get(name, [None])[0]


def _short(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"
