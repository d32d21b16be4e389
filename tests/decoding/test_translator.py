"""Lines in, lines out: the order, the count, what is said of them, and what they carry."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batch import Batch
from regard.data.tokenizers import train_tokenizer
from regard.decoding import Beam, Greedy, Rules, Sample, Translator, search
from regard.errors import ArgumentError, UnknownName
from regard.models import build_model
from tests.decoding.toys import Looking, Spaced, Table
from tests.models.variants import make

SIZE = 40
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
def test_as_many_out_as_in_whatever_they_hold(overlong: str):
    found = translator(longest=60, overlong=overlong).translate(HOSTILE)
    assert len(found) == len(HOSTILE)
    for line, each in zip(HOSTILE, found, strict=True):
        assert each.source == line.replace("\ud800", "\ufffd")
        assert len(each.text.splitlines()) <= 1
        assert (each.text == "" and each.score == 0) or line.strip()
        assert each.alignment is not None


@given(st.lists(st.text(max_size=20), max_size=6))
def test_as_many_out_as_in(lines: list[str]):
    found = translator(Table(SIZE, 0), look=None, longest=4).translate(lines)
    assert [each.source for each in found] == lines
    for each in found:
        assert bool(each.passages) == bool(each.source.split())


def test_the_order_is_kept_and_batches_do_not_matter():
    lines = ["길을", TEXT, "", "그는 집에 갔다.", "밥은", "길을"]
    one = translator(tokens_per_batch=1, search=Beam(3, best=2, rules=Rules(maximum=9))).translate(lines)
    many = translator(tokens_per_batch=100, search=Beam(3, best=2, rules=Rules(maximum=9))).translate(lines)
    assert [each.source for each in one] == lines == [each.source for each in many]
    for a, b in zip(one, many, strict=True):
        assert a.text == b.text and a.pieces == b.pieces
        assert a.token_scores == pytest.approx(b.token_scores, abs=1e-5)
        assert [other.text for other in a.others] == [other.text for other in b.others]


def test_streaming_is_translating():
    lines = ["길을", TEXT, "", "그는 집에 갔다.", "밥은"]
    how = Sample(seed=3, temperature=2.0, rules=Rules(maximum=6))
    whole = [each.text for each in translator(search=how).translate(lines)]
    assert [each.text for each in translator(search=how).stream(iter(lines), at_once=2)] == whole
    assert len(set(whole)) > 2


@pytest.mark.parametrize("name", ["looking", "transformer rotary"])
def test_what_a_translation_carries_fits_together(name: str):
    model = Looking(size=11, seed=3) if name == "looking" else make(name).float()
    tokenizer = Spaced(11, lines=["abcd ef", "gh ijklmn"])
    made = Translator(model, tokenizer, tokenizer, search=Beam(size=4, best=3), longest=5)
    split, short = made.translate(["abcd ef gh abcd ijklmn ef", "gh"])
    assert len(split.passages) > 1 and len(short.passages) == 1 and not split.others
    assert split.notes[0].startswith(f"split into {len(split.passages)}")
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


def test_parts_are_joined_as_they_were_translated():
    whole = translator(longest=8)
    (joined,) = whole.translate([TEXT])
    parts = translator().translate(["한 사람이 길을 걸었다.", "그는 집에 갔다.", "밥은 없었다!"])
    assert joined.notes[0] == "split into 3 at sentence ends"
    assert joined.text == " ".join(each.text for each in parts if each.text)
    assert joined.score == pytest.approx(sum(each.score for each in parts), abs=1e-4)
    assert joined.pieces == tuple(piece for each in parts for piece in each.pieces)
    sources, targets, links = 0, 0, []
    for each in parts:
        links += [f"{source + sources}-{target + targets}" for source, target in each.alignment.links]
        sources, targets = sources + len(each.source.split()), targets + len(each.text.split())
    assert str(joined.alignment) == " ".join(links)


def test_what_was_done_to_a_line_is_said():
    (cut,) = translator(longest=8, overlong="truncate").translate([TEXT])
    assert cut.notes[0].startswith("cut at 7 of ") and len(cut.source_pieces) == 8

    endless = Looking(size=SIZE)
    with torch.no_grad():
        endless.output.bias[3] = -100.0
    one, parts = translator(endless, longest=8).translate(["길을", TEXT])
    assert one.notes == ("the translation did not end: cut at 9 tokens",) and "</s>" not in one.pieces
    assert parts.notes == ("split into 3 at sentence ends", "3 of 3 parts did not end, and were cut")
    assert "tensor" not in repr(parts)

    class Silent(Spaced):
        def encode_lines(self, lines):
            return [[] for _ in lines]

    made = Translator(Looking(SIZE), Silent(SIZE), Spaced(SIZE))
    assert [each.notes for each in made.translate(["\x01", " "])] == [("nothing in it could be read",), ()]


def test_a_model_that_reads_little_is_given_little():
    model = Looking(size=SIZE)
    model.longest_source, model.longest_target = 6, 5
    made = translator(model, search=Greedy())
    (found,) = made.translate([TEXT])
    assert all(len(each.source_pieces) <= 6 and len(each.pieces) <= 5 for each in found.passages)
    (scored,) = made.score([TEXT], ["a man went home"])
    assert [note.split(" of ")[0] for note in scored.notes] == ["source cut at 5", "target cut at 4"]


def test_a_prefix_begins_the_translation():
    lines, prefixes = [TEXT, "", "길을"], ["a man", "went", ""]
    made = translator(longest=8)
    first, blank, free = made.translate(lines, prefixes)
    assert first.text.startswith("a man") and blank.text == ""
    assert free.text == made.translate(["길을"])[0].text
    with pytest.raises(ArgumentError, match="prefix of line 3 has 9 tokens"):
        made.translate(lines, ["", "", "a a a a a a a a a"])
    with pytest.raises(ArgumentError, match="2 prefixes for 3 lines"):
        made.translate(lines, ["", ""])


@pytest.mark.parametrize("how", [Greedy(), Beam(size=4, best=4)], ids=["greedy", "beam"])
def test_a_translation_scores_as_a_given_pair(how):
    target = Spaced(SIZE, cut=9, lines=[" ".join(f"w{word}" for word in range(4, SIZE))])
    compared = 0
    for seed in range(4):
        model = Looking(size=SIZE, seed=seed)
        with torch.no_grad():
            model.output.bias[3] += 0.5
        made = Translator(model, Spaced(SIZE, lines=[TEXT]), target, search=how)
        for found in made.translate(["길을 걸었다.", "그는 집에"]):
            for each in (found, *found.others):
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
def test_the_tokenizers_of_the_library_fit(kind: str, unit: str):
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
    found = made.translate(lines)
    assert len(found) == len(lines)
    for each in found:
        words = len(units(source.decode(source.encode(each.source)))) if each.passages else 0
        assert each.alignment.matrix.shape == (len(units(each.text)), words)
        assert len(each.pieces) == len(each.token_scores)


def test_scores_of_pairs_are_those_of_each_alone():
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


def test_a_model_without_attention_translates_and_does_not_align():
    model = make("seq2seq gru").float()
    made = Translator(model, Spaced(11), Spaced(11))
    (found,) = made.translate(["ab cd"])
    assert found.attention == {} and found.alignment is None
    with pytest.raises(ArgumentError, match="shows no attention"):
        made.align(["ab"], ["cd"])


def test_the_best_of_a_line_is_what_search_finds():
    made = translator(search=Beam(size=4, best=3))
    (found,) = made.translate(["그는 집에 갔다."])
    tokens = made.source_tokenizer.encode("그는 집에 갔다.")
    (expected,) = search(made.model, Batch.collate([tokens]), made.search)
    assert [each.token_scores for each in (found, *found.others)] == [
        pytest.approx(each.token_scores, abs=1e-5) for each in expected
    ]


def test_what_does_not_fit_is_refused():
    model = Looking(size=SIZE)
    for wrong, words in [
        (lambda: Translator(model, Spaced(9), Spaced(SIZE)), "source tokenizer has 9 tokens.*made for 40"),
        (lambda: Translator(model, Spaced(SIZE), Spaced(41)), "target tokenizer has 41 tokens"),
        (lambda: translator(tokens_per_batch=0), "tokens_per_batch is 0"),
        (lambda: translator(longest=1), "longest is 1"),
        (lambda: translator().translate("one line", ["a"]), "a line alone was given with a list"),
        (lambda: translator().translate(["a"], "a"), "a line alone was given with a list"),
        (lambda: translator().score("a", ["b"]), "expected: two lines, or two lists of them"),
        (lambda: translator().translate(["a", None]), "line 2 is of type NoneType"),
        (lambda: translator().translate(5), "what was given is of type int"),
        (lambda: list(translator().stream(["a", 3])), "line 2 is of type int"),
        (lambda: translator().score(["a"], []), "1 sources and 0 targets"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            wrong()
    with pytest.raises(UnknownName, match="known: split, truncate"):
        translator(overlong="drop")


def test_a_line_alone_gives_one_translation():
    made = translator()
    one, (listed,) = made.translate(TEXT), made.translate([TEXT])
    assert (one.text, one.token_scores) == (listed.text, listed.token_scores)
    assert made.translate("길을", "a man").text.startswith("a man") and made.translate("").text == ""
    scored, (listed_score,) = made.score(TEXT, "a man"), made.score([TEXT], ["a man"])
    assert scored.token_scores == listed_score.token_scores and scored.text == "a man"
    assert str(made.align(TEXT, "a man")) == str(made.align([TEXT], ["a man"])[0])


def test_given_pairs_that_are_too_long_are_cut_and_that_is_said():
    (scored,) = translator(longest=6).score([TEXT], ["a man went home and ate"])
    assert [note.split(" of ")[0] for note in scored.notes] == ["source cut at 5", "target cut at 5"]
    assert len(scored.source_pieces) == len(scored.pieces) == 6


def test_a_word_that_a_sentence_ends_in_is_counted_once():
    """Sentence ends without a space do not begin a new word: 길다。그녀는 is one."""
    line = "그 시는 길다。그녀는 갔다。나는 간다 . " * 3
    tokenizer = train_tokenizer("character", [line])
    model = build_model("bahdanau", tokenizer.size, tokenizer.size, width=4)
    (found,) = Translator(model, tokenizer, tokenizer, search=Greedy(), longest=10, unit="word").translate(
        [line]
    )
    assert max(word for passage in found.passages for word in passage.source_words) == len(line.split()) - 1


def test_a_string_is_not_a_stream_of_lines():
    with pytest.raises(ArgumentError, match="stream"):
        next(translator().stream("abc"))


def test_a_prefix_that_cannot_begin_is_said():
    words = train_tokenizer("word", ["a b c"])
    model = build_model("bahdanau", words.size, words.size, width=4)
    made = Translator(model, words, words, search=Greedy())
    (blank,) = made.translate([""], prefixes=["a"])
    assert blank.text == "" and "prefix" in blank.notes[0]
    with pytest.raises(ArgumentError, match="prefix of line 1 holds what the target tokenizer does not know"):
        made.translate(["a"], prefixes=["z"])


def test_a_look_that_no_site_matches_is_told_of():
    with pytest.raises(ArgumentError, match=r"(?s)look is 'nothing'.*it attends at decoder\.cross"):
        translator(look="nothing")
    for look in ("*", "decoder*", "*cross", None):
        assert translator(look=look).look == look
    assert translator(Table(SIZE, 0), look="nothing").translate(["길을"]), "there is no attention to see"


@pytest.mark.parametrize("wrong", ["beam", Beam])
def test_a_way_of_searching_must_be_one(wrong: object):
    with pytest.raises(ArgumentError, match="Beam"):
        translator(search=wrong)


def test_it_says_what_it_is():
    assert repr(translator()).startswith("Translator(") and "search=" in repr(translator())
