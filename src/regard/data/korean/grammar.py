"""The sentence constructions of the built-in corpus: functions that each generate a random sentence.

To add a construction, write its function and add a line with its frequency to SENTENCES.
"""

from __future__ import annotations

from collections.abc import Callable

from regard.data.korean.actions import Plan, action, relative, rest, time_phrase
from regard.data.korean.clauses import verb_predicate
from regard.data.korean.descriptions import (
    archaic,
    identity,
    location,
    quality,
    rain,
    state,
    there_is,
    weather,
)
from regard.data.korean.lexicon import (
    ACTIVE_FRAMES,
    ADDED_NAMES,
    ARRIVE,
    DEEDS,
    ERRANDS,
    FRAMES,
    KNOW,
    KNOW_NOT,
    NAMES,
    NOUNS,
    Frame,
)
from regard.data.korean.nominals import HUMAN, Nominal, coordinated, modified, person, someone, thing
from regard.data.korean.phrases import Dice, Gloss, Phrase, Word, possibly, spread, surely
from regard.data.korean.reasons import because_clauses, errand_clause, so_clauses

__all__ = ["CLAUSES", "SENTENCES", "ended", "long_sentence", "sentence"]

TENSES = spread({"past": 9, "present": 8, "future": 5, "progressive": 4, "want": 3, "can": 2})
QUESTION_TENSES = spread({"past": 6, "present": 7, "future": 3, "progressive": 2, "want": 2, "can": 1})
ANIMAL_FRAMES = tuple(frame for frame in FRAMES if "animals" in frame.traits)
BRIEF_FRAMES = tuple(frame for frame in ACTIVE_FRAMES if not {"years", "instant"} & frame.traits)


def _tense(dice: Dice, frame: Frame, ending: str) -> str:
    if "state" in frame.traits:
        return "past" if ending == "statement" and dice.chance(0.2) else "present"
    tense = _possible(frame, dice.pick(QUESTION_TENSES if ending == "question" else TENSES))
    # With these endings, the past replaces the present: present forms (갑니다, 가고, 가지만) would each be
    # too rare for a model to learn.
    rare = ending in ("and", "but") or (ending == "polite" and "habit" not in frame.traits)
    return "past" if tense == "present" and rare else tense


BARRED = {"event": ("present",), "instant": ("progressive",), "unwilled": ("want", "can")}
"""For each trait of a verb, such as "event", the tenses in which verbs with this trait are not used.

The past is used instead. TRAITS explains the traits."""


def _possible(frame: Frame, tense: str) -> str:
    return "past" if any(tense in BARRED[trait] for trait in frame.traits & BARRED.keys()) else tense


def _negation(dice: Dice, frame: Frame, plan: Plan) -> str:
    if "negative" in frame.traits:
        return ""
    if plan.tense == "past" and frame is ARRIVE and plan.ending != "question":
        return "could not"
    able = plan.tense != "past" or plan.ending == "question" or "state" in frame.traits
    return "not" if able or dice.chance(0.65) else "could not"


