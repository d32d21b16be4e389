"""Pages: valid HTML, escaped text, no network requests, usable without JavaScript."""

import base64
import errno
import hashlib
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy
import pytest

from regard import ArgumentError, DataError
from regard.viewing import Entry, fragment, page, save_page
from regard.viewing.entry import FIRST, LEVELS, LONGEST, OPEN, UNSEEN
from tests.facts import facts

HOSTILE = [
    "<script>alert(1)</script>",
    "</script>",
    "</style><img src=x onerror=alert(1)>",
    "<!--",
    "-->",
    "]]>",
    "\"'onclick=alert(1)",
    "&amp;",
    "&lt;b&gt;",
    "a\u2028b\u2029c",
    "\u202egnp.exe",
    "a\x00b",
    "\x1b[31m",
    "\x85\x9b",
    "\ud800",
    "\udc80",
    "\ufeff",
    "\ufffe",
    "👩‍👩‍👧‍👦",
    "می‌خواهم",
    "{{x}}",
    "javascript:alert(1)",
]
OURS = {
    *("html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "p", "main", "article", "a"),
    *("dl", "dt", "dd", "span", "i", "details", "summary", "div", "bdi", "script"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
ATTRIBUTES = {
    *("lang", "dir", "class", "id", "href", "hidden", "open", "scope", "tabindex", "role", "aria-label"),
    *("charset", "name", "content", "http-equiv"),
}
WEIGHTS = [[0.7, 0.25, 0.004], [0.0, 1.0, 0.0]]


class Read(HTMLParser):
    """A parsed page: elements, attributes, and the text of each kind of element."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1], data))

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def of(self, tag: str) -> list[str]:
        """Return the texts of all elements with this tag."""
        return [text for each, text in self.texts if each == tag]


def hostile() -> list[Entry]:
    size = len(HOSTILE)
    weights = numpy.full((size, size), 1 / size)
    return [
        Entry(HOSTILE, HOSTILE[::-1], weights, -1.0, HOSTILE, " ".join(HOSTILE)),
        Entry(HOSTILE, HOSTILE, None, None, HOSTILE, ""),
    ]


def test_page_has_words_and_weights_without_javascript():
    entry = Entry(["나", "고양이", "."], ["my", "cat"], WEIGHTS, -1.5, ["a note"], "a cat of mine")
    read = Read(page([entry], "A title", "about it"))
    assert read.of("h1") == read.of("title") == ["A title"] and read.of("p")[0] == "about it"
    assert read.of("span") == ["나", "고양이", ".", "my", "cat"]
    assert read.of("bdi") == ["나", "고양이", ".", "my", "cat"]
    assert read.of("td") == [".70", ".25", "1"]  # less than .005 is blank
    assert {"log-probability -1.50", "a note", "a cat of mine"} <= set(read.of("dd"))
    depths = [each.get("class") for tag, each in read.tags if tag == "td"]
    assert depths == [None, "l11", "l4", None, None, f"l{LEVELS}", None]


@pytest.mark.parametrize(
    "make", [lambda: page(hostile(), " ".join(HOSTILE), HOSTILE[0]), lambda: fragment(hostile()[0])]
)
def test_hostile_words_are_escaped(make):
    text = make()
    text.encode()
    read = Read(text)
    assert {tag for tag, _ in read.tags} <= OURS
    assert {name for _, each in read.tags for name in each} <= ATTRIBUTES
    assert [tag for tag, _ in read.tags].count("script") <= 1
    assert not re.search(
        "[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe]", text
    )
    shown = read.of("dd")
    assert "<script>alert(1)</script>" in shown and "&amp;" in shown
    assert {"a\\u2028b\\u2029c", "\\u202egnp.exe", "a\\x00b", "\\ud800", "👩‍👩‍👧‍👦", "می‌خواهم"} <= set(shown)
    values = [value for _, each in read.tags for value in each.values() if value]
    assert not any("alert" in value for value in values)


def test_policy_allows_only_the_own_style_and_script():
    text = page([Entry(["a"], ["b"], [[1.0]])])
    policy = next(each["content"] for _, each in Read(text).tags if "http-equiv" in each)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for kind in ("style", "script"):
        (content,) = re.findall(f"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{kind}-src"] == f"'sha256-{digest}'"


def test_page_makes_no_requests_and_is_deterministic():
    text = page(hostile())
    assert text == page(hostile())
    assert "http" not in text.replace("http-equiv", "") and "url(" not in text and "@import" not in text
    links = [each["href"] for _, each in Read(text).tags if "href" in each]
    assert links == ["#t1", "#t2"]
    assert not any({"src", "style"} & set(each) for _, each in Read(text).tags)


def test_each_translation_has_an_anchor():
    read = Read(page([Entry(["a"], ["b"], [[1.0]])] * (OPEN + 1)))
    ids = [each["id"] for _, each in read.tags if "id" in each]
    assert len(ids) == len(set(ids)) and {f"t{number}" for number in range(1, OPEN + 2)} <= set(ids)
    assert sum("open" in each for _, each in read.tags) == FIRST
    assert any("open" in each for _, each in Read(page([Entry(["a"], ["b"], [[1.0]])])).tags)
    assert not any("id" in each for _, each in Read(fragment(Entry(["a"], ["b"], [[1.0]]))).tags)


def test_every_level_class_has_a_colour():
    text = page([Entry([str(place) for place in range(17)], ["b"], numpy.linspace(0, 1, 17)[None])])
    used = {each["class"] for tag, each in Read(text).tags if tag == "td" and "class" in each}
    assert used == {f"l{depth}" for depth in range(1, LEVELS + 1)}
    assert all(f".regard .{name} {{ --level:" in text for name in used)


def test_direction_of_a_line_follows_its_words():
    """A <bdi> in the line would hide its letters from dir=auto."""
    text = page([Entry(["ذهب", "الرجل"], ["the", "man"], numpy.eye(2))])
    line = next(line for line in text.splitlines() if 'class="source"' in line)
    assert 'dir="auto"' in line and "<bdi>" not in line


def test_page_of_200_sentences_is_below_2_megabytes():
    generator = numpy.random.default_rng(0)
    words = ["Beispiel"] * 14
    entries = [
        Entry(words, words, generator.dirichlet(numpy.ones(14), 14), -3.0, reference=" ".join(words))
        for _ in range(200)
    ]
    assert len(page(entries)) < 2_000_000


def test_colours_of_a_table_are_relative_to_its_largest_weight():
    cells = Read(page([Entry(["a", "b", "c"], ["d"], [[0.25, 0.125, 0.0]])])).tags
    levels = [dict(attributes).get("class") for tag, attributes in cells if tag == "td"]
    assert levels[1:] == [f"l{LEVELS}", f"l{LEVELS // 2}", None]


def test_long_sentences_have_all_words_and_a_truncated_table():
    words = [f"w{place}" for place in range(3000)]
    read = Read(page([Entry(words, words[:120], numpy.full((120, 3000), 1 / 3000))]))
    assert len(read.of("span")) == 2 * LONGEST
    assert any(text.endswith("w2999") for text in read.of("dd"))
    (summary,) = read.of("summary")
    assert "100 of 120 target words" in summary and "100 of 3000 source words" in summary
    assert [tag for tag, _ in read.tags].count("td") == 1 + LONGEST**2
    (head, *_) = Read(page([Entry(["한" * 3000], ["a"], [[1.0]])])).of("bdi")
    assert head.endswith("…") and len(head) < 24


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (Entry(["a"], ["b"]), UNSEEN),
        (Entry([], [], numpy.zeros((0, 0))), "nothing"),
        (Entry(["a"], [], numpy.zeros((0, 1))), "nothing"),
        (Entry(["a"], ["b"], reference=""), "nothing"),
    ],
)
def test_entry_without_weights_has_a_note_and_no_table(entry: Entry, text: str):
    for html in (page([entry]), fragment(entry)):
        read = Read(html)
        assert text in read.of("dd") + read.of("i")
        assert "table" not in {tag for tag, _ in read.tags}


def test_page_of_no_translations():
    assert "0 translations" in page([])


def test_nan_is_marked_with_a_question_mark():
    assert Read(fragment(Entry(["a", "b"], ["c"], [[numpy.nan, 0.5]]))).of("td") == ["?", ".50"]
    assert Read(fragment(Entry(["a"], ["c"], [[numpy.nan]]))).of("td") == ["?"]


def test_page_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = tmp_path / "page.HTML"
    save_page(place, hostile(), "first")
    before = place.read_bytes()
    assert before.decode() == page(hostile(), "first")

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DataError, match=os.strerror(errno.ENOSPC)):
        save_page(place, hostile(), "second")
    assert place.read_bytes() == before and list(tmp_path.iterdir()) == [place]


def test_save_page_raises_for_bad_paths(tmp_path: Path):
    entry = Entry(["a"], ["b"])
    for name in ("page.pdf", "page", "page.html.txt"):
        with pytest.raises(ArgumentError, match=facts("page", "expected", ".html", "hint", "page", ".html")):
            save_page(tmp_path / name, [entry])
    with pytest.raises(DataError, match=facts(os.strerror(errno.ENOENT), "nowhere")):
        save_page(tmp_path / "nowhere" / "page.html", [entry])
    folder = tmp_path / "folder.html"
    folder.mkdir()
    with pytest.raises(DataError, match=facts(folder)):
        save_page(folder, [entry])
    assert [path.name for path in tmp_path.iterdir()] == ["folder.html"]
