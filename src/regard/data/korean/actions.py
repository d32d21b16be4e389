"""Generate relative clauses, and clauses with an action verb (with an object, a place, a time and so on)."""

from __future__ import annotations

from typing import NamedTuple

from regard.data.korean.clauses import Predicate, Rest, arranged, verb_predicate
from regard.data.korean.conjugation import attach
from regard.data.korean.lexicon import (
    ADDED_NAMES,
    FRAMES,
    HOURS,
    NAMES,
    NOUNS,
    OFTEN,
    PRONOUNS,
    REACH,
    TIMES,
    TOOLS,
    YOUNGER,
    Frame,
    Noun,
    Person,
    Place,
)
from regard.data.korean.nominals import (
    HUMAN,
    Adornment,
    Nominal,
    common,
    coordinated,
    modified,
    person,
    thing,
)
from regard.data.korean.phrases import Dice, Gloss, Phrase, Word, gloss, possibly, say, spread, surely

__all__ = ["Plan", "action", "at_place", "relative", "rest", "time_phrase", "when"]


class Plan(NamedTuple):
    """The grammatical properties of a clause, decided before its words are generated.

    tense: the tense or mood of the verb, for example "past" or "want"; see verb_predicate().
    ending: the type of the clause, for example "statement" or "question"; see verb_predicate().
    negation: "", "not" or "could not".
    ask: the English question word, such as "when", or "" if the clause has none.
    timed: whether the clause may contain a time, such as "yesterday".
    gap: whether the object is omitted, as in a relative clause (the book that I bought).
    nested: whether the clause is part of a longer sentence. A nested clause has fewer optional parts.
    """

    tense: str
    ending: str = "statement"
    negation: str = ""
    ask: str = ""
    timed: bool = True
    gap: bool = False
    nested: bool = False


OBJECT_PEOPLE = (
    *(PRONOUNS[who] for who in ("나", "너", "그", "그녀", "우리", "그들")),
    *NAMES,
    *(each for each in YOUNGER if each.korean.startswith(("내 ", "그녀의 "))),
    *ADDED_NAMES,
)
COMPANIONS = (*NAMES, *(PRONOUNS[who] for who in ("그", "그녀", "그들")), *ADDED_NAMES)
FRIENDS = {"친구": NOUNS["people"][1], "아이": NOUNS["people"][2]}
TIME_OF = {"want": "future", "can": "future"}


def time_phrase(dice: Dice, tense: str) -> Phrase:
    """Generate a time that fits a tense, such as 어제 (yesterday) for "past".

    tense: a key of TIMES.
    """
    return say(*dice.pick(TIMES[tense]))


def _hour(dice: Dice) -> Phrase:
    korean, english = dice.pick(HOURS)
    return say(f"{korean} 시에", f"(at) {english}/1 o'clock/2")


def at_place(dice: Dice, place: Place, particle: str, to: bool = False) -> Phrase:
    """Generate a place with its particle, sometimes with 이 (this), 그 (that) or 우리 (our) before it.

    particle: the Korean particle that is attached to the place.
    to: whether the place is the goal of a motion: 학교에, "to school" instead of "at school".
    """
    english = place.to if to else place.at
    if place.english[0].islower() and place.korean != "바다" and dice.chance(0.15):
        preposition = english.split()[0] if english[0] == "(" else "(to)"
        ours = place.korean in ("학교", "집")
        determiner, determined = ("우리", "our") if ours else dice.pick((("이", "this"), ("그", "that")))
        words = [Word(determiner), Word(attach(place.korean, particle))]
        return Phrase(words, gloss(f"{preposition} {determined}/1 {place.english}/2", words))
    return say(attach(place.korean, particle), english)


def action(dice: Dice, frame: Frame, plan: Plan, subject: Nominal) -> Phrase:
    """Generate a clause with an action verb.

    frame: the verb, with the objects, places and adverbs that can be used with it.
    plan: the grammatical properties of the clause, such as its tense.
    subject: the subject of the clause.
    """
    predicate = verb_predicate(frame.verb, plan.tense, plan.ending, subject.agreement, plan.negation)
    around = rest(dice, frame, plan, subject, predicate)
    return arranged(subject, predicate, around, plan.ending == "question")


