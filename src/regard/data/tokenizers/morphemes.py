"""Morphemes: a tokenizer for Korean that splits words into morphemes with kiwipiepy."""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import json
import re
import threading
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple, Self

from regard.data.batch import BOS, EOS, PAD, UNK
from regard.data.tokenizers.subwords import BYTES, LARGEST, available_cores, covering_characters
from regard.data.tokenizers.tokenizer import (
    DAMAGED,
    SPACE,
    SPECIALS,
    UNKNOWN,
    Sample,
    Tokenizer,
    clean,
    read_strings,
    read_vocabulary,
)
from regard.errors import ArgumentError, DataError, RegardWarning, message

PACKAGES = ("kiwipiepy", "kiwipiepy_model")
"""The Python packages that decide how a text is split: the analyzer, and the files of its language model."""

ENDINGS = ("로소이다",)
"""Literary endings that the dictionary of kiwipiepy does not have."""

KOREAN_LINES = 1000
"""Number of lines that is_korean() reads."""

SURFACE = ""
"""The tag of a morpheme that is written as it stands in the text, so that decode() does not conjugate it."""

WORD = re.compile(r"\S+")

LOCK = threading.RLock()
"""Held while the analyzer is used, because several threads may share a tokenizer."""


class Morpheme(NamedTuple):
    """A morpheme of a text, with its part-of-speech tag.

    spaced: whether a word begins with this morpheme.
    """

    spaced: bool
    form: str
    tag: str

    def __str__(self) -> str:
        return f"{SPACE * self.spaced}{self.form}/{self.tag}"

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Return the morpheme that str() wrote as text."""
        form, _, tag = text.rpartition("/")
        return cls(form.startswith(SPACE), form.removeprefix(SPACE), tag)


def is_korean(lines: Iterable[str]) -> bool:
    """Return whether a text is Korean: at least a third of the letters of its first lines are Hangul.

    >>> is_korean(["나는 BBC를 본다"]), is_korean(["I watch KBS (한국방송)"])
    (True, False)
    """
    letters = [
        letter for line in itertools.islice(lines, KOREAN_LINES) for letter in line if letter.isalpha()
    ]
    return 3 * sum("가" <= clean(letter) <= "힣" for letter in letters) >= max(len(letters), 1)


def installed_versions(call: str = "tokenizer") -> dict[str, str]:
    """Return the versions of PACKAGES. Raise ArgumentError if they are not installed.

    call: the name of the public function or of the tokenizer file, for the error message.
    """
    try:
        return {name: importlib.metadata.version(name) for name in PACKAGES}
    except importlib.metadata.PackageNotFoundError:
        problem = "the morpheme tokenizer needs kiwipiepy, which is not installed"
        from regard.files.requirements import install_command

        raise ArgumentError(message(call, problem, hint=install_command("korean"))) from None


@lru_cache(maxsize=1)
def _analyzer() -> Any:
    """Load kiwipiepy, which takes about two seconds and 270 MB of memory.

    Its dictionary of proper nouns with several words is left out. It contains the titles of books and films,
    such as 나는 고양이로소이다, which would be one token.
    """
    from kiwipiepy import Kiwi

    analyzer = Kiwi(num_workers=available_cores(), load_multi_dict=False)
    for ending in ENDINGS:
        analyzer.add_user_word(ending, "EF")
    return analyzer


def analyzed_lines(lines: Sequence[str]) -> list[list[Morpheme]]:
    """Return the morphemes of each line. The lines have been normalized by clean()."""
    installed_versions()
    with LOCK:
        analyses = _analyzer().tokenize(lines, z_coda=False)
        return [_placed(line, tokens) for line, tokens in zip(lines, analyses, strict=True)]


def _placed(line: str, tokens: Sequence[Any]) -> list[Morpheme]:
    """Return the morphemes of a line, word by word, from the result of kiwipiepy."""
    morphemes: list[Morpheme] = []
    at = 0
    crossed = 0
    for found in WORD.finditer(line):
        word, inside, starts = found.group(), list[tuple[str, str]](), [0]
        is_whole = crossed <= found.start()
        while at < len(tokens) and tokens[at].start < found.end():
            token = tokens[at]
            inside.append((token.form, str(token.tag)))
            starts.append(token.start - found.start())
            crossed = max(crossed, token.start + token.len)
            at += 1
        if is_whole and crossed <= found.end() and _restores(word, inside):
            parts = inside
        else:
            cuts = sorted({start for start in starts if 0 <= start < len(word)})
            parts = [(word[a:b], SURFACE) for a, b in zip(cuts, [*cuts[1:], len(word)], strict=True)]
        morphemes += [Morpheme(not number, form, tag) for number, (form, tag) in enumerate(parts)]
    return morphemes


def _restores(word: str, parts: list[tuple[str, str]]) -> bool:
    """Return whether joining the morphemes of a word gives the word again."""
    return all(form and clean(form) == form for form, _ in parts) and joined_morphemes(tuple(parts)) == word


@lru_cache(maxsize=100_000)
def joined_morphemes(parts: tuple[tuple[str, str], ...]) -> str:
    """Join the morphemes of a word, (form, tag) each: 가, 었 and 다 become 갔다.

    A model may generate any sequence. The result never has a space, and it is empty only if all forms are.
    """
    text, tagged = "", list[tuple[str, str]]()
    for form, tag in (*parts, ("", SURFACE)):
        if tag != SURFACE:
            tagged.append((form, tag))
            continue
        text += _conjugated(tagged) + form
        tagged = []
    return "".join(clean(text).split())


def _conjugated(parts: list[tuple[str, str]]) -> str:
    """Join morphemes with kiwipiepy, or write one after the other if it cannot join them."""
    forms = "".join(form for form, _ in parts)
    if not forms:
        return ""
    try:
        with LOCK:
            joined = _analyzer().join([(form, tag, False) for form, tag in parts if form], lm_search=False)
    except (ValueError, RuntimeError):
        return forms
    return str(joined) or forms


OFTEN = 2
"""A morpheme becomes a token if the training text has it at least this often. Others are spelled out."""

TAG = re.compile(r"(?:[A-Z][A-Z0-9_]*(?:-[A-Z]+)?)?")
"""Matches the part-of-speech tag of a morpheme, such as NNG (noun) or VV-I (irregular verb), or SURFACE."""

FINALS = {
    0x11A8 + number: jamo
    for number, jamo in enumerate("ㄱㄲㄳㄴㄵㄶㄷㄹㄺㄻㄼㄽㄾㄿㅀㅁㅂㅄㅅㅆㅇㅈㅊㅋㅌㅍㅎ")
}
"""Final consonants, as kiwipiepy writes endings such as ᆫ, and the letters that fonts can show alone: ㄴ."""


@dataclass
class Span:
    """The tokens of one morpheme.

    places: the positions of the tokens.
    spelling: the text of the morpheme as UTF-8.
    """

    spaced: bool
    tag: str
    places: list[int]
    spelling: bytearray = field(default_factory=bytearray)
    is_spelled: bool = False

    @property
    def morpheme(self) -> Morpheme:
        return Morpheme(self.spaced, self.spelling.decode(errors="replace"), self.tag)


class Morphemes(Tokenizer):
    """A tokenizer for Korean with the morphemes of kiwipiepy: particles and endings are tokens of their own.

    갔다 (went) has the tokens 가 (go), 었 (past) and 다 (ending). decode() joins them to 갔다 again. If
    joining the morphemes would not restore a word, the word is cut into parts, which are joined without a
    change. So decode(encode(line)) equals clean(line) for every string.

    A morpheme outside the vocabulary is spelled out: a token for its part of speech, then its characters. A
    character outside the vocabulary is encoded as its UTF-8 bytes.

    tags: the part-of-speech tags of the training text.
    characters: the characters of the vocabulary.
    morphemes: the morphemes of the vocabulary, the most frequent first.
    versions: the versions of PACKAGES that the tokenizer was trained with.

    >>> from regard.data.tokenizers import train_tokenizer
    >>> tokenizer = train_tokenizer("morpheme", ["나는 고양이로소이다", "나는 학교에 갔다"] * 2)
    >>> tokens = tokenizer.encode("나는 고양이로소이다")
    >>> tokenizer.pieces(tokens), tokenizer.words(tokens), tokenizer.decode(tokens)
    (['▁나', '는', '▁고양이', '이', '로소이다'], [0, 0, 1, 1, 1], '나는 고양이로소이다')
    >>> tokenizer.pieces(tokenizer.encode("갔다"))
    ['▁가', '었', '다']
    """

    kind = "morpheme"
    unit = "morpheme"

    def __init__(
        self,
        tags: Iterable[str],
        characters: Iterable[str],
        morphemes: Iterable[Morpheme],
        versions: dict[str, str] | None = None,
    ):
        installed = installed_versions()
        self.tags, self.characters, self.morphemes = list(tags), list(characters), list(morphemes)
        self.versions = installed if versions is None else versions
        first = BYTES
        self._openings = {
            (spaced, tag): first + 2 * number + spaced
            for number, tag in enumerate(self.tags)
            for spaced in (False, True)
        }
        first += len(self._openings)
        self._characters = {character: first + number for number, character in enumerate(self.characters)}
        first += len(self._characters)
        self._morphemes = {morpheme: first + number for number, morpheme in enumerate(self.morphemes)}
        self.size = first + len(self.morphemes)
        self.uncovered = frozenset({UNK, *range(len(SPECIALS), BYTES)})
        # Another version may split a text in another way. A cache of token ids must not be shared then.
        content = self.serialized() + json.dumps(installed, sort_keys=True).encode()
        self.fingerprint = hashlib.sha256(content).hexdigest()

    @classmethod
    def learned(cls, sample: Sample, size: int | None, call: str) -> Self:
        installed_versions(call)
        counts: Counter[Morpheme] = Counter()
        for morphemes in analyzed_lines(sample.lines):
            counts.update(morphemes)
        tags = [SURFACE, *sorted({morpheme.tag for morpheme in counts} - {SURFACE})]
        least = BYTES + 2 * len(tags) + 4
        most = LARGEST if size is None else size
        if not isinstance(most, int) or most < least:
            expected = f"{least} or more; {least - 4} are needed for the special tokens, bytes and tags"
            raise ArgumentError(message(call, f"size is {size!r}", expected=expected))
        letters: Counter[str] = Counter()
        for morpheme, count in counts.items():
            letters.update(dict.fromkeys(morpheme.form, count))
        room = most - least + 4
        characters = covering_characters(letters)[: max(room // 2, 1)]
        ranked = sorted(counts, key=lambda morpheme: (-counts[morpheme], morpheme))
        often = [morpheme for morpheme in ranked if counts[morpheme] >= OFTEN]
        return cls(tags, characters, often[: room - len(characters)])

    def encode(self, line: str, *, sample: float = 0.0, generator: Random | None = None) -> list[int]:
        self.check_no_sampling(sample)
        return self.encode_lines([line])[0]

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        cleaned = [clean(line) for line in lines]
        return [
            [token for morpheme in morphemes for token in self._tokens_of(morpheme)]
            for morphemes in analyzed_lines(cleaned)
        ]

    def _tokens_of(self, morpheme: Morpheme) -> list[int]:
        """Return the token of a morpheme. If it has none, return a token for its tag, and its spelling."""
        number = self._morphemes.get(morpheme)
        if number is not None:
            return [number]
        opening = self._openings.get((morpheme.spaced, morpheme.tag))
        tokens = [self._openings[morpheme.spaced, SURFACE] if opening is None else opening]
        for character in morpheme.form:
            token = self._characters.get(character)
            spelled = (len(SPECIALS) + byte for byte in character.encode())
            tokens += spelled if token is None else [token]
        return tokens

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each token. ▁ represents a space. The token of a tag is only ▁, or nothing."""
        return [self._piece(token) for token in self.checked(tokens)]

    def _piece(self, token: int) -> str:
        if token in SPECIALS:
            return SPECIALS[token]
        if token < BYTES:
            return f"<0x{token - len(SPECIALS):02X}>"
        place = token - BYTES
        if place < len(self._openings):
            return SPACE * (place % 2)
        place -= len(self._openings)
        if place < len(self.characters):
            return self.characters[place]
        morpheme = self.morphemes[place - len(self.characters)]
        return (SPACE * morpheme.spaced + morpheme.form).translate(FINALS)

    def word_pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return a text for each token, so that the texts of a word spell the word.

        The pieces of 갔다 are 가, 었 and 다, which would spell 가었다. So the first text is the whole word,
        and the others are empty.
        """
        pieces = self.pieces(tokens)
        for text, spans in self._words(tokens):
            first, *others = (place for span in spans for place in span.places)
            pieces[first] = SPACE * spans[0].spaced + text
            for place in others:
                pieces[place] = ""
        return pieces

    def _spans(self, tokens: Sequence[int]) -> list[Span]:
        """Return the morphemes of a token sequence, with the positions of their tokens."""
        spans: list[Span] = []
        for place, token in enumerate(self.checked(tokens)):
            if token in (PAD, BOS, EOS):
                continue
            index = token - BYTES - len(self._openings)
            if token == UNK:
                spans.append(Span(True, SURFACE, [place], bytearray(UNKNOWN.encode())))
            elif index >= len(self.characters):
                spaced, form, tag = self.morphemes[index - len(self.characters)]
                spans.append(Span(spaced, tag, [place], bytearray(form.encode())))
            elif index < 0 and token >= BYTES:
                number, starts_word = divmod(token - BYTES, 2)
                spans.append(Span(bool(starts_word), self.tags[number], [place], is_spelled=True))
            else:
                if not (spans and spans[-1].is_spelled):
                    spans.append(Span(False, SURFACE, [], is_spelled=True))
                spans[-1].places.append(place)
                spans[-1].spelling += (
                    self.characters[index].encode() if index >= 0 else bytes([token - len(SPECIALS)])
                )
        return spans

    def _words(self, tokens: Sequence[int]) -> list[tuple[str, list[Span]]]:
        """Return the words of a token sequence: the text of each word, and its morphemes."""
        words: list[list[Span]] = []
        for span in self._spans(tokens):
            if span.spaced or not words:
                words.append([])
            words[-1].append(span)
        return [(joined_morphemes(tuple(span.morpheme[1:] for span in spans)), spans) for spans in words]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a token sequence: the morphemes of each word are joined and conjugated."""
        return " ".join(text for text, _ in self._words(tokens) if text)

    def words(self, tokens: Sequence[int]) -> list[int]:
        numbers, word = [-1] * len(tokens), 0
        found = self._words(tokens)
        last = max(sum(bool(text) for text, _ in found) - 1, 0)
        for text, spans in found:
            for span in spans:
                for place in span.places:
                    numbers[place] = min(word, last)
            word += bool(text)
        return numbers

    def units(self, tokens: Sequence[int]) -> list[int]:
        """Return, for each token, the index of its morpheme. The index of PAD, BOS and EOS is -1."""
        numbers = [-1] * len(tokens)
        for number, span in enumerate(self._spans(tokens)):
            for place in span.places:
                numbers[place] = number
        return numbers

    def serialized(self) -> bytes:
        content = {
            "kind": self.kind,
            "version": 1,
            "packages": self.versions,
            "tags": self.tags,
            "characters": self.characters,
            "morphemes": list(map(str, self.morphemes)),
        }
        return (json.dumps(content, ensure_ascii=False, indent=0) + "\n").encode()

    @classmethod
    def deserialized(cls, content: bytes, place: str) -> Self:
        saved = _read(content, place)
        versions = saved["packages"]
        if versions != installed_versions(place):
            problem = f"the tokenizer was trained with {_named(versions)}; {_named(installed_versions())} is"
            from regard.files.requirements import pip_command

            hint = pip_command(*(f"{name}=={version}" for name, version in versions.items()))
            text = message(place, f"{problem} installed, which may split words differently", hint=hint)
            warnings.warn(str(text), RegardWarning, stacklevel=2)
        morphemes = list(map(Morpheme.parsed, saved["morphemes"]))
        tags = saved["tags"]
        for morpheme in morphemes:
            wrong = not morpheme.form or clean(morpheme.form) != morpheme.form or " " in morpheme.form
            if wrong or morpheme.tag not in tags:
                raise DataError(message(place, f"{str(morpheme)!r} is not a morpheme", hint=DAMAGED))
        return cls(tags, saved["characters"], morphemes, versions)


def _named(versions: dict[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions.items())


def _read(content: bytes, place: str) -> dict[str, Any]:
    """Return the content of a tokenizer file. Raise DataError if it is damaged."""
    saved = read_vocabulary(content, place, Morphemes.kind)
    for name in ("tags", "characters", "morphemes"):
        read_strings(saved, name, place)
    for tag in saved["tags"]:
        if not TAG.fullmatch(tag):
            raise DataError(message(place, f"{tag!r} is not a tag", hint=DAMAGED))
    for character in saved["characters"]:
        if len(character) != 1 or clean(character) != character:
            raise DataError(message(place, f"{character!r} is not a character", hint=DAMAGED))
    versions = saved.get("packages")
    if not isinstance(versions, dict) or sorted(versions) != sorted(PACKAGES) or SURFACE not in saved["tags"]:
        raise DataError(message(place, "'packages' or 'tags' is incomplete", hint=DAMAGED))
    return saved
