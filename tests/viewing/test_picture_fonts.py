"""Fonts of pictures: missing characters and a missing matplotlib are reported."""

from __future__ import annotations

import re
import sys

import pytest

from regard.errors import ArgumentError
from regard.files.requirements import install_command
from regard.viewing import matrix, picture
from regard.viewing.pictures import matplotlib_writer as fonts
from tests.viewing.random_attention import pixels, transformer


def test_missing_characters_are_replaced_and_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(fonts, "installed", lambda: ())
    fonts.written.cache_clear()
    try:
        drawn = picture(transformer(), "matrix")
        (hint,) = drawn.save(tmp_path / "x.png")
        assert "Korean" in hint and "fonts-noto-cjk" in hint
        assert fonts.written("고양이").text == "▯▯▯"
        width, height = pixels((tmp_path / "x.png").read_bytes())
        assert width >= 3 * drawn.frames[0].size[0] and height > 3 * drawn.frames[0].size[1]
        assert drawn.save(tmp_path / "x.svg") == () and "고양이" in (tmp_path / "x.svg").read_text("utf-8")
        emoji = matrix([[1.0]], ["\U0001f9a9"], ["x"])
        assert "U+1F9A9 flamingo" in emoji.hints[0] and ".svg" in emoji.hints[0]
    finally:
        fonts.written.cache_clear()


def test_font_is_found_for_a_text(monkeypatch, tmp_path):
    ((font, text),) = fonts.written("cat").runs
    assert font.endswith("DejaVuSans.ttf") and text == "cat"
    hearts = "\u2764\ufe0f"  # a heart with the selector for a coloured emoji
    assert fonts.written(hearts).text.startswith("\u2764")
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    monkeypatch.setattr(fonts, "installed", lambda: (str(tmp_path / "broken.ttf"),))
    fonts.written.cache_clear()
    try:
        assert fonts.written("고").missing == "고"
    finally:
        fonts.written.cache_clear()


def test_missing_matplotlib_is_reported_with_the_install_command(monkeypatch):
    fonts._own.cache_clear()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    fonts.written.cache_clear()
    drawn = picture(transformer(), "matrix")
    try:
        assert drawn.svg() and drawn._repr_png_() is None and str(drawn)
        with pytest.raises(ArgumentError, match=re.escape(install_command("view"))):
            drawn.png()
    finally:
        monkeypatch.undo()
        fonts._own.cache_clear()
        fonts.written.cache_clear()