def rest(dice: Dice, frame: Frame, plan: Plan, subject: Nominal, predicate: Predicate) -> Rest:
    """Generate the parts of a clause other than subject and predicate: object, place, time and so on."""
    asked: list[Gloss] = []
    korean: list[Word] = []
    time, middle = when(dice, frame, plan)
    if plan.ask in ("when", "why"):
        word = Word("언제" if plan.ask == "when" else "왜")
        korean, asked = [word], surely(plan.ask, word)
    korean += time.korean + middle.korean
    room = 1 if plan.nested or plan.ask else 2
    company, place, tool, manner = _around(dice, frame, plan, subject, room)
    goal = NOTHING
    if frame.goals and plan.ask != "where":
        goal, tool = _goal(dice, frame, tool)
    if plan.ask == "where":
        word = Word("어디에" if frame.goals else "어디에서")
        asked, place = surely("where", word), Phrase([word], [])
    receiver = _receiver(dice, subject) if "given" in frame.traits else NOTHING
    taken = NOTHING
    if plan.ask in ("what", "whom"):
        word = Word("무엇을" if plan.ask == "what" else "누구를")
        asked, taken = surely(plan.ask, word), Phrase([word], [])
    elif frame.objects and not plan.gap:
        object_phrase = _object(dice, frame, plan, subject)
        taken = Phrase(object_phrase.korean, object_phrase.english)
        # After a long object, the English adverb would seem to modify the object.
        manner = NOTHING if len(taken.korean) > 3 else manner
    for piece in (company, place, tool, receiver, goal, taken, manner):
        korean += piece.korean
    # The English preposition, such as "to" in "listen to", has possible links to the Korean verb and object.
    preposition = possibly(frame.verb.preposition, *predicate.korean, *taken.korean)
    after = preposition + taken.english + receiver.english + goal.english
    for piece in (manner, tool, place, company, time):
        after += piece.english
    return Rest(korean, after, middle.english, asked)


NOTHING = Phrase([], [])
HOURLY = spread({"time": 6, "hour": 1})


def when(dice: Dice, frame: Frame, plan: Plan) -> tuple[Phrase, Phrase]:
    """Generate a time or an adverb of frequency, or neither. Return (time, adverb); at least one is empty.

    In English, the time ("yesterday") ends the clause, and the adverb ("often") precedes the verb.
    """
    if plan.ask == "when" or not plan.timed or "state" in frame.traits:
        return NOTHING, NOTHING
    if plan.tense == "progressive":
        return (time_phrase(dice, "progressive") if dice.chance(0.5) else NOTHING), NOTHING
    lasting = "lasting" in frame.traits
    if plan.tense == "present":
        if lasting:
            return NOTHING, NOTHING
        if not plan.negation and dice.chance(0.5):
            return NOTHING, say(*dice.pick(OFTEN))
        needed = "habit" not in frame.traits
        kind = "not present" if plan.negation else "present"
        return (time_phrase(dice, kind) if needed or dice.chance(0.4) else NOTHING), NOTHING
    share = 0.2 if plan.tense in ("want", "can") else 0.35 if plan.nested else 0.55
    if not dice.chance(share):
        return NOTHING, NOTHING
    tense = TIME_OF.get(plan.tense, plan.tense)
    if lasting or ("years" in frame.traits and dice.chance(0.3)):
        return time_phrase(dice, f"lasting {tense}"), NOTHING
    hour = dice.pick(HOURLY) == "hour" and plan.tense in ("past", "future") and not plan.nested
    return (_hour(dice) if hour else time_phrase(dice, tense)), NOTHING


def _around(
    dice: Dice, frame: Frame, plan: Plan, subject: Nominal, room: int
) -> tuple[Phrase, Phrase, Phrase, Phrase]:
    """Generate companions, a place, a tool and a manner, as four phrases.

    room: the maximum number of these phrases that are not empty.
    """
    company = place = tool = manner = NOTHING
    animal = "animals" in frame.traits
    about_people = any(noun.korean in HUMAN for noun in frame.objects)
    sociable = not (animal or about_people or plan.nested or {"state", "given"} & frame.traits)
    if sociable and dice.chance(0.35 if "company" in frame.traits else 0.07):
        company, room = _company(dice, subject), room - 1
    if frame.places and room and plan.ask != "where" and dice.chance(0.4):
        where = dice.pick(frame.places)
        place, room = at_place(dice, where, "in"), room - 1
    if frame.tools and room and dice.chance(0.3):
        name, english = dice.pick(frame.tools)
        tool, room = say(attach(name, "by"), english), room - 1
    free = room and not plan.negation and plan.ending != "adnominal" and not company.korean
    if frame.manners and free and dice.chance(0.35):
        manner = say(*dice.pick(frame.manners))
    return company, place, tool, manner


