"""Words that a model has never seen are reported: which, in which line, and no more than a few."""

from __future__ import annotations

import pytest

from regard.data.tokenizers import train_tokenizer
from regard.data.tokenizers.tokenizer import Lowercased
from regard.decoding import Scored, Translator
from regard.decoding.unknown_words import NAMED, UnknownWords
from regard.models import build_model
from tests.facts import mentions


def translator(kind: str) -> Translator:
    tokenizer = train_tokenizer(kind, ["the cat sat"] * 9, 280 if kind == "bpe" else None)
    return Translator(build_model("bahdanau", tokenizer.size, tokenizer.size, width=4), *[tokenizer] * 2)


@pytest.mark.parametrize(
    ("kind", "unknown"),
    [("word", ("dog", "zoo")), ("character", ("d", "o", "g", "z", "o", "o")), ("bpe", ("dog", "zoo"))],
)
def test_translation_lists_unknown_words(kind: str, unknown: tuple[str, ...]):
    made = translator(kind)
    found = made.translate("the dog sat zoo")
    assert found.unknown == unknown and found.unknown_target == ()
    assert made.translate("the cat").unknown == ()
    scored = made.score("the cat", "the dog sat zoo")
    assert (scored.unknown, scored.unknown_target) == ((), unknown)
    assert any("'dog'" in note for note in found.entry().notes) == (kind != "character")
    words = UnknownWords()
    words.add(1, found)
    (line,) = words.report()
    assert ("bytes" in line) == any("bytes" in note for note in found.entry().notes) == (kind == "bpe")


def test_case_is_ignored_by_a_lowercased_vocabulary():
    tokenizer = Lowercased(train_tokenizer("word", ["the cat"]))
    assert tokenizer.unknown("The DOG cat") == ("dog",)


def test_long_report_is_truncated_with_a_count():
    words = UnknownWords()
    for number in range(1, 1001):
        words.add(number, Scored("", "", unknown=(f"w{number}", "x" * 10_000)))
    (line,) = words.report()
    assert len(line) < 800 and mentions(line, 2_000, "'w1'", "line 1")
    # Listed are the long word, which is in all lines, and the first other words.
    assert f"{1000 - (NAMED - 1):,} more" in line and "1,000 lines" in line
    repeated = UnknownWords()
    repeated.add(1, Scored("", "", unknown=("yak", "yak")))
    repeated.add(2, Scored("", "", unknown=("yak",)))
    (line,) = repeated.report()
    assert line.count("yak") == 1 and mentions(line, "3 source", "2 lines") and "more" not in line
    assert list(UnknownWords().report()) == []


def test_commands_report_on_standard_error_and_print_the_same(command, trained, tmp_path):
    known = command("translate", trained, "--text", "나는 학교에")
    result = command("translate", trained, "--text", "나는 학교에", "--text", "나는 갸르릉 학교에")
    assert known.err.count("\n") == 1 and "BLEU" in known.err  # the note on poor scores
    assert result.lines[0] == known.lines[0]
    assert result.err.removeprefix(known.err).count("\n") == 1 and mentions(result.err, "갸르릉", "line 2")
    drawn = command("translate", trained, "--text", "나는 갸르릉 학교에", "--draw")
    assert drawn.err == known.err and drawn.out.count("'갸르릉'") == 1, "the drawing has a note"
    (tmp_path / "a").write_text("나는 학교에\n갸르릉\n", encoding="utf-8")
    (tmp_path / "b").write_text("I go\nI purr\n", encoding="utf-8")
    for name in ("score", "align", "evaluate"):
        result = command(name, trained, "--source", tmp_path / "a", "--target", tmp_path / "b")
        assert result.status == 0 and mentions(result.err, "갸르릉", "line 2")
        assert mentions(result.err, "purr", "line 2") == (name != "evaluate")
