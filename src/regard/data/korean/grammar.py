"""The sentence constructions of the built-in corpus: functions that each generate a random sentence.

To add a construction, write its function and add a line with its frequency to SENTENCES.

The functions before them generate clauses by meaning: actions and relative clauses, descriptions, purposes
(the ending -(으)러) and reasons (the ending -(아/어)서).

In Korean, the reason always precedes the main verb. English has two orders:

    because()    I could not go because I was busy.
    so()         I was hungry so I went to the restaurant.

The two functions use different reasons, so the reason in Korean determines the order in English.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from regard.data.korean.lexicon import (
    ACTIVE_FRAMES,
    ADDED_NAMES,
    ADJECTIVES,
    ARRIVE,
    DEEDS,
    DEGREES,
    ERRANDS,
    FRAMES,
    HOURS,
    KNOW,
    KNOW_NOT,
    NAMES,
    NOUNS,
    NUMBERS,
    OFTEN,
    PLACES,
    PRONOUNS,
    PURPOSES,
    REACH,
    REASONS,
    SIDES,
    STATES,
    TIMES,
    TOOLS,
    VERBS,
    WEATHER,
    YOUNGER,
    Adjective,
    Frame,
    Noun,
    Person,
    Place,
    attach,
    conjugate,
    nouns,
)
from regard.data.korean.phrases import (
    AUXILIARIES,
    HUMAN,
    NOTHING,
    OWNED,
    Dice,
    Gloss,
    Phrase,
    Predicate,
    Rest,
    Word,
    adjective_predicate,
    arranged,
    attributes,
    be,
    common,
    coordinated,
    finish,
    gloss,
    modified,
    person,
    possibly,
    say,
    someone,
    spread,
    surely,
    thing,
    verb_predicate,
)

__all__ = ["CLAUSES", "Plan", "SENTENCES", "action", "ended", "long_sentence", "sentence"]


class Plan(NamedTuple):
    """The grammatical properties of a clause, decided before its words are generated.

    tense, ending: the tense or mood of the verb and the type of the clause; see verb_predicate().
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
FRIEND, CHILD = NOUNS["people"][1:3]
THIS, OWNER = ("이", "그"), ("내", "네", "그의", "그녀의")


def time_phrase(dice: Dice, tense: str) -> Phrase:
    """Generate a time that fits a tense (a key of TIMES), such as 어제 (yesterday) for "past"."""
    return say(*dice.pick(TIMES[tense]))


def at_place(dice: Dice, place: Place, particle: str, to: bool = False) -> Phrase:
    """Generate a place with its particle, sometimes with 이 (this), 그 (that) or 우리 (our) before it.

    to: whether the place is the goal of a motion: 학교에, "to school" instead of "at school".
    """
    english = place.to if to else place.at
    korean = attach(place.korean, particle)
    if place.english[0].islower() and place.korean != "바다" and dice.chance(0.15):
        preposition = english.split()[0] if english[0] == "(" else "(to)"
        ours = place.korean in ("학교", "집")
        determiner, determined = ("우리", "our") if ours else dice.pick((("이", "this"), ("그", "that")))
        return say(f"{determiner} {korean}", f"{preposition} {determined}/1 {place.english}/2")
    return say(korean, english)


def action(dice: Dice, frame: Frame, plan: Plan, subject: Phrase) -> Phrase:
    """Generate a clause with an action verb, and the objects, places and adverbs of its frame."""
    predicate = verb_predicate(frame.verb, plan.tense, plan.ending, subject.agreement, plan.negation)
    around = rest(dice, frame, plan, subject, predicate)
    return arranged(subject, predicate, around, plan.ending == "question")


ASKED_WORDS = {"when": "언제", "why": "왜", "where": "어디에서", "what": "무엇을", "whom": "누구를"}


