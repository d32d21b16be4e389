"""Unknown keyword arguments raise UnknownName with the known ones, and a hint for those of other toolkits."""

from __future__ import annotations

import pytest

import regard
from regard.decoding import Beam, Greedy, Rules, Sample, Translator
from regard.decoding.input_checks import SEARCH_KEYWORDS, checked_lines
from regard.errors import ArgumentError, UnknownName
from tests.decoding.toys import Looking, Spaced

PARTS = (Looking(size=11), Spaced(11), Spaced(11))


@pytest.mark.parametrize("keyword", ["beam", "beam_size", "num_beams"])
def test_beam_keywords_hint_at_search(keyword: str):
    translator = Translator(*PARTS)
    calls = {
        "Translator()": lambda: Translator(*PARTS, **{keyword: 4}),
        "translate()": lambda: translator.translate("hi", **{keyword: 4}),
        "score()": lambda: translator.score("hi", "hi", **{keyword: 4}),
    }
    for name, call in calls.items():
        with pytest.raises(UnknownName) as caught:
            call()
        text = str(caught.value)
        assert name in text and f"'{keyword}'" in text and "search=Beam(size=4)" in text


def test_unknown_keywords_list_the_known_ones():
    with pytest.raises(UnknownName) as caught:
        Translator(*PARTS, serach=Beam())
    assert "'search'" in str(caught.value) and "tokens_per_batch" in str(caught.value)
    with pytest.raises(UnknownName) as caught:
        Translator(*PARTS).translate("hi", prefix="a")
    assert "'prefixes'" in str(caught.value) and "hint" not in str(caught.value)


def test_load_checks_keywords_before_the_run_folder(tmp_path):
    from regard.tasks.translation import load_translator

    with pytest.raises(UnknownName) as caught:
        load_translator(tmp_path / "none", beam=4)
    text = str(caught.value)
    assert "load()" in text and "search=Beam(size=4)" in text and "checkpoint" in text
    assert "source_tokenizer" not in text


def test_every_hint_is_valid_python():
    names = {"Average": regard.decoding.Average, "Beam": Beam, "Rules": Rules, "Sample": Sample}
    for setting in SEARCH_KEYWORDS.values():
        if setting.startswith("search="):
            made = eval(setting.removeprefix("search=").format(1), names)
            assert isinstance(made, Beam | Sample | Greedy)


def test_bytes_are_not_a_list_of_lines():
    with pytest.raises(regard.ArgumentError, match="bytes") as caught:
        Translator(*PARTS).translate(b"hi")  # type: ignore[call-overload]
    assert "decode" in str(caught.value)


def test_lines_are_returned_with_valid_unicode():
    assert checked_lines("translate()", ["a", "\ud83d\ude00", "\ud83d."]) == ["a", "\U0001f600", "\ufffd."]
    with pytest.raises(ArgumentError, match=r"line 4 .*int"):
        checked_lines("translate()", ["a", 1], first=2)
