"""The choice of site, head and shift for alignments: files, ranking, and joining two directions."""

from __future__ import annotations

import json

import pytest
import torch

from regard.decoding import Choice, Translator, align
from regard.errors import ArgumentError, DataError
from regard.evaluation import Links
from regard.models import build_model
from regard.tasks.translation.alignment import (
    aligned_at,
    choose_by_agreement,
    choose_by_links,
    join_directions,
    read_choice,
    write_choice,
)
from tests.decoding.toys import Spaced


@pytest.mark.parametrize("choice", [Choice(), Choice("decoder.5.cross", 7), Choice("*", None, shifted=True)])
def test_choice_read_equals_choice_written(tmp_path, choice):
    assert read_choice(tmp_path) is None
    write_choice(tmp_path, Choice("another"))
    write_choice(tmp_path, choice, "by the links of 개발.links")
    assert read_choice(tmp_path) == choice
    assert [path.name for path in tmp_path.iterdir()] == ["alignment.json"]
    assert json.loads((tmp_path / "alignment.json").read_bytes())["why"] == "by the links of 개발.links"


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"\xff",
        b"[]",
        b"3",
        b'{"site": "x"}',
        b'{"site": 3, "head": null, "shifted": true}',
        b'{"site": "x", "head": -1, "shifted": true}',
        b'{"site": "x", "head": true, "shifted": true}',
        b'{"site": "x", "head": 1.5, "shifted": true}',
        b'{"site": "x", "head": null, "shifted": 1}',
    ],
)
def test_invalid_alignment_files_raise(tmp_path, written):
    (tmp_path / "alignment.json").write_bytes(written)
    with pytest.raises(DataError, match=r"alignment\.json"):
        read_choice(tmp_path)


def test_choice_in_a_missing_folder_raises(tmp_path):
    with pytest.raises(DataError, match=r"alignment\.json"):
        write_choice(tmp_path / "nowhere", Choice())


def translator(name: str, **options: object) -> Translator:
    torch.manual_seed(0)
    model = build_model(name, 30, 30, width=8)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6)  # far from uniform, so that each step attends to another word
    return Translator(model, Spaced(size=30), Spaced(size=30), **options)


def test_choosing_needs_a_model_with_attention():
    blind = translator("seq2seq")
    with pytest.raises(ArgumentError, match="Seq2Seq"):
        choose_by_links(blind, ["ab"], ["ab"], [Links(frozenset())])
    with pytest.raises(ArgumentError, match="Seq2Seq"):
        choose_by_agreement(translator("bahdanau"), blind, ["ab"], ["ab"])


def test_choosing_records_attention_whatever_the_translator_records():
    pairs, gold = (["a b c"], ["c b a"]), [Links(frozenset({(0, 1)}))]
    silent, recording = (translator("bahdanau", look=look) for look in (None, "*cross"))
    assert choose_by_links(silent, *pairs, gold) == choose_by_links(recording, *pairs, gold)
    assert silent.look is None


def test_choices_are_ranked_by_alignment_error_rate():
    model = translator("bahdanau")
    sources, targets = ["a b c", "d e", "f g h i j"], ["c b a", "x y", "p q"]
    later = Translator(model.model, Spaced(size=30), Spaced(size=30), alignment=Choice(shifted=True))
    gold = [Links(frozenset(each.links)) for each in later.align(sources, targets)]
    ranked = choose_by_links(model, sources, targets, gold)
    assert [choice for choice, _ in ranked] == [
        Choice("decoder.cross", shifted=True),
        Choice("decoder.cross"),
    ]
    assert ranked[0][1].error_rate == 0 < ranked[1][1].error_rate


def test_weight_of_a_joined_link_is_the_mean_of_both_directions():
    """Rows are the words that a model generates: target words forward, source words backward."""
    forward = align(torch.tensor([[0.8, 0.2], [0.4, 0.6]]), [0, 1], [0, 1])
    backward = align(torch.tensor([[0.5, 0.5], [0.1, 0.9]]), [0, 1], [0, 1])
    assert join_directions(forward, backward, "intersection") == [
        (0, 0, pytest.approx(0.65)),
        (1, 1, pytest.approx(0.75)),
    ]
    above = join_directions(forward, backward, "union", threshold=0.45)
    assert above == [(0, 0, pytest.approx(0.65)), (0, 1, pytest.approx(0.45)), (1, 1, pytest.approx(0.75))]


def test_links_past_the_end_of_a_truncated_direction_have_half_the_weight():
    forward = align(torch.tensor([[0.8, 0.2], [0.4, 0.6]]), [0, 1], [0, 1])
    backward = align(torch.tensor([[1.0]]), [0], [0])
    joined = join_directions(forward, backward, "grow-diag-final-and")
    assert joined == [(0, 0, pytest.approx(0.9)), (1, 1, pytest.approx(0.3))]


def test_a_scored_pair_is_aligned_at_another_site_or_head():
    scored = translator("transformer").score("x5 x6 x7", "x8 x9 x10")
    for site, head in (("decoder.1.cross", None), ("decoder.0.cross", 1)):
        moved = aligned_at(scored, site, head)
        assert (moved.aligned_at.site, moved.aligned_at.head) == (site, head)
        assert torch.equal(moved.alignment.matrix, scored.align(site, head=head).matrix)