def _company(dice: Dice, subject: Nominal) -> Phrase:
    """Generate a phrase with a companion of the subject, such as 친구와 함께 (with a friend)."""
    if dice.chance(0.4):
        noun = FRIENDS["친구" if dice.chance(0.5) else "아이"]
        plural = dice.chance(0.5) or noun.korean == "아이"
        who = common(
            noun, "and", "definite" if noun.korean == "아이" else "indefinite", Adornment(plural=plural)
        )
    else:
        who = person(_other(dice, COMPANIONS, subject), "and", "object")
    together = Word("함께")
    with_them = Gloss("with", together, (who.korean[-1],))
    return Phrase([*who.korean, together], [with_them, *who.english])


def _other(dice: Dice, people: tuple[Person, ...], subject: Nominal) -> Person:
    """Pick a person who is not part of the subject.

    Combinations that sound wrong are excluded too: "I" with "me" or "us", and the polite 저 with "you".
    """
    who = " ".join(word.text for word in subject.korean)
    polite = who == "저는"
    first = subject.agreement in ("I", "we")
    while True:
        other = dice.pick(people)
        same = other.korean in who if len(other.korean) > 1 else other.agreement == subject.agreement
        if not (same or (first and other.agreement in ("I", "we")) or (polite and other.agreement == "you")):
            return other


def _goal(dice: Dice, frame: Frame, tool: Phrase) -> tuple[Phrase, Phrase]:
    """Generate the goal of a motion and sometimes a means of transport, such as "by bus".

    Return two phrases: the goal, and the means of transport. If none was generated, the second phrase is
        `tool`.

    frame: the verb of motion, with its goals.
    tool: the tool that has already been generated for this clause; it may be empty.
    """
    goal = dice.pick(frame.goals)
    if "moves" in frame.traits and dice.chance(0.3):
        ride = dice.pick(REACH.get(goal.korean, REACH[""]))
        tool = say(attach(ride, "by"), TOOLS[ride])
    return at_place(dice, goal, "at", to="arrival" not in frame.traits), tool


def _receiver(dice: Dice, subject: Nominal) -> Phrase:
    """Generate a phrase with a receiver, such as 친구에게 (to a friend)."""
    if dice.chance(0.3):
        who = common(FRIENDS["친구"], "to", "indefinite", Adornment(plural=dice.chance(0.3)))
    else:
        who = person(_other(dice, OBJECT_PEOPLE, subject), "to", "object")
    return Phrase(who.korean, possibly("to", who.korean[-1]) + who.english)


def _object(dice: Dice, frame: Frame, plan: Plan, subject: Nominal) -> Nominal:
    """Generate the object of a verb.

    It is a person, a noun, two or three nouns joined by "and", or a noun with a relative clause.
    """
    noun = dice.pick(frame.objects)
    role = "generic" if plan.tense == "present" else "indefinite"
    if ("persons" in frame.traits or noun.korean in HUMAN) and dice.chance(0.45):
        return person(_other(dice, OBJECT_PEOPLE, subject), "object", "object")
    if "definite" in frame.traits or (role == "generic" and noun.korean in HUMAN):
        return common(noun, "object", role, Adornment(determiner=dice.pick(("이", "그"))))
    plain = not plan.nested and plan.ending != "polite" and not {"creates", "given"} & frame.traits
    other_verbs = any(each.verb is not frame.verb for each in LEFT.get(noun.korean, ()))
    if plain and noun.kind == "count" and other_verbs and dice.chance(0.1):
        return modified(*relative(dice, noun, "object", frame, plan.tense != "past", timed=False))
    if "counted" in frame.traits and noun in LISTED and dice.chance(0.2):
        return _list(dice, frame, noun, role)
    return thing(dice, noun, "object", role, "counted" in frame.traits)


LISTED = tuple(noun for group in ("fruit", "dishes") for noun in NOUNS[group])


