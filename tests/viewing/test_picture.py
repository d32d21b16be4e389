"""Pictures as files: valid, deterministic, atomic, and without side effects on matplotlib."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import matplotlib
import numpy
import pytest
import torch
from matplotlib import font_manager
from PIL import Image

import regard
from regard.errors import ArgumentError, DataError, RegardError, UnknownName
from regard.viewing import VIEWS, Seen, Site, explore, matrix, picture, to_svg
from regard.viewing.pictures import picture_files
from regard.viewing.pictures.canvas import width_of, wrapped
from regard.viewing.pictures.view_selection import place_of, rows_of
from tests.browser.sentences import sentence
from tests.facts import facts, mentions
from tests.reading import PACKAGE
from tests.viewing.random_attention import SOURCE, TARGET, pixels, transformer, weights

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    "</text><script>alert(1)</script>",
    "-->",
    "]]>",
    '" onload="x',
    "&amp;",
    "$x^2$",
    r"\frac{1}{2}",
    "a\nb",
    "\x1b[31m",
    "\u202eright",
    "שלום",
    "عليكم",
    "👩‍👩‍👧",
    "",
    "x" * 500,
    "\ud800",
)


def settings() -> dict[str, object]:
    """Return matplotlib's settings without the backend, which is resolved lazily."""
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_is_saved_in_every_format_deterministically(view, tmp_path):
    seen = transformer(("Ich", "Katze", "</s>"))  # Latin letters, which every machine can draw
    drawn = picture(seen, view)
    assert str(drawn).strip()
    for suffix in (".png", ".svg", ".pdf"):
        paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
        hints = {picture(seen, view).save(path) for path in paths}
        files = [sorted(tmp_path.glob(f"{name}*{suffix}")) for name in "ab"]
        assert hints == {()} and len(files[0]) == len(drawn.frames)
        for one, other in zip(*files, strict=True):
            assert one.read_bytes() == other.read_bytes()
        content = files[0][0].read_bytes()
        if suffix == ".png":
            width, height = pixels(content)
            assert (width, height) == tuple(round(3 * size) for size in drawn.frames[0].size)
        elif suffix == ".pdf":
            assert content.startswith(b"%PDF-") and content.rstrip().endswith(b"%%EOF")
            assert b"CreationDate" not in content
        else:
            tree = ElementTree.fromstring(content)
            assert tree.get("role") == "img" and tree.find(f"{SVG}title").text
            assert content.count(b"http") == 1 and b"url(" not in content and b"DOCTYPE" not in content
            refers = [value for each in tree.iter() for name, value in each.items() if name.endswith("href")]
            assert all(value.startswith("data:image/png;base64,") for value in refers)
    assert {path.name[0] for path in tmp_path.iterdir()} == {"a", "b"}


def test_number_of_frames_of_an_animation(tmp_path):
    seen = transformer()
    animation = picture(seen, "player")
    assert len(animation.frames) == len(SOURCE) + 2 * len(TARGET) + 1
    assert len({frame.size for frame in animation.frames}) == 1
    animation.save(tmp_path / "x.gif")
    content = (tmp_path / "x.gif").read_bytes()
    assert content == animation.gif()
    with Image.open(io.BytesIO(content)) as opened:
        assert (
            opened.format == "GIF" and opened.n_frames == len(animation.frames) and opened.info["loop"] == 0
        )
    recurrent = Seen(seen.sites[2:3], SOURCE, TARGET, (0, 1, -1), (0, 1, 2, -1))
    assert len(picture(recurrent, "player").frames) == len(SOURCE) + len(TARGET) + 1
    still = picture(seen, "matrix")
    still.save(tmp_path / "still.gif")
    with Image.open(tmp_path / "still.gif") as opened:
        assert opened.n_frames == 1


def test_notebook_shows_pictures_and_animations():
    still, animation = picture(transformer(), "lines"), picture(transformer(), "player")
    assert still._repr_svg_().startswith("<svg")
    assert still._repr_html_().startswith('<img alt="I am a cat" src="data:image/svg+xml;base64,')
    assert pixels(still._repr_png_())
    assert animation._repr_html_().startswith('<img alt="I am a cat" src="data:image/gif;base64,R0lG')
    assert to_svg(still, title="cat") == still.svg("cat") and "<title>cat</title>" in still.svg("cat")


