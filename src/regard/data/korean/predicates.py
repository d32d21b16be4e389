"""The verbs and adjectives of the built-in corpus, with the words that can be used with each of them."""

from __future__ import annotations

from typing import NamedTuple

from regard.data.korean.conjugation import Stem
from regard.data.korean.lexicon import NOUNS, PLACES, Noun, Place

__all__ = [
    "ACTIVE_FRAMES",
    "ADDED_FRAMES",
    "ADJECTIVES",
    "ARRIVE",
    "ERRANDS",
    "FRAMES",
    "KNOW",
    "KNOW_NOT",
    "PEOPLE_FRAMES",
    "PURPOSES",
    "VERBS",
    "Adjective",
    "Frame",
    "Verb",
]


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


VERBS = {
    stem: _verb(stem, kind, english)
    for stem, kind, english in (
        ("먹", "", "eat,eats,ate,eating"),
        ("마시", "", "drink,drinks,drank,drinking"),
        ("읽", "", "read,reads,read,reading"),
        ("쓰", "", "write,writes,wrote,writing"),
        ("사", "", "buy,buys,bought,buying"),
        ("팔", "", "sell,sells,sold,selling"),
        ("만들", "", "make,makes,made,making"),
        ("고치", "", "fix,fixes,fixed,fixing"),
        ("열", "", "open,opens,opened,opening"),
        ("닫", "", "close,closes,closed,closing"),
        ("씻", "", "wash,washes,washed,washing"),
        ("배우", "", "learn,learns,learned,learning"),
        ("가르치", "", "teach,teaches,taught,teaching"),
        ("공부하", "하", "study,studies,studied,studying"),
        ("알", "", "know,knows,knew,knowing"),
        ("모르", "르", "know,knows,knew,knowing"),
        ("좋아하", "하", "like,likes,liked,liking"),
        ("사랑하", "하", "love,loves,loved,loving"),
        ("기다리", "", "wait,waits,waited,waiting,for"),
        ("만나", "", "meet,meets,met,meeting"),
        ("돕", "ㅂ", "help,helps,helped,helping"),
        ("보", "", "watch,watches,watched,watching"),
        ("듣", "ㄷ", "listen,listens,listened,listening,to"),
        ("그리", "", "draw,draws,drew,drawing"),
        ("보내", "", "send,sends,sent,sending"),
        ("주", "", "give,gives,gave,giving"),
        ("요리하", "하", "cook,cooks,cooked,cooking"),
        ("청소하", "하", "clean,cleans,cleaned,cleaning"),
        ("타", "", "ride,rides,rode,riding"),
        ("키우", "", "raise,raises,raised,raising"),
        ("부르", "르", "sing,sings,sang,singing"),
        ("고르", "르", "choose,chooses,chose,choosing"),
        ("자르", "르", "cut,cuts,cut,cutting"),
        ("찍", "", "take,takes,took,taking"),
        ("심", "", "plant,plants,planted,planting"),
        ("가", "", "go,goes,went,going"),
        ("오", "", "come,comes,came,coming"),
        ("도착하", "하", "arrive,arrives,arrived,arriving"),
        ("걷", "ㄷ", "walk,walks,walked,walking"),
        ("자", "", "sleep,sleeps,slept,sleeping"),
        ("쉬", "", "rest,rests,rested,resting"),
        ("일하", "하", "work,works,worked,working"),
        ("살", "", "live,lives,lived,living"),
        ("놀", "", "play,plays,played,playing"),
        ("울", "", "cry,cries,cried,crying"),
        ("수영하", "하", "swim,swims,swam,swimming"),
        ("운동하", "하", "exercise,exercises,exercised,exercising"),
        ("일어나", "", "get up,gets up,got up,getting up"),
        ("나가", "", "go out,goes out,went out,going out"),
    )
}


SEE = VERBS["보"]._replace(base="see", third="sees", past="saw", progressive="seeing")
"""보다 is translated as "watch" if the object is a movie, and as "see" for other objects, e.g. a horse."""


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


MANNERS = {
    "혼자": "alone",
    "천천히": "slowly",
    "빨리": "quickly",
    "열심히": "hard",
    "조용히": "quietly",
    "일찍": "early",
    "늦게": "late",
    "잘": "well",
    "많이": "(a) lot",
}

TOOLS = {
    "비행기": "(by) plane",
    "버스": "(by) bus",
    "기차": "(by) train",
    "자전거": "(by) bicycle",
    "연필": "(with) (a) pencil",
    "펜": "(with) (a) pen",
    "칼": "(with) (a) knife",
    "가위": "(with) scissors",
}

REACH = {
    "한국": ("비행기",),
    "미국": ("비행기",),
    "서울": ("버스", "기차"),
    "부산": ("버스", "기차"),
}
"""For some places, the means of transport with which one can go there: 서울 by 버스 (bus) or 기차 (train).

IN_TOWN lists the means of transport to all other places."""

IN_TOWN = ("버스", "자전거")


