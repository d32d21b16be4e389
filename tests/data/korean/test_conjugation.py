"""Forms of verbs and adjectives, compared with grammars of Korean."""

from __future__ import annotations

import pytest

from regard.data.korean.lexicon import ADJECTIVES, ENDINGS, STATES, VERBS, WEATHER, Stem, conjugate

ORDER = ("ㄴ다", "었다", "ㅂ니다", "니", "ㄹ", "ㄴ", "는", "고", "지", "서")

VERB_FORMS = """
가       | 간다 갔다 갑니다 가니 갈 간 가는 가고 가지 가서
오       | 온다 왔다 옵니다 오니 올 온 오는 오고 오지 와서
먹       | 먹는다 먹었다 먹습니다 먹니 먹을 먹은 먹는 먹고 먹지 먹어서
읽       | 읽는다 읽었다 읽습니다 읽니 읽을 읽은 읽는 읽고 읽지 읽어서
앉       | 앉는다 앉았다 앉습니다 앉니 앉을 앉은 앉는 앉고 앉지 앉아서
마시     | 마신다 마셨다 마십니다 마시니 마실 마신 마시는 마시고 마시지 마셔서
가르치   | 가르친다 가르쳤다 가르칩니다 가르치니 가르칠 가르친 가르치는 가르치고 가르치지 가르쳐서
보       | 본다 봤다 봅니다 보니 볼 본 보는 보고 보지 봐서
주       | 준다 줬다 줍니다 주니 줄 준 주는 주고 주지 줘서
배우     | 배운다 배웠다 배웁니다 배우니 배울 배운 배우는 배우고 배우지 배워서
보내     | 보낸다 보냈다 보냅니다 보내니 보낼 보낸 보내는 보내고 보내지 보내서
켜       | 켠다 켰다 켭니다 켜니 켤 켠 켜는 켜고 켜지 켜서
쉬       | 쉰다 쉬었다 쉽니다 쉬니 쉴 쉰 쉬는 쉬고 쉬지 쉬어서
쓰       | 쓴다 썼다 씁니다 쓰니 쓸 쓴 쓰는 쓰고 쓰지 써서
닫       | 닫는다 닫았다 닫습니다 닫니 닫을 닫은 닫는 닫고 닫지 닫아서
듣 ㄷ    | 듣는다 들었다 듣습니다 듣니 들을 들은 듣는 듣고 듣지 들어서
걷 ㄷ    | 걷는다 걸었다 걷습니다 걷니 걸을 걸은 걷는 걷고 걷지 걸어서
돕 ㅂ    | 돕는다 도왔다 돕습니다 돕니 도울 도운 돕는 돕고 돕지 도와서
부르 르  | 부른다 불렀다 부릅니다 부르니 부를 부른 부르는 부르고 부르지 불러서
모르 르  | 모른다 몰랐다 모릅니다 모르니 모를 모른 모르는 모르고 모르지 몰라서
만들     | 만든다 만들었다 만듭니다 만드니 만들 만든 만드는 만들고 만들지 만들어서
살       | 산다 살았다 삽니다 사니 살 산 사는 살고 살지 살아서
팔       | 판다 팔았다 팝니다 파니 팔 판 파는 팔고 팔지 팔아서
알       | 안다 알았다 압니다 아니 알 안 아는 알고 알지 알아서
울       | 운다 울었다 웁니다 우니 울 운 우는 울고 울지 울어서
공부하 하 | 공부한다 공부했다 공부합니다 공부하니 공부할 공부한 공부하는 공부하고 공부하지 공부해서
"""