def deed(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a clause in which someone does something, such as 나는 책을 읽었다 (I read a book)."""
    if ending != "polite" and dice.chance(0.06):
        return _animal_deed(dice, ending, negated)
    frame = dice.pick(DEEDS)
    if frame is KNOW or frame is KNOW_NOT:
        frame = KNOW_NOT if negated else KNOW
    tense = _tense(dice, frame, ending)
    subject = _doer(dice, frame, ending)
    plan = Plan(tense, ending)
    if negated:
        plan = plan._replace(negation=_negation(dice, frame, plan))
    return action(dice, frame, plan, subject)


def _doer(dice: Dice, frame: Frame, ending: str) -> Nominal:
    if ending == "statement" and dice.chance(0.08):
        return modified(*relative(dice, dice.pick(NOUNS["people"]), "topic", frame))
    if ending in ("statement", "and", "but") and dice.chance(0.05):
        first = dice.pick((*NAMES, *ADDED_NAMES))
        second = dice.pick(tuple(name for name in NAMES if name is not first))
        return coordinated(person(first, "and"), person(second, "topic"))
    return someone(dice, ending)


def _animal_deed(dice: Dice, ending: str, negated: bool) -> Phrase:
    frame = dice.pick(ANIMAL_FRAMES)
    noun = dice.pick(NOUNS["pets"][:2] if frame.objects else NOUNS["pets"])
    tense = "past" if negated else dice.pick(("past", "progressive"))
    subject = thing(dice, noun, "topic", "definite")
    return action(dice, frame, Plan(tense, ending, "not" if negated else ""), subject)


def errand(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a clause about going somewhere to do something.

    For example: 나는 역에 친구를 만나러 갔다 (I went to the station to meet a friend).
    """
    frame = dice.pick(ERRANDS)
    plan = Plan(_tense(dice, frame, ending), ending)
    if negated:
        plan = plan._replace(negation=_negation(dice, frame, plan))
    return errand_clause(dice, frame, plan, someone(dice, ending))


Build = Callable[[Dice, str, bool], Phrase]

CLAUSES: dict[str, tuple[Build, ...]] = {
    "statement": spread(
        {
            deed: 60,
            quality: 22,
            state: 7,
            identity: 8,
            there_is: 7,
            location: 5,
            rain: 2,
            weather: 3,
            errand: 7,
        }
    ),
    "polite": spread({deed: 7, state: 2, identity: 3, errand: 1}),
    "question": spread({deed: 60, quality: 22, state: 6, identity: 8, there_is: 6, location: 5, errand: 5}),
    "and": spread({deed: 70, quality: 16, state: 6, identity: 6, there_is: 5, location: 4, errand: 3}),
    "but": spread({deed: 70, there_is: 5, location: 4, errand: 3}),
    "but, not": spread({deed: 50, quality: 16, state: 6, identity: 6, there_is: 5, location: 4, errand: 3}),
}
"""For each type of clause, such as "statement" or "but", the functions that generate a clause of this type.

A function is repeated to make its clauses more frequent. The key "but, not" is for negated clauses with the
ending "but". A clause with the ending "but" that is not negated always has a verb: forms of adjectives and
nouns, such as 작지만 and 학생이지만, would be too rare for a model to learn.
"""


def clause(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a random clause.

    ending: the type of the clause, a key of CLAUSES, for example "statement".
    negated: whether the clause is negated.
    """
    key = "but, not" if ending == "but" and negated else ending
    return dice.pick(CLAUSES[key])(dice, ending, negated)


HUMBLE = {"내": "제", "우리": "저희"}
"""The humble forms of "my" and "our" in a polite sentence."""


UNMARKED = 0.2
"""Fraction of sentences without a final punctuation mark."""


def ended(dice: Dice, said: Phrase, mark: str) -> Phrase:
    """Complete a sentence: add its final punctuation mark, and use humble forms if the subject is 저는 (I).

    said: the sentence without its mark. After 저는, 내 (my) becomes 제, and 우리 (our) becomes 저희.
    mark: "." or "?". One "." in five becomes "!".

    One sentence in five has no final mark (see UNMARKED).
    """
    # Whether the mark is "." or "!" is random, so a model must attend to the Korean mark to translate it.
    end = Word("!" if mark == "." and dice.chance(0.2) else mark)
    if said.korean[0].text == "저는":
        for word in said.korean:
            word.text = HUMBLE.get(word.text, word.text)
    if dice.chance(UNMARKED):
        return said
    english = said.english
    if mark == "?":
        # In English, the auxiliary (do, is) marks a question, so it gets a possible link to the Korean "?".
        english = [each._replace(possible=(*each.possible, end)) if _asks(each) else each for each in english]
    return Phrase([*said.korean, end], [*english, Gloss(end.text, end, (said.korean[-1],))])


def _asks(gloss: Gloss) -> bool:
    return gloss.sure is None and gloss.text in ("do", "does", "did", "am", "are", "is", "was", "were")


def statement(dice: Dice) -> Phrase:
    """Generate a statement of one clause."""
    return ended(dice, clause(dice, "statement", dice.chance(0.15)), ".")


def polite(dice: Dice) -> Phrase:
    """Generate a polite sentence about the speaker, such as 저는 학생입니다 (I am a student)."""
    return ended(dice, clause(dice, "polite", dice.chance(0.15)), ".")


def old_style(dice: Dice) -> Phrase:
    """Generate a sentence with the archaic copula 로소이다, such as 나는 고양이로소이다 (I am a cat)."""
    return ended(dice, archaic(dice, "statement", False), ".")


def yes_or_no(dice: Dice) -> Phrase:
    """Generate a yes-no question, such as "Did you go ?"."""
    return ended(dice, clause(dice, "question", dice.chance(0.1)), "?")


ASKS = spread({"what": 5, "where": 5, "when": 3, "why": 3, "whom": 3, "who": 4})
ASK_TENSES = spread({"past": 6, "future": 3, "present": 2, "want": 2})
ASKED = {
    "what": tuple(
        f for f in ACTIVE_FRAMES if len(f.objects) > 2 and not {n.korean for n in f.objects} & HUMAN
    ),
    "whom": tuple(f for f in ACTIVE_FRAMES if {n.korean for n in f.objects} & HUMAN),
    "where": tuple(f for f in ACTIVE_FRAMES if (f.places or f.goals) and "coming" not in f.traits),
    "when": ACTIVE_FRAMES,
    "why": ACTIVE_FRAMES,
    "who": ACTIVE_FRAMES,
}


def open_question(dice: Dice) -> Phrase:
    """Generate a question with a question word.

    For example: 너는 어제 무엇을 샀니 ? (What did you buy yesterday ?)
    """
    ask = dice.pick(ASKS)
    frame = dice.pick(ASKED[ask])
    tense = dice.pick(ASK_TENSES)
    if ask == "who":
        tense = "future" if tense == "future" else "past"
        who = Word("누가")
        subject = Nominal([who], surely("who", who))
        return ended(dice, action(dice, frame, Plan(tense, "who"), subject), "?")
    tense = "past" if tense == "present" and ask == "when" else _possible(frame, tense)
    negation = "not" if ask == "why" and dice.chance(0.4) else ""
    subject = someone(dice, "question")
    return ended(dice, action(dice, frame, Plan(tense, "question", negation, ask), subject), "?")


def together(dice: Dice) -> Phrase:
    """Generate a sentence with two actions of one person.

    For example: 나는 책을 읽고 잤다 (I read a book and slept).
    """
    first, second = dice.pick(BRIEF_FRAMES), dice.pick(BRIEF_FRAMES)
    while second.verb is first.verb:
        second = dice.pick(BRIEF_FRAMES)
    ending = "polite" if dice.chance(0.1) else "statement"
    subject = someone(dice, ending)
    tense = "past" if dice.chance(0.7) else "future"
    time = time_phrase(dice, tense) if dice.chance(0.6) else Phrase([], [])
    plan = Plan(tense, "join", timed=False, nested=True)
    begun = verb_predicate(first.verb, tense, "join", subject.agreement)
    done = verb_predicate(second.verb, tense, ending, subject.agreement)
    opening = rest(dice, first, plan, subject, begun)
    closing = rest(dice, second, plan, subject, done)
    korean = [*subject.korean, *time.korean, *opening.korean, *begun.korean, *closing.korean, *done.korean]
    will = done.auxiliaries
    english = [*subject.english, *will, *begun.main, *opening.after, *possibly("and", begun.korean[-1])]
    return ended(dice, Phrase(korean, english + done.main + closing.after + time.english), ".")


def because(dice: Dice) -> Phrase:
    """Generate a sentence that says why someone did not do something.

    For example: 나는 바빠서 못 갔다 (I could not go because I was busy).
    """
    return ended(dice, because_clauses(dice), ".")


def so(dice: Dice) -> Phrase:
    """Generate a sentence that says why someone went somewhere.

    For example: 나는 배가 고파서 식당에 갔다 (I was hungry so I went to the restaurant).
    """
    return ended(dice, so_clauses(dice), ".")


JOINS = spread({"and": 13, "but": 7})


def joined(dice: Dice, clauses: int) -> Phrase:
    """Generate a sentence of several clauses, joined with -고 (and) and -지만 (but).

    If two clauses are joined by "but", exactly one of them is negated.

    clauses: the number of clauses.
    """
    korean: list[Word] = []
    english: list[Gloss] = []
    negated = dice.chance(0.15)
    ending = ""
    for _ in range(clauses - 1):
        ending = "and" if ending == "but" else dice.pick(JOINS)
        said = clause(dice, ending, negated)
        comma = Word(",")
        last = said.korean[-1]
        english += [*said.english, Gloss(",", comma, (last,)), *possibly(ending, last, comma)]
        korean += [*said.korean, comma]
        negated = not negated if ending == "but" else dice.chance(0.15)
    said = clause(dice, "statement", negated)
    return ended(dice, Phrase(korean + said.korean, english + said.english), ".")


def two_clauses(dice: Dice) -> Phrase:
    """Generate a sentence of two clauses, joined with -고 (and) or -지만 (but)."""
    return joined(dice, 2)


def several_clauses(dice: Dice) -> Phrase:
    """Generate a sentence of three to five clauses, joined with -고 (and) or -지만 (but)."""
    return joined(dice, dice.pick((3, 3, 3, 4, 4, 5)))


SENTENCES: dict[Callable[[Dice], Phrase], int] = {
    statement: 70,
    polite: 16,
    old_style: 3,
    yes_or_no: 22,
    open_question: 20,
    together: 16,
    because: 14,
    two_clauses: 30,
    several_clauses: 24,
}
"""The functions that generate a sentence, one for each construction, and their relative frequencies."""

SENTENCE = (*spread(SENTENCES), *spread({old_style: 3, so: 10}))
"""The functions of SENTENCES, each repeated by its frequency; then old_style again, and so."""


def sentence(dice: Dice) -> Phrase:
    """Generate a sentence of a random construction.

    >>> phrase = sentence(Dice("a seed"))
    >>> [word.text for word in phrase.korean], [word.text for word in phrase.english]
    (['너는', '행복하지', '않니'], ['are', 'you', 'not', 'happy'])
    """
    return dice.pick(SENTENCE)(dice)


def long_sentence(dice: Dice) -> Phrase:
    """Generate a sentence of four to nine clauses. The clauses are the same as in short sentences."""
    return joined(dice, 4 + int(6 * dice.random()))
