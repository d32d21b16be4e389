"""regard view: every view of a run, in the terminal and in files; errors."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from regard.decoding import Greedy, Rules
from regard.evaluation import faithfulness
from regard.tasks.translation import load_translator, train_translation
from regard.viewing import VIEWS, Seen
from tests.facts import commands, mentions

SENTENCE = "나는 학교에 난다 ."


@pytest.fixture(scope="module")
def layered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformer after four steps; shared, so tests must not change it."""
    folder = tmp_path_factory.mktemp("runs") / "layered"
    given = {
        "data": {"built_in": "korean", "pairs": 300, "held_out": 20},
        "model": {"name": "transformer", "size": "tiny", "width": 16, "heads": 2, "layers": 2},
        "training": {"steps": 4, "batch_tokens": 300, "evaluate_every": 4, "save_every": 4},
        "evaluation": {"sentences": 2, "samples": 0},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder.with_name("cache")))
        train_translation(given, folder, console=Console(quiet=True))
    return folder


def test_terminal_shows_words_and_weights(command, trained):
    result = command("view", trained, SENTENCE)
    assert result.out == command("view", trained, "--text", SENTENCE).out
    found = load_translator(trained, device="cpu").translate(SENTENCE)
    assert (result.status, result.err) == (0, "") and all(word in result.out for word in SENTENCE.split())
    drawn, _, caption = result.out.partition("hiding the most attended")
    plain = str(found.seen().words().picture()).replace("<unk>", "난다")
    assert drawn.split() == plain.split() and found.unknown == ("난다",)
    numbers = r"source word .* -?[\d.]+ nats .* -?[\d.]+ \(\d+ target words?\)"
    assert re.fullmatch(numbers, " ".join(caption.split()))
    given = command("view", trained, SENTENCE, "--target", "I go to school .", "--view", "shaded")
    assert given.status == 0 and given.lines[0].split() == ["I", "go", "to", "school", "."]


@pytest.mark.parametrize("view", [*VIEWS, "steps"])
def test_every_view_of_a_transformer(command, layered, tmp_path, view):
    target = ("--target", "I go to school .", "--view", view)
    result = command("view", layered, SENTENCE, *target)
    if view == "long":
        assert result.status == 2 and "long" in result.err
        return
    assert (result.status, result.err) == (0, "") and result.out.strip()
    path = tmp_path / "x.svg"
    saved = command("view", layered, SENTENCE, *target, "--output", path)
    assert saved.status == 0 and "Wrote" in saved.err and not saved.out
    for file in tmp_path.iterdir():
        ElementTree.fromstring(file.read_bytes())


def test_output_formats_by_suffix(command, trained, tmp_path):
    begins = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<svg", ".html": b"<!DOCTYPE html>"}
    for suffix, begin in begins.items():
        result = command("view", trained, SENTENCE, "--output", tmp_path / f"x{suffix}")
        assert result.status == 0 and (tmp_path / f"x{suffix}").read_bytes().startswith(begin)
    result = command(
        "view", trained, SENTENCE, "--target", "I go .", "--view", "player", "--output", tmp_path / "x.gif"
    )
    assert result.status == 0
    with Image.open(io.BytesIO((tmp_path / "x.gif").read_bytes())) as opened:
        assert opened.n_frames == 5 + 4 + 1  # four words and the end are read; I, go, the stop and the end
    frames = command(
        "view", trained, SENTENCE, "--target", "I go .", "--view", "player", "--output", tmp_path / "f.svg"
    )
    assert mentions(frames.err, "10 files") and len(list(tmp_path.glob("f-*.svg"))) == 10


def test_seen_file_is_viewed_without_the_model(command, trained, tmp_path):
    kept = tmp_path / "look.seen"
    result = command("view", trained, SENTENCE, "--output", kept)
    assert result.status == 0 and "view" in commands(result.err) and Seen.load(kept).sites
    for view in ("matrix", "lines"):
        asked = ("--view", view, "--subwords")
        assert command("view", kept, *asked).out == command("view", trained, SENTENCE, *asked).out
    weighted = command("view", kept, "--by-values", "--subwords")
    assert weighted.status == 0 and "norms" in weighted.out
    assert weighted.out == command("view", trained, SENTENCE, "--by-values", "--subwords").out
    for more in ((SENTENCE,), ("--text", SENTENCE), ("--view", "steps"), ("--target", "x")):
        refused = command("view", kept, *more)
        assert refused.status == 2 and "model" in refused.err


def test_words_tokens_and_special_tokens(command, trained):
    given = ("view", trained, SENTENCE, "--target", "I go to school .")
    assert "</s>" in command(*given).out and "</s>" not in command(*given, "--specials", "hide").out
    whole = command(*given, "--specials", "renormalise", "--view", "word", "--word", "나는")
    assert whole.status == 0 and whole.lines[0].strip() == "나는"
    pieces, words = command(*given, "--subwords").out, command(*given, "--words").out
    assert "<unk>" in pieces and pieces.count("난다") == 1, "named in a note, and not drawn"
    assert words.count("난다") == 2 and "<unk>" not in words


