"""Nouns, places, people, times and other words of the built-in corpus, as tables.

The English side of these tables contains the links to the Korean words, in this notation:

    this/1 morning/2    "this" has a sure link to the first Korean word, "morning" to the second
    last night          without a number, both words have a sure link to the first Korean word
    (the) door          a word in parentheses, such as an article or a preposition, has only possible links
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["NOUNS", "PLACES", "Noun", "Person", "Place"]


class Noun(NamedTuple):
    """A noun in Korean and English.

    korean: the Korean noun.
    english: the English noun in the singular.
    plural: the English plural, or "".
    counter: the Korean word that is used when counting the noun (개 in 사과 두 개, two apples), or "".
    kind: "count", "mass" (no "a" and no plural), or "fixed" (the English is always the same).

    >>> NOUNS["fruit"][0]
    Noun(korean='사과', english='apple', plural='apples', counter='개', kind='count')
    """

    korean: str
    english: str
    plural: str = ""
    counter: str = ""
    kind: str = "count"


class Place(NamedTuple):
    """A place in Korean and English.

    korean: the Korean noun.
    english: the English noun.
    at: the English words for "at this place".
    to: the English words for "to this place".

    A word in parentheses, such as a preposition, has only possible alignment links.

    >>> PLACES["집"]
    Place(korean='집', english='house', at='(at) home', to='home')
    """

    korean: str
    english: str
    at: str
    to: str


class Person(NamedTuple):
    """A person of the example sentences: a pronoun, a name or a family member.

    korean: the Korean words, for example 민수.
    subject, object: the English words for the person as the subject of a sentence ("I", "Minsu") and as its
        object ("me", "Minsu").
    agreement: the form of the English verb: "I", "you", "we", "they", or "he" (third person singular).
    pronoun: the English pronoun that replaces the words when the person is mentioned again: "he" for Minsu.
    """

    korean: str
    subject: str
    object: str
    agreement: str
    pronoun: str


def _mass(korean: str, english: str, counter: str = "") -> Noun:
    return Noun(korean, english, counter=counter, kind="mass")


def _fixed(korean: str, english: str) -> Noun:
    return Noun(korean, english, kind="fixed")


NOUNS: dict[str, tuple[Noun, ...]] = {
    "people": (
        Noun("학생", "student", "students", "명"),
        Noun("친구", "friend", "friends", "명"),
        Noun("아이", "child", "children", "명"),
        Noun("남자", "man", "men"),
        Noun("여자", "woman", "women"),
        Noun("소년", "boy", "boys"),
        Noun("소녀", "girl", "girls"),
    ),
    "jobs": (
        Noun("선생님", "teacher", "teachers"),
        Noun("의사", "doctor", "doctors"),
        Noun("가수", "singer", "singers"),
        Noun("화가", "painter", "painters"),
        Noun("작가", "writer", "writers"),
        Noun("요리사", "cook", "cooks"),
        Noun("농부", "farmer", "farmers"),
    ),
    "pets": (
        Noun("고양이", "cat", "cats", "마리"),
        Noun("개", "dog", "dogs", "마리"),
        Noun("토끼", "rabbit", "rabbits", "마리"),
    ),
    "cattle": (Noun("말", "horse", "horses", "마리"), Noun("소", "cow", "cows", "마리")),
    "fruit": (
        Noun("사과", "apple", "apples", "개"),
        Noun("오렌지", "orange", "oranges", "개"),
        Noun("바나나", "banana", "bananas", "개"),
    ),
    "dishes": (
        _mass("빵", "bread"),
        _mass("김치", "kimchi"),
        Noun("케이크", "cake", "cakes", "개"),
    ),
    "rice": (_mass("밥", "rice"),),
    "raw": (_mass("고기", "meat"), _mass("생선", "fish")),
    "water": (_mass("물", "water", "잔"), _mass("우유", "milk", "잔")),
    "drinks": (
        _mass("커피", "coffee", "잔"),
        _mass("차", "tea", "잔"),
        _mass("주스", "juice", "잔"),
    ),
    "books": (Noun("책", "book", "books", "권"), Noun("소설", "novel", "novels", "권")),
    "press": (Noun("잡지", "magazine", "magazines"), Noun("신문", "newspaper", "newspapers")),
    "letters": (Noun("편지", "letter", "letters"),),
    "poems": (Noun("시", "poem", "poems"),),
    "songs": (Noun("노래", "song", "songs"),),
    "shows": (Noun("영화", "movie", "movies"),),
    "pictures": (Noun("그림", "picture", "pictures"),),
    "photos": (Noun("사진", "photo", "photos"),),
    "flowers": (Noun("꽃", "flower", "flowers", "송이"), Noun("장미", "rose", "roses", "송이")),
    "trees": (Noun("나무", "tree", "trees"),),
    "bicycles": (Noun("자전거", "bicycle", "bicycles"),),
    "cars": (Noun("자동차", "car", "cars"),),
    "furniture": (
        Noun("의자", "chair", "chairs", "개"),
        Noun("책상", "desk", "desks", "개"),
        Noun("침대", "bed", "beds", "개"),
    ),
    "goods": (
        Noun("가방", "bag", "bags", "개"),
        Noun("모자", "hat", "hats", "개"),
        Noun("우산", "umbrella", "umbrellas", "개"),
        Noun("시계", "watch", "watches", "개"),
        Noun("컴퓨터", "computer", "computers"),
    ),
    "gifts": (Noun("선물", "gift", "gifts", "개"),),
    "boxes": (Noun("상자", "box", "boxes", "개"),),
    "dishware": (Noun("접시", "plate", "plates", "개"), Noun("컵", "cup", "cups", "개")),
    "rides": (Noun("버스", "bus", "buses"), Noun("기차", "train", "trains")),
    "paper": (_mass("종이", "paper"),),
    "openings": (_fixed("문", "(the) door"), _fixed("창문", "(the) window")),
    "languages": (_fixed("한국어", "Korean"), _fixed("영어", "English")),
    "sciences": (_fixed("수학", "math"), _fixed("역사", "history")),
    "skills": (
        _fixed("피아노", "(the) piano"),
        _fixed("태권도", "taekwondo"),
    ),
    "rooms": (
        _fixed("방", "(the) room"),
        _fixed("부엌", "(the) kitchen"),
        _fixed("교실", "(the) classroom"),
    ),
    "music": (_fixed("음악", "music"),),
    "radio": (_fixed("라디오", "(the) radio"),),
    "nature": (_fixed("바다", "(the) sea"), _fixed("산", "(the) mountain")),
}
"""Nouns in groups. If a verb can be used with one noun of a group, it can be used with all of them."""

PLACES = {
    each[0]: Place(*each)
    for each in (
        ("학교", "school", "(at) school", "(to) school"),
        ("집", "house", "(at) home", "home"),
        ("도서관", "library", "(at) (the) library", "(to) (the) library"),
        ("공원", "park", "(in) (the) park", "(to) (the) park"),
        ("시장", "market", "(at) (the) market", "(to) (the) market"),
        ("병원", "hospital", "(at) (the) hospital", "(to) (the) hospital"),
        ("식당", "restaurant", "(at) (the) restaurant", "(to) (the) restaurant"),
        ("카페", "cafe", "(at) (the) cafe", "(to) (the) cafe"),
        ("극장", "theater", "(at) (the) theater", "(to) (the) theater"),
        ("가게", "shop", "(at) (the) shop", "(to) (the) shop"),
        ("역", "station", "(at) (the) station", "(to) (the) station"),
        ("교실", "classroom", "(in) (the) classroom", "(to) (the) classroom"),
        ("방", "room", "(in) (the) room", "(to) (the) room"),
        ("부엌", "kitchen", "(in) (the) kitchen", "(to) (the) kitchen"),
        ("정원", "garden", "(in) (the) garden", "(to) (the) garden"),
        ("바다", "sea", "(in) (the) sea", "(to) (the) sea"),
        ("서울", "Seoul", "(in) Seoul", "(to) Seoul"),
        ("부산", "Busan", "(in) Busan", "(to) Busan"),
        ("한국", "Korea", "(in) Korea", "(to) Korea"),
        ("미국", "America", "(in) America", "(to) America"),
    )
}

REVISED_PLACES = {"카페": Place("카페", "café", "(at) (a) café", "(to) (a) café")}
"""Places that version 2 of the grammar translates differently: "to a café" instead of "to the cafe"."""

PRONOUNS = {
    each[0]: Person(*each)
    for each in (
        ("나", "I", "me", "I", "I"),
        ("저", "I", "me", "I", "I"),
        ("너", "you", "you", "you", "you"),
        ("그", "he", "him", "he", "he"),
        ("그녀", "she", "her", "he", "she"),
        ("우리", "we", "us", "we", "we"),
        ("그들", "they", "them", "they", "they"),
    )
}

NAMES = tuple(
    Person(korean, english, english, "he", pronoun)
    for korean, english, pronoun in (
        ("민수", "Minsu", "he"),
        ("지훈", "Jihoon", "he"),
        ("영희", "Younghee", "she"),
        ("수진", "Sujin", "she"),
    )
)

NEW_NAMES = (Person("최웅준", "Woongjun", "Woongjun", "he", "he"),) * 2
"""Names that version 2 of the grammar adds. A name is repeated to make it more frequent."""

ELDERS = tuple(
    Person(f"{owner} {korean}", f"{whose}/1 {english}", f"{whose}/1 {english}", "he", pronoun)
    for korean, english, pronoun in (
        ("어머니", "mother/2", "she"),
        ("아버지", "father/2", "he"),
        ("할머니", "grandmother/2", "she"),
        ("형", "older/2 brother/2", "he"),
        ("누나", "older/2 sister/2", "she"),
    )
    for owner, whose in (("우리", "my"), ("그의", "his"))
)
"""Older relatives. Korean says "our mother" where English says "my mother"."""

YOUNGER = tuple(
    Person(f"{owner} {korean}", f"{whose}/1 {english}", f"{whose}/1 {english}", "he", pronoun)
    for korean, english, pronoun in (
        ("남동생", "younger/2 brother/2", "he"),
        ("여동생", "younger/2 sister/2", "she"),
        ("아들", "son/2", "he"),
        ("딸", "daughter/2", "she"),
    )
    for owner, whose in (("내", "my"), ("네", "your"), ("그녀의", "her"))
)

TIMES = {
    "past": (
        ("어제", "yesterday"),
        ("오늘 아침에", "this/1 morning/2"),
        ("어젯밤에", "last night"),
        ("지난주에", "last week"),
        ("월요일에", "(on) Monday"),
        ("금요일에", "(on) Friday"),
        ("일요일에", "(on) Sunday"),
        ("주말에", "(on) (the) weekend"),
        ("저녁에", "(in) (the) evening"),
    ),
    "future": (
        ("내일", "tomorrow"),
        ("오늘 저녁에", "this/1 evening/2"),
        ("다음 주에", "next/1 week/2"),
        ("월요일에", "(on) Monday"),
        ("금요일에", "(on) Friday"),
        ("일요일에", "(on) Sunday"),
        ("주말에", "(on) (the) weekend"),
        ("곧", "soon"),
    ),
    "present": (
        ("매일", "every day"),
        ("매주", "every week"),
        ("아침에", "(in) (the) morning"),
        ("저녁에", "(in) (the) evening"),
        ("주말에", "(on) (the) weekend"),
    ),
    "not present": (
        ("아침에", "(in) (the) morning"),
        ("저녁에", "(in) (the) evening"),
        ("주말에", "(on) (the) weekend"),
    ),
    "progressive": (("지금", "now"),),
    "lasting past": (("작년에", "last year"),),
    "lasting future": (("내년에", "next year"),),
}

HOURS = (
    ("한", "one"),
    ("두", "two"),
    ("세", "three"),
    ("다섯", "five"),
    ("일곱", "seven"),
    ("아홉", "nine"),
    ("열", "ten"),
)

OFTEN = (("자주", "often"), ("항상", "always"), ("보통", "usually"), ("가끔", "sometimes"))

NUMBERS = (("한", "one"), ("두", "two"), ("세", "three"), ("다섯", "five"), ("열", "ten"))

DEGREES = (("아주", "very"), ("정말", "really"), ("너무", "so"))

SIDES = (("위", "on"), ("아래", "under"), ("옆", "beside"), ("뒤", "behind"), ("앞", "(in) front (of)"))

REASONS = (
    ("비", "(the) rain"),
    ("눈", "(the) snow"),
    ("시험", "(the) exam"),
    ("일", "work"),
    ("감기", "(a) cold"),
)

CONTAINERS = {"잔": ("cup", "cups")}
"""Korean counters with an English translation, in singular and plural: 커피 두 잔, two cups of coffee."""
