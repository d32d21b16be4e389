"""The vocabulary of the built-in corpus, and the conjugation of its nouns, verbs and adjectives.

The words, and for each verb and adjective the words that can be used with it, are in lexicon.toml.

Particles mark the role of a noun in the sentence. The form of a particle depends on whether the noun ends in
a consonant or a vowel.

Verbs and adjectives are conjugated by table. A stem has three forms, called bases. Every ending is attached
to one of them:

    closed       먹-  가-  듣-    돕-    부르-  만들-    쓰-  하-    before 고, 지, 다
    open         먹으- 가-  들으-  도우-  부르-  만드-    쓰-  하-    before ㄴ, ㄹ
    infinitive   먹어  가   들어   도와   불러   만들어   써   해     before 서 and the past ending ㅆ

The ending 러 follows the closed base if it ends in ㄹ (만들러), and the open base otherwise (먹으러).

Verbs and adjectives have the same bases. They differ in the plain present (먹는다, 작다) and in the adnominal
form of the present (먹는, 작은). The `kind` of a stem, a key of KINDS, is its type of irregularity.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from regard.errors import ArgumentError, UnknownName, message

__all__ = [
    "ACTIVE_FRAMES",
    "ADJECTIVES",
    "ARRIVE",
    "Adjective",
    "DEEDS",
    "ENDINGS",
    "ERRANDS",
    "FRAMES",
    "Frame",
    "KINDS",
    "KNOW",
    "KNOW_NOT",
    "NOUNS",
    "Noun",
    "PARTICLES",
    "PEOPLE_FRAMES",
    "PLACES",
    "PURPOSES",
    "Person",
    "Place",
    "Stem",
    "TABLES",
    "VERBS",
    "Verb",
    "attach",
    "close",
    "conjugate",
    "final",
    "join",
    "split",
    "vowel_before",
]


INITIALS = "ㄱㄲㄴㄷㄸㄹㅁㅂㅃㅅㅆㅇㅈㅉㅊㅋㅌㅍㅎ"
VOWELS = "ㅏㅐㅑㅒㅓㅔㅕㅖㅗㅘㅙㅚㅛㅜㅝㅞㅟㅠㅡㅢㅣ"
FINALS = ("", *"ㄱㄲㄳㄴㄵㄶㄷㄹㄺㄻㄼㄽㄾㄿㅀㅁㅂㅄㅅㅆㅇㅈㅊㅋㅌㅍㅎ")
FIRST = ord("가")


def split(syllable: str) -> tuple[str, str, str]:
    """Return the initial consonant, the vowel and the final consonant (or "") of one syllable.

    >>> split("한"), split("이")
    (('ㅎ', 'ㅏ', 'ㄴ'), ('ㅇ', 'ㅣ', ''))
    """
    if len(syllable) != 1 or not "가" <= syllable <= "힣":
        raise ArgumentError(
            message("split()", f"{syllable!r} is not one Hangul syllable", expected="one of 가 to 힣")
        )
    rest, final_number = divmod(ord(syllable) - FIRST, len(FINALS))
    initial_number, vowel_number = divmod(rest, len(VOWELS))
    return INITIALS[initial_number], VOWELS[vowel_number], FINALS[final_number]


def join(initial: str, vowel: str, final_consonant: str = "") -> str:
    """Join the parts of a syllable: the inverse of split().

    >>> join("ㅎ", "ㅏ", "ㄴ")
    '한'
    """
    number = INITIALS.index(initial) * len(VOWELS) + VOWELS.index(vowel)
    return chr(FIRST + number * len(FINALS) + FINALS.index(final_consonant))


def final(word: str) -> str:
    """Return the final consonant of a word's last syllable, or "".

    >>> final("집"), final("학교")
    ('ㅂ', '')
    """
    return split(word[-1:])[2]


def close(word: str, consonant: str) -> str:
    """Replace the final consonant of a word's last syllable by `consonant`; "" removes it.

    >>> close("가", "ㄴ"), close("만들", "")
    ('간', '만드')
    """
    initial, vowel, _ = split(word[-1:])
    return word[:-1] + join(initial, vowel, consonant)


def vowel_before(stem: str) -> str:
    """Return the vowel of a stem that determines whether its ending begins with 아 or 어.

    This is the vowel of the last syllable. If the stem ends in the vowel ㅡ and has several syllables, it is
    the vowel of the second-to-last syllable.

    >>> vowel_before("먹"), vowel_before("바쁘"), vowel_before("쓰")
    ('ㅓ', 'ㅏ', 'ㅡ')
    """
    vowel = split(stem[-1])[1]
    return split(stem[-2])[1] if vowel == "ㅡ" and not final(stem) and len(stem) > 1 else vowel


PARTICLES = {
    "bare": ("", ""),
    "topic": ("은", "는"),
    "subject": ("이", "가"),
    "object": ("을", "를"),
    "and": ("과", "와"),
    "by": ("으로", "로"),
    "to": ("에게", "에게"),
    "at": ("에", "에"),
    "in": ("에서", "에서"),
    "of": ("의", "의"),
    "plural": ("들", "들"),
    "is": ("이다", "다"),
    "was": ("이었다", "였다"),
    "is?": ("이니", "니"),
    "was?": ("이었니", "였니"),
    "is and": ("이고", "고"),
    "was and": ("이었고", "였고"),
    "is but": ("이지만", "지만"),
    "was but": ("이었지만", "였지만"),
    "is, politely": ("입니다", "입니다"),
    "was, politely": ("이었습니다", "였습니다"),
    "is, of old": ("이로소이다", "로소이다"),
}
"""Each particle by name, in two forms: after a consonant and after a vowel. The copula 이다 is included."""

IRREGULAR = {
    ("나", "subject"): "내가",
    ("너", "subject"): "네가",
    ("저", "subject"): "제가",
    ("누구", "subject"): "누가",
}


@cache
def attach(noun: str, particle: str) -> str:
    """Attach a particle to a noun. The last sound of the noun determines the form of the particle.

    particle: a key of PARTICLES. The particle "by" has the form 로 after a vowel, and also after ㄹ.

    >>> [attach(noun, "by") for noun in ("집", "학교", "서울")]
    ['집으로', '학교로', '서울로']
    >>> attach("학생", "is"), attach("의사", "is"), attach("나", "subject")
    ('학생이다', '의사다', '내가')
    """
    if particle not in PARTICLES:
        raise UnknownName("particle", particle, PARTICLES)
    if (noun, particle) in IRREGULAR:
        return IRREGULAR[noun, particle]
    after_consonant, after_vowel = PARTICLES[particle]
    closed = final(noun)
    open_enough = not closed or (particle == "by" and closed == "ㄹ")
    return noun + (after_vowel if open_enough else after_consonant)


CONTRACTIONS = {
    "ㅏ": "ㅏ",
    "ㅐ": "ㅐ",
    "ㅓ": "ㅓ",
    "ㅔ": "ㅔ",
    "ㅕ": "ㅕ",
    "ㅗ": "ㅘ",
    "ㅚ": "ㅙ",
    "ㅜ": "ㅝ",
    "ㅣ": "ㅕ",
}
"""How the last vowel of a stem contracts with 아 or 어: 가 + 아 is 가, 보 + 아 is 봐, 마시 + 어 is 마셔."""

WITH_A = {"ㅐ": "ㅐ", "ㅏ": "ㅐ", "ㅑ": "ㅒ", "ㅓ": "ㅔ", "ㅕ": "ㅖ"}
"""How the last vowel of a stem that ends in ㅎ contracts with 아 or 어: 빨갛 + 아 is 빨개."""


class Stem(NamedTuple):
    """The stem of a verb or an adjective.

    text: the dictionary form without 다.
    kind: its type of irregularity, a key of KINDS.
    describes: True for an adjective, False for a verb.

    >>> conjugate(Stem("아름답", "ㅂ", True), "ㄴ")
    '아름다운'
    """

    text: str
    kind: str = ""
    describes: bool = False


def _regular(stem: str) -> tuple[str, str]:
    initial, vowel, consonant = split(stem[-1])
    bright = vowel_before(stem) in "ㅏㅗ"
    if consonant:
        return (close(stem, "") if consonant == "ㄹ" else stem + "으"), stem + ("아" if bright else "어")
    if vowel == "ㅡ":
        return stem, stem[:-1] + join(initial, "ㅏ" if bright else "ㅓ")
    if vowel in CONTRACTIONS:
        return stem, stem[:-1] + join(initial, CONTRACTIONS[vowel])
    return stem, stem + "어"


def _d(stem: str) -> tuple[str, str]:
    softened = close(stem, "ㄹ")
    return softened + "으", softened + ("아" if vowel_before(stem) in "ㅏㅗ" else "어")


def _b(stem: str) -> tuple[str, str]:
    opened = close(stem, "")
    return opened + "우", opened + ("와" if stem in ("돕", "곱") else "워")


def _reu(stem: str) -> tuple[str, str]:
    return stem, close(stem[:-1], "ㄹ") + ("라" if vowel_before(stem) in "ㅏㅗ" else "러")


def _h(stem: str) -> tuple[str, str]:
    initial, vowel, _ = split(stem[-1])
    return close(stem, ""), stem[:-1] + join(initial, WITH_A[vowel])


def _ha(stem: str) -> tuple[str, str]:
    return stem, stem[:-1] + "해"


def _apart(stem: str) -> tuple[str, str]:
    return stem, stem + "어"


KINDS: dict[str, Callable[[str], tuple[str, str]]] = {
    "": _regular,
    "ㄷ": _d,
    "ㅂ": _b,
    "르": _reu,
    "ㅎ": _h,
    "하": _ha,
    "있": _regular,
    "아니": _apart,
}
"""For each kind of stem, the function that returns its open base and its infinitive.

