"""Generate clauses with a purpose (the ending -(으)러) and sentences with a reason (the ending -(아/어)서).

In Korean, the reason always precedes the main verb. English has two orders:

    because_clauses()    I could not go because I was busy.
    so_clauses()         I was hungry so I went to the restaurant.

The two functions use different reasons, so the reason in Korean determines the order in English.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from regard.data.korean.actions import Plan, action, at_place, rest, time_phrase, when
from regard.data.korean.clauses import Predicate, Rest, arranged, be, verb_predicate
from regard.data.korean.conjugation import conjugate
from regard.data.korean.lexicon import (
    ACTIVE_FRAMES,
    ARRIVE,
    PLACES,
    PURPOSES,
    REASONS,
    STATES,
    VERBS,
    WEATHER,
    Frame,
    Place,
)
from regard.data.korean.nominals import Nominal, someone
from regard.data.korean.phrases import Dice, Gloss, Phrase, Word, gloss, possibly, say, spread, surely

__all__ = ["because_clauses", "errand_clause", "motion", "purpose", "so_clauses"]

INTRANSITIVE = ("공부하", "요리하")
"""Verb stems that can express a purpose without their object: 공부하러 갔다, went to study."""


def purpose(dice: Dice, frame: Frame, subject: Nominal) -> Phrase:
    """Generate the purpose of a motion, such as 공부하러 (to study) or 친구를 만나러 (to meet a friend)."""
    word = Word(conjugate(frame.verb.stem, "러"))
    alone = frame.verb.stem.text in INTRANSITIVE and dice.chance(0.6)
    objects = () if alone else frame.objects
    # A purpose can have an object but no place, because it takes place at the goal of the motion.
    frame = frame._replace(objects=objects, places=(), tools=(), manners=())
    around = rest(dice, frame, Plan("past", timed=False, nested=True), subject, Predicate([word], [], []))
    english = [*possibly("to", word), *surely(frame.verb.base, word), *around.after]
    return Phrase([*around.korean, word], english)


def motion(dice: Dice, goal: Place, frame: Frame, subject: Nominal, goal_first: bool) -> Phrase:
    """Generate a goal and a purpose, such as 카페에 공부하러 (to a café to study).

    goal_first: whether the goal comes first in Korean. In English it always does.
    """
    where, aim = at_place(dice, goal, "at", to=True), purpose(dice, frame, subject)
    korean = where.korean + aim.korean if goal_first else aim.korean + where.korean
    return Phrase(korean, where.english + aim.english)


def errand_clause(dice: Dice, frame: Frame, plan: Plan, subject: Nominal) -> Phrase:
    """Generate a clause with a verb of motion, a goal and a purpose.

    For example: 나는 어제 역에 친구를 만나러 갔다 (I went to the station to meet a friend yesterday).
    """
    predicate = verb_predicate(frame.verb, plan.tense, plan.ending, subject.agreement, plan.negation)
    time, middle = when(dice, frame, plan)
    goal = dice.pick(frame.goals)
    aim = motion(dice, goal, dice.pick(PURPOSES[goal.korean]), subject, dice.chance(0.7))
    korean = time.korean + middle.korean + aim.korean
    around = Rest(korean, aim.english + time.english, middle.english, [])
    return arranged(subject, predicate, around, plan.ending == "question")


SHORT_FRAMES = tuple(frame for frame in ACTIVE_FRAMES if "lasting" not in frame.traits)
OUTDOORS = tuple(
    frame
    for frame in ACTIVE_FRAMES
    if frame.verb.stem.text in ("가", "오", "걷", "놀", "운동하", "타", "찍", "심", "만나", "수영하")
)
CAUSES = spread({"state": 4, "weather": 3, "noun": 2})


def because_clauses(dice: Dice) -> Phrase:
    """Generate a sentence, without its final mark, that says why someone did not do something.

    For example: 나는 바빠서 못 갔다 (I could not go because I was busy).
    """
    how = dice.pick(CAUSES)
    ending = "polite" if dice.chance(0.1) else "statement"
    subject = someone(dice, ending)
    while not subject.pronoun:
        subject = someone(dice, ending)
    frame = dice.pick(OUTDOORS if how == "weather" else SHORT_FRAMES)
    could = frame is ARRIVE or dice.chance(0.6)
    plan = Plan("past", ending, "could not" if could else "not", nested=True)
    main = action(dice, frame, plan, subject)
    after_subject = main.korean[len(subject.korean) :]
    if how == "weather":
        cause, first = _weather_cause(dice)
        both = [cause.korean, subject.korean] if first else [subject.korean, cause.korean]
        korean = both[0] + both[1] + after_subject
    else:
        cause = _own_cause(dice, subject) if how == "state" else _noun_cause(dice, REASONS[2:])
        korean = subject.korean + cause.korean + after_subject
    return Phrase(korean, main.english + cause.english)


def _own_cause(dice: Dice, subject: Nominal) -> Phrase:
    """Generate a reason that is a state of the subject, such as 바빠서 (because I was busy).

    The English reason repeats the subject as a pronoun; the Korean reason does not.
    """
    adjective = STATES[dice.pick(("바쁘", "아프", "피곤하"))]
    word = Word(conjugate(adjective.stem, "서"))
    who = possibly(subject.pronoun, *subject.korean)
    was = possibly(be("past", subject.agreement), word)
    return Phrase([word], [*possibly("because", word), *who, *was, *surely(adjective.english, word)])


def _noun_cause(dice: Dice, nouns: Sequence[tuple[str, str]]) -> Phrase:
    """Generate a reason that is a noun, such as 비 때문에 (because of the rain).

    nouns: the nouns to choose from, each in Korean and in English.
    """
    korean, english = dice.pick(nouns)
    words = [Word(korean), Word("때문에")]
    return Phrase(words, gloss(f"because/2 (of) {english}", words))


def _weather_cause(dice: Dice) -> tuple[Phrase, bool]:
    """Generate a reason that is the weather, such as 비가 와서 (because it rained).

    Returns the reason, and whether it precedes the subject of the sentence in Korean.
    """
    if dice.chance(0.25):
        return _noun_cause(dice, REASONS[:2]), False
    if dice.chance(0.5):
        korean, english = dice.pick((("비가", "rained"), ("눈이", "snowed")))
        return say(f"{korean} 와서", f"(because) (it) {english}/1"), True
    adjective = WEATHER[dice.pick(("춥", "덥", "나쁘"))]
    words = f"날씨가 {conjugate(adjective.stem, '서')}"
    return say(words, f"(because) (the) weather/1 (was) {adjective.english}/2"), True


class Motive(NamedTuple):
    """What a person does for a reason, such as hunger: the person goes somewhere to do something.

    goals: the places where the person may go.
    stems: what the person may do there, as Korean verb stems.
    """

    goals: tuple[str, ...]
    stems: tuple[str, ...]


MOTIVES = {
    "unfocused": Motive(("카페", "카페", "도서관", "집", "공원"), ("공부하", "읽", "쓰", "일하")),
    "hungry": Motive(("식당", "집"), ("먹",)),
    "bored": Motive(("공원", "극장", "카페", "바다"), ("놀", "걷", "타", "운동하", "보", "만나", "수영하")),
}
MOTIVE = spread({"unfocused": 5, "hungry": 2, "bored": 2})
DISTRACTING = ("집", "집", "학교", "교실", "도서관", "카페")
UNFOCUSED = (("안되서",), ("안돼서",), ("안", "돼서"))
"""Three spellings of 안 돼서 (because it does not work), each as a tuple of words.

