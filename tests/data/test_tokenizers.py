"""Tokenizers: any string can be encoded and decoded, training is deterministic, and damaged files raise."""

from __future__ import annotations

import itertools
import math
import os
import random
import unicodedata
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batch import BOS, EOS, PAD, UNK
from regard.data.tokenizers import (
    BPE,
    TOKENIZERS,
    Characters,
    ClosedWords,
    Tokenizer,
    Unigram,
    Words,
    clean,
    load_tokenizer,
    train_tokenizer,
    train_tokenizers,
)
from regard.data.tokenizers import tokenizer as tokenizing
from regard.errors import ArgumentError, DataError, UnknownName

KINDS = tuple(kind for kind in TOKENIZERS if kind != "morpheme")  # see test_morphemes.py
SUBWORDS = ("unigram", "bpe")

ANY_TEXT = st.text(st.characters(exclude_categories=()))
"""All code points, including lone surrogates."""

HOSTILE = (
    "",
    " ",
    "\x00",
    "a\x00b",
    "\ud800",
    "a\udcffb",
    "\ud83d\ude00",
    "\ufeffmark",
    "\u2028line\u2029",
    "one\r\ntwo\x85three\x0b\x0c\x1c",
    "▁under▁",
    "<s> </s> <unk> <pad> <0x41>",
    "[bold]red[/bold]",
    "e\u0301 " + "\u0301" * 50,
    "👩\u200d👩\u200d👧 \U0010ffff",
    "ﷺ½…ａ",
)


