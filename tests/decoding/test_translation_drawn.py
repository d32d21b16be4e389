"""A translation is drawn with its words and its alignment in a terminal, a notebook and a page."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import rich
import torch
from rich.console import Console

import regard
from regard import ArgumentError, DataError
from regard.data.tokenizers import train_tokenizer
from regard.decoding import Beam, Greedy, Passage, Rules, Scored, Translation, Translator
from regard.decoding.translation import DRAWN
from regard.models import build_model
from regard.viewing import matrix
from tests.decoding.toys import Looking, Spaced
from tests.facts import facts
from tests.models.variants import make

SEEN = torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
TEXT = "한 사람이 길을 걸었다. 그는 집에 갔다. 밥은 없었다!"


def passage(source, source_words, target, words, seen=SEEN) -> Passage:
    scores = tuple(-0.5 for _ in target)
    return Passage(source, source_words, target, words, scores, {"decoder.cross": seen})


def example(source: str = "검은 고양이", text: str = "black cat") -> Translation:
    read = passage(("▁검은", "▁고양이", "</s>"), (0, 1, -1), ("▁black", "▁cat", "</s>"), (0, 1, -1))
    return Translation(source, text, (read,), ("a <note>",))


def drawn(translation: Scored, width: int = 100) -> str:
    page = io.StringIO()
    Console(file=page, width=width, color_system=None).print(translation)
    return page.getvalue()


def test_print_gives_the_text_and_repr_is_short(capsys: pytest.CaptureFixture[str]):
    print(example())
    rich.print(example())
    first, *others = capsys.readouterr().out.splitlines()
    assert first.split() == ["black", "cat"] and any("고양이" in line for line in others)
    assert repr(example()) == "Translation('검은 고양이', 'black cat', score=-1.5, notes=('a <note>',))"
    assert len(repr(Scored("a " * 9999, "b " * 9999))) < 250
    assert repr(Scored("a", "b")) == "Scored('a', 'b', score=0)"


@pytest.mark.parametrize("width", [40, 200])
def test_terminal_output_has_words_alignment_score_and_notes(width: int):
    text = drawn(example(), width)
    assert all(line in text for line in ("검은", "고양이", "black", "cat", "-1.50", "<note>"))
    rows = [line for line in text.splitlines() if "▒" in line or "▓" in line]
    assert [row.split()[0] for row in rows] == ["black", "cat", "0"]
    assert ("drawn" in " ".join(text.split())) == ("</s>" in example().source_pieces)


def test_notebook_html_is_escaped():
    html = example(text="<b>black</b> <cat>")._repr_html_()
    assert "<b>" not in html and "&lt;cat&gt;" in html and "a &lt;note&gt;" in html
    assert "<script" not in html and ".60" in html and ".80" in html


def test_entry_has_the_reference_and_the_alignment():
    entry = example().entry("the black cat")
    assert (entry.source, entry.target) == (("검은", "고양이"), ("black", "cat"))
    assert (
        entry.reference.split() == ["the", "black", "cat"]
        and entry.score == -1.5
        and entry.notes == ("a <note>",)
    )
    torch.testing.assert_close(torch.tensor(entry.weights).float(), example().alignment.matrix)


def test_words_follow_the_word_indices_of_the_tokens():
    # The tokenizer replaces NUL by a space, so it has two words where str.split() has one.
    assert example(source="검은\0고양이").entry().source == ("검은", "고양이")
    # The truncated words are drawn without weights.
    cut = example(source="검은 고양이가 집에 갔다").entry()
    assert cut.source == ("검은", "고양이가", "집에", "갔다") and cut.weights.shape == (2, 2)
    assert "2 of 4 " in str(cut)
    unknown = Scored("a b c", "x", (passage(("<unk>", "b", "</s>"), (0, 1, -1), ("x",), (0,), SEEN[:1]),))
    assert unknown.entry().source == ("a", "b", "c")
    # If letters are words, the words are the text of the tokens.
    letters = Scored("ab", "x", (passage(("a", "b", "</s>"), (0, 1, -1), ("x",), (0,), SEEN[:1]),))
    assert letters.entry().source == ("a", "b")
    spelled = passage(("▁", "<0xEC>", "<0xA7>"), (0, 0, 0), ("<0xEC>", "<0xA7>", "<0x91>"), (0, 0, 0))
    byted = Scored("집에 갔다", "other words here", (spelled,)).entry()
    assert byted.source == ("집에", "갔다") and byted.target == ("집",)


def test_translation_without_attention_is_drawn_with_a_note(tmp_path: Path):
    made = Translator(make("seq2seq gru").float(), Spaced(11), Spaced(11))
    (result,) = made.translate(["ab cd"])
    assert result.entry().weights is None
    assert "no cross-attention" in drawn(result) and "no cross-attention" in result._repr_html_()
    result.save(tmp_path / "page.html")
    assert "<table" not in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_blank_line_is_drawn_blank():
    (blank,) = Translator(Looking(11), Spaced(11), Spaced(11)).translate(["  "])
    assert str(blank) == "" and "█" not in drawn(blank)
    assert "<table" not in blank._repr_html_() and "nothing" in blank._repr_html_()


def test_split_line_is_drawn_as_one():
    target = Spaced(40, lines=["a man went home and ate what there was in it"])
    made = Translator(
        Looking(40), Spaced(40, lines=[TEXT]), target, search=Greedy(Rules(maximum=9)), longest=8
    )
    (result,) = made.translate([TEXT])
    entry = result.entry()
    assert len(result.passages) == 3 and entry.notes == result.notes
    assert " ".join(entry.source) == TEXT and " ".join(entry.target) == result.text
    torch.testing.assert_close(torch.tensor(entry.weights).float(), result.alignment.matrix)
    assert "split into 3" in drawn(result, 60) and "split into 3" in result._repr_html_()


def test_only_the_first_of_thousands_of_words_are_drawn():
    line = "한 사람이 길을 걸었다. " * 2500
    made = Translator(Looking(40), Spaced(40), Spaced(40), search=Greedy(Rules(maximum=5)), longest=40)
    (result,) = made.translate([line])
    entry = result.entry()
    assert len(entry.source) == 10_000 and entry.weights.shape == (min(len(entry.target), DRAWN), DRAWN)
    assert len(result._repr_html_()) < 1_000_000 and drawn(result).count("\n") < 80


@pytest.mark.parametrize("kind", ["bpe", "word", "character"])
def test_every_word_has_weights_with_every_tokenizer(kind: str):
    tokenizer = train_tokenizer(kind, [TEXT] * 9, 300 if kind == "bpe" else None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = build_model("bahdanau", tokenizer.size, tokenizer.size, width=8, embedding=8)
    made = Translator(model, tokenizer, tokenizer, search=Beam(3, rules=Rules(maximum=9)), longest=12)
    for line in (TEXT, "a\0b\tc", "👩‍👩‍👧‍👦 \u202e길을", "<script>alert(1)</script> 한", "한" * 40):
        (result,) = made.translate([line])
        entry = result.entry()
        assert entry.weights.shape == (len(entry.target), len(entry.source))
        assert "<script" not in result._repr_html_() and "\u202e" not in drawn(result)


def test_save_writes_a_page_or_a_picture_and_refuses_other_formats(tmp_path: Path):
    example().save(tmp_path / "page.html", title="<one>")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "&lt;one&gt;</h1>" in text and "고양이" in text
    with pytest.raises(ArgumentError, match=r"\.html"):
        example().save(tmp_path / "page.txt")
    example().save(tmp_path / "picture.svg")
    assert (tmp_path / "picture.svg").read_text(encoding="utf-8") == regard.picture(example()).svg()
    with pytest.raises(DataError, match="folder"):
        example().save(tmp_path / "none" / "page.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "picture.svg"]


def test_picture_and_explore_accept_a_translation():
    drawn = regard.picture(example(), "matrix")
    assert str(drawn) == str(example().seen().words().picture())
    assert regard.explore(example()) == regard.explore(example().seen())
    with pytest.raises(ArgumentError, match="list"):
        regard.picture([example()])
    with pytest.raises(ArgumentError, match="str"):
        regard.explore("a cat")


def test_picture_accepts_a_record_of_one_sequence():
    layer, x = regard.MultiHead(8, 2), torch.randn(1, 4, 8)
    with regard.record() as seen:
        layer(x)
    first, places = str(regard.picture(seen, head=1)), list("0123")
    assert first == str(matrix(seen["multihead"][0].weights[0, 1], places, places))
    with regard.record() as steps:
        memory = layer.remember(x)
        for at in range(4):
            layer(x[:, at : at + 1], memory, start=at)
    assert str(regard.picture(steps, head=1)) == first
    with regard.record() as twice:
        layer(x)
        layer(x)
    with pytest.raises(ArgumentError, match="2 times"):
        regard.picture(twice)
    with regard.record() as batch:
        layer(torch.randn(3, 4, 8))
    with pytest.raises(ArgumentError, match=facts("batch", 3)):
        regard.picture(batch)
    with regard.record(regard.Look(entropy=True)) as entropy:
        layer(x)
    with pytest.raises(ArgumentError, match="recorded"):
        regard.picture(entropy)
