"""Phrases: Korean words, and English words with alignment links to the Korean words that they translate.

A link refers to a Word object, not to a position. So links stay correct when the words are reordered.

Noun phrases, predicates and clauses are made of phrases. Korean has no articles. The English article is
determined by these rules:

    the          the topic, and a noun with a relative clause
    a, an        an object
    no article   a plural object in the simple present ("I like cats"), a mass noun as object,
                 a name, and a noun with a determiner (이, 그) or an owner (내)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import NamedTuple, TypeVar

from regard.data.korean.lexicon import (
    ADDED_NAMES,
    ADJECTIVES,
    CONTAINERS,
    ELDERS,
    NAMES,
    NOUNS,
    NUMBERS,
    PRONOUNS,
    YOUNGER,
    Adjective,
    Noun,
    Person,
    Stem,
    Verb,
    attach,
    conjugate,
)

__all__ = [
    "Dice",
    "Gloss",
    "Nominal",
    "Phrase",
    "Predicate",
    "Rest",
    "Word",
    "adjective_predicate",
    "arranged",
    "article",
    "attributes",
    "be",
    "common",
    "coordinated",
    "finish",
    "gloss",
    "modified",
    "person",
    "possibly",
    "say",
    "someone",
    "spread",
    "surely",
    "thing",
    "verb_predicate",
]


Option = TypeVar("Option")


class Word:
    """A Korean word of a generated sentence.

    text: the word.
    place: its index in the sentence, or -1 while the sentence is not complete.
    """

    __slots__ = ("place", "text")

    def __init__(self, text: str):
        self.text = text
        self.place = -1


class Gloss(NamedTuple):
    """An English word and the Korean words that it is aligned with.

    text: the English word.
    sure: the Korean word to which it has a sure link, or None.
    possible: the Korean words to which it has possible links.
    """

    text: str
    sure: Word | None
    possible: tuple[Word, ...] = ()


class Phrase(NamedTuple):
    """A part of a sentence, or a whole sentence, in Korean and English.

    korean: the Korean words.
    english: the English words, with their alignment links to the Korean words.
    """

    korean: list[Word]
    english: list[Gloss]


class Dice:
    """Makes the random choices of the grammar, the same on every machine and in every version of Python.

    Only Random.random() is used, because Python guarantees that its sequence does not change.

    seed: random seed.

    >>> dice = Dice("seed")
    >>> dice.pick("가나다") in "가나다"
    True
    """

    def __init__(self, seed: str):
        self.random = Random(seed).random

    def pick(self, options: Sequence[Option]) -> Option:
        """Pick one of the options at random, all with the same probability."""
        return options[int(self.random() * len(options))]

    def chance(self, share: float) -> bool:
        """Return True with probability `share`."""
        return self.random() < share


def spread(weights: Mapping[Option, int]) -> tuple[Option, ...]:
    """Return a tuple in which each option is repeated by its weight, so that Dice.pick() follows the weights.

    >>> spread({"often": 3, "rarely": 1})
    ('often', 'often', 'often', 'rarely')
    """
    return tuple(option for option, weight in weights.items() for _ in range(weight))


def surely(text: str, word: Word) -> list[Gloss]:
    """Split an English text into words that all have a sure link to the same Korean word."""
    if " " not in text:
        return [Gloss(text, word)]
    return [Gloss(part, word) for part in text.split()]


def possibly(text: str, *words: Word) -> list[Gloss]:
    """Split an English text into words without a sure link. Each has possible links to all Korean `words`."""
    return [Gloss(part, None, words) for part in text.split()]


def say(korean: str, english: str) -> Phrase:
    """Create a phrase from a Korean text and an English text with alignment links, as in lexicon.toml.

    "three/1" has a sure link to the first Korean word. "(at)/2" is in parentheses, so it has only possible
    links, and its number is ignored.

    >>> phrase = say("세 시에", "(at)/2 three/1 o'clock/2")
    >>> [(gloss.text, gloss.sure and gloss.sure.text) for gloss in phrase.english]
    [('at', None), ('three', '세'), ("o'clock", '시에')]
    """
    words = [Word(text) for text in korean.split()]
    return Phrase(words, gloss(english, words))


def gloss(english: str, words: list[Word]) -> list[Gloss]:
    """Create the English words of a phrase.

    english: the English text with alignment links in the notation of lexicon.toml: "this/1 morning/2".
    words: the Korean words.

    A word with a sure link also has a possible link to the last Korean word: in 내 친구 (my friend), for
    example, "my" has a possible link to 친구. A word in parentheses has possible links to all Korean words.
    """
    all_words = tuple(words)
    last = all_words[-1:]
    return [
        Gloss(text, words[number], last) if number >= 0 else Gloss(text, None, all_words)
        for text, number in _read(english)
    ]


@cache
def _read(english: str) -> tuple[tuple[str, int], ...]:
    """Return (word, index) for each English word of a text with alignment links, such as "this/1 morning/2".

    index: the index, from 0, of the Korean word to which the English word has a sure link; -1 for a word in
        parentheses, which has only possible links.
    """
    parts = []
    for part in english.split():
        text, _, number = part.partition("/")
        bracketed = text.startswith("(")
        parts.append((text.strip("()"), -1 if bracketed else int(number or 1) - 1))
    return tuple(parts)


def article(following: str) -> str:
    """Return "a" or "an", depending on the first letter of the next word.

    Words that need another article than their first letter suggests, such as "hour", are not in the
    vocabulary.

    >>> article("apple"), article("book")
    ('an', 'a')
    """
    return "an" if following[0] in "aeiou" else "a"


class Nominal(NamedTuple):
    """A noun phrase in Korean and English.

    korean: the Korean words.
    english: the English words, with their alignment links to the Korean words.
    agreement: the form of the English verb: "I", "you", "we", "they", or "he" (third person singular).
    pronoun: the English pronoun that replaces the phrase when it is mentioned again ("he" for Minsu), or "".
    """

    korean: list[Word]
    english: list[Gloss]
    agreement: str = "he"
    pronoun: str = ""


class Adornment(NamedTuple):
    """The words that modify a noun: determiner, adjective, number and plural.

    determiner: 이 (this), 그 (that) or an owner such as 내 (my); a key of DETERMINERS.
    adjective: the adjective before the noun, or None.
    number: the number in Korean and in English, one of NUMBERS, or None. If it is set, the other modifiers
        are ignored.
    plural: whether the noun has the plural particle 들.
    """

    determiner: str = ""
    adjective: Adjective | None = None
    number: tuple[str, str] | None = None
    plural: bool = False


PLAIN = Adornment()

DETERMINERS = {
    "이": ("this", "these"),
    "그": ("that", "those"),
    "내": ("my", "my"),
    "네": ("your", "your"),
    "우리": ("our", "our"),
    "그의": ("his", "his"),
    "그녀의": ("her", "her"),
}

OWNERS = ("내", "그의", "그녀의")
OWNED = {
    noun.korean
    for group in ("goods", "bicycles", "cars", "books", "pictures", "photos", "letters", "boxes", "songs")
    for noun in NOUNS[group]
}
HUMAN = {noun.korean for group in ("people", "jobs") for noun in NOUNS[group]}
GROUPED = {"학생", "친구", "아이"}
"""Nouns for people that also occur in the plural, with 들."""


def attributes(noun: Noun) -> tuple[Adjective, ...]:
    """Return the adjectives that can be used before this noun, such as "big" before "apple"."""
    return _ATTRIBUTES.get(noun.korean, ())


_ATTRIBUTES = {
    noun.korean: tuple(each for each in ADJECTIVES.values() if noun.korean in each.attribute_of)
    for group in NOUNS.values()
    for noun in group
}


def person(who: Person, particle: str, part: str = "subject") -> Nominal:
    """Generate a pronoun, a name or a family member, with a particle.

    particle: the name of the Korean particle, a key of PARTICLES, for example "topic".
    part: the role of the person in the English clause: "subject" (I) or "object" (me).
    """
    *before, last = who.korean.split()
    words = [*map(Word, before), Word(attach(last, particle))]
    english = who.subject if part == "subject" else who.object
    return Nominal(words, gloss(english, words), who.agreement, who.pronoun)


def common(noun: Noun, particle: str, role: str, adornment: Adornment = PLAIN) -> Nominal:
    """Generate a noun with a particle and modifiers.

    particle: the name of the Korean particle, a key of PARTICLES, for example "object".
    role: "definite" (the cat), "indefinite" (a cat) or "generic" (cats). It determines the English article.

    >>> apple = common(NOUNS["fruit"][0], "object", "indefinite", Adornment(adjective=ADJECTIVES["크"]))
    >>> [word.text for word in apple.korean], [gloss.text for gloss in apple.english]
    (['큰', '사과를'], ['a', 'big', 'apple'])
    """
    if noun.kind == "fixed":
        alone = [Word(attach(noun.korean, particle))]
        return Nominal(alone, gloss(noun.english, alone))
    if adornment.number:
        return _counted(noun, particle, adornment.number)
    plural = adornment.plural or (role == "generic" and not adornment.determiner and noun.kind == "count")
    head = Word(attach(attach(noun.korean, "plural") if adornment.plural else noun.korean, particle))
    words: list[Word] = []
    described: list[Gloss] = surely(noun.plural if plural else noun.english, head)
    if adornment.adjective:
        words = [Word(conjugate(adornment.adjective.stem, _attributive(adornment.adjective)))]
        described = surely(adornment.adjective.english, words[0]) + described
    if adornment.determiner:
        words.insert(0, Word(adornment.determiner))
        first = [Gloss(DETERMINERS[adornment.determiner][plural], words[0], (head,))]
    else:
        first = possibly(_article(noun, role, plural, described[0].text), *words, head)
    return Nominal([*words, head], first + described, "they" if plural else "he")


def _attributive(adjective: Adjective) -> str:
    return "는" if adjective.stem.kind == "있" else "ㄴ"


def _article(noun: Noun, role: str, plural: bool, following: str) -> str:
    if role == "definite":
        return "the"
    return "" if plural or noun.kind == "mass" else article(following)


def _counted(noun: Noun, particle: str, number: tuple[str, str]) -> Nominal:
    """Generate a noun with a number, such as 사과 세 개를 (three apples).

    particle: the name of the Korean particle, a key of PARTICLES, for example "object".
    number: the number in Korean and in English, one of NUMBERS.
    """
    many = number[1] != "one"
    words = [Word(noun.korean), Word(number[0]), Word(attach(noun.counter, particle))]
    counted = surely(number[1], words[1])
    if noun.counter in CONTAINERS:
        counted += surely(CONTAINERS[noun.counter][many], words[2]) + possibly("of", words[0], words[2])
        return Nominal(words, counted + surely(noun.english, words[0]), "they" if many else "he")
    name = Gloss(noun.plural if many else noun.english, words[0], (words[2],))
    return Nominal(words, [*counted, name], "they" if many else "he")


OBJECTS = spread({"": 60, "determined": 14, "owned": 8, "described": 22, "counted": 10, "plural": 30})
SUBJECTS = spread({"": 50, "determined": 40, "owned": 15, "described": 20, "plural": 12})


def thing(dice: Dice, noun: Noun, particle: str, role: str, counted: bool = False) -> Nominal:
    """Generate a noun with random modifiers: none, a determiner, an owner, an adjective, a number or 들.

    particle: the name of the Korean particle, a key of PARTICLES, for example "object".
    role: "definite" (the cat), "indefinite" (a cat) or "generic" (cats).
    counted: whether the noun may have a number.
    """
    if noun.kind == "fixed":
        return common(noun, particle, role)
    how = dice.pick(SUBJECTS if role == "definite" else OBJECTS)
    determiner, adjective, number = "", None, None
    if how == "determined":
        determiner = dice.pick(("이", "그"))
    elif how == "owned" and noun.korean in OWNED:
        determiner = dice.pick(OWNERS)
    elif how == "described" and attributes(noun):
        adjective = dice.pick(attributes(noun))
        determiner = dice.pick(("이", "그")) if dice.chance(0.2) else ""
    elif how == "counted" and counted and noun.counter and role != "generic":
        number = dice.pick(NUMBERS)
    plural = how == "plural" and noun.korean in GROUPED
    return common(noun, particle, role, Adornment(determiner, adjective, number, plural))


WHO = spread({"나": 24, "그": 14, "그녀": 14, "우리": 10, "그들": 8, "name": 26, "relative": 20, "noun": 40})
WHO_ASKED = spread({"너": 60, "그": 10, "그녀": 10, "그들": 6, "name": 14, "relative": 10, "noun": 12})
RELATIVES = {
    "statement": tuple(each for each in (*ELDERS, *YOUNGER) if not each.korean.startswith("네 ")),
    "question": tuple(each for each in YOUNGER if not each.korean.startswith("내 ")),
}
PEOPLE = (*NOUNS["people"], *NOUNS["jobs"])
ASKED_PEOPLE = NOUNS["people"]
"""Nouns that can be the subject of a question. Elders and teachers are excluded, because questions about them
require the honorific 시."""


def someone(dice: Dice, ending: str, particle: str = "topic") -> Nominal:
    """Generate a person as subject: a pronoun, a name, a family member or a noun for people.

    ending: the type of the clause, for example "statement"; a "polite" clause has the subject 저 (I).
    particle: the name of the Korean particle, a key of PARTICLES.
    """
    if ending == "polite":
        return person(PRONOUNS["저"], particle)
    asked = ending == "question"
    who = dice.pick(WHO_ASKED if asked else WHO)
    if who == "name":
        return person(dice.pick((*NAMES, *ADDED_NAMES)), particle)
    if who == "relative":
        return person(dice.pick(RELATIVES["question" if asked else "statement"]), particle)
    if who in PRONOUNS:
        return person(PRONOUNS[who], particle)
    if asked:
        return common(dice.pick(ASKED_PEOPLE), particle, "definite", Adornment(dice.pick(("이", "그"))))
    return thing(dice, dice.pick(PEOPLE), particle, "definite")


def coordinated(first: Nominal, second: Nominal) -> Nominal:
    """Join two noun phrases with "and".

    first: the first noun phrase. It already has the Korean particle 와 or 과, which means "and".
    """
    both = first.english + possibly("and", first.korean[-1]) + second.english
    return Nominal(first.korean + second.korean, both, "they")


def modified(head: Nominal, clause: Phrase) -> Nominal:
    """Add a relative clause to a noun phrase: before the noun in Korean, after it in English."""
    return head._replace(korean=clause.korean + head.korean, english=head.english + clause.english)


FINALS = {
    "statement": {"past": "었다", "present": "ㄴ다"},
    "polite": {"past": "었습니다", "present": "ㅂ니다"},
    "question": {"past": "었니", "present": "니"},
    "who": {"past": "었니", "present": "니"},
    "and": {"past": "었고", "present": "고"},
    "but": {"past": "었지만", "present": "지만"},
}
"""The ending of the last verb or adjective, for each type of clause and each tense.