def made_text(count: int = 300) -> list[str]:
    """Return sentences of invented Korean and English words, always the same."""
    generator = random.Random(1)
    words = ["".join(generator.choices("aeioulmnrst", k=generator.randint(1, 7))) for _ in range(80)]
    words += ["".join(generator.choices("가나다라마바사을를은는에서", k=3)) for _ in range(40)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    return [" ".join(generator.choices(words, weights, k=generator.randint(1, 12))) for _ in range(count)]


LINES = made_text()
TRAINED: dict[str, Tokenizer] = {kind: train_tokenizer(kind, LINES) for kind in KINDS}


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TRAINED[request.param]


@pytest.fixture(params=SUBWORDS)
def subwords(request: pytest.FixtureRequest) -> Tokenizer:
    return TRAINED[request.param]


def test_decode_inverts_encode(tokenizer: Tokenizer):
    for line in LINES:
        tokens = tokenizer.encode(line)
        assert tokenizer.decode(tokens) == line
        assert all(len(("<pad>", "<unk>", "<s>", "</s>")) <= token < tokenizer.size for token in tokens)


@given(line=ANY_TEXT)
def test_subwords_decode_any_text_to_its_clean_form(line: str):
    for kind in SUBWORDS:
        tokens = TRAINED[kind].encode(line)
        assert TRAINED[kind].decode(tokens) == clean(line)
        assert not {PAD, UNK, BOS, EOS} & set(tokens)


@given(lines=st.lists(ANY_TEXT, max_size=5))
def test_encode_lines_equals_encode_of_each_line(lines: list[str]):
    for each in TRAINED.values():
        assert each.encode_lines(lines) == [each.encode(line) for line in lines]


@given(line=ANY_TEXT)
def test_clean_is_idempotent_and_removes_control_characters(line: str):
    cleaned = clean(line)
    assert clean(cleaned) == cleaned
    assert not {"Cc", "Cs", "Zl", "Zp"} & set(map(unicodedata.category, cleaned))
    assert cleaned == " ".join(cleaned.split()) and unicodedata.is_normalized("NFC", cleaned)
    cleaned.encode()


def test_ordinary_text_is_not_changed():
    for line in ("½ … ａ “quoted” naïve – 안녕하세요?", "It's 3.5% [off] <now>!", "日本語。"):
        assert clean(line) == line


@pytest.mark.parametrize("line", HOSTILE)
def test_hostile_lines_are_encoded(line: str, tokenizer: Tokenizer):
    many = [line, "plain", line] * 40
    encoded = tokenizer.encode_lines(many)
    assert len(encoded) == 120 and encoded[0] == encoded[2] == tokenizer.encode(line)
    if tokenizer.kind in SUBWORDS:
        assert tokenizer.decode(encoded[0]) == clean(line)


def test_surrogate_pairs_are_joined():
    assert clean("\ud83d\ude00!") == "😀!" and clean("\ude00\ud83d") == "\ufffd\ufffd"


def test_very_long_lines_are_encoded(tokenizer: Tokenizer):
    for line in ("ab" * 50_000, "ab " * 50_000):
        tokens = tokenizer.encode(line)
        assert isinstance(tokenizer, Words) or clean(line).startswith(
            tokenizer.decode(tokens)[:100].replace("⁇", "b")
        )
        assert len(tokenizer.encode_lines([line] * 2)[1]) == len(tokens)


def test_encoding_bytes_raises(tokenizer: Tokenizer):
    with pytest.raises(ArgumentError, match="bytes"):
        tokenizer.encode(b"bytes")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_deterministic(kind: str):
    again = train_tokenizer(kind, iter(LINES))
    assert again.serialized() == TRAINED[kind].serialized()
    assert again.fingerprint == TRAINED[kind].fingerprint
    assert train_tokenizer(kind, LINES[:-100]).fingerprint != again.fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load(kind: str, tmp_path: Path):
    saved = TRAINED[kind]
    saved.save(tmp_path / "file")
    for loaded in (load_tokenizer(tmp_path / "file"), type(saved).load(tmp_path / "file")):
        assert type(loaded) is type(saved) and loaded.fingerprint == saved.fingerprint
        assert loaded.encode_lines(LINES) == saved.encode_lines(LINES)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_model_file_can_be_read_by_sentencepiece(subwords: Tokenizer, tmp_path: Path):
    import sentencepiece

    subwords.save(tmp_path / "m.model")
    plain = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    assert plain.encode(LINES[0]) == subwords.encode(LINES[0])
    assert (plain.pad_id(), plain.unk_id(), plain.bos_id(), plain.eos_id()) == (PAD, UNK, BOS, EOS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [0.0, 0.3, 0.9, 0.999])
def test_truncated_files_raise(kind: str, part: float, tmp_path: Path):
    content = TRAINED[kind].serialized()
    (tmp_path / "cut").write_bytes(content[: max(int(part * len(content)) - 2, 0)])
    with pytest.raises(DataError, match=r"cut: .*\nhint: "):
        load_tokenizer(tmp_path / "cut")


@pytest.mark.parametrize(
    "content, expected",
    [
        ('{"kind": "word", "version": 2, "tokens": []}', "not a tokenizer"),
        ('{"kind": "bpe", "version": 1, "tokens": []}', "not a tokenizer"),
        ('{"kind": "word", "version": 1, "tokens": "abc"}', "not a list of strings"),
        ('{"kind": "word", "version": 1, "tokens": ["a", 3]}', "not a list of strings"),
        ('{"kind": "word", "version": 1, "tokens": ["a", "a"]}', "'a' is in 'tokens' 2 times"),
        ('{"kind": "word", "version": 1, "tokens": ["a b"]}', "'a b' is not a word"),
        ('{"kind": "character", "version": 1, "tokens": ["ab"]}', "'ab' is not a character"),
        ('{"kind": "character", "version": 1, "tokens": ["\\ud800"]}', "is not a character"),
        ("{" * 100_000, "JSON"),
    ],
)
def test_invalid_vocabulary_files_raise(content: str, expected: str, tmp_path: Path):
    (tmp_path / "list.json").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=f"list.json: .*{expected}"):
        load_tokenizer(tmp_path / "list.json")


