"""The vocabulary of the built-in corpus, and the conjugation of its nouns, verbs and adjectives.

The words, and for each verb and adjective the words that can be used with it, are in lexicon.toml.

Particles mark the role of a noun in the sentence. The form of a particle depends on whether the noun ends in
a consonant or a vowel.

Verbs and adjectives are conjugated by table. A stem has three forms, called bases. Every ending is attached
to one of them:

    closed       먹-  가-  듣-    돕-    부르-  만들-    쓰-  하-    before 고, 지
    open         먹으- 가-  들으-  도우-  부르-  만드-    쓰-  하-    before ㄴ, ㄹ
    infinitive   먹어  가   들어   도와   불러   만들어   써   해     before 서 and the past ending ㅆ

The ending 러 follows the closed base if it ends in ㄹ (만들러), and the open base otherwise (먹으러).

Verbs and adjectives have the same bases. They differ in the plain present (먹는다, 작다) and in the adnominal
form of the present (먹는, 작은).
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

TABLES: dict[str, Any] = tomllib.loads(
    resources.files("regard.data.korean").joinpath("lexicon.toml").read_text(encoding="utf-8")
)
"""The tables of lexicon.toml, which explains their columns."""

VOWELS = "ㅏㅐㅑㅒㅓㅔㅕㅖㅗㅘㅙㅚㅛㅜㅝㅞㅟㅠㅡㅢㅣ"
FINALS = ("", *"ㄱㄲㄳㄴㄵㄶㄷㄹㄺㄻㄼㄽㄾㄿㅀㅁㅂㅄㅅㅆㅇㅈㅊㅋㅌㅍㅎ")


def _parts(word: str) -> tuple[int, int]:
    """Return the numbers of the vowel and of the final consonant of a word's last syllable."""
    return divmod((ord(word[-1]) - ord("가")) % (len(VOWELS) * len(FINALS)), len(FINALS))


def final(word: str) -> str:
    """Return the final consonant of a word's last syllable, or "".

    >>> final("집"), final("학교")
    ('ㅂ', '')
    """
    return FINALS[_parts(word)[1]]


def close(word: str, consonant: str) -> str:
    """Replace the final consonant of a word's last syllable by `consonant`; "" removes it.

    >>> close("가", "ㄴ"), close("만들", "")
    ('간', '만드')
    """
    return word[:-1] + chr(ord(word[-1]) + FINALS.index(consonant) - _parts(word)[1])


def _vowel(word: str) -> str:
    return VOWELS[_parts(word)[0]]


def _with_vowel(word: str, vowel: str) -> str:
    return word[:-1] + chr(ord(word[-1]) + (VOWELS.index(vowel) - _parts(word)[0]) * len(FINALS))


PARTICLES: dict[str, list[str]] = TABLES["particles"]
"""Each particle by name, in two forms: after a consonant and after a vowel. The copula 이다 is included."""

IRREGULAR = {("나", "subject"): "내가", ("너", "subject"): "네가", ("저", "subject"): "제가"}


@cache
def attach(noun: str, particle: str) -> str:
    """Attach a particle to a noun. The last sound of the noun determines the form of the particle.

    particle: a key of PARTICLES. The particle "by" has the form 로 after a vowel, and also after ㄹ.

    >>> [attach(noun, "by") for noun in ("집", "학교", "서울")]
    ['집으로', '학교로', '서울로']
    >>> attach("학생", "is"), attach("의사", "is"), attach("나", "subject")
    ('학생이다', '의사다', '내가')
    """
    is_open = not final(noun) or (particle == "by" and final(noun) == "ㄹ")
    return IRREGULAR.get((noun, particle)) or noun + PARTICLES[particle][is_open]


class Stem(NamedTuple):
    """The stem of a verb or an adjective.

    text: the dictionary form without 다.
    kind: its type of irregularity; "" if it is regular.
    describes: True for an adjective, False for a verb.

    >>> conjugate(Stem("아름답", "ㅂ", True), "ㄴ")
    '아름다운'
    """

    text: str
    kind: str = ""
    describes: bool = False


CONTRACTIONS = dict(zip("ㅏㅐㅓㅔㅕㅗㅚㅜㅣ", "ㅏㅐㅓㅔㅕㅘㅙㅝㅕ", strict=True))
"""How the last vowel of a stem contracts with 아 or 어: 가 + 아 is 가, 보 + 아 is 봐, 마시 + 어 is 마셔."""

WITH_A = dict(zip("ㅐㅏㅑㅓㅕ", "ㅐㅐㅒㅔㅖ", strict=True))
"""How the last vowel of a stem that ends in ㅎ contracts with 아 or 어: 빨갛 + 아 is 빨개."""


