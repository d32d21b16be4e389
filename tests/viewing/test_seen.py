"""Seen: joining words, special tokens, value norms, rollout, and saving and loading."""

from __future__ import annotations

import errno
import io
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import safetensors.numpy
import torch
from rich.console import Console

import regard
from regard import ArgumentError, DataError, UnknownName
from regard.decoding import Passage, Scored
from regard.viewing import Seen, Site, pooled, pooled_from_top
from regard.viewing.pooled_attention import MAP
from regard.viewing.word_groups import grouped, spelled
from tests.facts import facts

SOURCE, SOURCE_WORDS = ("▁고", "양이", "▁가", "</s>"), (0, 0, 1, -1)
TARGET, TARGET_WORDS = ("▁the", "▁c", "at", "</s>"), (0, 1, 1, -1)
READ = ("<s>", *TARGET[:-1])


def drawn(heads: int, rows: int, columns: int) -> numpy.ndarray:
    return numpy.random.default_rng(rows).dirichlet(numpy.ones(columns), (heads, rows))


def example(heads: int = 2) -> Seen:
    values = 1 + numpy.arange(heads * 4.0).reshape(heads, 4)
    sites = (
        Site("encoder.0.self", drawn(heads, 4, 4), SOURCE, SOURCE),
        Site("encoder.1.self", drawn(heads, 4, 4), SOURCE, SOURCE),
        Site("decoder.0.self", numpy.tril(drawn(heads, 4, 4)), TARGET, READ),
        Site("decoder.0.cross", drawn(heads, 4, 4), TARGET, SOURCE, values),
    )
    return Seen(sites, SOURCE, TARGET, SOURCE_WORDS, TARGET_WORDS, "a title", ("a note",), -1.5)


def same(one: Seen, other: Seen) -> bool:
    """Whether all texts and arrays are equal."""
    numbers = ("weights", "values")
    texts = ("name", "rows", "columns", "row_words", "column_words")
    pairs = list(zip(one.sites, other.sites, strict=True))
    return (
        all(getattr(one, name) == getattr(other, name) for name in ("source", "target", "title", "notes"))
        and (one.source_words, one.target_words, one.score)
        == (other.source_words, other.target_words, other.score)
        and all(getattr(a, name) == getattr(b, name) for a, b in pairs for name in texts)
        and all(
            (getattr(a, name) is None) == (getattr(b, name) is None)
            and numpy.array_equal(getattr(a, name), getattr(b, name), equal_nan=getattr(a, name) is not None)
            for a, b in pairs
            for name in numbers
        )
    )


def test_words_sums_over_key_subwords_and_averages_over_query_subwords():
    seen, words = example(), example().words()
    weights, joined = seen.site("decoder.0.cross").weights, words.site("decoder.0.cross").weights
    assert words.source == ("고양이", "가", "</s>") and words.target == ("the", "cat", "</s>")
    assert words.source_words == (0, 1, -1) and words.target_words == (0, 1, -1)
    by_hand = weights[:, [1, 2], :2].sum(2).mean(1)
    numpy.testing.assert_allclose(joined[:, 1, 0], by_hand, rtol=1e-6)
    numpy.testing.assert_allclose(joined.sum(-1), 1, rtol=1e-6)
    numpy.testing.assert_allclose(words.words().site("decoder.0.cross").weights, joined, rtol=1e-6)


def test_decoder_columns_are_shifted_by_one_step():
    site = example().words().site("decoder.0.self")
    assert site.rows == ("the", "cat", "</s>") and site.columns == ("<s>", "the", "cat")
    assert example().site("decoder.0.self").column_words == (-1, 0, 1, 1)


@pytest.mark.parametrize("renormalise", [False, True])
def test_without_specials(renormalise: bool):
    seen = example()
    left = seen.without_specials(renormalise)
    assert left.source == SOURCE[:-1] and left.target == TARGET[:-1]
    before, after = seen.site("decoder.0.cross"), left.site("decoder.0.cross")
    assert after.rows == TARGET[:-1] and after.columns == SOURCE[:-1]
    assert after.values is not None and after.values.shape == (2, 3)
    rest = before.weights[:, :-1, :-1]
    scale = rest.sum(-1, keepdims=True) if renormalise else 1.0
    numpy.testing.assert_allclose(after.weights, rest / scale, rtol=1e-5)
    first = left.site("decoder.0.self")
    assert first.columns == TARGET[:-1] and not first.weights[:, 0].any()  # attended to nothing but <s>