"who" is a question about the subject: 누가 갔니, who went?
"and" and "but" join the clause to the next one.
"""

GOING = {
    "statement": "것이다",
    "polite": "것입니다",
    "question": "거니",
    "who": "거니",
    "and": "것이고",
    "but": "것이지만",
}
"""The last word of the future tense for each type of clause: 갈 것이다, will go."""

BE = {
    "present": {"I": "am", "you": "are", "he": "is", "we": "are", "they": "are"},
    "past": {"I": "was", "you": "were", "he": "was", "we": "were", "they": "were"},
}
DO = {"I": "do", "you": "do", "he": "does", "we": "do", "they": "do"}

EXIST, LACK = Stem("있", "있"), Stem("없", "있")
WISH, DO_NOT, IS_NOT = Stem("싶", "", True), Stem("않"), Stem("않", "", True)
FAIL, DO_IT = Stem("못하", "하"), Stem("하", "하")


class Predicate(NamedTuple):
    """The predicate of a clause (verb or adjective, with auxiliaries) in Korean and English.

    korean: the last words of the Korean clause.
    auxiliaries: English auxiliaries and "not". In a question, the first auxiliary precedes the subject.
    main: the other English words, e.g. the main verb.
    """

    korean: list[Word]
    auxiliaries: list[Gloss]
    main: list[Gloss]


def finish(stem: Stem, tense: str, ending: str) -> str:
    """Conjugate the verb or adjective that ends a Korean clause.

    stem: the stem of the verb or adjective.
    tense: "past" or "present".
    ending: the type of the clause: a key of FINALS, "adnominal" (the clause modifies a noun) or "join" (-고,
        without a tense).

    >>> finish(Stem("만들"), "past", "question"), finish(Stem("만들"), "present", "adnominal")
    ('만들었니', '만드는')
    """
    if ending == "adnominal":
        describes = stem.describes and stem.kind != "있"
        return conjugate(stem, "ㄴ" if tense == "past" or describes else "는")
    if ending == "join":
        return conjugate(stem, "고")
    return conjugate(stem, FINALS[ending][tense])


def be(tense: str, agreement: str) -> str:
    """Return "am", "are", "is", "was" or "were".

    tense: "past" or "present".
    agreement: the subject: "I", "you", "we", "they", or "he" (third person singular).
    """
    return BE["past" if tense == "past" else "present"][agreement]


def verb_predicate(verb: Verb, tense: str, ending: str, agreement: str, negation: str = "") -> Predicate:
    """Generate the predicate of a clause with this verb.

    tense: "past", "present", "future", "progressive", "want" (wants to) or "can".
    ending: the type of the clause, for example "statement" or "question"; see finish().
    agreement: the English subject: "I", "you", "we", "they", or "he" (third person singular).
    negation: "", "not" (안, or 지 않다 for verbs with 하다) or "could not" (못, or 지 못하다).

    >>> from regard.data.korean.lexicon import VERBS
    >>> predicate = verb_predicate(VERBS["듣"], "want", "question", "he", "not")
    >>> [word.text for word in predicate.korean]
    ['듣고', '싶어', '하지', '않니']
    >>> [gloss.text for gloss in predicate.auxiliaries + predicate.main]
    ['does', 'not', 'want', 'to', 'listen']
    """
    if tense in ("past", "present"):
        return _simple(verb, tense, ending, agreement, negation)
    if tense == "future":
        return _future(verb, ending, negation)
    return {"progressive": _progressive, "want": _want, "can": _can}[tense](verb, ending, agreement, negation)


def _simple(verb: Verb, tense: str, ending: str, agreement: str, negation: str) -> Predicate:
    if not negation:
        word = Word(finish(verb.stem, tense, ending))
        words, said = [word], word
    elif verb.stem.kind == "하":
        word = Word(conjugate(verb.stem, "지"))
        said = Word(finish(DO_NOT if negation == "not" else FAIL, tense, ending))
        words = [word, said]
    else:
        said, word = Word("안" if negation == "not" else "못"), Word(finish(verb.stem, tense, ending))
        words = [said, word]
    if negation == "could not":
        return Predicate(words, _main("could not", said, words), _main(verb.base, word, words))
    do = "did" if tense == "past" else DO[agreement]
    if negation or verb.stem.text == "모르":
        refused = [*possibly(do, *words), Gloss("not", said, (word,))]
        return Predicate(words, refused, _main(verb.base, word, words))
    if ending == "question":
        return Predicate(words, possibly(do, word), _main(verb.base, word, words))
    finite = verb.past if tense == "past" else verb.third if agreement == "he" else verb.base
    return Predicate(words, [], _main(finite, word, words))


def _main(english: str, word: Word, words: list[Word]) -> list[Gloss]:
    return [Gloss(part, word, tuple(words)) for part in english.split()]


def _future(verb: Verb, ending: str, negation: str) -> Predicate:
    word = Word(conjugate(verb.stem, "고" if ending == "join" else "ㄹ"))
    words = [word]
    refusal: Word | None = None
    if negation and verb.stem.kind == "하":
        word, refusal = Word(conjugate(verb.stem, "지")), Word(conjugate(DO_NOT, "ㄹ"))
        words = [word, refusal]
    elif negation:
        refusal = Word("안")
        words = [refusal, word]
    if ending in GOING:
        words.append(Word(GOING[ending]))
        will = [Gloss("will", words[-1], tuple(words))]
    else:
        will = possibly("will", *words)
    if refusal:
        will.append(Gloss("not", refusal, (word,)))
    return Predicate(words, will, _main(verb.base, word, words))


def _progressive(verb: Verb, ending: str, agreement: str, negation: str) -> Predicate:
    words = [Word(conjugate(verb.stem, "고"))]
    if negation:
        words += [Word(conjugate(EXIST, "지")), Word(finish(IS_NOT, "present", ending))]
    else:
        words.append(Word(finish(EXIST, "present", ending)))
    auxiliaries = possibly(be("present", agreement), *words)
    if negation:
        auxiliaries.append(Gloss("not", words[-1], tuple(words)))
    return Predicate(words, auxiliaries, _main(verb.progressive, words[0], words))


def _want(verb: Verb, ending: str, agreement: str, negation: str) -> Predicate:
    """Generate a predicate with "want to".

    The Korean auxiliary is 싶다 if the subject is I, you or we, and 싶어 하다 otherwise.
    """
    first = Word(conjugate(verb.stem, "고"))
    others = agreement in ("he", "they")
    if others:
        last = [Word("하지"), Word(finish(DO_NOT, "present", ending))] if negation else []
        last = last or [Word(finish(DO_IT, "present", ending))]
        wish = Word("싶어")
        words = [first, wish, *last]
    elif negation:
        wish = Word(conjugate(WISH, "지"))
        words = [first, wish, Word(finish(IS_NOT, "present", ending))]
    else:
        wish = Word(finish(WISH, "present", ending))
        words = [first, wish]
    auxiliaries: list[Gloss] = []
    if negation or ending == "question":
        auxiliaries = possibly(DO[agreement], *words)
    if negation:
        auxiliaries.append(Gloss("not", words[-1], tuple(words)))
    finite = "wants" if agreement == "he" and not auxiliaries else "want"
    main = [Gloss(finite, wish, tuple(words)), *possibly("to", *words), *_main(verb.base, first, words)]
    return Predicate(words, auxiliaries, main)


def _can(verb: Verb, ending: str, agreement: str, negation: str) -> Predicate:
    word = Word(conjugate(verb.stem, "ㄹ"))
    words = [word, Word("수"), Word(finish(LACK if negation else EXIST, "present", ending))]
    able = Gloss("cannot" if negation else "can", words[2], (word, words[1]))
    return Predicate(words, [able], _main(verb.base, word, words))


def adjective_predicate(
    adjective: Adjective, tense: str, ending: str, agreement: str, negated: bool = False
) -> Predicate:
    """Generate a predicate with an adjective, such as 예뻤다 (was pretty).

    tense: "past", "present" or "future".
    ending: the type of the clause, for example "statement" or "question"; see finish().
    agreement: the English subject: "I", "you", "we", "they", or "he" (third person singular).
    """
    if tense == "future":
        word = Word(conjugate(adjective.stem, "ㄹ"))
        words = [word, Word(GOING[ending])]
        will = [Gloss("will", words[1], (word,))]
        return Predicate(words, will, [*possibly("be", *words), *surely(adjective.english, word)])
    if negated:
        words = [Word(conjugate(adjective.stem, "지")), Word(finish(IS_NOT, tense, ending))]
        auxiliaries = [*possibly(be(tense, agreement), *words), Gloss("not", words[1], (words[0],))]
    else:
        words = [Word(finish(adjective.stem, tense, ending))]
        auxiliaries = possibly(be(tense, agreement), *words)
    return Predicate(words, auxiliaries, surely(adjective.english, words[0]))


class Rest(NamedTuple):
    """All words of a clause except subject and predicate.

    korean: the Korean words, between subject and predicate.
    after: the English words after the predicate.
    middle: the English words between auxiliaries and main verb ("often").
    asked: the English question word, which is the first word of the clause; empty if there is none.
    """

    korean: list[Word]
    after: list[Gloss]
    middle: list[Gloss]
    asked: list[Gloss]


def arranged(subject: Nominal, predicate: Predicate, rest: Rest, question: bool = False) -> Phrase:
    """Put subject, predicate and the rest of a clause in the Korean and in the English word order.

    question: whether to use the English order of a question, with the first auxiliary before the subject.
    """
    korean = subject.korean + rest.korean + predicate.korean
    first = predicate.auxiliaries
    if question and first:
        # The auxiliary agrees with the subject (does he, do they): add a possible link to the subject.
        turned = first[0]._replace(possible=(*first[0].possible, *subject.korean[-1:]))
        english = [*rest.asked, turned, *subject.english, *first[1:], *rest.middle]
    else:
        english = [*rest.asked, *subject.english, *first, *rest.middle]
    return Phrase(korean, english + predicate.main + rest.after)