@pytest.mark.parametrize("view", ["matrix", "lines", "shaded", "word", "player"])
def test_hostile_words_are_escaped_in_every_format(view):
    sites = [Site("decoder.cross", weights(len(HOSTILE), len(HOSTILE)), HOSTILE, HOSTILE)]
    numbers = range(len(HOSTILE))
    drawn = picture(Seen(sites, HOSTILE, HOSTILE, numbers, numbers, HOSTILE[0]), view)
    tree = ElementTree.fromstring(drawn.svg())
    assert {each.tag.removeprefix(SVG) for each in tree.iter()} <= {
        "svg",
        "title",
        "desc",
        "rect",
        "text",
        "path",
    }
    assert not any(name.startswith("on") for each in tree.iter() for name, _ in each.items())
    written = {each.text for each in tree.iter(f"{SVG}text")}
    assert any(each and each.startswith("</text><script>") for each in written)
    assert {"$x^2$", r"a\nb", r"\x1b[31m", r"\u202eright", r"\ud800"} <= written
    assert pixels(drawn.png()) and drawn.pdf().startswith(b"%PDF-") and "\x1b" not in str(drawn)


def test_matplotlib_settings_are_neither_changed_nor_used(monkeypatch):
    drawn = picture(transformer(), "matrix")
    before, known = settings(), len(font_manager.fontManager.ttflist)
    content = drawn.png()
    assert settings() == before and len(font_manager.fontManager.ttflist) == known
    strange = {"axes.facecolor": "red", "savefig.dpi": 10, "lines.linewidth": 9, "font.family": "monospace"}
    for name, value in {**strange, "figure.facecolor": "green", "image.origin": "lower"}.items():
        monkeypatch.setitem(matplotlib.rcParams, name, value)
    assert drawn.png() == content


