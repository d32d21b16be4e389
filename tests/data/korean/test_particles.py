"""Particles depend on the last sound of the noun, with the common exceptions."""

from __future__ import annotations

import pytest

from regard.data.korean.lexicon import PARTICLES, attach

FORMS = {
    "topic": "학생은 의사는 물은 나는 너는 저는 우리는",
    "subject": "학생이 의사가 물이 내가 네가 제가 우리가",
    "object": "책을 사과를 물을 나를 너를",
    "and": "빵과 사과와 물과 나와",
    "by": "집으로 학교로 서울로 연필로 칼로 버스로 펜으로 가위로 손으로",
    "to": "학생에게 친구에게 나에게",
    "in": "집에서 학교에서",
    "at": "집에 학교에",
    "is": "학생이다 의사다 선생님이다 고양이다",
    "was": "학생이었다 의사였다",
    "is?": "학생이니 의사니",
    "is and": "학생이고 의사고",
    "is, politely": "학생입니다 의사입니다",
    "is, of old": "고양이로소이다 왕이로소이다 시인이로소이다 개로소이다",
}
IRREGULAR = {"내가": "나", "네가": "너", "제가": "저"}


def noun_of(form: str, particle: str) -> str:
    if particle == "subject" and form in IRREGULAR:
        return IRREGULAR[form]
    endings = sorted(PARTICLES[particle], key=len, reverse=True)
    nouns = [form.removesuffix(ending) for ending in endings if form.endswith(ending)]
    # 고양이다 is 고양이 with 다.
    return next(noun for noun in nouns if noun not in ("고양", "학생이"))


@pytest.mark.parametrize(
    ("particle", "form"), [(name, form) for name in FORMS for form in FORMS[name].split()]
)
def test_known_forms(particle: str, form: str):
    assert attach(noun_of(form, particle), particle) == form