def rest(dice: Dice, frame: Frame, plan: Plan, subject: Phrase, predicate: Predicate) -> Rest:
    """Generate the parts of a clause other than subject and predicate: object, place, time and so on."""
    asked = NOTHING
    if plan.ask:
        word = Word("어디에" if plan.ask == "where" and frame.goals else ASKED_WORDS[plan.ask])
        asked = Phrase([word], [])
    time, middle = when(dice, frame, plan)
    company, place, tool, manner = _around(dice, frame, plan, subject)
    receiver = goal = taken = NOTHING
    if plan.ask == "where":
        place = asked
    elif frame.goals:
        goal, tool = _goal(dice, frame, tool)
    if "given" in frame.traits:
        receiver = _receiver(dice, subject)
    if plan.ask in ("what", "whom"):
        taken = asked
    elif frame.objects and not plan.gap:
        taken = _object(dice, frame, plan, subject)
        # After a long object, the English adverb would seem to modify the object.
        manner = NOTHING if len(taken.korean) > 3 else manner
    first = asked if plan.ask in ("when", "why") else NOTHING
    pieces = (first, time, middle, company, place, tool, receiver, goal, taken, manner)
    korean = [word for piece in pieces for word in piece.korean]
    # The English preposition, such as "to" in "listen to", has possible links to the Korean verb and object.
    after = possibly(frame.verb.preposition, *predicate.korean, *taken.korean)
    after += [
        each
        for piece in (taken, receiver, goal, manner, tool, place, company, time)
        for each in piece.english
    ]
    return Rest(korean, after, middle.english, surely(plan.ask, asked.korean[0]) if plan.ask else ())


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
        kind = "not present" if plan.negation else "present"
        needed = "habit" not in frame.traits or dice.chance(0.4)
        return (time_phrase(dice, kind) if needed else NOTHING), NOTHING
    if not dice.chance(0.2 if plan.tense in ("want", "can") else 0.35 if plan.nested else 0.55):
        return NOTHING, NOTHING
    tense = "past" if plan.tense == "past" else "future"
    if lasting or ("years" in frame.traits and dice.chance(0.3)):
        return time_phrase(dice, f"lasting {tense}"), NOTHING
    hourly = dice.pick(HOURLY)
    if hourly and plan.tense in ("past", "future") and not plan.nested:
        korean, english = dice.pick(HOURS)
        return say(f"{korean} 시에", f"(at) {english}/1 o'clock/2"), NOTHING
    return time_phrase(dice, tense), NOTHING


HOURLY = spread({False: 6, True: 1})


def _around(dice: Dice, frame: Frame, plan: Plan, subject: Phrase) -> tuple[Phrase, Phrase, Phrase, Phrase]:
    """Generate companions, a place, a tool and a manner, as four phrases, most of which are empty."""
    company = place = tool = manner = NOTHING
    room = 1 if plan.nested or plan.ask else 2
    lonely = plan.nested or any(noun.korean in HUMAN for noun in frame.objects)
    lonely |= not frame.traits.isdisjoint(("animals", "state", "given"))
    if not lonely and dice.chance(0.35 if "company" in frame.traits else 0.07):
        company, room = _company(dice, subject), room - 1
    if frame.places and room and plan.ask != "where" and dice.chance(0.4):
        place, room = at_place(dice, dice.pick(frame.places), "in"), room - 1
    if frame.tools and room and dice.chance(0.3):
        name, english = dice.pick(frame.tools)
        tool, room = say(attach(name, "by"), english), room - 1
    free = room and not plan.negation and plan.ending != "adnominal" and not company.korean
    if frame.manners and free and dice.chance(0.35):
        manner = say(*dice.pick(frame.manners))
    return company, place, tool, manner


def _company(dice: Dice, subject: Phrase) -> Phrase:
    """Generate a phrase with a companion of the subject, such as 친구와 함께 (with a friend)."""
    if dice.chance(0.4):
        friend = dice.chance(0.5)
        plural = dice.chance(0.5) or not friend
        noun, role = (FRIEND, "indefinite") if friend else (CHILD, "definite")
        who = common(noun, "and", role, plural=plural)
    else:
        who = person(_other(dice, COMPANIONS, subject), "and", "object")
    together = Word("함께")
    return Phrase([*who.korean, together], [Gloss("with", together, (who.korean[-1],)), *who.english])


def _other(dice: Dice, people: tuple[Person, ...], subject: Phrase) -> Person:
    """Pick a person who is not part of the subject.

    Combinations that sound wrong are excluded too: "I" with "me" or "us", and the polite 저 with "you".
    """
    who = " ".join(word.text for word in subject.korean)
    first = subject.agreement in ("I", "we")
    while True:
        other = dice.pick(people)
        same = other.korean in who if len(other.korean) > 1 else other.agreement == subject.agreement
        us = first and other.agreement in ("I", "we")
        if not (same or us or (who == "저는" and other.agreement == "you")):
            return other


def _goal(dice: Dice, frame: Frame, tool: Phrase) -> tuple[Phrase, Phrase]:
    """Generate the goal of a motion; and a means of transport, such as "by bus", or return `tool`."""
    goal = dice.pick(frame.goals)
    if "moves" in frame.traits and dice.chance(0.3):
        ride = dice.pick(REACH.get(goal.korean, REACH[""]))
        tool = say(attach(ride, "by"), TOOLS[ride])
    return at_place(dice, goal, "at", to="arrival" not in frame.traits), tool


def _receiver(dice: Dice, subject: Phrase) -> Phrase:
    """Generate a phrase with a receiver, such as 친구에게 (to a friend)."""
    if dice.chance(0.3):
        who = common(FRIEND, "to", "indefinite", plural=dice.chance(0.3))
    else:
        who = person(_other(dice, OBJECT_PEOPLE, subject), "to", "object")
    return Phrase(who.korean, possibly("to", who.korean[-1]) + who.english)