def test_pyplot_is_not_imported():
    code = (
        "import sys; from regard.viewing import matrix; picture = matrix([[1.0]], ['a'], ['b']);"
        "picture.png(); picture.pdf(); picture.gif(); print('matplotlib.pyplot' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, "False"), ran.stderr


def test_pictures_can_be_drawn_in_threads():
    drawn = picture(transformer(), "matrix")
    expected, files = drawn.png(), []
    threads = [threading.Thread(target=lambda: files.append(drawn.png())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert files == [expected] * 4


def test_file_is_written_atomically(tmp_path, monkeypatch):
    drawn = picture(transformer(), "matrix")
    drawn.save(tmp_path / "x.svg")
    before = (tmp_path / "x.svg").read_bytes()

    def broken(*_):
        raise ArgumentError("stopped")

    monkeypatch.setattr(picture_files, "svg_of", broken)
    with pytest.raises(ArgumentError):
        drawn.save(tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_bytes() == before and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(DataError, match=r"no.x\.png"):
        drawn.save(tmp_path / "no" / "x.png")


@pytest.mark.parametrize(
    ("options", "error", "fact"),
    [
        ({"view": "matrixx"}, UnknownName, "did you mean 'matrix'"),
        ({"view": ""}, UnknownName, "known: heads, lines, long, matrix"),
        ({"site": "decoder.9.cross"}, UnknownName, "decoder.1.cross"),
        ({"site": "*"}, ArgumentError, "encoder.0.self"),
        ({"head": 2}, ArgumentError, "expected: 0 to 1"),
        ({"view": "heads", "head": 0}, ArgumentError, "every head"),
        ({"view": "word", "word": "dog"}, UnknownName, "고양이"),
        ({"view": "shaded", "word": 9}, ArgumentError, "0 to 3"),
        ({"view": "matrix", "word": 1}, ArgumentError, "word="),
        ({"view": "player", "site": "encoder*"}, ArgumentError, "cross"),
        ({"view": "long", "site": "x"}, UnknownName, "decoder.0.self"),
    ],
)
def test_invalid_options_raise(options, error, fact):
    with pytest.raises(error) as caught:
        picture(transformer(), **options)
    assert fact in str(caught.value) and isinstance(caught.value, RegardError)


def test_file_extension_must_be_supported(tmp_path):
    for name in ("x.jpg", "x"):
        with pytest.raises(ArgumentError, match=f"'{name}'") as caught:
            picture(transformer()).save(tmp_path / name)
        assert mentions(caught.value, ".png", ".svg", ".pdf", ".gif")


def test_seen_without_sites_raises():
    for view, fact in {"matrix": "no sites", "self": "self-attention", "long": r"Seen\.long"}.items():
        with pytest.raises(ArgumentError, match=fact):
            picture(Seen((), (), (), (), ()), view)


def recorded() -> regard.Record:
    """Return the attention of a torch decoder layer, whose sites are self_attn and multihead_attn."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerDecoderLayer(8, 2, batch_first=True).eval()
    for name in ("self_attn", "multihead_attn"):
        setattr(layer, name, regard.MultiHead.from_torch(getattr(layer, name)))
    regard.name_sites(layer)
    with regard.record() as record:
        layer(torch.randn(1, 3, 8), torch.randn(1, 5, 8))
    return record


def test_view_self_names_the_sites_of_a_record():
    with pytest.raises(ArgumentError) as caught:
        picture(recorded(), "self")
    for fact in ("encoder", "decoder", "multihead_attn", "site='self_attn'"):
        assert fact in str(caught.value)
    assert "look=" not in str(caught.value)
    assert picture(recorded(), "self", site="self_attn").svg().startswith("<svg")


def test_picture_of_a_record_names_the_sites_drawn_and_left_out():
    for drawn in (picture(recorded()), picture(recorded(), "heads")):
        for text in (str(drawn), drawn.svg()):
            assert mentions(text, "drawn: multihead_attn", "drawn: self_attn")
    assert "not drawn" not in str(picture(recorded(), site="self_attn"))
    assert "not drawn" not in str(picture(transformer()))


def test_explore_accepts_what_picture_accepts():
    page = explore(recorded())
    assert "self_attn" in page and "multihead_attn" in page


def test_sites_are_averaged_and_one_head_can_be_selected():
    seen = transformer()
    first, second = seen.site("decoder.0.cross").weights, seen.site("decoder.1.cross").weights
    expected = matrix((first.mean(0) + second.mean(0)) / 2, TARGET, SOURCE).svg()
    assert cells(picture(seen, title="").svg()) == cells(expected)
    alone = picture(seen, site="decoder.1.cross", head=1, title="").svg()
    assert cells(alone) == cells(matrix(second[1], TARGET, SOURCE).svg())
    assert "decoder.1.cross, head 1" in alone and "mean of 2 sites" in picture(seen).svg()


def cells(svg: str) -> list[str]:
    return [each.get("fill") for each in ElementTree.fromstring(svg).iter(f"{SVG}rect")]


@pytest.mark.parametrize("view", ["matrix", "lines", "heads", "shaded", "word", "player"])
def test_nearly_uniform_weights_have_a_note(view: str):
    def printed(weights: numpy.ndarray) -> str:
        words = [f"w{number}" for number in range(8)]
        seen = Seen([Site("decoder.cross", weights, words[:3], words)], words, words[:3], range(8), range(3))
        return str(picture(seen, view))

    even = numpy.full((3, 8), 1 / 8)
    assert "uniform" in printed(even) and printed(even).endswith("1/8 = 0.125")
    assert "uniform" not in printed(weights(3, 8)) and "uniform" not in printed(even / 3)


def test_heads_in_the_terminal_have_a_scale_and_a_note_on_pooling():
    words = [f"w{number}" for number in range(14)]
    site = Site("decoder.cross", weights(2, 14, 14), words, words)
    seen = Seen([site], words, words, range(14), range(14))
    assert "14 x 14 weights in 12 x 14 cells" in str(picture(seen, "heads"))
    assert str(picture(seen, "heads")).splitlines()[-1].split() == ["0", "░▒▓█", f"{site.weights.max():.3g}"]
    assert "cells" not in str(picture(transformer(), "heads"))


def test_repr():
    assert repr(picture(transformer(), "matrix", title="cats")).startswith("<Picture 'cats': 4 queries down")
    assert "frames; " in repr(picture(transformer(), "player"))


@pytest.mark.parametrize("view", ["matrix", "lines", "heads", "shaded", "word", "self", "player"])
def test_long_titles_and_notes_are_wrapped(view):
    text = "a note that goes on for much longer than the picture is wide " * 3
    plain, titled = (
        picture(replace(transformer(), notes=(note,)), view, title=title).frames[0]
        for note, title in (("", ""), (text, "고양이가 아주 많은 " * 9))
    )
    assert (
        titled.size[0] <= max(plain.size[0], 300 + 2 * titled.margin + 2) and titled.size[1] > plain.size[1]
    )
    assert titled.title.startswith("고양이가 아주")


def test_wrapping_between_and_inside_words():
    for text in ("one", "one two three four", "x" * 90, f"a {'y' * 70} b"):
        lines = wrapped(text, 10, 100)
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        assert all(0 < width_of(line, 10) <= 100 for line in lines)
    assert wrapped("", 10, 100) == [] and wrapped("고", 10, 1) == ["고"]


def test_word_of_a_site_of_subwords_is_all_its_rows():
    seen = sentence()
    site, words = seen.site("decoder.0.cross"), seen.words().site("decoder.0.cross").rows
    assert site.rows[3:6] == ("▁c", "at", ".") and words[3] == "cat."
    for word, rows in (("saw", [1]), ("▁saw", [1]), ("cat.", [3, 4, 5]), ("at", [4]), ("c", [3])):
        assert rows_of(word, site, words, "--word") == rows, word
    for word, rows in (("4", [4]), ("-1", [6]), (2, [2]), ("cat.:1", [3, 4, 5]), ("</s>", [6])):
        assert rows_of(word, site, words, "--word") == rows, word
    assert rows_of("cat", site, words, "--word") == [3, 4, 5] and place_of("cat", words) == 3
    with pytest.raises(UnknownName, match=facts("cat., ", "saw")):
        rows_of("dog", site, words, "--word")
    with pytest.raises(ArgumentError, match=facts("--word", 1)):
        rows_of("saw:2", site, words, "--word")
    with pytest.raises(ArgumentError, match=facts(7)):
        rows_of("7", site, words, "--word")


def test_error_names_the_side_of_a_word():
    seen = sentence().words()
    site = seen.site("decoder.0.cross")
    source = next(word for word in site.columns if word not in site.rows)
    with pytest.raises(UnknownName) as error:
        picture(seen, "shaded", word=source)
    assert mentions(error.value, "target", "source")
    with pytest.raises(UnknownName, match=r"source word 'catt?\.*'"):
        picture(seen, "word", word="catt")


def test_reading_has_one_line_for_each_word():
    words, given = ("the", "<b>cat", "sat"), [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.25, 0.75, 0.0]]
    site = Site("encoder.0.self", given, words, words)
    seen = Seen([site], words, words, range(3), range(3))
    drawn = picture(seen, "reading")
    assert str(drawn).splitlines() == ["[the]", "the 1.00  [<b>cat]", "the .25  <b>cat .75  [sat]"]
    tree = ElementTree.fromstring(drawn.svg())
    assert [each.text for each in tree.iter(f"{SVG}text")].count("the") == 3
    assert len([each for each in tree.iter(f"{SVG}rect") if each.get("stroke")]) >= 3
    later = Seen([Site("encoder.0.self", weights(3, 3), words, words)], words, words, range(3), range(3))
    with pytest.raises(ArgumentError, match="earlier"):
        picture(later, "reading")
    with pytest.raises(ArgumentError, match="draws"):
        picture(seen, "reading", word=1)
    cross = Seen([Site("decoder.cross", given, words, words)], words, words, range(3), range(3))
    for options in ({}, {"site": "decoder.cross"}):
        with pytest.raises(ArgumentError):
            picture(cross, "reading", **options)
