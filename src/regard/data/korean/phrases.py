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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    nouns,
)

__all__ = [
    "Dice",
    "Gloss",
    "Phrase",
    "Predicate",
    "Rest",
    "Word",
    "adjective_predicate",
    "arranged",
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
    """A Korean word of a generated sentence, and its index in the complete sentence."""

    __slots__ = ("place", "text")

    def __init__(self, text: str):
        self.text = text
        self.place = -1


class Gloss(NamedTuple):
    """An English word, and the Korean words to which it has a sure link and possible links."""

    text: str
    sure: Word | None
    possible: tuple[Word, ...] = ()


@dataclass(slots=True)
class Phrase:
    """A part of a sentence, or a whole sentence, in Korean and English.

    agreement: of a noun phrase, the form of the English verb: "I", "you", "we", "they", or "he" (third person
        singular).
    pronoun: the English pronoun that replaces a noun phrase when it is mentioned again, or "".
    """

    korean: list[Word]
    english: list[Gloss]
    agreement: str = "he"
    pronoun: str = ""

    def __add__(self, other: Phrase) -> Phrase:
        return Phrase(self.korean + other.korean, self.english + other.english)


NOTHING = Phrase([], [])


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


def say(korean: str, english: str) -> Phrase:
    """Create a phrase from a Korean text and an English text with alignment links; see gloss().

    >>> phrase = say("세 시에", "(at) three/1 o'clock/2")
    >>> [(gloss.text, gloss.sure and gloss.sure.text) for gloss in phrase.english]
    [('at', None), ('three', '세'), ("o'clock", '시에')]
    """
    words = [Word(text) for text in korean.split()]
    return Phrase(words, gloss(english, words))


def gloss(english: str, words: list[Word], **texts: str) -> list[Gloss]:
    """Create the English words of a phrase from a text with alignment links. `words`: the Korean words.

    this/1       a sure link to the first Korean word; and a possible link to the last one, as "my" in
                 내 친구 (my friend) has one to 친구. The number 1 may be left out.
    not/2,1      a sure link to the second Korean word, a possible link to the first
    red/1,       only a sure link
    will/2,*     a sure link to the second Korean word, possible links to all
    (at)         possible links to all Korean words
    (of/1,3)     possible links to the first and the third
    {verb}/1     the words of the argument `verb`, which may be none
    """
    result = []
    for text, sure, possible in _read(english):
        link = None if sure is None else words[sure]
        others = tuple(words) if possible is None else tuple([words[number] for number in possible])
        parts = texts[text[1:-1]].split() if text[0] == "{" else (text,)
        result += [Gloss(part, link, others) for part in parts]
    return result


@cache
def _read(english: str) -> list[tuple[str, int | None, tuple[int, ...] | None]]:
    """Return each word of a text with alignment links, and the indices of the Korean words of its links."""
    parts: list[tuple[str, int | None, tuple[int, ...] | None]] = []
    for part in english.split():
        text, _, links = part.strip("()").partition("/")
        sure, comma, others = links.partition(",")
        possible = tuple(int(number) - 1 for number in others.split(",") if number.isdigit())
        if part[0] == "(":
            parts.append((text, None, (int(sure) - 1, *possible) if sure else None))
        else:
            every = None if others == "*" else possible if comma else (-1,)
            parts.append((text, int(sure or 1) - 1, every))
    return parts


def surely(text: str, word: Word) -> list[Gloss]:
    """Split an English text into words that all have a sure link to the same Korean word."""
    return [Gloss(part, word) for part in text.split()]


def possibly(text: str, *words: Word) -> list[Gloss]:
    """Split an English text into words without a sure link. Each has possible links to all Korean `words`."""
    return [Gloss(part, None, words) for part in text.split()]


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
OWNED = {noun.korean for noun in nouns("goods bicycles cars books pictures photos letters boxes songs")}
PEOPLE = nouns("people jobs")
HUMAN = {noun.korean for noun in PEOPLE}

_ATTRIBUTES = {
    noun.korean: tuple(each for each in ADJECTIVES.values() if noun.korean in each.attribute_of)
    for group in NOUNS.values()
    for noun in group
}


def attributes(noun: Noun) -> tuple[Adjective, ...]:
    """Return the adjectives that can be used before this noun, such as "big" before "apple"."""
    return _ATTRIBUTES.get(noun.korean, ())


def person(who: Person, particle: str, part: str = "subject") -> Phrase:
    """Generate a pronoun, a name or a family member, with a particle.

    part: the role of the person in the English clause: "subject" (I) or "object" (me).
    """
    *before, last = who.korean.split()
    words = [*map(Word, before), Word(attach(last, particle))]
    english = who.subject if part == "subject" else who.object
    return Phrase(words, gloss(english, words), who.agreement, who.pronoun)


def common(
    noun: Noun,
    particle: str,
    role: str,
    determiner: str = "",
    adjective: Adjective | None = None,
    number: Sequence[str] = (),
    plural: bool = False,
) -> Phrase:
    """Generate a noun with a particle and modifiers.

    particle: the name of the Korean particle, a key of PARTICLES, for example "object".
    role: "definite" (the cat), "indefinite" (a cat) or "generic" (cats). It determines the English article.
    determiner: 이 (this), 그 (that) or an owner such as 내 (my); a key of DETERMINERS.
    adjective: the adjective before the noun, or None.
    number: the number in Korean and in English. If it is set, the other modifiers are ignored.
    plural: whether the noun has the plural particle 들.

    >>> apple = common(NOUNS["fruit"][0], "object", "indefinite", adjective=ADJECTIVES["크"])
    >>> [word.text for word in apple.korean], [gloss.text for gloss in apple.english]
    (['큰', '사과를'], ['a', 'big', 'apple'])
    """
    if noun.kind == "fixed":
        return say(attach(noun.korean, particle), noun.english)
    if number:
        return _counted(noun, particle, *number)
    several = plural or (role == "generic" and not determiner and noun.kind == "count")
    head = Word(attach(attach(noun.korean, "plural") if plural else noun.korean, particle))
    words: list[Word] = []
    described = surely(noun.plural if several else noun.english, head)
    if adjective:
        words = [Word(finish(adjective.stem, "present", "adnominal"))]
        described = surely(adjective.english, words[0]) + described
    if determiner:
        words.insert(0, Word(determiner))
        first = [Gloss(DETERMINERS[determiner][several], words[0], (head,))]
    else:
        # No word of the vocabulary needs another article than its first letter suggests, such as "hour".
        a = "" if several or noun.kind == "mass" else "an" if described[0].text[0] in "aeiou" else "a"
        first = possibly("the" if role == "definite" else a, *words, head)
    return Phrase([*words, head], first + described, "they" if several else "he")


def _counted(noun: Noun, particle: str, korean: str, english: str) -> Phrase:
    """Generate a noun with a number, such as 사과 세 개를 (three apples)."""
    many = english != "one"
    counted = f"{noun.plural if many else noun.english}/1"
    if noun.counter in CONTAINERS:
        counted = f"{CONTAINERS[noun.counter][many]}/3, (of/1,3) {noun.english}/1,"
    phrase = say(f"{noun.korean} {korean} {attach(noun.counter, particle)}", f"{english}/2, {counted}")
    return replace(phrase, agreement="they" if many else "he")


OBJECTS = spread({"": 60, "determined": 14, "owned": 8, "described": 22, "counted": 10, "plural": 30})
SUBJECTS = spread({"": 50, "determined": 40, "owned": 15, "described": 20, "plural": 12})


def thing(dice: Dice, noun: Noun, particle: str, role: str, counted: bool = False) -> Phrase:
    """Generate a noun with random modifiers: none, a determiner, an owner, an adjective, a number or 들.

    counted: whether the noun may have a number.
    """
    if noun.kind == "fixed":
        return common(noun, particle, role)
    how = dice.pick(SUBJECTS if role == "definite" else OBJECTS)
    if how == "determined":
        return common(noun, particle, role, dice.pick(("이", "그")))
    if how == "owned" and noun.korean in OWNED:
        return common(noun, particle, role, dice.pick(OWNERS))
    if how == "described" and attributes(noun):
        adjective = dice.pick(attributes(noun))
        return common(noun, particle, role, dice.pick(("이", "그")) if dice.chance(0.2) else "", adjective)
    if how == "counted" and counted and noun.counter and role != "generic":
        return common(noun, particle, role, number=dice.pick(NUMBERS))
    # Nouns for people that also occur in the plural, with 들.
    return common(noun, particle, role, plural=how == "plural" and noun.korean in ("학생", "친구", "아이"))


WHO = spread({"나": 24, "그": 14, "그녀": 14, "우리": 10, "그들": 8, "name": 26, "relative": 20, "noun": 40})
WHO_ASKED = spread({"너": 60, "그": 10, "그녀": 10, "그들": 6, "name": 14, "relative": 10, "noun": 12})
RELATIVES = tuple(each for each in (*ELDERS, *YOUNGER) if not each.korean.startswith("네 "))
RELATIVES_ASKED = tuple(each for each in YOUNGER if not each.korean.startswith("내 "))


def someone(dice: Dice, ending: str) -> Phrase:
    """Generate a person as topic: a pronoun, a name, a family member or a noun for people.

    ending: the type of the clause, for example "statement"; a "polite" clause has the subject 저 (I).
    """
    if ending == "polite":
        return person(PRONOUNS["저"], "topic")
    asked = ending == "question"
    who = dice.pick(WHO_ASKED if asked else WHO)
    if who == "name":
        return person(dice.pick((*NAMES, *ADDED_NAMES)), "topic")
    if who == "relative":
        return person(dice.pick(RELATIVES_ASKED if asked else RELATIVES), "topic")
    if who in PRONOUNS:
        return person(PRONOUNS[who], "topic")
    if asked:  # not about elders and teachers: such questions require the honorific 시
        return common(dice.pick(NOUNS["people"]), "topic", "definite", dice.pick(("이", "그")))
    return thing(dice, dice.pick(PEOPLE), "topic", "definite")


def coordinated(first: Phrase, second: Phrase) -> Phrase:
    """Join two noun phrases with "and". The first has the particle 와 or 과, which means "and"."""
    both = first.english + possibly("and", first.korean[-1]) + second.english
    return Phrase(first.korean + second.korean, both, "they")


def modified(head: Phrase, clause: Phrase) -> Phrase:
    """Add a relative clause to a noun phrase: before the noun in Korean, after it in English."""
    return replace(head, korean=clause.korean + head.korean, english=head.english + clause.english)


FINALS = {
    "statement": {"past": "었다", "present": "ㄴ다"},
    "polite": {"past": "었습니다", "present": "ㅂ니다"},
    "question": {"past": "었니", "present": "니"},
    "who": {"past": "었니", "present": "니"},
    "and": {"past": "었고", "present": "고"},
    "but": {"past": "었지만", "present": "지만"},
    "join": {"past": "고", "present": "고"},
}
"""The ending of the last verb or adjective, for each type of clause and each tense.

"who" is a question about the subject: 누가 갔니, who went?
"and" and "but" join the clause to the next one; "join" joins two actions of one person.
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

AUXILIARIES = {
    "있": Stem("있", "있"),
    "없": Stem("없", "있"),
    "싶": Stem("싶", "", True),
    "않": Stem("않"),
    "않-": Stem("않", "", True),  # after adjectives and 싶다
    "아니": Stem("아니", "아니", True),
    "못하": Stem("못하", "하"),
    "하": Stem("하", "하"),
}

PREDICATES = {
    "simple": ("~", "({do})", "{verb}/1,*"),
    "simple 모르": ("~", "({do}) not/1", "{verb}/1"),
    "simple not": ("안 ~", "({do}) not/1,2", "{verb}/2,*"),
    "simple not 하": ("~지 않~", "({do}) not/2,1", "{verb}/1,*"),
    "simple could not": ("못 ~", "", "could/1,* not/1,* {verb}/2,*"),
    "simple could not 하": ("~지 못하~", "", "could/2,* not/2,* {verb}/1,*"),
    "future": ("~ㄹ 것~", "will/2,*", "{verb}/1,*"),
    "future join": ("~고", "(will)", "{verb}/1,*"),
    "future adnominal": ("~ㄹ", "(will)", "{verb}/1,*"),
    "future not": ("안 ~ㄹ 것~", "will/3,* not/1,2", "{verb}/2,*"),
    "future not 하": ("~지 않~ㄹ 것~", "will/3,* not/2,1", "{verb}/1,*"),
    "progressive": ("~고 있~", "({be})", "{verb}/1,*"),
    "progressive not": ("~고 있~지 않-~", "({be}) not/3,*", "{verb}/1,*"),
    "want": ("~고 싶~", "({do})", "{want}/2,* (to) {verb}/1,*"),
    "want not": ("~고 싶~지 않-~", "({do}) not/3,*", "{want}/2,* (to) {verb}/1,*"),
    "he wants": ("~고 싶어 하~", "({do})", "{want}/2,* (to) {verb}/1,*"),
    "he wants not": ("~고 싶어 하~지 않~", "({do}) not/4,*", "{want}/2,* (to) {verb}/1,*"),
    "can": ("~ㄹ 수 있~", "can/3,*", "{verb}/1,*"),
    "can not": ("~ㄹ 수 없~", "cannot/3,*", "{verb}/1,*"),
    "adjective": ("~", "({be})", "{verb}/1,"),
    "adjective not": ("~지 않-~", "({be}) not/2,1", "{verb}/1,"),
    "adjective future": ("~ㄹ 것~", "will/2,1", "(be) {verb}/1,"),
}
"""The Korean words, the English auxiliaries and the other English words of each predicate.

In Korean, ~ is the stem of the verb or adjective, and 있~ one of the AUXILIARIES. The ending follows it. If
there is none, the tense and the type of the clause decide it.
"""


class Predicate(NamedTuple):
    """The predicate of a clause (verb or adjective, with auxiliaries) in Korean and English.

    auxiliaries: English auxiliaries and "not". In a question, the first auxiliary precedes the subject.
    main: the other English words, e.g. the main verb.
    """

    korean: list[Word]
    auxiliaries: list[Gloss]
    main: list[Gloss]


def finish(stem: Stem, tense: str, ending: str) -> str:
    """Conjugate the verb or adjective that ends a Korean clause.

    tense: "past"; all others are "present".
    ending: the type of the clause: a key of FINALS, or "adnominal" (the clause modifies a noun).

    >>> finish(Stem("만들"), "past", "question"), finish(Stem("만들"), "present", "adnominal")
    ('만들었니', '만드는')
    """
    if ending == "adnominal":
        describes = stem.describes and stem.kind != "있"
        return conjugate(stem, "ㄴ" if tense == "past" or describes else "는")
    return conjugate(stem, FINALS[ending]["past" if tense == "past" else "present"])


def be(tense: str, agreement: str) -> str:
    """Return "am", "are", "is", "was" or "were"."""
    return BE["past" if tense == "past" else "present"][agreement]


def _predicate(name: str, stem: Stem, tense: str, ending: str, **texts: str) -> Predicate:
    korean, auxiliaries, main = PREDICATES[name]
    words = []
    for part in korean.split():
        auxiliary, tilde, attached = part.partition("~")
        if auxiliary == "것":
            text = GOING[ending]
        elif not tilde:
            text = auxiliary
        else:
            verb = AUXILIARIES[auxiliary] if auxiliary else stem
            text = conjugate(verb, attached) if attached else finish(verb, tense, ending)
        words.append(Word(text))
    return Predicate(words, gloss(auxiliaries, words, **texts), gloss(main, words, **texts))


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
    simple = tense in ("past", "present")
    unknown = simple and verb.stem.text == "모르"
    name = "simple" if simple else tense
    if unknown and not negation:
        name += " 모르"
    elif tense == "future" and ending in ("join", "adnominal"):
        name += f" {ending}"
    else:
        if tense == "want" and agreement in ("he", "they"):
            name = "he wants"
        # The Korean auxiliary is 싶다 if the subject is I, you or we, and 싶어 하다 otherwise.
        shown = negation if simple else "not" if negation else ""
        name += f" {shown}" if shown else ""
        name += (
            " 하" if negation and verb.stem.kind == "하" and tense in ("past", "present", "future") else ""
        )
    third = agreement == "he"
    do = ""
    if negation or unknown or ending == "question":
        do = "did" if tense == "past" else "does" if third else "do"
    finite = verb.past if tense == "past" else verb.third if third else verb.base
    english = verb.progressive if tense == "progressive" else finite if simple and not do else verb.base
    want = "wants" if third and not do else "want"
    return _predicate(name, verb.stem, tense, ending, do=do, be=be(tense, agreement), want=want, verb=english)


def adjective_predicate(
    adjective: Adjective, tense: str, ending: str, agreement: str, negated: bool
) -> Predicate:
    """Generate a predicate with an adjective, such as 예뻤다 (was pretty).

    tense: "past", "present" or "future".
    """
    name = "adjective future" if tense == "future" else "adjective not" if negated else "adjective"
    said = {"be": be(tense, agreement), "verb": adjective.english}
    return _predicate(name, adjective.stem, tense, ending, **said)


class Rest(NamedTuple):
    """All words of a clause except subject and predicate.

    korean: the Korean words, between subject and predicate.
    after: the English words after the predicate.
    middle: the English words between auxiliaries and main verb ("often").
    asked: the English question word, which is the first word of the clause.
    """

    korean: Sequence[Word] = ()
    after: Sequence[Gloss] = ()
    middle: Sequence[Gloss] = ()
    asked: Sequence[Gloss] = ()


def arranged(subject: Phrase, predicate: Predicate, rest: Rest, question: bool = False) -> Phrase:
    """Put subject, predicate and the rest of a clause in the Korean and in the English word order.

    question: whether to use the English order of a question, with the first auxiliary before the subject.
    """
    korean = [*subject.korean, *rest.korean, *predicate.korean]
    before: Iterable[Gloss] = subject.english
    auxiliaries = predicate.auxiliaries
    if question and auxiliaries:
        # The auxiliary agrees with the subject (does he, do they): add a possible link to the subject.
        first, *auxiliaries = auxiliaries
        before = [first._replace(possible=(*first.possible, *subject.korean[-1:])), *subject.english]
    english = [*rest.asked, *before, *auxiliaries, *rest.middle, *predicate.main, *rest.after]
    return Phrase(korean, english)