def _object(dice: Dice, frame: Frame, plan: Plan, subject: Phrase) -> Phrase:
    """Generate the object of a verb.

    It is a person, a noun, two or three nouns joined by "and", or a noun with a relative clause.
    """
    noun = dice.pick(frame.objects)
    role = "generic" if plan.tense == "present" else "indefinite"
    human = noun.korean in HUMAN
    if ("persons" in frame.traits or human) and dice.chance(0.45):
        return person(_other(dice, OBJECT_PEOPLE, subject), "object", "object")
    if "definite" in frame.traits or (role == "generic" and human):
        return common(noun, "object", role, dice.pick(THIS))
    plain = not plan.nested and plan.ending != "polite" and not {"creates", "given"} & frame.traits
    other_verbs = any(each.verb is not frame.verb for each in LEFT.get(noun.korean, ()))
    if plain and noun.kind == "count" and other_verbs and dice.chance(0.1):
        return relative(dice, noun, "object", frame, plan.tense != "past", timed=False)
    if "counted" in frame.traits and noun in LISTED and dice.chance(0.2):
        return _list(dice, frame, noun, role)
    return thing(dice, noun, "object", role, "counted" in frame.traits)


LISTED = nouns("fruit dishes")


def _list(dice: Dice, frame: Frame, noun: Noun, role: str) -> Phrase:
    """Generate two or three nouns joined by "and", as the object of a verb.

    Two nouns: 사과와 빵을 (an apple and bread).
    Three nouns: 사과 , 빵 그리고 우유를 (an apple , bread and milk).
    """
    others = tuple(each for each in LISTED if each is not noun and each in frame.objects)
    second = dice.pick(others)
    if len(others) == 1 or dice.chance(0.6):
        return coordinated(common(noun, "and", role), common(second, "object", role))
    third = dice.pick(tuple(each for each in others if each is not second))
    several = common(noun, "bare", role) + say(",", ",/1,") + common(second, "bare", role)
    return several + say("그리고", "and/1,") + common(third, "object", role)


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
ANIMALS = {noun.korean for noun in nouns("pets cattle")}
PETS = {noun.korean for noun in NOUNS["pets"]}
PAST_MOSTLY = spread({"past": 4, "future": 1})
NOW_MOSTLY = spread({"progressive": 3, "past": 2})
INNER = (*(PRONOUNS[who] for who in ("나", "나", "너", "그", "그녀", "우리")), *NAMES, *ADDED_NAMES)
"""The people that can be the subject of a relative clause: pronouns and names.

If the relative clause modifies the object of a main clause, only the pronouns are used, because the main
clause could contain the same name.
"""


def relative(
    dice: Dice,
    noun: Noun,
    particle: str,
    avoid: Frame | None = None,
    future: bool = False,
    timed: bool = True,
) -> Phrase:
    """Generate a noun phrase with a relative clause.

    The noun is the object or the subject of the relative clause:

        내가 어제 만난 친구      the friend whom I met yesterday
        책을 읽고 있는 학생      the student who is reading a book

    avoid: the Frame of the main clause, if any. Its verb is not used in the relative clause.
    future: whether the relative clause may be in the future tense.
    timed: whether the relative clause may contain a time and may have a name as its subject.
    """
    head = common(noun, particle, "definite")
    human = noun.korean in HUMAN
    frames = tuple(
        frame for frame in LEFT.get(noun.korean, ()) if avoid is None or frame.verb is not avoid.verb
    )
    if (human or noun.korean in PETS) and (not frames or dice.chance(0.5)):
        frame = dice.pick(DOING["people" if human else "animals"])
        tense = "present" if "habit" in frame.traits else dice.pick(NOW_MOSTLY)
        tense = "progressive" if tense == "past" and "left" not in frame.traits else tense
        plan = Plan(tense, "adnominal", timed=False, nested=True)
        subject, pronoun = Phrase([], [], head.agreement), "who"
    else:
        frame = dice.pick(frames)
        tense = "present" if "state" in frame.traits else dice.pick(PAST_MOSTLY) if future else "past"
        negation = "not" if tense == "past" and dice.chance(0.08) else ""
        subject, pronoun = person(dice.pick(INNER if timed else INNER[:6]), "subject"), "whom"
        plan = Plan(tense, "adnominal", negation, timed=timed, gap=True, nested=True)
    clause = action(dice, frame, plan, subject)
    which = possibly(pronoun if human else "that", clause.korean[-1], head.korean[-1])
    return modified(head, Phrase(clause.korean, which + clause.english))