def _bases(stem: str, kind: str) -> tuple[str, str]:
    """Return the open base and the infinitive of a stem."""
    # A final ㅡ does not count: 바쁘 and 아 become 바빠.
    bright = _vowel(stem[:-1] if _vowel(stem) == "ㅡ" and not final(stem) and stem[:-1] else stem) in "ㅏㅗ"
    opened = close(stem, "")
    match kind:
        case "ㄷ":
            soft = close(stem, "ㄹ")
            return soft + "으", soft + "어아"[bright]
        case "ㅂ":
            return opened + "우", opened + ("와" if stem in ("돕", "곱") else "워")
        case "르":
            return stem, close(stem[:-1], "ㄹ") + "러라"[bright]
        case "ㅎ":
            return opened, _with_vowel(opened, WITH_A[_vowel(stem)])
        case "하":
            return stem, stem[:-1] + "해"
        case "아니":  # it does not contract with 어: 아니었다
            return stem, stem + "어"
    if final(stem):
        return (opened if final(stem) == "ㄹ" else stem + "으"), stem + "어아"[bright]
    vowel = "ㅓㅏ"[bright] if _vowel(stem) == "ㅡ" else CONTRACTIONS.get(_vowel(stem))
    return stem, _with_vowel(stem, vowel) if vowel else stem + "어"


ENDINGS: dict[str, list[str]] = TABLES["endings"]
"""For each ending, the base to which it is attached, and the text to attach.

Beside the three bases (closed, open and infinitive), five bases are derived from them:

    dropped    the closed base without a final ㄹ: 만드니, 만드는
    purpose    the closed base if it ends in ㄹ (만들러), the open base otherwise (먹으러, 들으러)
    past       the infinitive with ㅆ: 먹었다, 갔다
    present    the dropped base with 는 or ㄴ: 먹는다, 간다; adjectives and 있다 use the closed base: 작다
    polite     the dropped base with 습 after a consonant and ㅂ after a vowel: 먹습니다, 갑니다
"""


@cache
def conjugate(stem: Stem, ending: str) -> str:
    """Attach an ending to the stem of a verb or an adjective, and return the word.

    ending: the ending, a key of ENDINGS.

    >>> [conjugate(Stem("듣", "ㄷ"), ending) for ending in ("ㄴ다", "었다", "고", "는", "ㄴ", "ㅂ니다")]
    ['듣는다', '들었다', '듣고', '듣는', '들은', '듣습니다']
    """
    base, attached = ENDINGS[ending]
    text, (opened, infinitive) = stem.text, _bases(stem.text, stem.kind)
    liquid = final(text) == "ㄹ"
    dropped = close(text, "") if liquid else text
    match base:
        case "open":
            return close(opened, attached)
        case "infinitive":
            text = infinitive
        case "past":
            text = close(infinitive, "ㅆ")
        case "purpose":
            text = text if liquid else opened
        case "dropped":
            text = dropped
        case "polite":
            text = dropped + "습" if final(dropped) else close(dropped, "ㅂ")
        case "present" if not (stem.describes or stem.kind == "있"):
            text = dropped + "는" if final(dropped) else close(dropped, "ㄴ")
    return text + attached


class Noun(NamedTuple):
    """A noun in Korean and English.

    plural: the English plural, or "".
    counter: the Korean word that is used when counting the noun (개 in 사과 두 개, two apples), or "".
    kind: "count", "mass" (no "a" and no plural), or "fixed" (the English is always the same).
    """

    korean: str
    english: str
    plural: str = ""
    counter: str = ""
    kind: str = "count"


class Place(NamedTuple):
    """A place in Korean and English, and the English words for "at this place" and "to this place"."""

    korean: str
    english: str
    at: str
    to: str


class Person(NamedTuple):
    """A person of the example sentences: a pronoun, a name or a family member.

    subject, object: the English words as the subject of a sentence ("I") and as its object ("me").
    agreement: the form of the English verb: "I", "you", "we", "they", or "he" (third person singular).
    pronoun: the English pronoun that replaces the words when the person is mentioned again: "he" for Minsu.
    """

    korean: str
    subject: str
    object: str
    agreement: str
    pronoun: str


class Verb(NamedTuple):
    """The stem of a Korean verb, its English forms (go, goes, went, going), and the English preposition."""

    stem: Stem
    base: str
    third: str
    past: str
    progressive: str
    preposition: str = ""


class Adjective(NamedTuple):
    """An adjective, and the Korean nouns that it can precede (a big apple) and describe (it is big)."""

    stem: Stem
    english: str
    attribute_of: frozenset[str]
    predicate_of: frozenset[str]


