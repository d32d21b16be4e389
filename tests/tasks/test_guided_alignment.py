"""Guided alignment with links by word, by morpheme and by character."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.data import train_tokenizers
from regard.data.batch import Batch
from regard.errors import ArgumentError
from regard.evaluation import Links
from regard.tasks.translation.alignment import Guide
from tests.conftest import SKIPS
from tests.tasks.small import settings, train

PAIR = ("나는 고양이로소이다", "I am a cat")


def wanted(kind: str, links: set[tuple[int, int]], unit: str) -> list[tuple[str, str]]:
    """Return the pairs of source and target tokens that attention is trained to link, as text."""
    source, target = train_tokenizers([PAIR] * 3, kind)
    tokens = source.encode(PAIR[0]), target.encode(PAIR[1])
    batch = Batch.collate(*([each] for each in tokens))
    (weights_TS,) = Guide([Links(links, links)], source, target, unit).wanted(batch)
    pieces = source.pieces(tokens[0]), target.pieces(tokens[1])
    return [(pieces[0][s], pieces[1][t]) for t, s in weights_TS.nonzero().tolist()]


def test_links_of_characters():
    assert wanted("character", {(0, 0)}, "character") == [("나", "I")]
    assert wanted("character", {(0, 0)}, "word") == [("나", "I"), ("는", "I")]


def test_links_of_morphemes_train_particles_and_endings_on_their_own():
    pytest.importorskip("kiwipiepy", reason=SKIPS["kiwipiepy"])
    by_morpheme = wanted("morpheme", {(2, 3), (3, 1)}, "morpheme")  # 나 는 고양이 이 로소이다
    assert {source for source, _ in by_morpheme} == {"▁고양이", "이"}
    assert "".join(target for source, target in by_morpheme if source == "이") == "▁am"
    by_word = wanted("morpheme", {(1, 3)}, "word")
    assert {source for source, _ in by_word} == {"▁고양이", "이", "로소이다"}


@pytest.mark.parametrize("unit", ["morpheme", "character"])
def test_units_that_the_tokenizers_do_not_have_are_an_error(unit, data, links: str, tmp_path: Path):
    aligned = {"alignments": [links], "alignment_unit": unit}
    run = settings(data, data=aligned, training={"guided_alignment": 0.5})
    with pytest.raises(ArgumentError, match=r"data\.alignment_unit") as error:
        train(run, tmp_path / "run")
    assert f'data.tokenizer="{unit}"' in str(error.value)