Stems in 있 are regular, but their present forms are 있다 and 있는, for verbs and for adjectives.
The stem 아니 does not contract with 어: 아니었다.
"""

ENDINGS = {
    "다": ("closed", "다"),
    "고": ("closed", "고"),
    "지": ("closed", "지"),
    "지만": ("closed", "지만"),
    "니": ("dropped", "니"),
    "는": ("dropped", "는"),
    "ㄴ": ("open", "ㄴ"),
    "ㄹ": ("open", "ㄹ"),
    "서": ("infinitive", "서"),
    "러": ("purpose", "러"),
    "었다": ("past", "다"),
    "었고": ("past", "고"),
    "었지만": ("past", "지만"),
    "었니": ("past", "니"),
    "었습니다": ("past", "습니다"),
    "었습니까": ("past", "습니까"),
    "ㄴ다": ("present", "다"),
    "ㅂ니다": ("polite", "니다"),
    "ㅂ니까": ("polite", "니까"),
}
"""For each ending, the base to which it is attached, and the text to attach.

Beside the three bases (closed, open and infinitive), five bases are derived from them:

    dropped    the closed base without a final ㄹ: 만드니, 만드는
    purpose    the closed base if it ends in ㄹ (만들러), the open base otherwise (먹으러, 들으러)
    past       the infinitive with ㅆ: 먹었다, 갔다
    present    the base of the plain present: 먹는다, 간다; adjectives use the closed base: 작다
    polite     the dropped base with 습 after a consonant and ㅂ after a vowel: 먹습니다, 갑니다