class Frame(NamedTuple):
    """A verb with the words that can be used with it. A verb may have several Frames.

    goals: where the motion can lead to, for verbs of motion.
    tools, manners: tools, means of transport and adverbs of manner, in Korean and in English.
    traits: keys of TRAITS, which limit how the verb is used: "instant" means not in the progressive.
    """

    verb: Verb
    objects: tuple[Noun, ...] = ()
    places: tuple[Place, ...] = ()
    goals: tuple[Place, ...] = ()
    tools: tuple[tuple[str, str], ...] = ()
    manners: tuple[tuple[str, str], ...] = ()
    traits: frozenset[str] = frozenset()


NOUNS = {group: tuple(Noun(*row) for row in rows) for group, rows in TABLES["nouns"].items()}
"""Nouns in groups. If a verb can be used with one noun of a group, it can be used with all of them."""


def nouns(groups: str) -> tuple[Noun, ...]:
    """Return the nouns of several groups, whose names are separated by spaces."""
    return tuple(noun for group in groups.split() for noun in NOUNS[group])


def _people(name: str, owners: dict[str, str]) -> tuple[Person, ...]:
    """Return each person of a table with each owner in Korean and English: 우리 어머니, my mother."""
    return tuple(
        Person(owner + korean, whose + english, whose + english, "he", pronoun)
        for korean, english, pronoun in TABLES[name]
        for owner, whose in owners.items()
    )


PLACES = {row[0]: Place(*row) for row in TABLES["places"]}
PRONOUNS = {row[0]: Person(*row) for row in TABLES["pronouns"]}

NAMES, ADDED_NAMES = _people("names", {"": ""}), _people("added_names", {"": ""})
"""NAMES: names in their places in longer lists. ADDED_NAMES: names that end every list with names."""

ELDERS = _people("elders", {"우리 ": "my/1 ", "그의 ": "his/1 "})
"""Older relatives. Korean says "our mother" where English says "my mother"."""

YOUNGER = _people("younger", {"내 ": "my/1 ", "네 ": "your/1 ", "그녀의 ": "her/1 "})

TIMES: dict[str, list[list[str]]] = TABLES["times"]

HOURS, OFTEN, NUMBERS, DEGREES, SIDES, REASONS = (
    TABLES[name] for name in ("hours", "often", "numbers", "degrees", "sides", "reasons")
)

CONTAINERS: dict[str, list[str]] = TABLES["containers"]
"""Korean counters with an English translation, in singular and plural: 커피 두 잔, two cups of coffee."""

TOOLS: dict[str, str] = TABLES["tools"]

REACH: dict[str, list[str]] = TABLES["reach"]
"""For some places, the means of transport with which one can go there: 서울 by 버스 (bus) or 기차 (train).

The key "" has the means of transport to all other places."""

VERBS = {key: Verb(Stem(stem, kind), *english.split(",")) for key, stem, kind, english in TABLES["verbs"]}

TRAITS: dict[str, str] = TABLES["traits"]
"""Trait of a verb -> its meaning. The traits in Frame.traits decide in which constructions a verb is used."""


def _frame(verb: str, objects: str = "", places: str = "", more: str = "", traits: str = "") -> Frame:
    words = more.split()
    return Frame(
        VERBS[verb],
        nouns(objects),
        tuple(PLACES[name] for name in places.split()),
        tuple(PLACES[name[1:]] for name in words if name[0] == ">"),
        tuple((name, TOOLS[name]) for name in words if name in TOOLS),
        tuple((name, TABLES["manners"][name]) for name in words if name in TABLES["manners"]),
        frozenset(traits.split()),
    )


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

PURPOSES = {
    name: tuple(
        frame._replace(objects=MEALS) if frame.verb is VERBS["먹"] else frame
        for frame in ACTIVE_FRAMES
        if place in frame.places
        and not {"unwilled", "lasting"} & frame.traits
        and [name, frame.verb.stem.text] not in TABLES["unlikely"]
    )
    for name, place in PLACES.items()
}
"""For each place, the actions (verbs as Frames) for which people go to this place: to a library, to read."""


def _adjectives(name: str) -> dict[str, Adjective]:
    """Return the adjectives of a table: stem, kind, English and, for some, the groups of nouns around it."""
    return {
        stem: Adjective(
            Stem(stem, kind, True),
            english,
            *(frozenset(noun.korean for noun in nouns(each)) for each in groups or ("", "")),
        )
        for stem, kind, english, *groups in TABLES[name]
    }


ADJECTIVES = _adjectives("adjectives")

STATES = _adjectives("states")
"""Adjectives for temporary states of people, such as busy."""

WEATHER = _adjectives("weather")