The spellings without a space are common mistakes."""


def so_clauses(dice: Dice) -> Phrase:
    """Generate a sentence, without its final mark, that says why someone went somewhere.

    For example: 나는 집에서 집중이 안 돼서 카페에 갔다 (I could not focus at home so I went to a café).
    """
    ending = "polite" if dice.chance(0.1) else "statement"
    subject = someone(dice, ending)
    while not subject.pronoun:
        subject = someone(dice, ending)
    time = time_phrase(dice, "past") if dice.chance(0.25) else Phrase([], [])
    name = dice.pick(MOTIVE)
    goals, stems = MOTIVES[name]
    cause, place = _unfocused(dice) if name == "unfocused" else (_condition(name, subject), "")
    goal = PLACES[dice.pick(tuple(goal for goal in goals if goal != place))]
    frames = tuple(frame for frame in PURPOSES[goal.korean] if frame.verb.stem.text in stems)
    if dice.chance(0.85):
        aim = motion(dice, goal, dice.pick(frames), subject, goal_first=True)
    else:
        aim = at_place(dice, goal, "at", to=True)
    went = verb_predicate(VERBS["가"], "past", ending, subject.agreement)
    again = [*possibly("so", cause.korean[-1]), *possibly(subject.pronoun, *subject.korean)]
    return Phrase(
        subject.korean + time.korean + cause.korean + aim.korean + went.korean,
        subject.english + cause.english + again + went.main + aim.english + time.english,
    )


def _unfocused(dice: Dice) -> tuple[Phrase, str]:
    """Generate lack of focus as a reason, such as 집에서 집중이 안 돼서 (could not focus at home).

    Returns the reason, and the Korean noun of its place (집), or "" if the reason names no place.
    """
    place = dice.pick(DISTRACTING) if dice.chance(0.8) else ""
    where = at_place(dice, PLACES[place], "in") if place else Phrase([], [])
    focus, *fails = words = [Word(text) for text in ("집중이", *dice.pick(UNFOCUSED))]
    could, refusal = Gloss("could", fails[-1], tuple(words)), Gloss("not", fails[0], tuple(words))
    english = [could, refusal, Gloss("focus", focus, tuple(fails)), *where.english]
    return Phrase(where.korean + words, english), place


def _condition(name: str, subject: Nominal) -> Phrase:
    """Generate a feeling as a reason: 배가 고파서 (was hungry) or 심심해서 (was bored).

    name: "hungry" or "bored".
    subject: the person, who determines the English verb ("was" or "were").
    """
    words = [Word(text) for text in ("배가 고파서" if name == "hungry" else "심심해서").split()]
    was = possibly(be("past", subject.agreement), words[-1])
    return Phrase(words, [*was, Gloss(name, words[-1], tuple(words))])