def test_sites_heads_and_values(command, layered):
    given = ("view", layered, SENTENCE, "--target", "I go to school .", "--view", "lines")
    mean, alone = command(*given), command(*given, "--site", "decoder.1.cross", "--head", 1)
    assert mean.status == alone.status == 0 and mean.out != alone.out
    weighted = command(*given, "--by-values")
    assert weighted.status == 0 and weighted.out != mean.out
    steps = command(
        "view", layered, SENTENCE, "--target", "I go .", "--view", "steps", "--site", "encoder.0.self"
    )
    assert steps.status == 0 and mentions(steps.out, "query ·", "key ×", "× values")
    cut = command("view", layered, SENTENCE, "--view", "steps", "--max-length", 2)  # without EOS
    assert cut.status == 0 and "T=2" in cut.out
    assert "cross-attention: " in " ".join(steps.out.split())


def test_faithfulness_note_is_of_the_drawn_site_and_head(command, layered):
    target = "I go to school ."
    given = ("view", layered, SENTENCE, "--target", target)
    translator = load_translator(layered, device="cpu")
    for asked, where in (
        (("--site", "decoder.1.cross"), {"at": "decoder.1.cross"}),
        (("--site", "decoder.1.cross", "--head", 1), {"at": "decoder.1.cross", "head": 1}),
        (("--head", 0), {"head": 0}),
        (("--view", "self"), {}),
    ):
        result = " ".join(command(*given, *asked).out.split())
        told = str(faithfulness(translator, SENTENCE, target, **where))
        assert result.endswith(f"cross-attention: {told}" if "self" in asked else told)


def test_search_options(command, trained):
    drawn = command("view", trained, SENTENCE, "--greedy", "--max-length", 6)
    found = load_translator(trained, device="cpu", search=Greedy(Rules(maximum=6))).translate(SENTENCE)
    assert drawn.status == 0 and drawn.lines[0] == found.text
    assert command("view", trained, SENTENCE, "--length-penalty", "average:1", "--max-length", 6).status == 0
    for options, wrong in (
        (("--greedy", "--beam-size", 3), "--beam-size"),
        (("--length-penalty", "long"), "--length-penalty"),
    ):
        refused = command("view", trained, SENTENCE, *options)
        assert refused.status == 2 and wrong in refused.err


def test_weights_of_steps_equal_the_matrix(command, trained):
    target = "I go to school ."
    result = command("view", trained, SENTENCE, "--target", target, "--view", "steps", "--word", 0)
    (seen,) = load_translator(trained, device="cpu").score([SENTENCE], [target])
    shown = result.lines[result.lines.index("weights: softmax of each row") + 2].split()[1:]
    weights = seen.seen().sites[0].weights[0, 0]
    assert [float(number) for number in shown] == pytest.approx(weights.tolist(), abs=0.006)


@pytest.mark.parametrize("view", ["word", "shaded", "steps"])
def test_word_by_text_or_number(command, layered, view):
    site = ("--site", "encoder.0.self") if view == "steps" else ()
    given = ("view", layered, SENTENCE, "--target", "school school go", "--view", view, *site)
    source = view != "shaded"
    words = ["나는", "학교에"] if source else ["school", "go"]
    numbers = [[0], [1]] if source else [[0], [2]]
    pieces = load_translator(layered, device="cpu").score(SENTENCE, "school school go")
    if view == "steps":  # its numbers are those of pieces
        of_word = pieces.passages[0].source_words
        numbers = [[place for place, word in enumerate(of_word) if word == number] for number in (0, 1)]
    for word, places in zip(words, numbers, strict=True):
        result = command(*given, "--word", word)
        assert (result.status, result.err) == (0, "")
        if len(places) == 1:
            assert result.out == command(*given, "--word", places[0]).out
    unknown = command(*given, "--word", "nowhere")
    assert unknown.status == 2 and all(word in unknown.err for word in words)