def test_words_keep_their_value_norms_without_specials():
    weights = numpy.full((1, 2, 4), 0.25)
    columns, words = ("[CLS]", "a", "[SEP]", "b"), (-1, 0, -1, 1)
    site = Site("self", weights, ("a", "b"), columns, numpy.array([[1.0, 2.0, 4.0, 8.0]]), (0, 1), words)
    (left,) = Seen((site,), columns, ("a", "b"), words, (0, 1)).without_specials(renormalise=False).sites
    assert left.columns == ("a", "b") and left.values is not None
    assert left.values.tolist() == [[2.0, 8.0]] and left.weighted_by_values().weights.tolist() == [
        [[0.5, 2.0]] * 2
    ]


def test_nan_stays_in_its_row():
    weights = numpy.array([[[0.5, numpy.nan, 0.5]], [[0.2, 0.3, 0.5]]])
    seen = Seen((Site("cross", weights, ["a"], ["b", "c", "d"]),), ("b", "c", "d"), ("a",), (0, 0, 1), (0,))
    joined = seen.words().sites[0].weights
    assert numpy.isnan(joined[0, 0, 0]) and joined[0, 0, 1] == 0.5 and not numpy.isnan(joined[1]).any()


def test_weighted_by_values():
    seen = example()
    site = seen.site("decoder.0.cross")
    (weighted,) = seen.weighted_by_values().sites
    numpy.testing.assert_allclose(weighted.weights[1, 2, 3], site.weights[1, 2, 3] * 8, rtol=1e-6)
    assert weighted.values is None
    with pytest.raises(ArgumentError, match=facts("decoder.0.self", "norms")):
        seen.site("decoder.0.self").weighted_by_values()
    alone = Site("cross", [[0.5, 0.5]], ["a"], ["b", "c"])
    assert alone.words().columns == alone.without_specials(True).columns == ("b", "c")
    with pytest.raises(ArgumentError, match=facts("hint", "weighted_by_values()")):
        seen.words().weighted_by_values()


def test_rollout_multiplies_layers_in_order():
    seen = example()
    layers = [seen.site(f"encoder.{layer}.self").weights.mean(0) for layer in (0, 1)]
    first, second = (0.5 * layer + 0.5 * numpy.eye(4) for layer in layers)
    rolled = seen.rollout()
    numpy.testing.assert_allclose(rolled.weights[0], second @ first, rtol=1e-5)
    numpy.testing.assert_allclose(rolled.weights.sum(-1), 1, rtol=1e-5)
    assert (rolled.name, rolled.rows) == ("encoder.rollout", SOURCE)
    shuffled = replace(seen, sites=seen.sites[::-1])
    numpy.testing.assert_allclose(shuffled.rollout().weights, rolled.weights)
    assert numpy.allclose(numpy.triu(seen.rollout("decoder").weights[0], 1), 0)
    with pytest.raises(ArgumentError, match=facts("encoder", "decoder.0.cross", 'look="*"')):
        replace(seen, sites=seen.sites[-1:]).rollout()


def test_load_returns_what_was_saved(tmp_path: Path):
    words = [f"w{place}" for place in range(300)]
    long = pooled("encoder.self", drawn(2, 300, 300), words, words, top=5)
    seen = replace(example(), long=(long,), source=("\ud800", "</script>", "\x00", "</s>"))
    seen.save(tmp_path / "a.seen")
    again = Seen.load(tmp_path / "a.seen")
    assert same(seen, again) and not same(seen, example(1))
    for name in ("keys", "weights", "maxima", "means", "rows", "columns", "whole"):
        assert numpy.array_equal(getattr(again.long[0], name), getattr(long, name))
    arrays = safetensors.numpy.load_file(tmp_path / "a.seen")
    assert numpy.array_equal(arrays["sites.3.weights"], seen.sites[3].weights)
    again.words().without_specials(True).save(str(tmp_path / "b.seen"))
    assert Seen.load(tmp_path / "b.seen").target == ("the", "cat")


