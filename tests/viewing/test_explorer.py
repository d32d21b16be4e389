"""The explorer page as a file: size, stored weights, Content-Security-Policy, and escaping."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import ArgumentError
from regard.viewing import Entry, Seen, Site, explore, pooled_from_top
from regard.viewing.explorer import BYTES, FINE, LONG, SCRIPTS, TITLE, pack, quantised
from tests.browser.sentences import Top, long_text, sentence
from tests.facts import facts
from tests.viewing.test_html_page import HOSTILE, Read

MEGABYTE = 1_000_000


def unscaled(numbers: numpy.ndarray, most: float, bits: int) -> numpy.ndarray:
    """Dequantise weights, as the page does."""
    top = 2**bits - 2
    return numpy.where(numbers > top, numpy.nan, most * (numbers / top) ** 2)


def data(page: str) -> dict[str, Any]:
    (text,) = re.findall('<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(text)


def wide(sites: int, heads: int, size: int) -> Seen:
    generator = numpy.random.default_rng(0)
    weights = generator.random((heads, size, size), dtype=numpy.float32) ** 8
    weights /= weights.sum(-1, keepdims=True)
    words = tuple(f"word{place}" for place in range(size))
    layers = tuple(Site(f"encoder.{layer}.self", weights, words, words) for layer in range(sites))
    return Seen(layers, words, (), tuple(range(size)), ())


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=50),
    st.floats(1e-3, 1e3),
    st.sampled_from([8, 16]),
)
def test_quantisation_error_is_within_the_documented_bound(shares: list[float], most: float, bits: int):
    weights = numpy.array([shares]) * most
    numbers = quantised(weights, numpy.array([most]), bits)
    error = numpy.abs(unscaled(numbers.astype(float), most, bits) - weights)
    levels = 2**bits - 2
    assert (error <= numpy.sqrt(weights * most) / levels + most / (4 * levels**2) + 1e-12 * most).all()
    order = numpy.argsort(weights[0])
    assert (numpy.diff(numbers[0][order].astype(int)) >= 0).all()


def test_small_pages_use_16_bits_and_large_pages_8():
    packed = pack(sentence())
    about = packed.sites[packed_place(packed, "decoder.0.cross")]
    assert (about["form"], about["bits"], about["heads"], len(about["most"])) == ("whole", 16, 3, 5)
    site = sentence().site("decoder.0.cross")
    block = packed.blocks[packed_place(packed, "decoder.0.cross")]
    numbers = numpy.frombuffer(block, "<u2", 5 * site.weights[0].size).reshape(5, *site.weights.shape[1:])
    read = [
        unscaled(plane.astype(float), most, 16) for plane, most in zip(numbers, about["most"], strict=True)
    ]
    numpy.testing.assert_allclose(read[:3], site.weights, atol=2e-5)
    numpy.testing.assert_allclose(read[3], site.weights.mean(0), atol=2e-5)
    assert site.values is not None
    numpy.testing.assert_allclose(read[4], (site.weights * site.values[:, None]).mean(0), atol=1e-4)
    values = numpy.frombuffer(block, "<f4", site.values.size, len(block) - 4 * site.values.size)
    numpy.testing.assert_array_equal(values.reshape(site.values.shape), site.values)
    many = pack(wide(2, 4, 350))
    assert FINE < 9 * 350**2 and {site["bits"] for site in many.sites} == {8}
    assert {site["form"] for site in many.sites} == {"whole"}


def packed_place(packed: Any, name: str) -> int:
    return [site["name"] for site in packed.sites].index(name)


def test_page_of_512_tokens_12_layers_12_heads_is_below_10_megabytes():
    seen = wide(12, 12, 512)
    packed = pack(seen)
    assert sum(map(len, packed.blocks)) <= BYTES
    about = packed.sites[packed_place(packed, "encoder.3.self")]
    assert about["form"] == "top" and about["kept"] >= 16
    kept, planes = about["kept"], len(about["most"])
    block = packed.blocks[packed_place(packed, "encoder.3.self")]
    keys = numpy.frombuffer(block, "<u2", planes * 512 * kept).reshape(planes, 512, kept)
    numbers = numpy.frombuffer(block, "u1", keys.size, 2 * keys.size).reshape(keys.shape)
    weights = seen.sites[3].weights
    numpy.testing.assert_array_equal(keys[:12, :, 0], weights.argmax(-1))
    read = unscaled(numbers[0].astype(float), about["most"][0], 8)
    expected = numpy.sort(weights[0], -1)[:, ::-1][:, :kept]
    numpy.testing.assert_allclose(read, expected, atol=0.004 * weights.max())
    assert abs(about["share"][0] - expected.sum() / weights[0].sum()) < 1e-4
    assert len(explore(seen)) < 10 * MEGABYTE


def test_8192_tokens_are_stored_without_the_matrix():
    page = explore(long_text())
    assert len(page) < 2 * MEGABYTE
    (site,) = data(page)["sites"]
    assert (site["form"], site["kept"], site["map"], site["whole"]) == ("long", 32, [256, 256], False)
    words = tuple(map(str, range(70_000)))
    long = pooled_from_top("a", Top(70_000, 4), words, words)
    packed = pack(Seen((), words, (), tuple(range(70_000)), (), long=(long,)))
    assert packed.sites[0]["wide"] and len(packed.blocks[0]) == 70_000 * 4 * 5 + 2 * 256 * 256


def test_too_large_matrix_becomes_a_block_map():
    words = tuple(map(str, range(1100)))
    weights = numpy.eye(1100, dtype=numpy.float32)[None].repeat(2, 0)
    assert weights[0].size > LONG
    site = Site("encoder.0.self", weights, words, words)
    packed = pack(Seen((site,), words, (), tuple(range(1100)), ()))
    about = packed.sites[0]
    assert (about["form"], about["heads"], about["mean"], about["whole"]) == ("long", 2, True, True)


def test_sides_are_stored_once_with_the_word_of_each_subword():
    packed = pack(sentence())
    assert len(packed.sides) == 3  # source, target, and decoder input
    source = packed.sides[packed.sites[0]["columns"]]
    assert source["words"] == ["나는", "고양이를", "보았다.", "</s>"]
    assert source["groups"] == [0, 0, 1, 1, 1, 2, 2, 2, 3] and source["special"] == [0, 0, 0, 1]
    names = [site["name"] for site in packed.sites]
    assert (
        names[:3] == ["decoder.*.cross", "encoder.*.self", "decoder.*.self"]
        and names[-1] == "encoder.rollout"
    )


def test_policy_allows_only_the_own_style_and_script():
    page = explore(sentence())
    policy = next(each["content"] for _, each in Read(page).tags if "http-equiv" in each)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert (
        rules["default-src"]
        == rules["base-uri"]
        == rules["form-action"]
        == rules["trusted-types"]
        == "'none'"
    )
    for kind in ("style", "script"):
        (content,) = re.findall(f"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"
    assert "url(" not in page and "@import" not in page and "innerHTML" not in page and "eval(" not in page
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_hostile_text_is_escaped():
    size = len(HOSTILE)
    site = Site("</script>.cross", numpy.full((size, size), 1 / size), HOSTILE, HOSTILE)
    seen = Seen((site,), HOSTILE, HOSTILE, range(size), range(size), " ".join(HOSTILE), tuple(HOSTILE))
    page = explore(seen)
    page.encode()
    read = Read(page)
    kinds = [each.get("type") for tag, each in read.tags if tag == "script"]
    assert kinds == ["text/plain", "application/json", None]
    assert not any("alert" in (value or "") for _, each in read.tags for value in each.values())
    assert not any({"src", "href", "style"} & set(each) for _, each in read.tags)
    assert "<" not in re.findall('id="data">(.*?)</script>', page)[0]
    pieces = data(page)["sides"][0]["pieces"]
    assert {"<script>alert(1)</script>", "\\u202egnp.exe", "a\\x00b", "👩‍👩‍👧‍👦"} <= set(pieces)


def test_every_script_file_is_loaded():
    folder = Path(__file__).parents[2] / "src" / "regard" / "viewing" / "explorer"
    assert {path.stem for path in folder.glob("*.js")} == set(SCRIPTS) and len(SCRIPTS) == len(set(SCRIPTS))
    for path in folder.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) < 300 and "</script" not in text and "<!--" not in text


def test_title_defaults_to_the_title_of_seen(tmp_path: Path):
    for title, seen, expected in (
        ("mine", sentence(), "mine"),
        ("", sentence(), "I saw a cat."),
        ("", Seen((), (), (), (), ()), TITLE),
    ):
        assert Read(explore(seen, title=title)).of("h1") == [expected]
    page = explore(sentence(), tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == page == explore(sentence())


def test_explore_raises_for_other_types_and_file_names(tmp_path: Path):
    with pytest.raises(ArgumentError, match="Entry"):
        explore(Entry(["a"], ["b"]))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=facts("a.pdf", "expected", ".html")):
        explore(sentence(), tmp_path / "a.pdf")
    assert list(tmp_path.iterdir()) == []


def test_notebook_shows_the_page_in_a_sandboxed_iframe():
    page = explore(sentence(), title='<b>"quoted" & more')
    shown = page._repr_html_()
    (frame,) = re.findall(r"<[^>]*>(?=</iframe>)", shown)
    assert re.search(r'sandbox="([^"]*)"', frame)[1] == "allow-scripts"
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1]) == page
    assert len(repr(page)) < 100 and str(page) == page and isinstance(page, str)
