"""The words of the built-in corpus, and for each verb and adjective the words that can be used with it.

The words are in lexicon.toml.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any, NamedTuple

from regard.data.korean.conjugation import Stem

__all__ = [
    "ACTIVE_FRAMES",
    "ADJECTIVES",
    "ARRIVE",
    "Adjective",
    "DEEDS",
    "ERRANDS",
    "FRAMES",
    "Frame",
    "KNOW",
    "KNOW_NOT",
    "NOUNS",
    "Noun",
    "PEOPLE_FRAMES",
    "PLACES",
    "PURPOSES",
    "Person",
    "Place",
    "TABLES",
    "VERBS",
    "Verb",
]

TABLES: dict[str, Any] = tomllib.loads(
    resources.files("regard.data.korean").joinpath("lexicon.toml").read_text(encoding="utf-8")
)
"""The tables of lexicon.toml, which explains their columns."""

Texts = tuple[tuple[str, str], ...]
"""Korean texts and their English translations."""


class Noun(NamedTuple):
    """A noun in Korean and English.

    korean: the Korean noun.
    english: the English noun in the singular.
    plural: the English plural, or "".
    counter: the Korean word that is used when counting the noun (개 in 사과 두 개, two apples), or "".
    kind: "count", "mass" (no "a" and no plural), or "fixed" (the English is always the same).

    >>> NOUNS["fruit"][0]
    Noun(korean='사과', english='apple', plural='apples', counter='개', kind='count')
    """

    korean: str
    english: str
    plural: str = ""
    counter: str = ""
    kind: str = "count"


class Place(NamedTuple):
    """A place in Korean and English.

    korean: the Korean noun.
    english: the English noun.
    at: the English words for "at this place".
    to: the English words for "to this place".

    A word in parentheses, such as a preposition, has only possible alignment links.

    >>> PLACES["집"]
    Place(korean='집', english='house', at='(at) home', to='home')
    """

    korean: str
    english: str
    at: str
    to: str


class Person(NamedTuple):
    """A person of the example sentences: a pronoun, a name or a family member.

    korean: the Korean words, for example 민수.
    subject, object: the English words for the person as the subject of a sentence ("I", "Minsu") and as its
        object ("me", "Minsu").
    agreement: the form of the English verb: "I", "you", "we", "they", or "he" (third person singular).
    pronoun: the English pronoun that replaces the words when the person is mentioned again: "he" for Minsu.
    """

    korean: str
    subject: str
    object: str
    agreement: str
    pronoun: str


def _texts(rows: list[list[str]]) -> Texts:
    return tuple((korean, english) for korean, english in rows)


def _relatives(rows: list[list[str]], owners: tuple[tuple[str, str], ...]) -> tuple[Person, ...]:
    """Return each relative with each owner, such as 우리 어머니 (my mother).

    owners: the owners in Korean and in English.
    """
    return tuple(
        Person(f"{owner} {korean}", f"{whose}/1 {english}", f"{whose}/1 {english}", "he", pronoun)
        for korean, english, pronoun in rows
        for owner, whose in owners
    )


def _names(rows: list[list[str]]) -> tuple[Person, ...]:
    return tuple(Person(korean, english, english, "he", pronoun) for korean, english, pronoun in rows)


NOUNS: dict[str, tuple[Noun, ...]] = {
    group: tuple(Noun(*row) for row in rows) for group, rows in TABLES["nouns"].items()
}
"""Nouns in groups. If a verb can be used with one noun of a group, it can be used with all of them."""

PLACES = {row[0]: Place(*row) for row in TABLES["places"]}
PRONOUNS = {row[0]: Person(*row) for row in TABLES["pronouns"]}

NAMES, ADDED_NAMES = _names(TABLES["names"]), _names(TABLES["added_names"])
"""NAMES: names in their places in longer lists. ADDED_NAMES: names that end every list with names."""

ELDERS = _relatives(TABLES["elders"], (("우리", "my"), ("그의", "his")))
"""Older relatives. Korean says "our mother" where English says "my mother"."""

YOUNGER = _relatives(TABLES["younger"], (("내", "my"), ("네", "your"), ("그녀의", "her")))

TIMES = {tense: _texts(rows) for tense, rows in TABLES["times"].items()}

HOURS, OFTEN, NUMBERS, DEGREES, SIDES, REASONS = (
    _texts(TABLES[name]) for name in ("hours", "often", "numbers", "degrees", "sides", "reasons")
)

CONTAINERS: dict[str, list[str]] = TABLES["containers"]
"""Korean counters with an English translation, in singular and plural: 커피 두 잔, two cups of coffee."""


class Verb(NamedTuple):
    """A verb in Korean and English.

    stem: the Korean stem.
    base, third, past, progressive: the English forms: go, goes, went, going.
    preposition: the English word between the verb and its object ("listen to"), or "".
    """

    stem: Stem
    base: str
    third: str
    past: str
    progressive: str
    preposition: str = ""


def _verb(stem: str, kind: str, english: str) -> Verb:
    base, third, past, progressive, *preposition = english.split(",")
    return Verb(Stem(stem, kind), base, third, past, progressive, *preposition)


VERBS = {key: _verb(*row) for key, *row in TABLES["verbs"]}


class Frame(NamedTuple):
    """A verb with the words that can be used with it. A verb may have several Frames.

    verb: the verb.
    objects: the nouns that can be its object.
    places: where the action can happen.
    goals: where the motion can lead to, for verbs of motion.
    tools: tools and means of transport, in Korean and in English.
    manners: adverbs of manner, in Korean and in English.
    traits: keys of TRAITS, which limit how the verb is used: "instant" means not in the progressive.
    """

    verb: Verb
    objects: tuple[Noun, ...] = ()
    places: tuple[Place, ...] = ()
    goals: tuple[Place, ...] = ()
    tools: tuple[tuple[str, str], ...] = ()
    manners: tuple[tuple[str, str], ...] = ()
    traits: frozenset[str] = frozenset()


MANNERS: dict[str, str] = TABLES["manners"]
TOOLS: dict[str, str] = TABLES["tools"]

REACH: dict[str, list[str]] = TABLES["reach"]
"""For some places, the means of transport with which one can go there: 서울 by 버스 (bus) or 기차 (train).

