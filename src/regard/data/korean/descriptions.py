"""Generate clauses without an action verb: what something is, how it is, where it is, and the weather."""

from __future__ import annotations

from regard.data.korean.actions import ANIMALS, LEFT, at_place, relative, time_phrase
from regard.data.korean.clauses import (
    EXIST,
    LACK,
    Predicate,
    Rest,
    adjective_predicate,
    arranged,
    be,
    finish,
    verb_predicate,
)
from regard.data.korean.conjugation import Stem, attach
from regard.data.korean.lexicon import (
    ADJECTIVES,
    DEGREES,
    NOUNS,
    NUMBERS,
    PLACES,
    PRONOUNS,
    SIDES,
    STATES,
    VERBS,
    WEATHER,
    Noun,
)
from regard.data.korean.nominals import (
    HUMAN,
    OWNED,
    Adornment,
    Nominal,
    attributes,
    common,
    modified,
    person,
    someone,
)
from regard.data.korean.phrases import (
    Dice,
    Gloss,
    Phrase,
    Word,
    gloss,
    possibly,
    say,
    spread,
    surely,
)

__all__ = ["archaic", "identity", "location", "quality", "rain", "state", "there_is", "weather"]

NOTHING = Rest([], [], [], [])
IS_NOT = Stem("아니", "아니", True)

