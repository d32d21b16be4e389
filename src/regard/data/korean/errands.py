"""Generate clauses about going somewhere to do something, with the ending -(으)러."""

from __future__ import annotations

from regard.data.korean.actions import Plan, at_place, rest, when
from regard.data.korean.clauses import Predicate, Rest, arranged, verb_predicate
from regard.data.korean.conjugation import conjugate
from regard.data.korean.lexicon import Place
from regard.data.korean.nominals import Nominal
from regard.data.korean.phrases import Dice, Phrase, Word, possibly, surely
from regard.data.korean.predicates import PURPOSES, Frame

__all__ = ["errand_clause", "motion", "purpose"]

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
