"""regard view: every view of a run, in the terminal and as files; what cannot be viewed is refused."""

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

SENTENCE = "나는 학교에 간다 ."


@pytest.fixture(scope="module")
def layered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformer that was hardly trained. Nobody changes it."""
    folder = tmp_path_factory.mktemp("runs") / "layered"
    given = {
        "data": {"built_in": "korean", "pairs": 300, "held_out": 20},
        "model": {"name": "transformer", "size": "tiny", "width": 16, "heads": 2, "layers": 2},
        "training": {"steps": 4, "tokens": 300, "evaluate_every": 4, "save_every": 4},
        "evaluation": {"sentences": 2, "samples": 0},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder.with_name("cache")))
        train_translation(given, folder, console=Console(quiet=True))
    return folder


def test_the_terminal_shows_the_words_and_their_weights(command, trained):
    said = command("view", trained, SENTENCE)
    found = load_translator(trained, device="cpu").translate(SENTENCE)
    assert (said.status, said.err) == (0, "") and all(word in said.out for word in SENTENCE.split())
    drawn, _, caption = said.out.partition("hiding the most attended")
    plain = str(found.seen().words().picture()).replace("<unk>", "간다")
    assert drawn.split() == plain.split() and found.unknown == ("간다",)
    numbers = r"source word .* -?[\d.]+ nats .* -?[\d.]+ \(\d+ target words?\)"
    assert re.fullmatch(numbers, " ".join(caption.split()))
    given = command("view", trained, SENTENCE, "--target", "I go to school .", "--view", "shaded")
    assert given.status == 0 and given.lines[0] == "I go to school ."


@pytest.mark.parametrize("view", [*VIEWS, "steps"])
def test_every_view_of_a_transformer_is_drawn_or_says_why_not(command, layered, tmp_path, view):
    target = ("--target", "I go to school .", "--view", view)
    said = command("view", layered, SENTENCE, *target)
    if view == "long":
        assert said.status == 2 and "long" in said.err
        return
    assert (said.status, said.err) == (0, "") and said.out.strip()
    path = tmp_path / "x.svg"
    saved = command("view", layered, SENTENCE, *target, "--output", path)
    assert saved.status == 0 and "Wrote" in saved.err and not saved.out
    for file in tmp_path.iterdir():
        ElementTree.fromstring(file.read_bytes())


def test_files_are_of_the_kind_that_their_name_says(command, trained, tmp_path):
    begins = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<svg", ".html": b"<!DOCTYPE html>"}
    for suffix, begin in begins.items():
        said = command("view", trained, SENTENCE, "--output", tmp_path / f"x{suffix}")
        assert said.status == 0 and (tmp_path / f"x{suffix}").read_bytes().startswith(begin)
    said = command(
        "view", trained, SENTENCE, "--target", "I go .", "--view", "player", "--output", tmp_path / "x.gif"
    )
    assert said.status == 0
    with Image.open(io.BytesIO((tmp_path / "x.gif").read_bytes())) as opened:
        assert opened.n_frames == 5 + 4 + 1  # four words and the end are read; I, go, the stop and the end
    frames = command(
        "view", trained, SENTENCE, "--target", "I go .", "--view", "player", "--output", tmp_path / "f.svg"
    )
    assert "10 files beside" in frames.err and len(list(tmp_path.glob("f-*.svg"))) == 10


def test_what_was_seen_is_kept_and_viewed_without_the_model(command, trained, tmp_path):
    kept = tmp_path / "look.seen"
    said = command("view", trained, SENTENCE, "--output", kept)
    assert said.status == 0 and "regard view" in said.err and Seen.load(kept).sites
    for view in ("matrix", "lines"):
        asked = ("--view", view, "--subwords")
        assert command("view", kept, *asked).out == command("view", trained, SENTENCE, *asked).out
    weighted = command("view", kept, "--by-values", "--subwords")
    assert weighted.status == 0 and "multiplied by value norms" in weighted.out
    assert weighted.out == command("view", trained, SENTENCE, "--by-values", "--subwords").out
    for more in ((SENTENCE,), ("--view", "steps"), ("--target", "x")):
        refused = command("view", kept, *more)
        assert refused.status == 2 and "needs a model" in refused.err


def test_words_pieces_and_special_tokens_are_shown_as_asked(command, trained):
    given = ("view", trained, SENTENCE, "--target", "I go to school .")
    assert "</s>" in command(*given).out and "</s>" not in command(*given, "--specials", "hide").out
    whole = command(*given, "--specials", "renormalise", "--view", "word", "--word", "나는")
    assert whole.status == 0 and whole.lines[0].strip() == "나는"
    pieces, words = command(*given, "--subwords").out, command(*given, "--words").out
    assert "<unk>" in pieces and pieces.count("간다") == 1, "named in a note, and not drawn"
    assert words.count("간다") == 2 and "<unk>" not in words


def test_sites_heads_and_values_are_chosen(command, layered):
    given = ("view", layered, SENTENCE, "--target", "I go to school .", "--view", "lines")
    mean, alone = command(*given), command(*given, "--site", "decoder.1.cross", "--head", 1)
    assert mean.status == alone.status == 0 and mean.out != alone.out
    weighted = command(*given, "--by-values")
    assert weighted.status == 0 and weighted.out != mean.out
    steps = command(
        "view", layered, SENTENCE, "--target", "I go .", "--view", "steps", "--site", "encoder.0.self"
    )
    assert steps.status == 0 and "query · key ×" in steps.out and "output: weights × values" in steps.out
    assert "cross-attention: " in " ".join(steps.out.split())


def test_what_stands_under_a_picture_is_of_what_is_drawn(command, layered):
    target = "I go to school ."
    given = ("view", layered, SENTENCE, "--target", target)
    translator = load_translator(layered, device="cpu")
    for asked, where in (
        (("--site", "decoder.1.cross"), {"at": "decoder.1.cross"}),
        (("--site", "decoder.1.cross", "--head", 1), {"at": "decoder.1.cross", "head": 1}),
        (("--head", 0), {"head": 0}),
        (("--view", "self"), {}),
    ):
        said = " ".join(command(*given, *asked).out.split())
        told = str(faithfulness(translator, SENTENCE, target, **where))
        assert said.endswith(f"cross-attention: {told}" if "self" in asked else told)


def test_the_search_is_chosen_as_for_a_translation(command, trained):
    drawn = command("view", trained, SENTENCE, "--greedy", "--max-length", 6)
    found = load_translator(trained, device="cpu", search=Greedy(Rules(maximum=6))).translate(SENTENCE)
    assert drawn.status == 0 and drawn.lines[0] == found.text
    assert command("view", trained, SENTENCE, "--length-penalty", "average:1", "--max-length", 6).status == 0
    for given in (("--greedy", "--beam-size", 3), ("--length-penalty", "long")):
        refused = command("view", trained, SENTENCE, *given)
        assert refused.status == 2 and given[-2 if given[0] != "--greedy" else 1] in refused.err


def test_the_weights_of_the_steps_are_those_of_the_matrix(command, trained):
    target = "I go to school ."
    said = command("view", trained, SENTENCE, "--target", target, "--view", "steps", "--word", 0)
    (seen,) = load_translator(trained, device="cpu").score([SENTENCE], [target])
    shown = said.lines[said.lines.index("weights: softmax of each row") + 2].split()[1:]
    weights = seen.seen().sites[0].weights[0, 0]
    assert [float(number) for number in shown] == pytest.approx(weights.tolist(), abs=0.006)


@pytest.mark.parametrize("view", ["word", "shaded", "steps"])
def test_a_word_is_given_as_plain_text_or_by_number(command, layered, view):
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
        said = command(*given, "--word", word)
        assert (said.status, said.err) == (0, "")
        if len(places) == 1:
            assert said.out == command(*given, "--word", places[0]).out
    unknown = command(*given, "--word", "nowhere")
    assert unknown.status == 2 and all(word in unknown.err for word in words)


def test_the_steps_of_a_word_are_those_of_its_pieces(command, layered):
    target = "school school goes"
    given = ("view", layered, SENTENCE, "--target", target, "--view", "steps", "--word")
    scored = load_translator(layered, device="cpu").score(SENTENCE, target)
    of_word = scored.passages[0].words

    def rows(said) -> list[str]:
        begin = said.lines.index("weights: softmax of each row") + 2
        return said.lines[begin : begin + len(of_word)]

    for word, number in (("school", 0), ("school:1", 0), ("school:2", 1), ("goes", 2)):
        said = command(*given, word)
        places = [place for place, each in enumerate(of_word) if each == number]
        assert said.status == 0 and places
        wanted = [rows(command(*given, place))[0] for place in places]
        assert [line.split()[1:] for line in rows(said)[: len(places)]] == [row.split()[1:] for row in wanted]
    piece = next(each for each in scored.pieces if each.strip("▁"))
    assert command(*given, piece).status == command(*given, piece.strip("▁")).status == 0
    for wrong in ("school:3", "99", "-99", "schoo"):
        assert command(*given[:-1], f"--word={wrong}").status == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--view", "matrx"), "did you mean 'matrix'"),
        (("--view", "nothing"), "known: heads, lines, long"),
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
def test_what_cannot_be_viewed_is_refused_with_what_can(command, trained, given, told):
    said = command("view", trained, SENTENCE, *given)
    assert (said.status, said.out) == (2, "") and told in said.err


def test_a_model_without_attention_and_a_sentence_without_words_are_refused(
    command, trained, unseeing, tmp_path
):
    said = command("view", unseeing, SENTENCE)
    assert said.status == 2 and "no sites" in said.err
    for blank in ((), ("",), (" \t",)):
        said = command("view", trained, *blank)
        assert said.status == 2 and "sentence" in said.err
    (tmp_path / "strange").write_bytes(b"not a file of ours")
    assert command("view", tmp_path / "strange").status == 2


@pytest.mark.parametrize(
    "line", ["</s> <pad> <unk>", "\u202e\x1b[31m red", "👩‍👧 <script>alert(1)</script>", "한" * 60]
)
def test_whatever_a_sentence_holds_it_is_shown_and_not_obeyed(command, trained, tmp_path, line):
    said = command("view", trained, line, "--max-length", 12)
    assert said.status == 0 and "\x1b" not in said.out and "\u202e" not in said.out
    saved = command("view", trained, line, "--max-length", 12, "--subwords", "--output", tmp_path / "x.svg")
    assert saved.status == 0
    tags = {each.tag.rpartition("}")[2] for each in ElementTree.parse(tmp_path / "x.svg").iter()}
    assert "script" not in tags


def test_help_lists_the_views_of_a_run_and_names_what_is_no_word(command):
    said = " ".join(command("view", "--help", width=300).out.split())
    assert "</s>: show" in said and "rollout, player, steps" in said and "[default: matrix]" in said
