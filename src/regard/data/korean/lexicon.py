"""Nouns, places, people, times and other words of the built-in corpus. The words are in lexicon.toml."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any, NamedTuple

__all__ = ["NOUNS", "PLACES", "TABLES", "Noun", "Person", "Place"]

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
