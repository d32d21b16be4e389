"""A thousand hostile strings as words, titles, notes and site names are shown as text."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from regard.viewing import Seen, Site, explore
from regard.viewing.explorer import LONGEST
from regard.viewing.html_document import JOINERS
from regard.viewing.terminal_colors import clean

COUNT = 1000
BAD = "window.bad=1,alert(1)"
KNOWN = [
    f"</script><script>{BAD}</script>",
    f"<script>{BAD}</script>",
    f"</SCRIPT\n><script>{BAD}</script>",
    f"<!--<script>{BAD}</script>",
    f"--!><script>{BAD}</script>",
    f"]]><script>{BAD}</script>",
    f"</style><script>{BAD}</script>",
    f"</title><script>{BAD}</script>",
    f"</textarea><script>{BAD}</script>",
    f"</noscript><script>{BAD}</script>",
    f"<img src=x onerror={BAD}>",
    f"<img src='http://example.com/x.png'>{BAD}",
    f"<svg onload={BAD}>",
    f"<svg><script>{BAD}</script></svg>",
    f"<svg><animate onbegin={BAD} attributeName=x>",
    f"<math><mtext><table><mglyph><style><img src=x onerror={BAD}>",
    f"<iframe srcdoc='<script>parent.bad=1</script>'>{BAD}",
    f"<details open ontoggle={BAD}>",
    f"<body onload={BAD}>",
    f"<input autofocus onfocus={BAD}>",
    f"<a href='javascript:{BAD}'>x</a>",
    "<base href='https://example.com/'>",
    "<link rel=stylesheet href='https://example.com/x.css'>",
    "<style>@import 'https://example.com/x.css'; body { display: none }</style>",
    "<meta http-equiv=refresh content='0;url=https://example.com/'>",
    "<form action='https://example.com/'><button id=site>x</button></form>",
    "<template shadowrootmode=open><script>alert(1)</script></template>",
    f'"onmouseover={BAD} x="',
    f"' onfocus='{BAD}",
    f"`${{{BAD}}}`",
    f"{{{{constructor.constructor('{BAD}')()}}}}",
    f"\\u003cscript\\u003e{BAD}\\u003c/script\\u003e",
    f"\\x3cscript>{BAD}</script>",
    f"&lt;script&gt;{BAD}&lt;/script&gt;",
    f"&#60;script&#62;{BAD}",
    f"+ADw-script+AD4-{BAD}+ADw-/script+AD4-",
    f"\ufeff<script>{BAD}</script>",
    f"\x00<script>{BAD}</script>",
    f"＜script＞{BAD}＜/script＞",
    "a\u2028b\u2029c",
    "\u202egnp.exe",
    "\u2066\u2067\u2068\u2069",
    "\ud800",
    "\udfff\ud800",
    "\ufffe\uffff",
    "\x1b[31m\x07\x9b",
    "__proto__",
    "constructor",
    "id=data",
    "block-0",
    "%3Cscript%3E",
    "',document.title='x",
    "</",
    "<!",
    "<?xml version='1.0'?>",
    "Z" * 5000,
    "é" + "\u0301" * 500,
    "👩‍👩‍👧‍👦",
    "می‌خواهم",
]
PARTS = [
    *("<", ">", "</", "/>", "<!--", "-->", "'", '"', "`", "=", "&", ";", "\\", "/", "script", "style", "svg"),
    *(
        "img src=x",
        " onerror=",
        " onload=",
        "javascript:",
        BAD,
        "\n",
        "\t",
        "\0",
        "\u2028",
        "\u202e",
        "\u200b",
    ),
    *(
        "{{",
        "}}",
        "${",
        "]]>",
        "&lt;",
        "&#x3c;",
        "\\u003c",
        "한",
        "🙂",
        "\ud83d",
        "\x85",
        "iframe",
        "</script>",
    ),
]
OURS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "header",
        "h1",
        "h3",
        "h4",
        "main",
        "div",
        "p",
        "span",
    ),
    *(
        "i",
        "fieldset",
        "legend",
        "input",
        "label",
        "select",
        "option",
        "optgroup",
        "button",
        "section",
        "table",
    ),
    *(
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "bdi",
        "details",
        "summary",
        "ol",
        "li",
        "article",
        "dl",
        "dt",
        "dd",
    ),
    *("script", "svg", "path", "canvas"),
}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "id", "dir", "role", "tabindex", "open"),
    *("aria-label", "aria-selected", "aria-controls", "aria-labelledby", "aria-hidden", "aria-pressed"),
    *("aria-describedby", "for", "type", "value", "scope", "title", "style", "label", "start", "viewBox"),
    *("preserveAspectRatio", "height", "width", "d", "data-roving", "data-view", "data-site", "data-head"),
}


def hostile() -> list[str]:
    """Return the known strings, then random combinations of PARTS, all different once escaped."""
    generator = random.Random(0)
    strings = {clean(text, kept=JOINERS): text for text in KNOWN}
    while len(strings) < COUNT:
        text = "".join(generator.choices(PARTS, k=generator.randint(1, 8)))
        strings[clean(text, kept=JOINERS)] = text
    return list(strings.values())


def test_hostile_strings_run_no_script(opened: Callable[..., Any]):
    words = hostile()
    few = words[:2]
    weights = numpy.full((2, COUNT), 1 / COUNT)
    sites = (
        Site(f"{words[0]}.cross", weights, few, words),
        Site(words[1], weights.T, words, few),
    )
    seen = Seen(sites, words, words, range(COUNT), range(COUNT), "".join(KNOWN), tuple(words), -1.0)
    page = opened(seen)
    shown = [clean(word, kept=JOINERS) for word in words]
    shown = [word if len(word) <= LONGEST else word[: LONGEST - 1] + "…" for word in shown]
    tags, attributes = set(), set()
    for site, scope in ((0, "col"), (1, "row")):
        page.select_option("#site", str(site))
        page.evaluate("change({ units: 'pieces' })")  # words would be stripped of spaces
        for tab in ("heads", "steps", "sentence", "lines", "matrix"):
            page.evaluate("tab => document.getElementById(`tab-${tab}`).click()", tab)
            page.evaluate("document.querySelector('#panel details')?.setAttribute('open', '')")
            seen_tags, seen_attributes = page.evaluate(
                """() => { const all = [...document.querySelectorAll('*')]; return [
                    [...new Set(all.map(each => each.localName))],
                    [...new Set(all.flatMap(each => each.getAttributeNames()))]]; }"""
            )
            tags |= set(seen_tags)
            attributes |= set(seen_attributes)
        titles = page.eval_on_selector_all(f"#panel th[scope={scope}] bdi", "all => all.map(e => e.title)")
        assert titles == shown
    assert tags <= OURS, tags - OURS
    assert attributes <= ATTRIBUTES, attributes - ATTRIBUTES
    assert page.evaluate("[typeof window.bad, document.scripts.length, document.title.length > 0]") == [
        "undefined",
        4,  # ours, the data, and a block for each site
        True,
    ]


def test_policy_blocks_markup_from_scripts(browser: Any, tmp_path: Path):
    """Second line of defence: the browser refuses if a script assigns a string as markup."""
    explore(Seen((Site("a.cross", [[1.0]], ["x"], ["y"]),), ["y"], ["x"], [0], [0]), tmp_path / "a.html")
    page = browser.new_page()
    page.goto((tmp_path / "a.html").as_uri())
    refused = page.evaluate(
        """() => { try { document.body.innerHTML = '<img src=x>'; return false; }
                   catch (error) { return error instanceof TypeError; } }"""
    )
    assert refused and page.locator("img").count() == 0
    page.close()