def test_wrong_kind_and_missing_file_raise(tmp_path: Path):
    for saved, other in itertools.permutations(TRAINED.values(), 2):
        with pytest.raises(DataError):
            type(other).deserialized(saved.serialized(), "x")
    with pytest.raises(DataError, match="'bpe'"):
        BPE.deserialized(TRAINED["unigram"].serialized(), "x")
    with pytest.raises(DataError, match="No such file"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(DataError, match="No such file"):
        TRAINED["word"].save(tmp_path / "none" / "file")


def test_a_model_with_other_special_tokens_raises():
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, vocab_size=100, minloglevel=2
    )
    with pytest.raises(DataError, match=r"pad, unk, bos and eos are \(-1, 0, 1, 2\)"):
        Unigram.deserialized(model.getvalue(), "foreign.model")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lines", [[], [""], ["  ", "\x00\t"]])
def test_training_without_text_raises(kind: str, lines: list[str]):
    with pytest.raises(DataError, match=r"train_tokenizer\(\): "):
        train_tokenizer(kind, lines)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("line", ["a", "ab", "한", "a" * 5000, "\ud800", "<s> </s>", "한 국 a" * 400])
def test_training_on_very_little_text(kind: str, line: str):
    made = train_tokenizer(kind, [line])
    assert made.size > 4 and (kind == "character" or made.decode(made.encode(line)) == clean(line))


@pytest.mark.parametrize("kind", SUBWORDS)
@pytest.mark.parametrize("size", [264, 300, 100_000])
def test_size_is_an_upper_bound(kind: str, size: int):
    many = [chr(code) for code in range(0xAC00, 0xAC00 + 600)]
    made = train_tokenizer(kind, [*LINES, *(" ".join(many[at:]) for at in range(0, 600, 100))], size)
    assert 260 < made.size <= size
    assert made.decode(made.encode("가각 갂")) == "가각 갂"


def test_invalid_arguments_of_training_raise():
    for kind, size in (("unigram", 263), ("bpe", 0), ("word", 4), ("character", -1)):
        with pytest.raises(ArgumentError, match=rf"train_tokenizer\(\): size is {size}\nexpected: "):
            train_tokenizer(kind, LINES, size)
    with pytest.raises(UnknownName, match="did you mean 'unigram'"):
        train_tokenizer("unigrams", LINES)
    with pytest.raises(ArgumentError, match="lines is a str"):
        train_tokenizer("word", "a b c")


@pytest.mark.parametrize("kind", SUBWORDS)
def test_default_size_grows_with_the_text(kind: str):
    sizes = [train_tokenizer(kind, LINES[:count]).size for count in (3, 30, 300)]
    assert sizes == sorted(sizes) and sizes[0] < 350 and sizes[-1] < 1000


def test_words_keep_the_most_frequent_words():
    made = train_tokenizer("word", ["b a, c b", "b c d"], size=6)
    assert isinstance(made, Words) and made.tokens == ["b", "c"]
    assert made.encode("b a, c, c") == [4, UNK, UNK, 5]
    assert made.decode([BOS, 4, UNK, 5, EOS, PAD]) == "b ⁇ c"
    assert made.words([BOS, 4, UNK, 5, EOS, PAD]) == [-1, 0, 1, 2, -1, -1]


def test_unk_in_a_closed_vocabulary_is_the_unknown_token():
    made = train_tokenizer("closed-word", ["the <unk> of the", "<unk> <unk> N"])
    assert isinstance(made, ClosedWords) and made.tokens == ["the", "N", "of"]
    assert made.encode("the <unk> of <unk> x") == [4, UNK, 6, UNK, UNK]
    assert made.decode([BOS, 4, UNK, 6, EOS]) == "the <unk> of"
    assert made.unknown("the <unk> x") == ("x",)
    with pytest.raises(DataError, match="'<unk>' is not a closed-word"):
        ClosedWords.deserialized(b'{"kind": "closed-word", "version": 1, "tokens": ["<unk>"]}', "x")


