"""Tokens: pieces and words of each kind of tokenizer, also for text that is not in the vocabulary."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import SKIPS

pytest.importorskip("transformers", reason=SKIPS["transformers"])

from regard.huggingface.token_words import Tokens, tokens_of_ids, tokens_of_text
from regard.viewing.word_groups import grouped, spelled

TEXT = "a 고양 b"
BYTES = tuple(f"<0x{byte:02X}>" for byte in "고양".encode())


def byte_level() -> Any:
    """Return a tokenizer like that of GPT-2, in which every byte is a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>"]
    made = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor, made.decoder = processors.ByteLevel(trim_offsets=False), decoders.ByteLevel()
    return fast(made, eos_token="<|endoftext|>")


def unigram(fallback: bool) -> Any:
    """Return a tokenizer like SentencePiece; with `fallback`, it reads unknown characters as bytes."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    pieces = [("<unk>", 0.0), ("▁", -1.0), ("a", -2.0), ("b", -2.0)]
    pieces += [(f"<0x{byte:02X}>", -5.0) for byte in range(256)] if fallback else []
    made = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=fallback))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return fast(made, unk_token="<unk>")


def word_pieces() -> Any:
    """Return a tokenizer like that of BERT."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {name: number for number, name in enumerate(("[UNK]", "a", "b"))}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return fast(made, unk_token="[UNK]")


def fast(tokenizer: Any, **names: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def words_of(tokens: Tokens) -> list[str]:
    return [spelled([tokens.pieces[place] for place in group]) for group in grouped(tokens.words)]


@pytest.mark.parametrize(
    ("build", "pieces"),
    [
        (byte_level, ("▁a", "▁", *BYTES, "▁", "b")),
        (lambda: unigram(fallback=True), ("▁", "a", "▁", *BYTES, "▁", "b")),
    ],
    ids=["byte-level", "byte fallback"],
)
def test_bytes_of_a_character_are_one_word(build, pieces):
    tokenizer = build()
    tokens = tokens_of_text(tokenizer, TEXT)
    assert tokens.pieces == tokens.names == pieces and words_of(tokens) == TEXT.split()
    generated = tokens_of_ids(tokenizer, tokens.ids[0].tolist())
    assert words_of(generated) == TEXT.split() and generated.pieces[1:] == pieces[1:]


@pytest.mark.parametrize(
    ("build", "pieces", "unknown"),
    [
        (lambda: unigram(fallback=False), ("▁", "a", "▁", "고양", "▁", "b"), {3: "<unk>"}),
        (word_pieces, ("▁a", "▁고양", "▁b"), {1: "▁[UNK]"}),
    ],
    ids=["unigram", "WordPiece"],
)
def test_an_unknown_word_has_its_text_and_the_name_of_its_token(build, pieces, unknown):
    tokens = tokens_of_text(build(), TEXT)
    assert tokens.pieces == pieces and words_of(tokens) == TEXT.split()
    assert tokens.unknown == unknown
    assert {place: tokens.names[place] for place in unknown} == unknown
