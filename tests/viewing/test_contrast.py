"""Numbers in the cells of pictures and pages are readable: the contrast of text and cell is at least 4."""

from __future__ import annotations

import re
from pathlib import Path

import numpy
import pytest

from regard import viewing
from regard.viewing.pictures.canvas import DARK, WHITE, contrast, shade, text_color_on

LEAST = 4.0


@pytest.mark.parametrize("level", numpy.linspace(-1, 1, 41).round(2).tolist())
def test_text_in_pictures_has_the_higher_contrast(level: float):
    chosen = contrast(text_color_on(level), shade(level))
    assert chosen >= LEAST and chosen == max(contrast(color, shade(level)) for color in (WHITE, DARK))


def _variables(css: str) -> dict[str, str]:
    found = dict(re.findall(r"--([a-z]+): ([^;]+);", css))
    return {
        name: f"#{value[1] * 2}{value[2] * 2}{value[3] * 2}" if len(value) == 4 else value
        for name, value in found.items()
    }


@pytest.mark.parametrize("dark", [False, True])
def test_text_in_pages_is_readable_at_every_level(dark: bool):
    css = (Path(viewing.__file__).parent / "entry.css").read_text(encoding="utf-8")
    light, rest = css.split("@media (prefers-color-scheme: dark) {", 1)
    colors = _variables(light) | (_variables(rest.split("}", 1)[0]) if dark else {})
    accent = [int(each) for each in colors["accent"].split()]
    paper = [int(colors["paper"][place : place + 2], 16) for place in (1, 3, 5)]
    classes = {
        number: name
        for group, name in re.findall(r"\.regard :is\(([^)]+)\) \{ color: var\(--(\w+)\)", rest)
        for number in re.findall(r"\.l(\d+)", group)
    }
    for step in range(1, 17):
        share = step / 16
        cell = [round(share * own + (1 - share) * other) for own, other in zip(accent, paper, strict=True)]
        text = colors[classes.get(str(step), "ink")]
        assert contrast(text, "#{:02x}{:02x}{:02x}".format(*cell)) >= LEAST, (step, text)