def test_steps_of_a_word_are_those_of_its_tokens(command, layered):
    target = "school school goes"
    given = ("view", layered, SENTENCE, "--target", target, "--view", "steps", "--word")
    scored = load_translator(layered, device="cpu").score(SENTENCE, target)
    of_word = scored.passages[0].words

    def rows(result) -> list[str]:
        begin = result.lines.index("weights: softmax of each row") + 2
        return result.lines[begin : begin + len(of_word)]

    for word, number in (("school", 0), ("school:1", 0), ("school:2", 1), ("goes", 2)):
        result = command(*given, word)
        places = [place for place, each in enumerate(of_word) if each == number]
        assert result.status == 0 and places
        wanted = [rows(command(*given, place))[0] for place in places]
        assert [line.split()[1:] for line in rows(result)[: len(places)]] == [
            row.split()[1:] for row in wanted
        ]
    piece = next(each for each in scored.pieces if each.strip("▁"))
    assert command(*given, piece).status == command(*given, piece.strip("▁")).status == 0
    for wrong in ("school:3", "99", "-99", "schoo"):
        assert command(*given[:-1], f"--word={wrong}").status == 2


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (("--view", "matrx"), "did you mean 'matrix'"),
        (("--view", "nothing"), "shaded, slot, steps, tape, word"),
        (("--specials", "drop"), "known: hide, renormalise, show"),
        (("--output", "x.jpg"), ".png, .svg, .pdf, .gif, .html, .seen"),
        (("--output", "no/such/x.png"), "no/such/x.png: "),
        (("--site", "encoder.*"), "known: decoder.cross"),
        (("--head", "3"), "--head 3: decoder.cross has 1 head"),
        (("--view", "word", "--word", "개"), "unknown source word"),
        (("--view", "shaded", "--word", "나는"), "is a source word"),
        (("--view", "self"), "attention sites: decoder.cross"),
        (("--view", "rollout"), "hint: a transformer"),
        (("--view", "steps", "--head", "1"), "--head 1: "),
        (("--head", "-1"), "--head"),
    ],
)
def test_invalid_options_are_errors(command, trained, options, fact):
    result = command("view", trained, SENTENCE, *options)
    assert (result.status, result.out) == (2, "") and fact in result.err


def test_model_without_attention_and_missing_sentence_are_errors(command, trained, unseeing, tmp_path):
    Seen([], ["a"], ["b"], [0], [0]).save(tmp_path / "no.seen")
    for option in (("--view", "matrix"), ("--output", tmp_path / "x.seen")):
        result = command("view", unseeing, SENTENCE, *option)
        assert result.status == 2 and mentions(result.err, "attention") and "from_torch" not in result.err
    result = command("view", tmp_path / "no.seen")
    assert result.status == 2 and "attention" in result.err and "from_torch" not in result.err
    result = command("view", trained / "config.toml", SENTENCE)
    assert result.status == 2 and f"view {trained} --text" in result.err
    (tmp_path / "x.txt").write_text("x")
    result = command("view", tmp_path / "x.txt", SENTENCE)
    assert result.status == 2 and mentions(result.err, ".seen", "--output")
    for sentence in ((), ("",), (" \t",), ("--text", " "), (SENTENCE, "--text", SENTENCE)):
        result = command("view", trained, *sentence)
        assert result.status == 2 and "--text" in result.err
    (tmp_path / "strange").write_bytes(b"not a file of ours")
    assert command("view", tmp_path / "strange").status == 2


def test_erasure_and_gradients_with_and_without_attention(command, trained, unseeing, tmp_path):
    for run, attends in ((trained, True), (unseeing, False)):
        drawn = {view: command("view", run, SENTENCE, "--view", view) for view in ("erasure", "gradient")}
        for view, result in drawn.items():
            lines = [line.strip() for line in result.lines]
            assert (result.status, result.err) == (0, "") and "난다" in result.out
            assert any(line.startswith("erasure, nats") for line in lines)
            assert any(line.startswith("integrated") for line in lines) == (view == "gradient")
            assert any(line.startswith("attention") for line in lines) == attends
        assert ("no attention" in drawn["erasure"].out) != attends
    usual = command("view", unseeing, SENTENCE)
    assert usual.out == command("view", unseeing, SENTENCE, "--view", "erasure").out
    for name in ("x.html", "x.svg"):
        assert command("view", unseeing, SENTENCE, "--output", tmp_path / name).status == 0
        assert "난다" in (tmp_path / name).read_text()


@pytest.mark.parametrize(
    "line", ["</s> <pad> <unk>", "\u202e\x1b[31m red", "👩‍👧 <script>alert(1)</script>", "한" * 60]
)
def test_hostile_sentences_are_escaped(command, trained, tmp_path, line):
    result = command("view", trained, line, "--max-length", 12)
    assert result.status == 0 and "\x1b" not in result.out and "\u202e" not in result.out
    saved = command("view", trained, line, "--max-length", 12, "--subwords", "--output", tmp_path / "x.svg")
    assert saved.status == 0
    tags = {each.tag.rpartition("}")[2] for each in ElementTree.parse(tmp_path / "x.svg").iter()}
    assert "script" not in tags


def test_a_file_as_the_sentence_is_an_error(command, trained, tmp_path):
    file = tmp_path / "letters.csv"
    file.write_text("나는 학생이다 .\n", encoding="utf-8")
    for name, options in (("view", ()), ("intervene", ("--cut", "0-0"))):
        said = command(name, trained, file, *options)
        assert said.status == 2 and "letters.csv" in said.err and "--text" in said.err
    assert command("view", trained, "--text", file).status == 0


def test_help_lists_views_and_special_tokens(command):
    result = " ".join(command("view", "--help", width=300).out.split())
    assert (
        "</s>: show" in result
        and all(f"{name} (" in result for name in (*VIEWS, "steps"))
        and "[default: (matrix;" in result
    )
