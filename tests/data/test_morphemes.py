"""The morpheme tokenizer: Korean words are split and joined again, and no text is lost."""

from __future__ import annotations

import importlib.metadata
import json
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import korean_english
from regard.data.batch import BOS, EOS, PAD, UNK
from regard.data.tokenizers import Morphemes, clean, load_tokenizer, train_tokenizer, train_tokenizers
from regard.data.tokenizers.morphemes import ENDINGS, is_korean
from regard.data.tokenizers.tokenizer import Lowercased
from regard.decoding import Greedy, Rules, Translator
from regard.decoding.word_alignment import count_units
from regard.errors import ArgumentError, DataError, RegardWarning
from regard.models import build_model
from tests.conftest import SKIPS
from tests.facts import facts

pytest.importorskip("kiwipiepy", reason=SKIPS["kiwipiepy"])

CAT, TRANSLATION = "나는 고양이로소이다", "I am a cat"
LINES = [example.source for example in korean_english("train", 300)] + [CAT] * 2
TOKENIZER = train_tokenizer("morpheme", LINES)
assert isinstance(TOKENIZER, Morphemes)

ANY_TEXT = st.text(st.one_of(st.characters(exclude_categories=()), st.sampled_from("가나갔했ㄴᆫᄒ 123.를")))


def split(line: str) -> list[str]:
    return TOKENIZER.pieces(TOKENIZER.encode(line))


def test_particles_and_endings_are_tokens():
    tokens = TOKENIZER.encode(CAT)
    assert TOKENIZER.pieces(tokens) == ["▁나", "는", "▁고양이", "이", ENDINGS[0]]
    assert TOKENIZER.words(tokens) == [0, 0, 1, 1, 1] and TOKENIZER.units(tokens) == [0, 1, 2, 3, 4]
    assert TOKENIZER.word_pieces(tokens) == ["▁나는", "", "▁고양이로소이다", "", ""]


def test_sentences_of_the_built_in_corpus_are_restored():
    """Sentences of the validation set contain morphemes outside the vocabulary, which are spelled out."""
    lines = [example.source for example in korean_english("valid", 200)]
    encoded = TOKENIZER.encode_lines(lines)
    assert [TOKENIZER.decode(tokens) for tokens in encoded] == lines
    assert encoded[:20] == [TOKENIZER.encode(line) for line in lines[:20]]
    assert any(token < TOKENIZER.size - len(TOKENIZER.morphemes) for tokens in encoded for token in tokens)
    for line, tokens in zip(lines, encoded, strict=True):
        assert max(TOKENIZER.words(tokens)) + 1 == len(line.split())


@pytest.mark.parametrize(
    "morphemes, word",
    [
        ("▁가/VV 었/EP 다/EF", "갔다"),
        ("▁고양이/NNG 을/JKO", "고양이를"),  # the particle takes the form that follows a vowel
        ("▁보/VV ᆫ다/EF", "본다"),
    ],
)
def test_morphemes_are_joined_to_well_formed_words(morphemes: str, word: str):
    made = Morphemes.deserialized(_edited(morphemes=morphemes.split()), "x")
    first = made.size - len(morphemes.split())
    assert made.decode(range(first, made.size)) == word


@pytest.mark.parametrize(
    "line", ["되어", "지었다 하였다", "ㅋㅋㅋ 했엌", "a/b //NNG", "😀👩\u200d👧", "ﷺ½…ａ", "나는\ud800"]
)
def test_a_word_that_joining_would_change_is_only_cut(line: str):
    assert TOKENIZER.decode(TOKENIZER.encode(line)) == clean(line)


@settings(max_examples=60, deadline=None)
@given(line=ANY_TEXT)
def test_any_text_is_restored(line: str):
    tokens = TOKENIZER.encode(line)
    assert TOKENIZER.decode(tokens) == clean(line)
    assert not {PAD, UNK, BOS, EOS} & set(tokens)
    assert count_units(TOKENIZER, line, "morpheme") == max(TOKENIZER.units(tokens), default=-1) + 1


def test_empty_text_has_no_tokens():
    assert TOKENIZER.encode_lines(["", " \t", "\x00"]) == [[], [], []]
    assert TOKENIZER.decode([]) == "" and TOKENIZER.words([]) == TOKENIZER.units([]) == []
    with pytest.raises(DataError, match="empty"):
        train_tokenizer("morpheme", ["", " "])


def test_any_sequence_of_tokens_is_decoded():
    """A model may generate any tokens. The words of the text are numbered without a gap."""
    generator = random.Random(0)
    for _ in range(500):
        tokens = [generator.randrange(TOKENIZER.size) for _ in range(generator.randrange(1, 9))]
        text, numbers = TOKENIZER.decode(tokens), TOKENIZER.words(tokens)
        assert text == clean(text)
        visible = {number for number in numbers if number >= 0}
        assert not text or visible == set(range(len(text.split())))
        assert [number < 0 for number in numbers] == [token in (PAD, BOS, EOS) for token in tokens]
    assert TOKENIZER.decode([UNK]) == "⁇"


def test_unknown_words_are_those_with_bytes():
    assert TOKENIZER.unknown("나는 뷁 고양이") == ("뷁",) and TOKENIZER.bytewise