def test_a_closed_vocabulary_has_the_words_of_all_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenizing, "SAMPLE_LINES", 10)
    monkeypatch.setattr(tokenizing, "SAMPLE_CHARACTERS", 20)
    lines = [f"word{number}" for number in range(200)]
    assert train_tokenizer("closed-word", lines).size == 204
    assert train_tokenizer("closed-word", lines, sample=5).size == 9
    assert train_tokenizer("word", lines).size < 14


def test_characters_include_the_space():
    made = train_tokenizer("character", ["ab a"])
    assert isinstance(made, Characters) and made.tokens == ["a", "b", "▁"]
    assert made.pieces(made.encode("b ab?")) == ["b", "▁", "a", "b", "<unk>"]
    assert made.decode(made.encode("b ab?")) == "b ab⁇"


def test_pieces_are_the_strings_of_tokens(tokenizer: Tokenizer):
    tokens = tokenizer.encode(LINES[0])
    assert tokenizer.pieces([PAD, UNK, BOS, EOS]) == ["<pad>", "<unk>", "<s>", "</s>"]
    joined = (" " if isinstance(tokenizer, Words) else "").join(tokenizer.pieces(numpy.array(tokens)))
    assert joined.replace("▁", " ").strip() == LINES[0]


def test_bytes_are_shown_as_bytes(subwords: Tokenizer):
    assert subwords.pieces(subwords.encode("힣"))[-3:] == ["<0xED>", "<0x9E>", "<0xA3>"]
    assert subwords.words(subwords.encode("힣힣 n"))[:8] == [*[0] * 7, 1]


@given(line=st.text(st.sampled_from("ab mn 가나 힣\t"), max_size=30))
def test_words_are_separated_by_spaces(line: str):
    for each in TRAINED.values():
        tokens = [BOS, *each.encode(line), EOS, PAD]
        numbers = each.words(tokens)
        assert numbers[0] == numbers[-2] == numbers[-1] == -1 and -1 not in numbers[1:-2]
        assert sorted(set(numbers[1:-2])) == list(range(len(line.split())))
        for word, expected in enumerate(each.decode(tokens).split()):
            own = [token for token, number in zip(tokens, numbers, strict=True) if number == word]
            assert each.decode(own) == expected


@given(tokens=st.lists(st.integers(260, 390) | st.integers(0, 3)))
def test_words_of_arbitrary_tokens(tokens: list[int]):
    for kind in SUBWORDS:
        numbers = [number for number in TRAINED[kind].words(tokens) if number >= 0]
        assert numbers == sorted(numbers)
        assert max(numbers, default=0) <= max(len(TRAINED[kind].decode(tokens).split()) - 1, 0)


@given(tokens=st.lists(st.integers(0, 390)))
def test_arbitrary_tokens_decode_to_clean_text(tokens: list[int]):
    for kind in SUBWORDS:
        decoded = TRAINED[kind].decode(tokens)
        assert decoded == clean(decoded)


def test_tokens_outside_the_vocabulary_raise(tokenizer: Tokenizer):
    for token in (tokenizer.size, -1):
        for method in (tokenizer.decode, tokenizer.pieces, tokenizer.words):
            with pytest.raises(ArgumentError, match=f"token {token} .*vocabulary of {tokenizer.size}"):
                method([token])


def test_training_prints_nothing(capfd: pytest.CaptureFixture[str]):
    for kind in SUBWORDS:
        train_tokenizer(kind, LINES[:20])
    with pytest.raises(DataError):
        load_tokenizer(Path(__file__))
    assert capfd.readouterr() == ("", "")


def test_large_text_is_sampled_uniformly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenizing, "SAMPLE_LINES", 100)
    drawn, scale = tokenizing.draw_sample((f"line {number}" for number in range(1000)), "test()")
    numbers = [int(line.split()[1]) for line in drawn]
    assert len(set(numbers)) == 100 and scale == 10.0
    assert 5 <= sum(number < 100 for number in numbers) <= 20 and 350 < sum(numbers) / 100 < 650
    again, _ = tokenizing.draw_sample([f"line {number}" for number in range(1000)], "test()")
    assert again == drawn
    monkeypatch.setattr(tokenizing, "SAMPLE_CHARACTERS", 70)
    fewer, scale = tokenizing.draw_sample((f"line {number:03}" for number in range(50)), "test()")
    assert fewer == [f"line {number:03}" for number in range(9)] and math.isclose(scale, 50 / 9)