def test_load_raises_for_damaged_files(tmp_path: Path):
    place = tmp_path / "a.seen"
    example().save(place)
    whole = place.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    header["sites.0.weights"]["data_offsets"] = [-64, 64]
    moved = json.dumps(header).encode()
    broken = [b"", b"\xff" * 64, whole[:20], whole[:-1], whole[: length // 2], b"\x02" + b"\0" * 7 + b"[]"]
    for content in (*broken, len(moved).to_bytes(8, "little") + moved + whole[8 + length :]):
        place.write_bytes(content)
        with pytest.raises(DataError, match=facts("a.seen", ".seen", "Seen.save")):
            Seen.load(place)
    header["sites.0.weights"]["data_offsets"] = [0, 128]
    metadata = json.loads(header["__metadata__"]["told"])
    header["__metadata__"]["told"] = json.dumps(metadata | {"sites": [], "long": [], "surprise": 1})
    other = json.dumps(header).encode()
    place.write_bytes(len(other).to_bytes(8, "little") + other + whole[8 + length :])
    with pytest.raises(DataError, match=facts("a.seen", "damaged")):
        Seen.load(place)
    with pytest.raises(DataError, match=os.strerror(errno.ENOENT)):
        Seen.load(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"nowhere.a\.seen"):
        example().save(tmp_path / "nowhere" / "a.seen")


def test_repr():
    assert repr(example().site("decoder.0.cross")) == "Site('decoder.0.cross', H=2 T=4 S=4)"
    assert repr(example()) == (
        "Seen('a title', 4 source and 4 target subwords; encoder.0.self, encoder.1.self, decoder.0.self, "
        "decoder.0.cross)"
    )


def test_invalid_arguments_raise():
    with pytest.raises(ArgumentError, match=facts("rows", "T=1", "2 words")):
        Site("cross", [[1.0]], ["a", "b"], ["c"])
    with pytest.raises(ArgumentError, match=facts("(1, 1, 1, 1)", "weights[sentence]")):
        Site("cross", torch.ones(1, 1, 1, 1), ["a"], ["b"])
    with pytest.raises(ArgumentError, match="H = 0"):
        Site("cross", numpy.ones((0, 1, 1)), ["a"], ["b"])
    with pytest.raises(ArgumentError, match=r"values(.|\n)*\(H, S\) = \(1, 1\)"):
        Site("cross", [[1.0]], ["a"], ["b"], numpy.ones((1, 2)))
    with pytest.raises(ArgumentError, match=facts("source_words", 1, "expected", 2)):
        Seen((), ("a", "b"), (), (0,), ())
    with pytest.raises(ArgumentError, match=facts("source", "str")):
        Seen((), "ab", (), (0, 1), ())
    with pytest.raises(UnknownName, match=facts("'decoder.0.cross'")):
        example().site("decoder.cross")


def test_grouped_and_spelled():
    assert grouped([]) == [] and grouped([-1, 2, -1, 2]) == [[0], [1, 3], [2]]
    assert spelled(["▁a", "b"]) == "ab" and spelled(["<0xFF>"]) == "\ufffd" and spelled(["▁"]) == ""
    seen = Seen((), ("▁", "a"), (), (0, 1), ())
    assert seen.words().source == ("␣", "a")


def passage(first_word: int, heads: int) -> Passage:
    """Return a passage with one source word and one target word, both with index `first_word`."""
    seen = {
        "encoder.0.self": torch.rand(heads, 3, 3),
        "decoder.0.self": torch.rand(heads, 4, 4).tril(),
        "decoder.0.cross": torch.rand(4, 3),
    }
    words, values = (first_word, first_word, -1), {"decoder.0.cross": torch.rand(1, 3)}
    target_words = (*words[:2], first_word, -1)
    return Passage(("▁a", "b", "</s>"), words, (*"xyz", "</s>"), target_words, (-0.5,) * 4, seen, values)


def test_seen_of_a_translation():
    scored = Scored("ab ab", "xyz xyz", (passage(0, 2), passage(1, 2)), ("in two parts",))
    seen = scored.seen()
    assert (seen.title.split(), len(seen.notes), seen.score) == (["xyz", "xyz"], 1, -4.0)
    assert scored.seen("a title").title == "a title"
    itself, cross = seen.site("decoder.0.self"), seen.site("decoder.0.cross")
    assert (itself.heads, cross.heads) == (2, 1) and cross.weights.shape == (1, 8, 6)
    assert itself.columns == ("<s>", "x", "y", "z", "<s>", "x", "y", "z") and cross.rows == seen.target
    assert itself.column_words == (-1, 0, 0, 0, -1, 1, 1, 1)
    assert seen.site("encoder.0.self").rows == seen.source == ("▁a", "b", "</s>") * 2
    joined = seen.words().without_specials(renormalise=False)
    assert joined.source == ("ab", "ab") and joined.site("decoder.0.self").columns == ("xyz", "xyz")
    weighted = scored.seen(by_values=True)
    assert [site.name for site in weighted.sites] == ["decoder.0.cross"]
    norms = numpy.concatenate([each.values["decoder.0.cross"] for each in scored.passages], -1)
    numpy.testing.assert_allclose(weighted.sites[0].weights, cross.weights * norms[:, None])
    assert weighted.notes[:-1] == seen.notes and "norms" in weighted.notes[-1]
    assert Scored("", "").seen(by_values=True).sites == ()
    assert scored.alignment is not None
    numpy.testing.assert_allclose(
        joined.site("decoder.0.cross").weights[0], scored.alignment.matrix.numpy(), rtol=1e-5
    )


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (17, 256), (257, 1000), (513, 300), (1000, 63)])
def test_block_map_of_strips_equals_that_of_the_whole_matrix(rows: int, columns: int):
    weights = drawn(2, rows, columns).astype(numpy.float32)
    names = [str(place) for place in range(max(rows, columns))]
    whole = pooled("a", weights, names[:rows], names[:columns], top=8)
    parts = [weights[:, first : first + 7] for first in range(0, rows, 7)]
    strips = pooled("a", map(torch.tensor, parts), names[:rows], names[:columns], top=8)
    assert whole.whole and whole.heads == 2 and max(whole.maxima.shape[1:]) <= MAP
    down, across = -(-rows // MAP), -(-columns // MAP)
    for row, column in ((0, 0), (-1, -1)):
        block = weights[:, range(rows)[::down][row] :][:, :down][..., range(columns)[::across][column] :][
            ..., :across
        ]
        numpy.testing.assert_allclose(whole.maxima[:, row, column], block.max((1, 2)))
        numpy.testing.assert_allclose(whole.means[:, row, column], block.mean((1, 2)), rtol=1e-5)
    numpy.testing.assert_array_equal(whole.weights[..., 0], weights.max(-1))
    numpy.testing.assert_array_equal(whole.keys[..., 0], weights.argmax(-1))
    for name in ("keys", "weights", "maxima", "means"):
        numpy.testing.assert_allclose(getattr(strips, name), getattr(whole, name), rtol=1e-5)


def test_block_map_from_top_and_from_rows():
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, 600, 8, generator=generator) for _ in range(2))
    words = [f"w{place}" for place in range(600)]
    look = regard.Look(top=16, weights=True)
    seen = regard.attention(query[None], key[None], look=look, mask=regard.causal())
    assert seen.top is not None and seen.weights is not None
    top = type(seen.top)(*(each[0] for each in seen.top))
    from_top = pooled_from_top("self", top, words, words)
    from_all = pooled("self", seen.weights[0], words, words, top=16)
    assert from_all.whole and not from_top.whole
    numpy.testing.assert_allclose(from_top.weights, from_all.weights, rtol=1e-5)
    assert (from_top.keys[:, 0] == [0] + [-1] * 15).all()
    assert (from_top.means <= from_all.means + 1e-6).all()
    rows = (range(first, first + 150) for first in range(0, 600, 150))
    strips = (
        regard.attention(query[None], key[None], look=regard.Look(rows=some), mask=regard.causal()).rows[0]
        for some in map(tuple, rows)
    )
    from_rows = pooled("self", strips, words, words, top=16)
    for name in ("weights", "maxima", "means"):
        numpy.testing.assert_allclose(getattr(from_rows, name), getattr(from_all, name), rtol=1e-4, atol=1e-7)
    exact = from_all.maxima > from_all.weights[..., -1].max()
    assert exact.any()
    numpy.testing.assert_allclose(from_top.maxima[exact], from_all.maxima[exact], rtol=1e-5)


