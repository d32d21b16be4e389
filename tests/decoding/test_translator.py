"""Translator: order and number of the lines, notes, and the fields of the translations."""

from __future__ import annotations

import copy
import json
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batch import EOS, Batch
from regard.data.tokenizers import train_tokenizer
from regard.decoding import Beam, Greedy, Rules, Sample, Translator, search
from regard.errors import ArgumentError, UnknownName
from regard.fast.search import RecordedAttention
from regard.models import build_model
from tests.decoding.toys import Looking, Spaced, Table
from tests.facts import facts, mentions
from tests.models.variants import make

SIZE, TO_HOST = 40, RecordedAttention.to_host
TEXT = "한 사람이 길을 걸었다. 그는 집에 갔다. 밥은 없었다!"


def translator(model=None, **options) -> Translator:
    options.setdefault("search", Greedy(Rules(maximum=9)))
    model = Looking(size=SIZE) if model is None else model
    target = Spaced(SIZE, lines=["a man went home and ate what there was in it"])
    return Translator(model, Spaced(SIZE, lines=[TEXT]), target, **options)


HOSTILE = [
    "",
    "   ",
    "\t\r\n",
    "\x00",
    "a\x00b",
    "\x1b[31mred\x1b[0m",
    "[bold]markup[/bold] [/]",
    "👩‍👩‍👧‍👦🏳️‍🌈",
    "\u202eright to left\u2066",
    "\ud800 half of a pair",
    "e\u0301" * 50,
    "\ufeff",
    "a\u2028b\u2029c",
    "." * 3000,
    "word " * 10_000,
    "한" * 3000,
    "<script>alert(1)</script>",
    "</s> <pad>",
]


@pytest.mark.parametrize("overlong", ["split", "truncate"])
def test_one_translation_per_line_for_hostile_lines(overlong: str):
    result = translator(longest=60, overlong=overlong).translate(HOSTILE)
    assert len(result) == len(HOSTILE)
    for line, each in zip(HOSTILE, result, strict=True):
        assert each.source == line.replace("\ud800", "\ufffd")
        assert len(each.text.splitlines()) <= 1
        assert (each.text == "" and each.score == 0) or line.strip()
        assert each.alignment is not None


@given(st.lists(st.text(max_size=20), max_size=6))
def test_one_translation_per_line(lines: list[str]):
    result = translator(Table(SIZE, 0), look=None, longest=4).translate(lines)
    assert [each.source for each in result] == lines
    for each in result:
        assert bool(each.passages) == bool(each.source.split())


def test_attention_is_read_later(monkeypatch):
    """Copying it from a GPU takes long, and many users need only the text."""
    monkeypatch.setenv("REGARD_FAST", "1")  # otherwise forced decoding records it after the search
    torch.manual_seed(0)
    own = translator(build_model("bahdanau", SIZE, SIZE, width=8))
    with mock.patch.object(RecordedAttention, "to_host", autospec=True) as read:
        read.side_effect = TO_HOST
        first, second = own.translate(["길을", TEXT])
        assert first.text is not None and not read.called
        copied = copy.deepcopy(second)
        assert read.called
    (expected,) = own.translate([TEXT])
    for each in (second, copied):
        weights = each.attention["decoder.cross"]
        torch.testing.assert_close(weights, expected.attention["decoder.cross"])
        assert weights.shape == (len(each.pieces), len(each.source_pieces))
        assert str(each.alignment) == str(expected.alignment)


def test_order_is_kept_and_batch_size_does_not_matter():
    lines = ["길을", TEXT, "", "그는 집에 갔다.", "밥은", "길을"]
    one = translator(tokens_per_batch=1, search=Beam(3, best=2, rules=Rules(maximum=9))).translate(lines)
    many = translator(tokens_per_batch=100, search=Beam(3, best=2, rules=Rules(maximum=9))).translate(lines)
    assert [each.source for each in one] == lines == [each.source for each in many]
    for a, b in zip(one, many, strict=True):
        assert a.text == b.text and a.pieces == b.pieces
        assert a.token_scores == pytest.approx(b.token_scores, abs=1e-5)
        assert [other.text for other in a.others] == [other.text for other in b.others]