DESCRIBED = {
    stem: tuple(noun for group in NOUNS.values() for noun in group if noun.korean in adjective.predicate_of)
    for stem, adjective in ADJECTIVES.items()
}
QUALITIES = spread({stem: 2 + len(nouns) // 3 for stem, nouns in DESCRIBED.items()})
SUBJECT_OF_TALK = {noun.korean for noun in nouns("languages sciences skills")}
PAST_OR_NOW = spread({"past": 1, "present": 2})


def quality(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a description of a thing, such as 꽃이 예쁘다 (the flower is pretty)."""
    stem = dice.pick(QUALITIES)
    noun = dice.pick(DESCRIBED[stem])
    # Use the past only in statements and negations: past forms with other endings (작았니, 작았고, 작았지만)
    # would each be too rare for a model to learn.
    tense = dice.pick(PAST_OR_NOW) if negated or ending == "statement" else "present"
    subject = _described(dice, noun, tense == "present")
    return _description(dice, subject, ADJECTIVES[stem], tense, ending, negated)


def _description(
    dice: Dice,
    subject: Phrase,
    adjective: Adjective,
    tense: str,
    ending: str,
    negated: bool,
    time: Phrase = NOTHING,
) -> Phrase:
    """Generate a clause with an adjective as predicate, sometimes with 아주 (very) before it."""
    predicate = adjective_predicate(adjective, tense, ending, subject.agreement, negated)
    degrees = DEGREES[:2] if ending == "question" else DEGREES
    degree = say(*dice.pick(degrees)) if not negated and dice.chance(0.25) else NOTHING
    *be_said, described = predicate.main
    said = predicate._replace(main=[*be_said, *degree.english, described])
    around = Rest(time.korean + degree.korean, time.english)
    return arranged(subject, said, around, ending == "question")


def _described(dice: Dice, noun: Noun, future: bool) -> Phrase:
    """Generate the subject of a description.

    A noun without modifiers has the subject particle (이, 가). A noun with modifiers has the topic particle
    (은, 는). A noun for a language, a science or a skill always has the topic particle.
    """
    if noun.kind == "fixed":
        return common(noun, "topic" if noun.korean in SUBJECT_OF_TALK else "subject", "definite")
    if noun.kind == "count" and noun.korean in LEFT and dice.chance(0.3):
        return relative(dice, noun, "topic", future=future)
    if noun.korean in OWNED and dice.chance(0.3):
        return common(noun, "topic", "definite", dice.pick(OWNER))
    if noun.korean in HUMAN or dice.chance(0.6):
        return common(noun, "topic", "definite", dice.pick(THIS))
    return common(noun, "subject", "definite")


STATE_TENSES = spread({"past": 3, "present": 3, "future": 1})


def state(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a description of how a person is, such as 나는 어제 바빴다 (I was busy yesterday)."""
    subject = someone(dice, ending)
    adjective = STATES[dice.pick(tuple(STATES))]
    tense = "past" if negated and dice.chance(0.5) else "present" if negated else dice.pick(STATE_TENSES)
    tense = "present" if ending == "question" else tense
    time = NOTHING
    if dice.chance(0.4 if tense == "present" else 0.6):
        time = say("지금", "now") if tense == "present" else time_phrase(dice, tense)
    return _description(dice, subject, adjective, tense, ending, negated, time)


RAIN = {"비": ("rain", "rains", "rained"), "눈": ("snow", "snows", "snowed")}
RAIN_TENSES = spread({"past": 3, "future": 2})


def rain(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a clause about rain or snow, such as 비가 왔다 (it rained)."""
    korean = dice.pick(tuple(RAIN))
    base, third, past = RAIN[korean]
    tense = dice.pick(RAIN_TENSES)
    falling = Word(attach(korean, "subject"))
    verb = VERBS["오"]._replace(base=base, third=third, past=past)
    predicate = verb_predicate(verb, tense, ending, "he", "not" if negated else "")
    coming = predicate.korean
    # Korean says "rain comes", so the English verb "rain" has its sure link to the Korean noun.
    said = [Gloss(main.text, falling, tuple(coming)) for main in predicate.main]
    time = time_phrase(dice, tense) if dice.chance(0.8) else NOTHING
    it = Phrase([], possibly("it", falling, *coming))
    around = Rest([*time.korean, falling], time.english)
    return arranged(it, predicate._replace(main=said), around, ending == "question")


def weather(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a clause about the weather, such as 어제 날씨가 추웠다 (the weather was cold yesterday)."""
    adjective = WEATHER[dice.pick(tuple(WEATHER))]
    tense = dice.pick(PAST_OR_NOW)
    past = (("어제", "yesterday"), ("지난주에", "last week"), ("오늘 아침에", "this/1 morning/2"))
    time = say(*dice.pick(past)) if tense == "past" else say("오늘", "today")
    said = _description(dice, say("날씨가", "(the) weather"), adjective, tense, ending, negated)
    return Phrase(time.korean + said.korean, said.english + time.english)


COPULA = {"statement": "is", "polite": "is, politely", "question": "is?", "and": "is and", "but": "is but"}
PREDICATED = (NOUNS["people"][0], *NOUNS["jobs"])
INTRODUCED = (FRIEND, *NOUNS["people"][3:5])


def identity(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a clause that says what a person is, such as 나는 학생이다 (I am a student)."""
    subject = someone(dice, ending)
    if not subject.pronoun or (subject.agreement == "he" and dice.chance(0.2)):
        subject = relative(dice, dice.pick(INTRODUCED), "topic")
    past = ending == "statement" and dice.chance(0.3)
    noun = dice.pick(PREDICATED)
    if subject.pronoun == "I" and dice.chance(0.25):
        noun = NOUNS["pets"][0]  # 나는 고양이다, the plain form of 나는 고양이로소이다
    modest = subject.pronoun in ("I", "we") or not attributes(noun)
    adjective = None if modest or dice.chance(0.75) else dice.pick(attributes(noun))
    owned = adjective is None and not past and len(subject.korean) == 1 and dice.chance(0.15)
    if owned and subject.pronoun in ("he", "she", "you"):
        noun = FRIEND
    particle = "subject" if negated else "was" if past else COPULA[ending]
    said = common(noun, particle, "indefinite", "내" if noun is FRIEND else "", adjective)
    return _copula(subject, said, noun, "past" if past else "present", ending, negated)


def _copula(subject: Phrase, said: Phrase, noun: Noun, tense: str, ending: str, negated: bool) -> Phrase:
    words, english = said.korean, said.english
    if subject.agreement in ("we", "they"):
        # Korean has no plural here, but English has a plural noun without an article: they are students.
        several = [each._replace(text=noun.plural) if each.text == noun.english else each for each in english]
        english = [each for each in several if each.text not in ("a", "an")]
    refusal: list[Gloss] = []
    is_said = words[-1]
    if negated:
        is_said = Word(finish(AUXILIARIES["아니"], tense, ending))
        words, refusal = [*words, is_said], surely("not", is_said)
    auxiliaries = possibly(be(tense, subject.agreement), is_said, said.korean[-1])
    predicate = Predicate(words, auxiliaries + refusal, english)
    return arranged(subject, predicate, Rest(), ending == "question")


OLD = (*NOUNS["pets"], Noun("왕", "king", "kings"), Noun("시인", "poet", "poets"))
OLD_WHO = spread({"나": 4, "그": 1, "그녀": 1})


def archaic(dice: Dice) -> Phrase:
    """Generate a clause with the archaic copula 로소이다, such as 나는 고양이로소이다 (I am a cat)."""
    subject = person(PRONOUNS[dice.pick(OLD_WHO)], "topic")
    noun = OLD[0] if subject.pronoun == "she" or dice.chance(0.4) else dice.pick(OLD)
    if noun.korean in ANIMALS and dice.chance(0.4):
        said = relative(dice, noun, "is, of old")
    else:
        adjective = dice.pick(attributes(noun)) if attributes(noun) and dice.chance(0.5) else None
        said = common(noun, "is, of old", "indefinite", adjective=adjective)
    return _copula(subject, said, noun, "present", "statement", False)


FOUND = {
    "방": "pets furniture goods",
    "교실": "people furniture goods",
    "부엌": "pets dishware fruit",
    "정원": "pets cattle flowers trees",
    "공원": "people pets cattle flowers trees",
    "도서관": "people books furniture",
    "가게": "people goods bicycles",
}
SMALL = nouns("goods books fruit dishware gifts")
STANDS = nouns("furniture boxes")
THERE = spread({"past": 1, "present": 3})


def _exists(dice: Dice, ending: str, negated: bool) -> tuple[Word, str]:
    """Return the word 있다 or 없다 at the end of a clause, and its tense."""
    tense = dice.pick(THERE) if ending == "statement" else "present"
    return Word(finish(AUXILIARIES["없" if negated else "있"], tense, ending)), tense


def there_is(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a clause with "there is", such as 방에 고양이가 있다 (there is a cat in the room)."""
    if dice.chance(0.5):
        name = dice.pick(tuple(FOUND))
        where = at_place(dice, PLACES[name], "at")
        noun = dice.pick(nouns(FOUND[name]))
    else:
        where, noun = beside(dice), dice.pick(SMALL)
    exists, tense = _exists(dice, ending, negated)
    number = dice.pick(NUMBERS) if noun.counter and not negated and dice.chance(0.35) else ()
    adjective = dice.pick(attributes(noun)) if attributes(noun) and dice.chance(0.25) else None
    plural = noun.korean in ("학생", "아이") and dice.chance(0.5)
    said = common(noun, "subject", "indefinite", "", None if negated else adjective, number, plural)
    english = said.english
    if negated:
        english = surely("no", exists) + english[english[0].text in ("a", "an") :]
    there = possibly("there", exists, *where.korean, *said.korean)
    is_said = [Gloss(be(tense, said.agreement), None if negated else exists, (exists,))]
    opening = is_said + there if ending == "question" else there + is_said
    return Phrase([*where.korean, *said.korean, exists], opening + english + where.english)


def beside(dice: Dice) -> Phrase:
    """Generate a place on, under or next to a thing, such as 책상 위에 (on the desk)."""
    stand = dice.pick(STANDS)
    side, english = dice.pick(SIDES)
    placed = " ".join(part if part[0] == "(" else f"{part}/2" for part in english.split())
    return say(f"{stand.korean} {attach(side, 'at')}", f"{placed} (the) {stand.english}/1")


def location(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a clause that says where a person or a thing is.

    For example: 고양이는 침대 아래에 있다 (the cat is under the bed).
    """
    if dice.chance(0.5):
        subject = someone(dice, ending)
        names = ("학교", "집", "도서관", "공원", "병원", "시장", "역", "서울", "부산")
        where = at_place(dice, PLACES[dice.pick(names)], "at")
    else:
        noun = dice.pick((*NOUNS["pets"], *SMALL))
        owner = dice.pick(OWNER) if noun.korean in OWNED else "그"
        subject = common(noun, "topic", "definite", "" if dice.chance(0.4) else owner)
        where = beside(dice)
    exists, tense = _exists(dice, ending, negated)
    said = gloss("({be}) not/1," if negated else "{be}/1,", [exists], be=be(tense, subject.agreement))
    return arranged(
        subject, Predicate([exists], said, []), Rest(where.korean, where.english), ending == "question"
    )


def purpose(dice: Dice, frame: Frame, subject: Phrase) -> Phrase:
    """Generate the purpose of a motion, such as 공부하러 (to study) or 친구를 만나러 (to meet a friend)."""
    word = Word(conjugate(frame.verb.stem, "러"))
    # Some verbs can express a purpose without their object: 공부하러 갔다, went to study.
    alone = frame.verb.stem.text in ("공부하", "요리하") and dice.chance(0.6)
    # A purpose can have an object but no place, because it takes place at the goal of the motion.
    frame = frame._replace(objects=() if alone else frame.objects, places=(), tools=(), manners=())
    around = rest(dice, frame, Plan("past", timed=False, nested=True), subject, Predicate([word], [], []))
    english = [*possibly("to", word), *surely(frame.verb.base, word), *around.after]
    return Phrase([*around.korean, word], english)


def motion(dice: Dice, goal: Place, frame: Frame, subject: Phrase, goal_first: bool) -> Phrase:
    """Generate a goal and a purpose, such as 카페에 공부하러 (to a café to study).

    goal_first: whether the goal comes first in Korean. In English it always does.
    """
    where, aim = at_place(dice, goal, "at", to=True), purpose(dice, frame, subject)
    korean = where.korean + aim.korean if goal_first else aim.korean + where.korean
    return Phrase(korean, where.english + aim.english)


CAUSES = spread({"state": 4, "weather": 3, "noun": 2})
SHORT_FRAMES = tuple(frame for frame in ACTIVE_FRAMES if "lasting" not in frame.traits)
OUTDOORS = tuple(
    frame
    for frame in ACTIVE_FRAMES
    if frame.verb.stem.text in ("가", "오", "걷", "놀", "운동하", "타", "찍", "심", "만나", "수영하")
)


def because(dice: Dice) -> Phrase:
    """Generate a sentence that says why someone did not do something.

    For example: 나는 바빠서 못 갔다 (I could not go because I was busy).
    """
    how = dice.pick(CAUSES)
    subject, ending = _narrator(dice)
    frame = dice.pick(OUTDOORS if how == "weather" else SHORT_FRAMES)
    could = frame is ARRIVE or dice.chance(0.6)
    main = action(dice, frame, Plan("past", ending, "could not" if could else "not", nested=True), subject)
    after_subject = main.korean[len(subject.korean) :]
    first = False
    if how == "state":
        # The English reason repeats the subject as a pronoun; the Korean reason does not.
        adjective = STATES[dice.pick(("바쁘", "아프", "피곤하"))]
        word = Word(conjugate(adjective.stem, "서"))
        who = possibly(subject.pronoun, *subject.korean)
        english = gloss(
            "({was}) {busy}/1,", [word], was=be("past", subject.agreement), busy=adjective.english
        )
        cause = Phrase([word], [*possibly("because", word), *who, *english])
    elif how == "noun" or dice.chance(0.25):
        korean, noun = dice.pick(REASONS[2:] if how == "noun" else REASONS[:2])
        cause = say(f"{korean} 때문에", f"because/2 (of) {noun}")
    else:
        first = True
        if dice.chance(0.5):
            korean, noun = dice.pick((("비가", "rained"), ("눈이", "snowed")))
            cause = say(f"{korean} 와서", f"(because) (it) {noun}/1")
        else:
            adjective = WEATHER[dice.pick(("춥", "덥", "나쁘"))]
            words = f"날씨가 {conjugate(adjective.stem, '서')}"
            cause = say(words, f"(because) (the) weather/1 (was) {adjective.english}/2")
    both = cause.korean + subject.korean if first else subject.korean + cause.korean
    return ended(dice, Phrase(both + after_subject, main.english + cause.english), ".")


def _narrator(dice: Dice) -> tuple[Phrase, str]:
    """Generate a person with a pronoun as the subject of a sentence. Return also the type of its clause."""
    ending = "polite" if dice.chance(0.1) else "statement"
    subject = someone(dice, ending)
    while not subject.pronoun:
        subject = someone(dice, ending)
    return subject, ending


MOTIVES = {
    "unfocused": (("카페", "카페", "도서관", "집", "공원"), ("공부하", "읽", "쓰", "일하")),
    "hungry": (("식당", "집"), ("먹",)),
    "bored": (("공원", "극장", "카페", "바다"), ("놀", "걷", "타", "운동하", "보", "만나", "수영하")),
}
"""For a reason, such as hunger: where a person may go, and what the person may do there (verb stems)."""

MOTIVE = spread({"unfocused": 5, "hungry": 2, "bored": 2})
DISTRACTING = ("집", "집", "학교", "교실", "도서관", "카페")
UNFOCUSED = (("안되서",), ("안돼서",), ("안", "돼서"))
"""Three spellings of 안 돼서 (because it does not work), each as a tuple of words.

The spellings without a space are common mistakes."""


def so(dice: Dice) -> Phrase:
    """Generate a sentence that says why someone went somewhere.

    For example: 나는 집에서 집중이 안 돼서 카페에 갔다 (I could not focus at home so I went to a café).
    """
    subject, ending = _narrator(dice)
    time = time_phrase(dice, "past") if dice.chance(0.25) else NOTHING
    name = dice.pick(MOTIVE)
    goals, stems = MOTIVES[name]
    place = ""
    if name == "unfocused":
        place = dice.pick(DISTRACTING) if dice.chance(0.8) else ""
        where = at_place(dice, PLACES[place], "in") if place else NOTHING
        fails = dice.pick(UNFOCUSED)
        focus = say(" ".join(("집중이", *fails)), f"could/{1 + len(fails)},* not/2,* focus/1,*")
        cause = Phrase(where.korean + focus.korean, focus.english + where.english)
    else:
        words = list(map(Word, ("배가 고파서" if name == "hungry" else "심심해서").split()))
        was = possibly(be("past", subject.agreement), words[-1])
        cause = Phrase(words, was + gloss(f"{name}/{len(words)},*", words))
    goal = PLACES[dice.pick(tuple(goal for goal in goals if goal != place))]
    frames = tuple(frame for frame in PURPOSES[goal.korean] if frame.verb.stem.text in stems)
    if dice.chance(0.85):
        aim = motion(dice, goal, dice.pick(frames), subject, goal_first=True)
    else:
        aim = at_place(dice, goal, "at", to=True)
    went = verb_predicate(VERBS["가"], "past", ending, subject.agreement)
    again = [*possibly("so", cause.korean[-1]), *possibly(subject.pronoun, *subject.korean)]
    said = Phrase(
        subject.korean + time.korean + cause.korean + aim.korean + went.korean,
        subject.english + cause.english + again + went.main + aim.english + time.english,
    )
    return ended(dice, said, ".")


TENSES = spread({"past": 9, "present": 8, "future": 5, "progressive": 4, "want": 3, "can": 2})
QUESTION_TENSES = spread({"past": 6, "present": 7, "future": 3, "progressive": 2, "want": 2, "can": 1})
ANIMAL_FRAMES = DOING["animals"]
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

The past is used instead. The traits are explained in lexicon.toml."""


def _possible(frame: Frame, tense: str) -> str:
    return "past" if any(tense in BARRED[trait] for trait in frame.traits & BARRED.keys()) else tense


def _plan(dice: Dice, frame: Frame, tense: str, ending: str, negated: bool) -> Plan:
    if not negated or "negative" in frame.traits:
        return Plan(tense, ending)
    if tense == "past" and frame is ARRIVE and ending != "question":
        return Plan(tense, ending, "could not")
    able = tense != "past" or ending == "question" or "state" in frame.traits
    return Plan(tense, ending, "not" if able or dice.chance(0.65) else "could not")


def deed(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a clause in which someone does something, such as 나는 책을 읽었다 (I read a book)."""
    if ending != "polite" and dice.chance(0.06):
        return _animal_deed(dice, ending, negated)
    frame = dice.pick(DEEDS)
    if frame in (KNOW, KNOW_NOT):
        frame = KNOW_NOT if negated else KNOW
    tense = _tense(dice, frame, ending)
    if ending == "statement" and dice.chance(0.08):
        subject = relative(dice, dice.pick(NOUNS["people"]), "topic", frame)
    elif ending in ("statement", "and", "but") and dice.chance(0.05):
        first = dice.pick((*NAMES, *ADDED_NAMES))
        second = dice.pick(tuple(name for name in NAMES if name is not first))
        subject = coordinated(person(first, "and"), person(second, "topic"))
    else:
        subject = someone(dice, ending)
    return action(dice, frame, _plan(dice, frame, tense, ending, negated), subject)


def _animal_deed(dice: Dice, ending: str, negated: bool) -> Phrase:
    frame = dice.pick(ANIMAL_FRAMES)
    noun = dice.pick(NOUNS["pets"][:2] if frame.objects else NOUNS["pets"])
    tense = "past" if negated else dice.pick(("past", "progressive"))
    subject = thing(dice, noun, "topic", "definite")
    return action(dice, frame, Plan(tense, ending, "not" if negated else ""), subject)


def errand(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a clause about going somewhere to do something.

    For example: 나는 어제 역에 친구를 만나러 갔다 (I went to the station to meet a friend yesterday).
    """
    frame = dice.pick(ERRANDS)
    plan = _plan(dice, frame, _tense(dice, frame, ending), ending, negated)
    subject = someone(dice, ending)
    predicate = verb_predicate(frame.verb, plan.tense, ending, subject.agreement, plan.negation)
    time, middle = when(dice, frame, plan)
    goal = dice.pick(frame.goals)
    aim = motion(dice, goal, dice.pick(PURPOSES[goal.korean]), subject, dice.chance(0.7))
    korean = time.korean + middle.korean + aim.korean
    around = Rest(korean, aim.english + time.english, middle.english)
    return arranged(subject, predicate, around, ending == "question")


Build = Callable[[Dice, str, bool], Phrase]

FREQUENCIES: dict[str, dict[Build, int]] = {
    "statement": {
        deed: 60,
        quality: 22,
        state: 7,
        identity: 8,
        there_is: 7,
        location: 5,
        rain: 2,
        weather: 3,
        errand: 7,
    },
    "polite": {deed: 7, state: 2, identity: 3, errand: 1},
    "question": {deed: 60, quality: 22, state: 6, identity: 8, there_is: 6, location: 5, errand: 5},
    "and": {deed: 70, quality: 16, state: 6, identity: 6, there_is: 5, location: 4, errand: 3},
    "but": {deed: 70, there_is: 5, location: 4, errand: 3},
    "but, not": {deed: 50, quality: 16, state: 6, identity: 6, there_is: 5, location: 4, errand: 3},
}
CLAUSES = {ending: spread(frequencies) for ending, frequencies in FREQUENCIES.items()}
"""For each type of clause, such as "statement" or "but", the functions that generate a clause of this type.

A function is repeated to make its clauses more frequent. The key "but, not" is for negated clauses with the
ending "but". A clause with the ending "but" that is not negated always has a verb: forms of adjectives and
nouns, such as 작지만 and 학생이지만, would be too rare for a model to learn.
"""


def clause(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a random clause. `ending`: the type of the clause, for example "statement"."""
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
    return ended(dice, archaic(dice), ".")


def yes_or_no(dice: Dice) -> Phrase:
    """Generate a yes-no question, such as "Did you go ?"."""
    return ended(dice, clause(dice, "question", dice.chance(0.1)), "?")


def _has_person(frame: Frame) -> bool:
    return any(noun.korean in HUMAN for noun in frame.objects)


ASKS = spread({"what": 5, "where": 5, "when": 3, "why": 3, "whom": 3, "who": 4})
ASK_TENSES = spread({"past": 6, "future": 3, "present": 2, "want": 2})
ASKED = {
    "what": tuple(each for each in ACTIVE_FRAMES if len(each.objects) > 2 and not _has_person(each)),
    "whom": tuple(filter(_has_person, ACTIVE_FRAMES)),
    "where": tuple(f for f in ACTIVE_FRAMES if (f.places or f.goals) and "coming" not in f.traits),
}


def open_question(dice: Dice) -> Phrase:
    """Generate a question with a question word.

    For example: 너는 어제 무엇을 샀니 ? (What did you buy yesterday ?)
    """
    ask = dice.pick(ASKS)
    frame = dice.pick(ASKED.get(ask, ACTIVE_FRAMES))
    tense = dice.pick(ASK_TENSES)
    if ask == "who":
        tense = "future" if tense == "future" else "past"
        return ended(dice, action(dice, frame, Plan(tense, "who"), say("누가", "who/1,")), "?")
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
    time = time_phrase(dice, tense) if dice.chance(0.6) else NOTHING
    plan = Plan(tense, "join", timed=False, nested=True)
    begun = verb_predicate(first.verb, tense, "join", subject.agreement)
    done = verb_predicate(second.verb, tense, ending, subject.agreement)
    opening = rest(dice, first, plan, subject, begun)
    closing = rest(dice, second, plan, subject, done)
    korean = [*subject.korean, *time.korean, *opening.korean, *begun.korean, *closing.korean, *done.korean]
    english = [*subject.english, *done.auxiliaries, *begun.main, *opening.after]
    english += [*possibly("and", begun.korean[-1]), *done.main, *closing.after, *time.english]
    return ended(dice, Phrase(korean, english), ".")


JOINS = spread({"and": 13, "but": 7})


def joined(dice: Dice, clauses: int) -> Phrase:
    """Generate a sentence of several clauses, joined with -고 (and) and -지만 (but).

    If two clauses are joined by "but", exactly one of them is negated.
    """
    sentence = NOTHING
    negated = dice.chance(0.15)
    ending = ""
    for _ in range(clauses - 1):
        ending = "and" if ending == "but" else dice.pick(JOINS)
        said = clause(dice, ending, negated)
        comma, last = Word(","), said.korean[-1]
        sentence += said + Phrase([comma], [Gloss(",", comma, (last,)), *possibly(ending, last, comma)])
        negated = not negated if ending == "but" else dice.chance(0.15)
    return ended(dice, sentence + clause(dice, "statement", negated), ".")


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
