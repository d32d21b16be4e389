"""Generate noun phrases in Korean and English.

Korean has no articles. The English article is determined by these rules:

    the          the topic, and a noun with a relative clause
    a, an        an object
    no article   a plural object in the simple present ("I like cats"), a mass noun as object,
                 a name, and a noun with a determiner (이, 그) or an owner (내)
"""

from __future__ import annotations

from typing import NamedTuple

from regard.data.korean.conjugation import attach, conjugate
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
)
from regard.data.korean.phrases import Dice, Gloss, Phrase, Word, article, gloss, possibly, spread, surely

__all__ = ["Nominal", "attributes", "common", "coordinated", "modified", "person", "someone", "thing"]


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