ADJECTIVE_FORMS = """
작        | 작다 작았다 작습니다 작니 작을 작은 _ 작고 작지 작아서
좋        | 좋다 좋았다 좋습니다 좋니 좋을 좋은 _ 좋고 좋지 좋아서
짧        | 짧다 짧았다 짧습니다 짧니 짧을 짧은 _ 짧고 짧지 짧아서
크        | 크다 컸다 큽니다 크니 클 큰 _ 크고 크지 커서
예쁘      | 예쁘다 예뻤다 예쁩니다 예쁘니 예쁠 예쁜 _ 예쁘고 예쁘지 예뻐서
바쁘      | 바쁘다 바빴다 바쁩니다 바쁘니 바쁠 바쁜 _ 바쁘고 바쁘지 바빠서
길        | 길다 길었다 깁니다 기니 길 긴 _ 길고 길지 길어서
아름답 ㅂ | 아름답다 아름다웠다 아름답습니다 아름답니 아름다울 아름다운 _ 아름답고 아름답지 아름다워서
춥 ㅂ     | 춥다 추웠다 춥습니다 춥니 추울 추운 _ 춥고 춥지 추워서
빠르 르   | 빠르다 빨랐다 빠릅니다 빠르니 빠를 빠른 _ 빠르고 빠르지 빨라서
빨갛 ㅎ   | 빨갛다 빨갰다 빨갛습니다 빨갛니 빨갈 빨간 _ 빨갛고 빨갛지 빨개서
하얗 ㅎ   | 하얗다 하얬다 하얗습니다 하얗니 하얄 하얀 _ 하얗고 하얗지 하얘서
친절하 하 | 친절하다 친절했다 친절합니다 친절하니 친절할 친절한 _ 친절하고 친절하지 친절해서
재미있 있 | 재미있다 재미있었다 재미있습니다 재미있니 재미있을 _ 재미있는 재미있고 재미있지 재미있어서
없 있     | 없다 없었다 없습니다 없니 없을 _ 없는 없고 없지 없어서
아니 아니 | 아니다 아니었다 아닙니다 아니니 아닐 아닌 _ 아니고 아니지 아니어서
"""


def rows(table: str, describes: bool) -> list[tuple[Stem, list[str]]]:
    split = [line.split("|") for line in table.strip().splitlines()]
    return [(Stem(*stem.split(), describes=describes), forms.split()) for stem, forms in split]


@pytest.mark.parametrize(
    ("stem", "forms"), rows(VERB_FORMS, False) + rows(ADJECTIVE_FORMS, True), ids=lambda each: str(each[0])
)
def test_known_forms(stem: Stem, forms: list[str]):
    made = [conjugate(stem, ending) for ending in ORDER]
    assert [form for form, known in zip(made, forms, strict=True) if known != "_"] == [
        form for form in forms if form != "_"
    ]


@pytest.mark.parametrize(
    ("stem", "form"),
    [
        (Stem("만나"), "만나러"),
        (Stem("공부하", "하"), "공부하러"),
        (Stem("부르", "르"), "부르러"),
        (Stem("먹"), "먹으러"),
        (Stem("읽"), "읽으러"),
        (Stem("만들"), "만들러"),
        (Stem("팔"), "팔러"),
        (Stem("듣", "ㄷ"), "들으러"),
        (Stem("닫"), "닫으러"),
        (Stem("돕", "ㅂ"), "도우러"),
    ],
)
def test_the_purpose_ending(stem: Stem, form: str):
    assert conjugate(stem, "러") == form


def test_all_past_endings_use_the_same_base():
    assert [conjugate(Stem("만들"), ending) for ending in ("었고", "었지만", "었니", "었습니다")] == [
        "만들었고",
        "만들었지만",
        "만들었니",
        "만들었습니다",
    ]


def test_every_stem_of_the_corpus_takes_every_ending():
    words = [*VERBS.values(), *ADJECTIVES.values(), *STATES.values(), *WEATHER.values()]
    made = {conjugate(word.stem, ending) for word in words for ending in ENDINGS}
    assert all("가" <= syllable <= "힣" for form in made for syllable in form)
    assert {word.stem.kind for word in words} == {"", "ㄷ", "ㅂ", "르", "ㅎ", "하", "있"}