The key "" has the means of transport to all other places."""


def _frame(verb: str, objects: str = "", places: str = "", more: str = "", traits: str = "") -> Frame:
    """Create a Frame. Each argument except `verb` is a text with keys, separated by spaces.

    verb: a key of VERBS.
    objects, places: keys of NOUNS and of PLACES.
    more: goals (keys of PLACES, each after the sign >), tools (keys of TOOLS) and manners (keys of MANNERS).
    traits: keys of TRAITS.
    """
    return Frame(
        VERBS[verb],
        tuple(noun for group in objects.split() for noun in NOUNS[group]),
        tuple(PLACES[name] for name in places.split()),
        tuple(PLACES[name[1:]] for name in more.split() if name[0] == ">"),
        tuple((name, TOOLS[name]) for name in more.split() if name in TOOLS),
        tuple((name, MANNERS[name]) for name in more.split() if name in MANNERS),
        frozenset(traits.split()),
    )


TRAITS = {
    "animals": "its subject is an animal, never a person",
    "arrival": "its goal is translated with 'at' or 'in', not with 'to': arrive at, live in",
    "coming": "not used in questions with 'where'",
    "company": "often used with a companion: with a friend",
    "counted": "its object may have a number or be a list of nouns",
    "creates": "it creates its object: write, draw",
    "definite": "its object is a person, or has a determiner: this song",
    "event": "not used in the simple present",
    "given": "used with a receiver: give to a friend",
    "habit": "can be in the simple present without a time or an adverb such as 'often'",
    "instant": "not used in the progressive",
    "lasting": "in the past and the future, its time is a year: last year, next year",
    "left": "can be the verb of a relative clause about its object",
    "moves": "can be used with a means of transport: by bus",
    "negative": "its meaning is negative without 안: 모르다, not know",
    "persons": "its object can also be a person",
    "state": "used without a time, and only in the past and in the present",
    "unwilled": "not used with 'want to' or 'can'",
    "years": "its time can be a year: last year, next year",
}
"""Trait of a verb -> its meaning. The traits in Frame.traits decide in which constructions a verb is used."""

FRAMES = tuple(_frame(**row) for row in TABLES["frames"])
"""All verbs with the words that can be used with each."""

MEALS = (*NOUNS["rice"] * 3, *NOUNS["dishes"])
"""The objects of 먹다 (eat) as a purpose, as in "went to a restaurant to eat rice".

A noun is repeated to make it more frequent."""

PEOPLE_FRAMES = tuple(frame for frame in FRAMES if "animals" not in frame.traits)
DEEDS = (*PEOPLE_FRAMES, *(FRAMES[0]._replace(objects=MEALS),) * 2)
"""The verbs of clauses in which people do something. 밥을 먹었다 (ate rice) is repeated: it is frequent."""

ACTIVE_FRAMES = tuple(frame for frame in PEOPLE_FRAMES if "state" not in frame.traits)

KNOW, KNOW_NOT, ARRIVE = (
    next(frame for frame in FRAMES if frame.verb.stem.text == stem) for stem in ("알", "모르", "도착하")
)

ERRANDS = tuple(_frame(**row) for row in TABLES["errands"])
"""Verbs of motion (as Frames) that are used with a purpose: 카페에 공부하러 갔다, went to a café to study."""

UNLIKELY = tuple(map(tuple, TABLES["unlikely"]))
"""Pairs of a place and a verb stem. People do this action at the place, but they do not go there to do it.

These pairs are not in PURPOSES."""

PURPOSES = {
    name: tuple(
        frame._replace(objects=MEALS) if frame.verb is VERBS["먹"] else frame
        for frame in ACTIVE_FRAMES
        if place in frame.places
        and not {"unwilled", "lasting"} & frame.traits
        and (name, frame.verb.stem.text) not in UNLIKELY
    )
    for name, place in PLACES.items()
}
"""For each place, the actions (verbs as Frames) for which people go to this place: to a library, to read."""


class Adjective(NamedTuple):
    """An adjective in Korean and English.

    stem: the Korean stem.
    english: the English adjective.
    attribute_of: the Korean nouns that the adjective can precede (a big apple).
    predicate_of: the Korean nouns that can be the subject of the adjective (the apple is big).
    """

    stem: Stem
    english: str
    attribute_of: frozenset[str]
    predicate_of: frozenset[str]


def _koreans(groups: str) -> frozenset[str]:
    return frozenset(noun.korean for group in groups.split() for noun in NOUNS[group])


def _adjectives(rows: list[list[str]]) -> dict[str, Adjective]:
    """Create adjectives from rows: stem, kind, English and, for some, the groups of nouns around it."""
    return {
        stem: Adjective(Stem(stem, kind, True), english, *map(_koreans, groups or ("", "")))
        for stem, kind, english, *groups in rows
    }


ADJECTIVES = _adjectives(TABLES["adjectives"])

STATES = _adjectives(TABLES["states"])
"""Adjectives for temporary states of people, such as busy."""

WEATHER = _adjectives(TABLES["weather"])