def test_stream_equals_translate():
    lines = ["길을", TEXT, "", "그는 집에 갔다.", "밥은"]
    how = Sample(seed=3, temperature=2.0, rules=Rules(maximum=6))
    whole = [each.text for each in translator(search=how).translate(lines)]
    assert [each.text for each in translator(search=how).stream(iter(lines), at_once=2)] == whole
    assert len(set(whole)) > 2


@pytest.mark.parametrize("name", ["looking", "transformer rotary"])
def test_fields_of_a_translation_are_consistent(name: str):
    model = Looking(size=11, seed=3) if name == "looking" else make(name).float()
    tokenizer = Spaced(11, lines=["abcd ef", "gh ijklmn"])
    made = Translator(model, tokenizer, tokenizer, search=Beam(size=4, best=3), longest=5)
    split, short = made.translate(["abcd ef gh abcd ijklmn ef", "gh"])
    assert len(split.passages) > 1 and len(short.passages) == 1 and not split.others
    assert mentions(split.notes[0], "split", len(split.passages))
    assert 1 <= len(short.others) <= 2
    for each in (split, short, *short.others):
        assert len(each.pieces) == len(each.token_scores)
        assert each.score == pytest.approx(sum(each.token_scores))
        for site, weights in each.attention.items():
            assert site.endswith("cross")
            assert weights.shape[-2:] == (len(each.pieces), len(each.source_pieces))
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        assert each.alignment.matrix.shape == (len(each.text.split()), len(each.source.split()))
        assert [int(link.split("-")[1]) for link in str(each.alignment).split()] == list(
            range(len(each.text.split()))
        )
    assert [each.ranking for each in (short, *short.others)] == sorted(
        (each.ranking for each in (short, *short.others)), reverse=True
    )


def test_split_line_equals_its_sentences_joined():
    whole = translator(longest=8)
    (joined,) = whole.translate([TEXT])
    parts = translator().translate(["한 사람이 길을 걸었다.", "그는 집에 갔다.", "밥은 없었다!"])
    assert mentions(joined.notes[0], "split", 3)
    assert joined.text == " ".join(each.text for each in parts if each.text)
    assert joined.score == pytest.approx(sum(each.score for each in parts), abs=1e-4)
    assert joined.pieces == tuple(piece for each in parts for piece in each.pieces)
    sources, targets, links = 0, 0, []
    for each in parts:
        links += [f"{source + sources}-{target + targets}" for source, target in each.alignment.links]
        sources, targets = sources + len(each.source.split()), targets + len(each.text.split())
    assert str(joined.alignment) == " ".join(links)


def test_notes_report_truncated_unfinished_and_empty_lines():
    (cut,) = translator(longest=8, overlong="truncate").translate([TEXT])
    assert "7 of " in cut.notes[0] and len(cut.source_pieces) == 8

    endless = Looking(size=SIZE)
    with torch.no_grad():
        endless.output.bias[3] = -100.0
    one, parts = translator(endless, longest=8).translate(["길을", TEXT])
    assert mentions(one.notes[0], "9 tokens") and "</s>" not in one.pieces
    assert mentions(parts.notes[0], "split", 3) and mentions(parts.notes[1], "3 of 3")
    assert "tensor" not in repr(parts)

    class Silent(Spaced):
        def encode_lines(self, lines):
            return [[] for _ in lines]

    made = Translator(Looking(SIZE), Silent(SIZE), Spaced(SIZE))
    assert [len(each.notes) for each in made.translate(["\x01", " "])] == [1, 0]