def _frame(stem: str, objects: str = "", places: str = "", more: str = "", traits: str = "") -> Frame:
    """Create a Frame. Each argument except `stem` is a text with keys, separated by spaces.

    stem: a key of VERBS.
    objects, places: keys of NOUNS and of PLACES.
    more: goals (keys of PLACES, each after the sign >), tools (keys of TOOLS) and manners (keys of MANNERS).
    traits: keys of TRAITS.
    """
    return Frame(
        VERBS[stem],
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

HOME = "집 카페 공원 도서관"
GOALS = ">학교 >집 >도서관 >공원 >시장 >병원 >식당 >카페 >극장 >서울 >부산 >한국 >미국"
BUYING = "fruit dishes flowers furniture goods books press bicycles"
TEXTS = "books press letters poems"

FRAMES = (
    _frame("먹", "fruit dishes rice raw", "집 식당 공원 학교", "천천히 빨리 혼자", "counted"),
    _frame("먹", "raw", "부엌 정원", traits="animals"),
    _frame("마시", "water drinks", "집 카페 학교 식당", "천천히 빨리"),
    _frame("마시", "water", "부엌 정원", traits="animals"),
    _frame("읽", TEXTS, HOME, "천천히 조용히", "left"),
    _frame("쓰", "books letters poems", HOME, "연필 펜", "left creates"),
    _frame("사", BUYING, "시장 가게", traits="left counted"),
    _frame("팔", BUYING, "시장 가게", traits="habit counted"),
    _frame("만들", "dishes furniture", "집 학교", "빨리 혼자", "left counted creates"),
    _frame("고치", "bicycles cars furniture", "집", "빨리 혼자", "left event"),
    _frame("열", "openings boxes", "", "천천히 조용히"),
    _frame("닫", "openings boxes", "", "천천히 조용히"),
    _frame("씻", "dishware", "부엌 집", "빨리"),
    _frame("배우", "languages sciences skills", "학교 한국 미국", "", "habit years"),
    _frame("가르치", "languages sciences skills", "학교 서울 부산", "", "habit years"),
    _frame("공부하", "languages sciences", HOME, "열심히 혼자", "habit"),
    _frame("알", "people jobs songs", traits="state definite"),
    _frame("모르", "people jobs songs", traits="state definite negative"),
    _frame(
        "좋아하",
        "fruit dishes drinks pets cattle flowers books shows songs sciences",
        traits="state left persons",
    ),
    _frame("사랑하", "pets cattle nature music", traits="state left persons"),
    _frame("기다리", "people rides", "역 카페", "혼자 조용히", "left event"),
    _frame("만나", "people jobs", "역 카페 공원 학교 식당", "", "left"),
    _frame("돕", "people jobs", "학교 병원 집", "", "left"),
    _frame("보", "shows", "극장 집", "혼자", "left"),
    _frame("보", "pets cattle flowers trees nature", "", "", "left event instant")._replace(verb=SEE),
    _frame("듣", "songs music radio", HOME, "혼자 조용히", "left"),
    _frame("그리", "pictures flowers trees pets cattle", "학교 공원 집", "연필 펜 혼자", "left creates"),
    _frame("보내", "letters poems books gifts photos flowers", traits="given left counted"),
    _frame("주", "gifts flowers fruit photos goods", traits="given left counted"),
    _frame("요리하", "raw", "집 부엌", "혼자 빨리"),
    _frame("청소하", "rooms", "", "혼자 빨리"),
    _frame("타", "bicycles", "공원 학교", "혼자"),
    _frame("키우", "pets cattle", "정원", "", "habit left years lasting"),
    _frame("부르", "songs", "집 학교 극장", "조용히 혼자", "creates"),
    _frame("고르", "goods flowers books furniture", "가게 시장", "천천히 빨리", "left event"),
    _frame("자르", "paper", "집 학교", "가위 칼"),
    _frame("찍", "photos", "공원 역", "", "left creates event"),
    _frame("심", "flowers trees", "정원 공원", "혼자", "left counted creates event"),
    _frame("가", "", "", GOALS + " 혼자 빨리 일찍", "moves"),
    _frame("오", "", "", ">학교 >집 >한국 >서울 >병원 혼자 일찍 늦게", "moves coming"),
    _frame(
        "도착하", "", "", ">역 >학교 >서울 >병원 일찍 늦게", "moves arrival event coming unwilled instant"
    ),
    _frame("걷", "", "공원 정원 서울", "혼자 천천히 빨리 많이"),
    _frame("자", "", "집 방 학교", "잘 많이 늦게 일찍", "event"),
    _frame("자", "", "방 부엌 정원", "잘 많이", "animals"),
    _frame("쉬", "", "집 공원 카페 방", "혼자 많이"),
    _frame("일하", "", "병원 식당 가게 학교 도서관 서울 미국", "열심히 혼자", "habit years"),
    _frame("살", "", "", ">서울 >부산 >한국 >미국", "habit arrival years lasting"),
    _frame("놀", "", "공원 집 학교 바다", "혼자", "company"),
    _frame("울", "", "방 극장 집", "조용히 많이 혼자", "event unwilled"),
    _frame("수영하", "", "바다", "혼자 천천히 많이", "company"),
    _frame("운동하", "", "공원 집 학교", "열심히 혼자", "company"),
    _frame("일어나", "", "", "일찍 늦게", "instant"),
)
"""All verbs of version 1 of the grammar, with the words that can be used with each."""

PEOPLE_FRAMES = tuple(frame for frame in FRAMES if "animals" not in frame.traits)
ACTIVE_FRAMES = tuple(frame for frame in PEOPLE_FRAMES if "state" not in frame.traits)

KNOW, KNOW_NOT, ARRIVE = (
    next(frame for frame in FRAMES if frame.verb.stem.text == stem) for stem in ("알", "모르", "도착하")
)

_GO = _frame("가", "", "", GOALS + " >바다 >정원 >역 >가게 >부엌 >방")
_COME = _frame("오", "", "", ">학교 >집 >도서관 >공원 >카페 >서울 >한국")
_GO_OUT = _frame("나가", "", "", ">공원 >시장 >정원 >바다", traits="event")
ERRANDS = (_GO, _GO, _GO, _GO, _COME, _GO_OUT)
"""Verbs of motion (as Frames) that version 2 of the grammar uses with a purpose.

An example is 카페에 공부하러 갔다: went to a café to study. A verb is repeated to make it more frequent.
"""

MEALS = (*NOUNS["rice"] * 3, *NOUNS["dishes"])
"""The objects of 먹다 (eat) that version 2 of the grammar adds, as in "went to a restaurant to eat rice".

A noun is repeated to make it more frequent."""

ADDED_FRAMES = (FRAMES[0]._replace(objects=MEALS),) * 2
"""Frames that version 2 of the grammar adds, so that 밥을 먹었다 (ate rice) is frequent."""

UNLIKELY = (("학교", "자"), ("학교", "자르"), ("서울", "걷"))
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


BOUGHT = "furniture goods bicycles cars boxes dishware"
THINGS = BOUGHT + " flowers"
DRINKS = "water drinks"
LENGTHY = "books letters poems shows songs"

ADJECTIVES = {
    stem: Adjective(Stem(stem, kind, True), english, _koreans(attribute), _koreans(predicate))
    for stem, kind, english, attribute, predicate in (
        ("친절하", "하", "kind", "people jobs", "people jobs"),
        ("똑똑하", "하", "smart", "people pets", "people pets jobs"),
        ("유명하", "하", "famous", "jobs shows songs pictures", "jobs shows songs pictures books"),
        ("아름답", "ㅂ", "beautiful", "flowers songs pictures", "flowers songs pictures trees nature"),
        ("예쁘", "", "pretty", "flowers goods dishware", "flowers goods dishware pets"),
        ("귀엽", "ㅂ", "cute", "pets", "pets"),
        ("빠르", "르", "fast", "cars rides", "cars rides"),
        ("크", "", "big", THINGS + " pets cattle fruit trees", THINGS + " pets cattle fruit trees"),
        ("작", "", "small", THINGS + " pets cattle fruit trees", THINGS + " pets cattle fruit trees"),
        ("비싸", "", "expensive", BOUGHT, BOUGHT + " fruit drinks raw"),
        ("싸", "", "cheap", BOUGHT, BOUGHT + " fruit drinks raw"),
        ("무겁", "ㅂ", "heavy", BOUGHT, BOUGHT),
        ("빨갛", "ㅎ", "red", "flowers goods bicycles cars", "flowers goods bicycles cars"),
        ("파랗", "ㅎ", "blue", "goods bicycles cars dishware", "goods bicycles cars dishware"),
        ("하얗", "ㅎ", "white", "pets cattle flowers goods dishware", "pets cattle flowers goods dishware"),
        ("재미있", "있", "interesting", TEXTS + " shows", TEXTS + " shows sciences languages"),
        ("길", "", "long", LENGTHY, LENGTHY),
        ("어렵", "ㅂ", "difficult", "books poems songs", "books press poems songs languages sciences skills"),
        ("쉽", "ㅂ", "easy", "books poems songs", "books press poems songs languages sciences skills"),
        ("슬프", "", "sad", "books poems shows songs", "books poems letters shows songs"),
        ("맛있", "있", "delicious", "fruit dishes rice raw drinks", "fruit dishes rice raw drinks"),
        ("뜨겁", "ㅂ", "hot", DRINKS, DRINKS),
        ("차갑", "ㅂ", "cold", DRINKS, DRINKS),
        ("깨끗하", "하", "clean", "", "rooms dishware"),
    )
}

STATES = {
    stem: Adjective(Stem(stem, kind, True), english, frozenset(), frozenset())
    for stem, kind, english in (
        ("바쁘", "", "busy"),
        ("아프", "", "sick"),
        ("피곤하", "하", "tired"),
        ("행복하", "하", "happy"),
    )
}
"""Adjectives for temporary states of people, such as busy."""

WEATHER = {
    stem: Adjective(Stem(stem, kind, True), english, frozenset(), frozenset())
    for stem, kind, english in (
        ("춥", "ㅂ", "cold"),
        ("덥", "ㅂ", "hot"),
        ("좋", "", "good"),
        ("나쁘", "", "bad"),
    )
}