def test_strips_of_wrong_shape_raise():
    for weights in (numpy.ones((3, 4)), numpy.ones((5, 4)), numpy.ones((4, 3)), []):
        with pytest.raises(ArgumentError, match=r"pooled\('a'\): "):
            pooled("a", weights, "abcd", "abcd")
    top = regard.attention(torch.eye(3), torch.eye(3), look=regard.Look(top=2)).top
    for rows, columns in (("ab", "abc"), ("abc", "ab")):
        with pytest.raises(ArgumentError, match=facts("pooled_from_top('a')", "T=3")):
            pooled_from_top("a", top, rows, columns)


def test_rich_and_notebooks_draw_a_seen():
    def printed(seen: Seen) -> str:
        console = Console(file=io.StringIO(), width=100, color_system=None)
        console.print(seen)
        return console.file.getvalue()

    assert printed(example()).split() == str(example().words().picture()).split()
    assert example()._repr_html_() == example().words().picture()._repr_html_()
    assert Seen((), (), (), (), ())._repr_html_() is None
    assert printed(Seen((), (), (), (), ())).strip() == repr(Seen((), (), (), (), ()))


@pytest.mark.parametrize("ending", [".html", ".png", ".svg"])
def test_save_does_not_write_its_own_format_into_a_page_or_picture(tmp_path, ending: str):
    seen = Seen((Site("decoder.cross", [[1.0]], ["a"], ["b"]),), ("b",), ("a",), (0,), (0,))
    with pytest.raises(ArgumentError, match=r"explore|picture"):
        seen.save(tmp_path / f"a{ending}")
    assert not list(tmp_path.iterdir())