def test_maximum_lengths_of_the_model_are_respected():
    model = Looking(size=SIZE)
    model.longest_source, model.longest_target = 6, 5
    made = translator(model, search=Greedy())
    (result,) = made.translate([TEXT])
    assert all(len(each.source_pieces) <= 6 and len(each.pieces) <= 5 for each in result.passages)
    (scored,) = made.score([TEXT], ["a man went home"])
    assert mentions(scored.notes[0], "source", 5) and mentions(scored.notes[1], "target", 4)


def test_translation_begins_with_its_prefix():
    lines, prefixes = [TEXT, "", "길을"], ["a man", "went", ""]
    made = translator(longest=8)
    first, blank, free = made.translate(lines, prefixes)
    assert first.text.startswith("a man") and blank.text == ""
    assert free.text == made.translate(["길을"])[0].text
    with pytest.raises(ArgumentError, match=facts("line 3", "9 tokens")):
        made.translate(lines, ["", "", "a a a a a a a a a"])
    with pytest.raises(ArgumentError, match=facts("2 prefixes", "3 lines")):
        made.translate(lines, ["", ""])


@pytest.mark.parametrize("how", [Greedy(), Beam(size=4, best=4)], ids=["greedy", "beam"])
def test_score_reproduces_the_scores_of_a_translation(how):
    target = Spaced(SIZE, cut=9, lines=[" ".join(f"w{word}" for word in range(4, SIZE))])
    compared = 0
    for seed in range(4):
        model = Looking(size=SIZE, seed=seed)
        with torch.no_grad():
            model.output.bias[3] += 0.5
        made = Translator(model, Spaced(SIZE, lines=[TEXT]), target, search=how)
        for result in made.translate(["길을 걸었다.", "그는 집에"]):
            for each in (result, *result.others):
                if each.pieces[-1] == "</s>":
                    (scored,) = made.score([each.source], [each.text])
                    assert scored.pieces == each.pieces
                    assert scored.token_scores == pytest.approx(each.token_scores, abs=1e-5)
                    assert str(scored.alignment) == str(each.alignment)
                    compared += len(each.pieces) > 1
    assert compared >= 3