def _list(dice: Dice, frame: Frame, noun: Noun, role: str) -> Nominal:
    """Generate two or three nouns joined by "and", as the object of a verb.

    Two nouns: 사과와 빵을 (an apple and bread).
    Three nouns: 사과 , 빵 그리고 우유를 (an apple , bread and milk).
    """
    others = tuple(each for each in LISTED if each is not noun and each in frame.objects)
    second = dice.pick(others)
    if len(others) == 1 or dice.chance(0.6):
        return coordinated(common(noun, "and", role), common(second, "object", role))
    third = dice.pick(tuple(each for each in others if each is not second))
    comma, together = Word(","), Word("그리고")
    first, middle, last = (
        common(noun, "bare", role),
        common(second, "bare", role),
        common(third, "object", role),
    )
    return Nominal(
        [*first.korean, comma, *middle.korean, together, *last.korean],
        [*first.english, Gloss(",", comma), *middle.english, Gloss("and", together), *last.english],
        "they",
    )


LEFT: dict[str, tuple[Frame, ...]] = {
    noun.korean: tuple(frame for frame in FRAMES if "left" in frame.traits and noun in frame.objects)
    for frame in FRAMES
    if "left" in frame.traits
    for noun in frame.objects
}
"""For each noun, the verbs (as Frames) that can have the noun as their object in a relative clause.

For example, 사다 (buy) is one of the verbs for 책 (book): 내가 산 책, the book that I bought.
"""

DOING = {
    "people": tuple(frame for frame in FRAMES if not {"animals", "state", "event", "instant"} & frame.traits),
    "animals": tuple(frame for frame in FRAMES if "animals" in frame.traits),
}
ANIMALS = {noun.korean for group in ("pets", "cattle") for noun in NOUNS[group]}
PETS = {noun.korean for noun in NOUNS["pets"]}
PAST_MOSTLY = spread({"past": 4, "future": 1})
NOW_MOSTLY = spread({"progressive": 3, "past": 2})


def relative(
    dice: Dice,
    noun: Noun,
    particle: str,
    avoid: Frame | None = None,
    future: bool = False,
    timed: bool = True,
) -> tuple[Nominal, Phrase]:
    """Generate a noun phrase, and a relative clause that modifies it. modified() joins noun and clause.

    The noun is the object or the subject of the relative clause:

        내가 어제 만난 친구      the friend whom I met yesterday
        책을 읽고 있는 학생      the student who is reading a book

    particle: the Korean particle that is attached to the noun.
    avoid: the Frame of the main clause, if any. Its verb is not used in the relative clause.
    future: whether the relative clause may be in the future tense.
    timed: whether the relative clause may contain a time and may have a name as its subject.
    """
    head = common(noun, particle, "definite")
    alive = "animals" if noun.korean in ANIMALS else "people" if noun.korean in HUMAN else ""
    frames = tuple(
        frame for frame in LEFT.get(noun.korean, ()) if avoid is None or frame.verb is not avoid.verb
    )
    active = noun.korean in PETS or noun.korean in HUMAN
    if active and (not frames or dice.chance(0.5)):
        return head, _doing(dice, head, alive)
    frame = dice.pick(frames)
    tense = "present" if "state" in frame.traits else dice.pick(PAST_MOSTLY) if future else "past"
    negation = "not" if tense == "past" and dice.chance(0.08) else ""
    who = dice.pick(INNER) if timed else dice.pick(INNER[:6])
    subject = person(who, "subject")
    plan = Plan(tense, "adnominal", negation, timed=timed, gap=True, nested=True)
    clause = action(dice, frame, plan, subject)
    which = possibly("whom" if alive == "people" else "that", clause.korean[-1], head.korean[-1])
    return head, Phrase(clause.korean, which + clause.english)


INNER = (*(PRONOUNS[who] for who in ("나", "나", "너", "그", "그녀", "우리")), *NAMES, *ADDED_NAMES)
"""The people that can be the subject of a relative clause: pronouns and names.

If the relative clause modifies the object of a main clause, only the pronouns are used, because the main
clause could contain the same name.
"""


def _doing(dice: Dice, head: Nominal, alive: str) -> Phrase:
    frame = dice.pick(DOING[alive])
    tense = "present" if "habit" in frame.traits else dice.pick(NOW_MOSTLY)
    tense = tense if "left" in frame.traits else "progressive" if tense == "past" else tense
    plan = Plan(tense, "adnominal", timed=False, nested=True)
    clause = action(dice, frame, plan, Nominal([], [], head.agreement))
    who = possibly("who" if alive == "people" else "that", clause.korean[-1], head.korean[-1])
    return Phrase(clause.korean, who + clause.english)