def test_size_is_an_upper_bound():
    small = train_tokenizer("morpheme", LINES, 400)
    assert small.size <= 400 and small.decode(small.encode(LINES[0])) == LINES[0]
    with pytest.raises(ArgumentError, match=facts("size", 30)):
        train_tokenizer("morpheme", LINES[:20], 30)
    with pytest.raises(ArgumentError, match="segmentation"):
        TOKENIZER.encode(CAT, sample=0.1)


def test_save_and_load(tmp_path: Path):
    TOKENIZER.save(tmp_path / "file")
    loaded = load_tokenizer(tmp_path / "file")
    assert isinstance(loaded, Morphemes) and loaded.fingerprint == TOKENIZER.fingerprint
    assert loaded.encode_lines(LINES) == TOKENIZER.encode_lines(LINES)
    assert train_tokenizer("morpheme", LINES).serialized() == TOKENIZER.serialized()


def test_another_version_of_kiwipiepy_is_reported():
    other = _edited(packages={"kiwipiepy": "0.1.0", "kiwipiepy_model": "0.1.0"})
    with pytest.warns(RegardWarning, match=facts("kiwipiepy", "0.1.0", "pip", "kiwipiepy==0.1.0")):
        loaded = Morphemes.deserialized(other, "source.tokenizer")
    assert loaded.encode(CAT) == TOKENIZER.encode(CAT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.metadata, "version", lambda name: "0.1.0")
        assert Morphemes.deserialized(other, "x").fingerprint != loaded.fingerprint


def test_without_kiwipiepy_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    for call in (
        lambda: Morphemes.deserialized(TOKENIZER.serialized(), "source.tokenizer"),
        lambda: train_tokenizer("morpheme", LINES),
    ):
        with pytest.raises(ArgumentError, match=facts("kiwipiepy", "pip", "kiwipiepy>=")):
            call()


@pytest.mark.parametrize(
    "change, expected",
    [
        ({"tags": ["", "NN G"]}, "not a tag"),
        ({"tags": ["NNG"]}, "incomplete"),
        ({"packages": None}, "incomplete"),
        ({"characters": ["ab"]}, "not a character"),
        ({"morphemes": ["a"]}, "not a morpheme"),
        ({"morphemes": ["a b/NNG"]}, "not a morpheme"),
        ({"morphemes": ["a/NNG", "a/NNG"]}, "2 times"),
        ({"morphemes": [3]}, "list of strings"),
        ({"kind": "word"}, "kind 'morpheme'"),
    ],
)
def test_damaged_files_raise(change: dict[str, object], expected: str):
    with pytest.raises(DataError, match=f"x: .*{expected}"):
        Morphemes.deserialized(_edited(**change), "x")


def test_only_the_korean_side_has_morphemes():
    pairs = [(example.source, example.target) for example in korean_english("train", 50)]
    assert [each.kind for each in train_tokenizers(pairs, "morpheme")] == ["morpheme", "unigram"]
    backward = [(target, source) for source, target in pairs]
    assert [each.kind for each in train_tokenizers(backward, "morpheme")] == ["unigram", "morpheme"]
    with pytest.raises(DataError, match="neither"):
        train_tokenizers([("ein Haus", "a house")], "morpheme")
    with pytest.raises(ArgumentError, match="joint"):
        train_tokenizers(pairs, "morpheme", joint=True)
    assert is_korean(["한국어"]) and not is_korean(["", "123"])


def translator(**options: object) -> Translator:
    english = train_tokenizer("word", [TRANSLATION])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model("bahdanau", TOKENIZER.size, english.size, width=8, embedding=8)
    return Translator(model, TOKENIZER, english, search=Greedy(Rules(maximum=5)), **options)


def test_a_pair_is_aligned_by_morpheme_or_by_word():
    scored = translator().score(CAT, TRANSLATION)
    assert scored.units == ("morpheme", "word")
    assert scored.source_units == ["나", "는", "고양이", "이", "로소이다"]
    assert scored.alignment.matrix.shape == (4, 5)
    torch.testing.assert_close(scored.alignment.matrix, scored.attention["decoder.cross"][:-1, :-1])
    words = translator().score(CAT, TRANSLATION, unit="word")
    assert words.units == ("word", "word") and words.source_units == ["나는", "고양이로소이다"]
    expected = torch.stack((scored.alignment.matrix[:, :2].sum(1), scored.alignment.matrix[:, 2:].sum(1)), 1)
    torch.testing.assert_close(words.alignment.matrix, expected)
    assert words.seen().words().source == ("나는", "고양이로소이다", "</s>")
    assert scored.seen().words().source == ("나", "는", "고양이", "이", "로소이다", "</s>")


def test_units_of_other_tokenizers():
    both = train_tokenizer("word", [CAT])
    model = build_model("bahdanau", both.size, both.size, width=8, embedding=8)
    with pytest.raises(ArgumentError, match="neither"):
        Translator(model, both, both, unit="morpheme")
    with pytest.raises(ArgumentError, match="character"):
        translator(unit="character")
    lowered = Lowercased(TOKENIZER)
    assert lowered.units(lowered.encode(CAT)) == [0, 1, 2, 3, 4]


def test_a_long_line_is_split_between_morphemes():
    line = f"{CAT}. {CAT}."
    parts = translator(longest=8, unit="morpheme").translate(line)
    assert max(parts.passages[-1].source_words) + 1 == count_units(TOKENIZER, line, "morpheme") == 12


def _edited(**change: object) -> bytes:
    """Return the file of TOKENIZER with other values."""
    content = json.loads(TOKENIZER.serialized())
    return json.dumps({**content, **change}).encode()