@pytest.mark.parametrize(
    ("kind", "unit"), [("bpe", "auto"), ("word", "auto"), ("character", "auto"), ("character", "word")]
)
def test_translator_works_with_every_tokenizer(kind: str, unit: str):
    size = 300 if kind == "bpe" else None
    source = train_tokenizer(kind, [TEXT] * 9, size)
    target = train_tokenizer(kind, ["a man went home and there was nothing"] * 9, size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = build_model("bahdanau", source.size, target.size, width=8, embedding=8)
    made = Translator(model, source, target, search=Beam(3, best=2, rules=Rules(maximum=9)), longest=12)
    made.unit = unit
    units = list if (kind, unit) == ("character", "auto") else str.split
    lines = [*HOSTILE[:14], TEXT]
    result = made.translate(lines)
    assert len(result) == len(lines)
    for each in result:
        words = len(units(source.decode(source.encode(each.source)))) if each.passages else 0
        assert each.alignment.matrix.shape == (len(units(each.text)), words)
        assert len(each.pieces) == len(each.token_scores)


def test_scores_do_not_depend_on_the_batch():
    made = translator()
    sources = ["길을", "", TEXT, "그는 집에 갔다."]
    targets = ["a man", "went home", "", "he ate what there was in it"]
    together = made.score(sources, targets)
    for source, target, each in zip(sources, targets, together, strict=True):
        (alone,) = made.score([source], [target])
        assert (each.source, each.text) == (source, target) and each.score < 0
        assert each.token_scores == pytest.approx(alone.token_scores, abs=1e-5)
        assert len(each.token_scores) == len(made.target_tokenizer.encode(target)) + 1
        assert str(each.alignment) == str(alone.alignment)
        assert each.alignment.matrix.shape == (len(target.split()), len(source.split()))
    assert [str(each) for each in made.align(sources, targets)] == [str(each.alignment) for each in together]
    site = together[0].align("decoder.cross", head=0)
    assert str(site) == str(together[0].alignment)


def test_align_raises_for_a_model_without_attention():
    model = make("seq2seq gru").float()
    made = Translator(model, Spaced(11), Spaced(11))
    (result,) = made.translate(["ab cd"])
    assert result.attention == {} and result.alignment is None
    with pytest.raises(ArgumentError, match="attention"):
        made.align(["ab"], ["cd"])


def test_n_best_of_a_line_equals_search():
    made = translator(search=Beam(size=4, best=3))
    (result,) = made.translate(["그는 집에 갔다."])
    tokens = made.source_tokenizer.encode("그는 집에 갔다.")
    (expected,) = search(made.model, Batch.collate([tokens]), made.search)
    assert [each.token_scores for each in (result, *result.others)] == [
        pytest.approx(each.token_scores, abs=1e-5) for each in expected
    ]


def test_invalid_arguments_raise():
    model = Looking(size=SIZE)
    for wrong, words in [
        (lambda: Translator(model, Spaced(9), Spaced(SIZE)), "source tokenizer has 9 tokens.*40"),
        (lambda: Translator(model, Spaced(SIZE), Spaced(41)), "target tokenizer has 41 tokens"),
        (lambda: translator(tokens_per_batch=0), "tokens_per_batch is 0"),
        (lambda: translator(longest=1), "longest is 1"),
        (lambda: translator().translate("one line", ["a"]), "a single line, the other is a list"),
        (lambda: translator().translate(["a"], "a"), "a single line, the other is a list"),
        (lambda: translator().score("a", ["b"]), "two lines, or two lists"),
        (lambda: translator().translate(["a", None]), "line 2 is of type NoneType"),
        (lambda: translator().translate(5), "of type int"),
        (lambda: list(translator().stream(["a", 3])), "line 2 is of type int"),
        (lambda: translator().score(["a"], []), "1 sources and 0 targets"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            wrong()
    with pytest.raises(UnknownName, match=facts("known", "split", "truncate")):
        translator(overlong="drop")


def test_single_line_gives_a_single_translation():
    made = translator()
    one, (listed,) = made.translate(TEXT), made.translate([TEXT])
    assert (one.text, one.token_scores) == (listed.text, listed.token_scores)
    assert made.translate("길을", "a man").text.startswith("a man") and made.translate("").text == ""
    scored, (listed_score,) = made.score(TEXT, "a man"), made.score([TEXT], ["a man"])
    assert scored.token_scores == listed_score.token_scores and scored.text == "a man"
    assert str(made.align(TEXT, "a man")) == str(made.align([TEXT], ["a man"])[0])


def test_score_truncates_long_pairs_with_a_note():
    (scored,) = translator(longest=6).score([TEXT], ["a man went home and ate"])
    assert [note.split()[0] for note in scored.notes] == ["source", "target"]
    assert all(" 5 of " in note for note in scored.notes)
    assert len(scored.source_pieces) == len(scored.pieces) == 6


def test_word_across_a_sentence_end_is_counted_once():
    """A sentence end without a space does not begin a new word: 길다。그녀는 is one word."""
    line = "그 시는 길다。그녀는 갔다。나는 간다 . " * 3
    tokenizer = train_tokenizer("character", [line])
    model = build_model("bahdanau", tokenizer.size, tokenizer.size, width=4)
    (result,) = Translator(model, tokenizer, tokenizer, search=Greedy(), longest=10, unit="word").translate(
        [line]
    )
    assert max(word for passage in result.passages for word in passage.source_words) == len(line.split()) - 1


def test_stream_of_a_string_raises():
    with pytest.raises(ArgumentError, match="stream"):
        next(translator().stream("abc"))


def test_unusable_prefixes_are_reported():
    words = train_tokenizer("word", ["a b c"])
    model = build_model("bahdanau", words.size, words.size, width=4)
    made = Translator(model, words, words, search=Greedy())
    (blank,) = made.translate([""], prefixes=["a"])
    assert blank.text == "" and "prefix" in blank.notes[0]
    with pytest.raises(ArgumentError, match=facts("line 1", "vocabulary")):
        made.translate(["a"], prefixes=["z"])


def test_look_that_matches_no_site_raises():
    with pytest.raises(ArgumentError, match=facts("look", "'nothing'", "decoder.cross")):
        translator(look="nothing")
    for look in ("*", "decoder*", "*cross", None):
        assert translator(look=look).look == look
    assert translator(Table(SIZE, 0), look="nothing").translate(["길을"]), (
        "a model without attention accepts any look"
    )


@pytest.mark.parametrize("wrong", ["beam", Beam])
def test_invalid_search_raises(wrong: object):
    with pytest.raises(ArgumentError, match="Beam"):
        translator(search=wrong)


def test_repr():
    assert repr(translator()).startswith("Translator(") and "search=" in repr(translator())


def test_a_call_can_search_and_look_differently():
    made = translator()
    beam = Beam(3, best=2, rules=Rules(maximum=9))
    expected = translator(search=beam, look=None).translate([TEXT])
    (found,) = made.translate([TEXT], search=beam, look=None)
    assert found.to_dict() == expected[0].to_dict() and found.others and found.attention == {}
    assert [each.to_dict() for each in made.stream([TEXT], search=beam, look=None)] == [found.to_dict()]
    assert made.translate(TEXT).attention and made.search == Greedy(Rules(maximum=9))
    assert made.score(TEXT, "a man", look=None).attention == {}
    assert str(made.align(TEXT, "a man", look="decoder.cross")) == str(made.align(TEXT, "a man"))
    with pytest.raises(ArgumentError, match=facts("score()", "'nothing'")):
        made.score(TEXT, "a man", look="nothing")
    with pytest.raises(ArgumentError, match="Beam"):
        made.translate(TEXT, search="beam")  # type: ignore[call-overload]


def test_a_call_can_align_other_units():
    tokenizer = train_tokenizer("character", ["3 May 2019"])
    model = build_model("bahdanau", tokenizer.size, tokenizer.size, width=8)
    made = Translator(model, tokenizer, tokenizer)
    units = {unit: made.score("3 May", "May", unit=unit).units for unit in (None, "word")}
    assert units == {None: ("character", "character"), "word": ("word", "word")}
    assert made.align("3 May", "May", unit="word").matrix.shape == (1, 2) and made.unit == "auto"


def test_token_ids_are_those_of_the_tokenizers():
    made = translator(longest=8)
    for each in (made.score(TEXT, "a man went home"), made.translate("길을 걸었다."), made.translate(TEXT)):
        for ids, pieces, tokenizer in (
            (each.token_ids, each.pieces, made.target_tokenizer),
            (each.source_token_ids, each.source_pieces, made.source_tokenizer),
        ):
            assert len(ids) == len(pieces)
            shown = zip(ids, pieces, strict=True)
            texts = [token for token in shown if token[1] != "</s>"]
            assert tokenizer.pieces([number for number, _ in texts]) == [piece for _, piece in texts]
            assert {number for number, piece in zip(ids, pieces, strict=True) if piece == "</s>"} <= {EOS}


def test_a_translation_as_a_dict_is_json():
    (result,) = translator(search=Beam(3, best=2, rules=Rules(maximum=9))).translate([TEXT])
    content = json.loads(json.dumps(result.to_dict(), ensure_ascii=False))
    assert content == result.to_dict()
    assert (content["text"], content["score"]) == (result.text, result.score)
    assert content["token_ids"] == list(result.token_ids) and len(content["others"]) == 1
    assert [tuple(link) for link in content["alignment"]] == list(result.alignment.links)
