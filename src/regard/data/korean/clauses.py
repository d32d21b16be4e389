"""Generate predicates (verbs and adjectives with their auxiliaries), and put the parts of a clause in order.

In Korean, the verb is the last word of a clause. In English, the verb follows the subject.
"""

from __future__ import annotations

from typing import NamedTuple

from regard.data.korean.conjugation import Stem, conjugate
from regard.data.korean.lexicon import Adjective, Verb
from regard.data.korean.nominals import Nominal
from regard.data.korean.phrases import Gloss, Phrase, Word, possibly, surely

__all__ = ["Predicate", "Rest", "adjective_predicate", "arranged", "be", "finish", "verb_predicate"]

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