def test_long_training_lines_are_split():
    for kind in SUBWORDS:
        made = train_tokenizer(kind, ["lower newest " * 500, "a"], size=300)
        assert made.pieces(made.encode("lower newest")) == ["▁lower", "▁newest"]


PAIRS = [("ein Haus am See", "a house"), ("ein Hut", "a hat"), ("das Haus", "the house")] * 5


@pytest.mark.parametrize("kind", KINDS)
def test_separate_and_joint_tokenizers(kind: str):
    source, target = train_tokenizers(PAIRS, kind)
    assert source.fingerprint == train_tokenizer(kind, [pair[0] for pair in PAIRS]).fingerprint
    assert target.fingerprint == train_tokenizer(kind, [pair[1] for pair in PAIRS]).fingerprint
    both, same = train_tokenizers(PAIRS, kind, joint=True)
    assert both is same and both.decode(both.encode("ein house")) == "ein house"


def test_sizes_is_one_size_or_two():
    source, target = train_tokenizers(PAIRS, "word", sizes=(6, 5))
    assert (source.size, target.size) == (6, 5)
    assert train_tokenizers(PAIRS, "word", sizes=[6, None])[0].size == 6
    assert {each.size for each in train_tokenizers(PAIRS, "word", sizes=7)} == {7}
    assert train_tokenizers(PAIRS, "word", joint=True, sizes=7)[0].size == 7
    for wrong in ((7,), [7, 7, 7], "7", 7.5, ["7", 7]):
        with pytest.raises(ArgumentError, match=r"train_tokenizers?\(\): sizes? is "):
            train_tokenizers(PAIRS, "word", sizes=wrong)


def test_an_iterator_of_pairs_is_enough_for_a_joint_tokenizer_only():
    with pytest.raises(ArgumentError, match=r"hint: .*list\(pairs\)"):
        train_tokenizers((pair for pair in PAIRS), "word")
    both, _ = train_tokenizers((pair for pair in PAIRS), "word", joint=True)
    assert both.fingerprint == train_tokenizers(PAIRS, "word", joint=True)[0].fingerprint


def test_a_joint_tokenizer_with_two_sizes_raises():
    with pytest.raises(ArgumentError, match="900 and 500"):
        train_tokenizers([("a b", "c d")], "word", joint=True, sizes=(900, 500))


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_every_character_that_occurs_often_becomes_a_piece(kind: str):
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghij", k=generator.randint(1, 8))) for _ in range(300)]
    lines = [" ".join(generator.choices(words, k=8)) for _ in range(1000)]
    tokenizer = train_tokenizer(kind, [*lines, *["at 7:30"] * 5, *["50 %"] * 4], size=500)
    assert not set(tokenizer.encode("730 :")) & tokenizer.uncovered  # each is 0.01 % of the text
    assert set(tokenizer.encode("%")) & tokenizer.uncovered


def test_the_path_of_a_tokenizer_may_be_bytes(tmp_path: Path):
    tokenizer = train_tokenizer("character", ["abba"])
    place = os.fsencode(tmp_path / "characters.json")
    tokenizer.save(place)
    assert load_tokenizer(place).fingerprint == tokenizer.fingerprint
    with pytest.raises(DataError, match="nowhere"):
        load_tokenizer(b"nowhere")


def test_a_path_of_the_user_may_be_a_link(tmp_path: Path):
    TRAINED["word"].save(tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert load_tokenizer(tmp_path / "link").fingerprint == TRAINED["word"].fingerprint
    with pytest.raises(DataError, match="link"):
        load_tokenizer(tmp_path / "link", links=False)