"""


@cache
def conjugate(stem: Stem, ending: str) -> str:
    """Attach an ending to the stem of a verb or an adjective, and return the word.

    ending: the ending, a key of ENDINGS.

    >>> [conjugate(Stem("듣", "ㄷ"), ending) for ending in ("ㄴ다", "었다", "고", "는", "ㄴ", "ㅂ니다")]
    ['듣는다', '들었다', '듣고', '듣는', '들은', '듣습니다']
    """
    if stem.kind not in KINDS:
        raise UnknownName("kind of stem", stem.kind, KINDS)
    if ending not in ENDINGS:
        raise UnknownName("ending", ending, ENDINGS)
    base, glued = ENDINGS[ending]
    open_base, infinitive = KINDS[stem.kind](stem.text)
    dropped = close(stem.text, "") if final(stem.text) == "ㄹ" else stem.text
    if base == "closed":
        return stem.text + glued
    if base == "dropped":
        return dropped + glued
    if base == "open":
        return close(open_base, glued)
    if base == "infinitive":
        return infinitive + glued
    if base == "purpose":
        return (stem.text if final(stem.text) == "ㄹ" else open_base) + glued
    if base == "past":
        return close(infinitive, "ㅆ") + glued
    if base == "polite":
        return (dropped + "습" if final(dropped) else close(dropped, "ㅂ")) + glued
    return _plain_present(stem, dropped) + glued


def _plain_present(stem: Stem, dropped: str) -> str:
    """Return the plain present of a verb or an adjective without its last syllable 다.

    Adjectives and 있다 keep the stem (작다).
    Verbs add 는 after a consonant (먹는다) and ㄴ after a vowel (간다).
    """
    if stem.describes or stem.kind == "있":
        return stem.text
    return dropped + "는" if final(dropped) else close(dropped, "ㄴ")


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
