"""tokenizer.json: the tokenizers of a run in the format of the library `tokenizers`, with the same ids.

The normalization is that of clean(). In a text, "<s>" and other names of special tokens are ordinary
characters. So the special tokens have names with a space, such as "< s >": after the normalization, no text
contains a space.

If source and target have separate vocabularies, the tokens of the target follow those of the source. Each of
their names begins with a space, so that encoding never produces them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.data.batch import BOS, EOS, PAD, UNK
from regard.data.tokenizers import Characters, Tokenizer, Words
from regard.data.tokenizers.morphemes import Morphemes
from regard.data.tokenizers.subwords import BPE, Subwords, Unigram
from regard.data.tokenizers.tokenizer import SPACE, Lowercased
from regard.errors import ArgumentError, message

NAMES = {PAD: "< pad >", UNK: "< unk >", BOS: "< s >", EOS: "< /s >"}
"""The names of the special tokens."""

BLANKED = rf"[\x00-\x1f\x7f-\x9f{SPACE}]"
"""The characters that clean() replaces by spaces."""

FINAL_SIGMA = r"(?<=\p{L})\u03a3(?!\p{L})"
"""A capital sigma at the end of a word, which str.lower() converts to another letter than elsewhere."""


def without_case(tokenizer: Tokenizer) -> tuple[Tokenizer, bool]:
    """Return the tokenizer inside Lowercased, and whether there was one."""
    lowered = isinstance(tokenizer, Lowercased)
    return (tokenizer.inner, True) if isinstance(tokenizer, Lowercased) else (tokenizer, lowered)


def check_tokenizer(call: str, name: str, tokenizer: Tokenizer) -> None:
    """Raise ArgumentError for a tokenizer that only Regard can run.

    call: the beginning of the error message.
    name: the file of the tokenizer.
    """
    if isinstance(without_case(tokenizer)[0], Morphemes):
        problem = f"{name} is a morpheme tokenizer, and its splitting of Korean words needs kiwipiepy"
        raise ArgumentError(
            message(call, problem, hint="train with --tokenizer unigram, bpe, word or character")
        )


def build_tokenizer(tokenizers: Sequence[Tokenizer], *, ends: bool) -> Any:
    """Return a tokenizers.Tokenizer that encodes like the first tokenizer, and decodes like the last one.

    tokenizers: one tokenizer, or those of source and target.
    ends: whether EOS follows each text.
    """
    from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
    from tokenizers import Tokenizer as Fast

    inner, lowered = without_case(tokenizers[0])
    last = without_case(tokenizers[-1])[0]
    names = _names(inner)
    others = [f" {name}" for name in _names(last)] if len(tokenizers) > 1 else []
    steps = [normalizers.Replace(Regex(FINAL_SIGMA), "ς"), normalizers.Lowercase()] if lowered else []
    steps += [
        normalizers.Replace(Regex(BLANKED), " "),
        normalizers.NFC(),
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Strip(),
    ]
    fast = Fast(_model(inner, names, others))
    fast.normalizer = normalizers.Sequence(steps)
    spaces = decoders.Replace(SPACE, " ")
    strip = decoders.Strip(" ", 1, 0)
    plain = [decoders.Replace(Regex("^ "), "")] if others else []
    if isinstance(inner, Subwords):
        fast.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "always", True)
    elif isinstance(inner, Characters):
        letters = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        fast.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
        fast.pre_tokenizer = letters
    else:
        fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if isinstance(last, Subwords):
        fast.decoder = decoders.Sequence([*plain, decoders.ByteFallback(), decoders.Fuse(), spaces, strip])
    elif isinstance(last, Characters):
        fast.decoder = decoders.Sequence([*plain, decoders.Fuse(), spaces])
    else:
        joined = decoders.Replace(Regex("^"), " ")
        fast.decoder = decoders.Sequence([*plain, joined, decoders.Fuse(), strip])
    if ends:
        fast.post_processor = processors.TemplateProcessing(
            single="$A EOS", special_tokens=[{"id": "EOS", "ids": [EOS], "tokens": [NAMES[EOS]]}]
        )
    special = [*NAMES.values(), *(f" {name}" for name in NAMES.values() if others)]
    fast.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return fast


def _names(tokenizer: Tokenizer) -> list[str]:
    names = tokenizer.pieces(range(tokenizer.size))
    return [NAMES.get(number, name) for number, name in enumerate(names)]


def _model(tokenizer: Tokenizer, names: list[str], others: list[str]) -> Any:
    """Return the model of tokenizers for a tokenizer. others: names of tokens that are never produced."""
    from tokenizers import models

    if isinstance(tokenizer, Unigram):
        least = min(tokenizer.scores.values(), default=0.0)
        scores = [tokenizer.scores.get(name, least) for name in names]
        scores = [least if number in NAMES else score for number, score in enumerate(scores)]
        vocabulary = [*zip(names, scores, strict=True), *((name, least) for name in others)]
        return models.Unigram(vocabulary, unk_id=UNK, byte_fallback=True)
    numbers = {name: number for number, name in enumerate([*names, *others])}
    if isinstance(tokenizer, BPE):
        merges = _merges(tokenizer)
        return models.BPE(numbers, merges, unk_token=NAMES[UNK], fuse_unk=True, byte_fallback=True)
    if isinstance(tokenizer, Words | Characters):
        return models.WordLevel(numbers, unk_token=NAMES[UNK])
    raise ArgumentError(message("build_tokenizer()", f"{type(tokenizer).__name__} has no tokenizer.json"))


def _merges(tokenizer: BPE) -> list[tuple[str, str]]:
    """Return the merges of a BPE tokenizer, the first ones first: by the score of the merged piece."""
    pieces = tokenizer.scores
    ranked = sorted((piece for piece in pieces if len(piece) > 1), key=lambda piece: -pieces[piece])
    return [
        (piece[:cut], piece[cut:])
        for piece in ranked
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