DESCRIBED = {
    adjective.stem.text: tuple(
        noun for group in NOUNS.values() for noun in group if noun.korean in adjective.predicate_of
    )
    for adjective in ADJECTIVES.values()
}
QUALITIES = spread({stem: 2 + len(nouns) // 3 for stem, nouns in DESCRIBED.items()})
SUBJECT_OF_TALK = {noun.korean for group in ("languages", "sciences", "skills") for noun in NOUNS[group]}
PAST_OR_NOW = spread({"past": 1, "present": 2})


def quality(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a description of a thing, such as 꽃이 예쁘다 (the flower is pretty)."""
    adjective = ADJECTIVES[dice.pick(QUALITIES)]
    noun = dice.pick(DESCRIBED[adjective.stem.text])
    # Use the past only in statements and negations: past forms with other endings (작았니, 작았고, 작았지만)
    # would each be too rare for a model to learn.
    tense = dice.pick(PAST_OR_NOW) if negated or ending == "statement" else "present"
    subject = _described(dice, noun, tense == "present")
    predicate = adjective_predicate(adjective, tense, ending, subject.agreement, negated)
    return _with_degree(dice, subject, predicate, ending, negated, Phrase([], []))


def _with_degree(
    dice: Dice, subject: Nominal, predicate: Predicate, ending: str, negated: bool, time: Phrase
) -> Phrase:
    degrees = DEGREES[:2] if ending == "question" else DEGREES
    degree = say(*dice.pick(degrees)) if not negated and dice.chance(0.25) else Phrase([], [])
    words = time.korean + degree.korean
    *be_said, described = predicate.main
    said = predicate._replace(main=[*be_said, *degree.english, described])
    return arranged(subject, said, Rest(words, time.english, [], []), ending == "question")


def _described(dice: Dice, noun: Noun, future: bool) -> Nominal:
    """Generate the subject of a description.

    A noun without modifiers has the subject particle (이, 가). A noun with modifiers has the topic particle
    (은, 는). A noun for a language, a science or a skill always has the topic particle.
    """
    if noun.kind == "fixed":
        return common(noun, "topic" if noun.korean in SUBJECT_OF_TALK else "subject", "definite")
    if noun.kind == "count" and noun.korean in LEFT and dice.chance(0.3):
        return modified(*relative(dice, noun, "topic", future=future))
    if noun.korean in OWNED and dice.chance(0.3):
        return common(noun, "topic", "definite", Adornment(dice.pick(("내", "네", "그의", "그녀의"))))
    if noun.korean in HUMAN or dice.chance(0.6):
        return common(noun, "topic", "definite", Adornment(dice.pick(("이", "그"))))
    return common(noun, "subject", "definite")


STATE_TENSES = spread({"past": 3, "present": 3, "future": 1})


def state(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a description of how a person is, such as 나는 어제 바빴다 (I was busy yesterday)."""
    subject = someone(dice, ending)
    adjective = STATES[dice.pick(tuple(STATES))]
    tense = "past" if negated and dice.chance(0.5) else "present" if negated else dice.pick(STATE_TENSES)
    tense = "present" if ending == "question" else tense
    time = Phrase([], [])
    if tense == "present":
        time = say("지금", "now") if dice.chance(0.4) else time
    elif dice.chance(0.6):
        time = time_phrase(dice, tense)
    predicate = adjective_predicate(adjective, tense, ending, subject.agreement, negated)
    return _with_degree(dice, subject, predicate, ending, negated, time)


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
    time = time_phrase(dice, tense) if dice.chance(0.8) else Phrase([], [])
    words = [*time.korean, falling]
    it = Nominal([], possibly("it", falling, *coming))
    clause = Rest(words, time.english, [], [])
    return arranged(it, predicate._replace(main=said), clause, ending == "question")


def weather(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a clause about the weather, such as 어제 날씨가 추웠다 (the weather was cold yesterday)."""
    adjective = WEATHER[dice.pick(tuple(WEATHER))]
    tense = dice.pick(PAST_OR_NOW)
    past = (("어제", "yesterday"), ("지난주에", "last week"), ("오늘 아침에", "this/1 morning/2"))
    time = say(*dice.pick(past)) if tense == "past" else say("오늘", "today")
    subject = say("날씨가", "(the) weather")
    predicate = adjective_predicate(adjective, tense, ending, "he", negated)
    said = _with_degree(dice, Nominal(*subject), predicate, ending, negated, Phrase([], []))
    return Phrase(time.korean + said.korean, said.english + time.english)


COPULA = {"statement": "is", "polite": "is, politely", "question": "is?", "and": "is and", "but": "is but"}
PREDICATED = (*NOUNS["people"][:1], *NOUNS["jobs"])
INTRODUCED = tuple(noun for noun in NOUNS["people"] if noun.korean in ("친구", "남자", "여자"))


def identity(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a clause that says what a person is, such as 나는 학생이다 (I am a student)."""
    subject = someone(dice, ending)
    if not subject.pronoun or (subject.agreement == "he" and dice.chance(0.2)):
        subject = modified(*relative(dice, dice.pick(INTRODUCED), "topic"))
    past = ending == "statement" and dice.chance(0.3)
    noun = dice.pick(PREDICATED)
    if subject.pronoun == "I" and dice.chance(0.25):
        noun = NOUNS["pets"][0]  # 나는 고양이다, the plain form of 나는 고양이로소이다
    modest = subject.pronoun in ("I", "we") or not attributes(noun)
    adjective = None if modest or dice.chance(0.75) else dice.pick(attributes(noun))
    owned = adjective is None and not past and len(subject.korean) == 1 and dice.chance(0.15)
    if owned and subject.pronoun in ("he", "she", "you"):
        noun = NOUNS["people"][1]
    determiner = "내" if noun.korean == "친구" else ""
    particle = "subject" if negated else "was" if past else COPULA[ending]
    said = common(noun, particle, "indefinite", Adornment(determiner, adjective))
    return _copula(subject, said, noun, "past" if past else "present", ending, negated)


def _copula(subject: Nominal, said: Nominal, noun: Noun, tense: str, ending: str, negated: bool) -> Phrase:
    words = list(said.korean)
    english = said.english
    if subject.agreement in ("we", "they"):
        # Korean has no plural here, but English has a plural noun without an article: they are students.
        several = [
            gloss._replace(text=noun.plural) if gloss.text == noun.english else gloss for gloss in english
        ]
        english = [gloss for gloss in several if gloss.text not in ("a", "an")]
    is_said = words[-1]
    refusal: list[Gloss] = []
    if negated:
        is_said = Word(finish(IS_NOT, tense, ending))
        words.append(is_said)
        refusal = surely("not", is_said)
    auxiliaries = possibly(be(tense, subject.agreement), *dict.fromkeys((is_said, said.korean[-1])))
    predicate = Predicate(words, auxiliaries + refusal, english)
    return arranged(subject, predicate, NOTHING, ending == "question")


OLD = (
    *NOUNS["pets"],
    Noun("왕", "king", "kings"),
    Noun("시인", "poet", "poets"),
)
OLD_WHO = spread({"나": 4, "그": 1, "그녀": 1})


def archaic(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a clause with the archaic copula 로소이다, such as 나는 고양이로소이다 (I am a cat)."""
    subject = person(PRONOUNS[dice.pick(OLD_WHO)], "topic")
    noun = OLD[0] if subject.pronoun == "she" or dice.chance(0.4) else dice.pick(OLD)
    if noun.korean in ANIMALS and dice.chance(0.4):
        said = modified(*relative(dice, noun, "is, of old"))
    else:
        adjective = dice.pick(attributes(noun)) if attributes(noun) and dice.chance(0.5) else None
        said = common(noun, "is, of old", "indefinite", Adornment(adjective=adjective))
    return _copula(subject, said, noun, "present", "statement", False)


INSIDE = tuple(PLACES[name] for name in ("방", "교실", "부엌", "정원", "공원", "도서관", "가게"))
FOUND = {
    "방": "pets furniture goods",
    "교실": "people furniture goods",
    "부엌": "pets dishware fruit",
    "정원": "pets cattle flowers trees",
    "공원": "people pets cattle flowers trees",
    "도서관": "people books furniture",
    "가게": "people goods bicycles",
}
SMALL = tuple(noun for group in ("goods", "books", "fruit", "dishware", "gifts") for noun in NOUNS[group])
STANDS = (*NOUNS["furniture"], *NOUNS["boxes"])
THERE = spread({"past": 1, "present": 3})


def there_is(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a clause with "there is", such as 방에 고양이가 있다 (there is a cat in the room)."""
    if dice.chance(0.5):
        place = dice.pick(INSIDE)
        where = at_place(dice, place, "at")
        noun = dice.pick(tuple(noun for group in FOUND[place.korean].split() for noun in NOUNS[group]))
    else:
        where, noun = beside(dice), dice.pick(SMALL)
    tense = dice.pick(THERE) if ending == "statement" else "present"
    number = dice.pick(NUMBERS) if noun.counter and not negated and dice.chance(0.35) else None
    adjective = dice.pick(attributes(noun)) if attributes(noun) and dice.chance(0.25) else None
    plural = noun.korean in ("학생", "아이") and dice.chance(0.5)
    adornment = Adornment("", None if negated else adjective, number, plural)
    said = common(noun, "subject", "indefinite", adornment)
    exists = Word(finish(LACK if negated else EXIST, tense, ending))
    english = said.english
    if negated:
        article_said = english[0].text in ("a", "an")
        english = surely("no", exists) + (english[1:] if article_said else english)
    there = possibly("there", exists, *where.korean, *said.korean)
    is_said = [Gloss(be(tense, said.agreement), None if negated else exists, (exists,))]
    opening = is_said + there if ending == "question" else there + is_said
    return Phrase([*where.korean, *said.korean, exists], opening + english + where.english)


def beside(dice: Dice) -> Phrase:
    """Generate a place on, under or next to a thing, such as 책상 위에 (on the desk)."""
    stand = dice.pick(STANDS)
    side, english = dice.pick(SIDES)
    words = [Word(stand.korean), Word(attach(side, "at"))]
    placed = " ".join(part if part[0] == "(" else f"{part}/2" for part in english.split())
    return Phrase(words, gloss(f"{placed} (the) {stand.english}/1", words))


def location(dice: Dice, ending: str, negated: bool) -> Phrase:
    """Generate a clause that says where a person or a thing is.

    For example: 고양이는 침대 아래에 있다 (the cat is under the bed).
    """
    if dice.chance(0.5):
        subject = someone(dice, ending)
        names = ("학교", "집", "도서관", "공원", "병원", "시장", "역", "서울", "부산")
        place = PLACES[dice.pick(names)]
        where = at_place(dice, place, "at")
    else:
        noun = dice.pick((*NOUNS["pets"], *SMALL))
        owner = dice.pick(("내", "네", "그의", "그녀의")) if noun.korean in OWNED else "그"
        subject = common(noun, "topic", "definite", Adornment("" if dice.chance(0.4) else owner))
        where = beside(dice)
    tense = dice.pick(THERE) if ending == "statement" else "present"
    exists = Word(finish(LACK if negated else EXIST, tense, ending))
    is_said = [Gloss(be(tense, subject.agreement), exists)]
    if negated:
        is_said = [*possibly(be(tense, subject.agreement), exists), Gloss("not", exists)]
    predicate = Predicate([exists], is_said, [])
    return arranged(subject, predicate, Rest(where.korean, where.english, [], []), ending == "question")
