"""The built site: complete, readable offline and from the disk, with search, dark mode and a phone layout."""

import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reading import ROOT

if importlib.util.find_spec("material") is None or importlib.util.find_spec("latex2mathml") is None:
    pytest.skip('mkdocs-material is not installed (pip install ".[dev]")', allow_module_level=True)

PAGES = (
    "index.html",
    "mechanisms/positions.html",
    "models/luong.html",
    "performance.html",
    "api/regard.html",
)

SEARCHES = {
    "translate": "translation.html",
    "install": "index.html",
    "cache": "api/data.html",
    "checkpoints": "reliability.html",
    "resumed": "training.html",
    "training": "training.html",
    "beam": "api/decoding.html",
    "mask": "mechanisms/masks.html",
    "heads": "mechanisms/multihead.html",
    "padding": "mechanisms/masks.html",
    "where": "api/regard.html",
    "translation": "translation.html",
    "evaluate": "translation.html",
    "learning": "training.html",
    "captions": "captioning.html",
    "memory": "models/memory-networks.html",
    "classification": "classification.html",
    "generate": "language-models.html",
    "perplexity": "language-models.html",
    "additive": "mechanisms/additive.html",
    "어텐션": "ko/why-attention.html",
    "학습": "ko/index.html",
    "모델": "ko/models/index.html",
    "설치": "ko/index.html",
    "번역": "ko/seeing.html",
    "가중치": "ko/seeing.html",
    "점수": "ko/why-attention.html",
    "이야기": "ko/answering.html",
    "알고리즘": "ko/algorithms.html",
    "메모리": "ko/models/memory-networks.html",
    "그림": "ko/seeing.html",
    "정렬": "ko/seeing.html",
    "논문": "ko/models/luong.html",
    "인코더": "ko/models/show-attend-tell.html",
    "디코더": "ko/why-attention.html",
    "질문": "ko/answering.html",
    "캡션": "ko/models/show-attend-tell.html",
    "사전": "ko/soft-dictionary.html",
    "데이터": "ko/answering.html",
    "부드러운": "ko/soft-dictionary.html",
    "트랜스포머": "ko/index.html",
    "소프트맥스": "ko/index.html",
    "마스크": "ko/index.html",
    "시각화": "ko/index.html",
}
"""Common words that users type in the search field, each with a page that must be among the first results."""


def load(name: str):
    """Import a script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks, docstrings = load("site_hooks"), load("docstring_markdown")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Build the site once for all workers of this test run."""
    from filelock import FileLock

    workers = tmp_path_factory.getbasetemp()
    shared = workers.parent if "PYTEST_XDIST_WORKER" in os.environ else workers
    folder, built = shared / "site", shared / "site-built"
    with FileLock(shared / "site.lock"):
        if not built.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
            environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
            ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
            assert ran.returncode == 0, ran.stderr
            built.touch()
    return folder


def test_pages_load_nothing_from_other_hosts(site):
    loaded = re.compile(
        r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>"
    )
    wrong = {
        str(path.relative_to(site)): found[0]
        for path in site.rglob("*.html")
        for found in [loaded.search(path.read_text(encoding="utf-8"))]
        if found
    }
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert wrong == {} and len(styles) > 2
    assert not any(re.search(r"@import|url\([\"']?(?:https?:)?//", style) for style in styles)


def test_reference_has_every_public_name(site):
    for page, (package, _) in hooks.API.items():
        text = (site / "api" / f"{page}.html").read_text(encoding="utf-8")
        names = hooks.public_names(package)
        described = set(re.findall(r'(?:id="|href="\w+\.html#)([\w.]+)"', text))
        undescribed = [name for name, module in names.items() if f"{module}.{name}" not in described]
        assert names and undescribed == [], package
    assert set(hooks.public_names("regard")) == set(__import__("regard").__all__)


def test_equations_are_mathml(site):
    texts = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert sum("<math" in text for text in texts.values()) > 15
    untypeset = [path.name for path, text in texts.items() if "arithmatex" in text or "$$" in text]
    assert untypeset == []
    assert texts[site / "mechanisms" / "dot.html"].count("<msqrt>") == 1


def test_benchmark_records_are_linked_pages(site):
    text = (site / "performance.html").read_text(encoding="utf-8")
    linked = set(re.findall(r'href="(records/[\w.-]+\.html)"', text))
    assert linked and all((site / link).exists() for link in linked)


def test_pages_link_to_the_other_language(site):
    korean = (site / "ko" / "models" / "luong.html").read_text(encoding="utf-8")
    english = (site / "training.html").read_text(encoding="utf-8")
    assert '<html lang="ko"' in korean and '<html lang="en"' in english
    link = '<p class="language"><a href="{0}" lang="{1}">{2}</a></p>'
    assert link.format("../../models/luong.html", "en", "English") in korean
    luong = (site / "models" / "luong.html").read_text(encoding="utf-8")
    assert link.format("../ko/models/luong.html", "ko", "한국어") in luong
    assert 'class="language"' not in english  # this page has no translation


def test_search_index_has_guides_and_reference(site):
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    places = {entry["location"].split("#")[0] for entry in index["docs"]}
    assert {"training.html", "models/bahdanau.html", "api/regard.html", "ko/seeing.html"} <= places


def search_results(page, word: str) -> list[str]:
    """The addresses of the pages that the search finds for a word, best first; empty if it finds none."""
    from playwright.sync_api import TimeoutError as NothingFound

    # A link to a result has the words that were found there as its parameter h, for highlighting.
    links = """word => {
        const elements = [...document.querySelectorAll('a.md-search-result__link')]
        const links = elements.map(element => new URL(element.href))
        const current = links.some(link => link.searchParams.get('h')?.includes(word))
        return current && [...new Set(links.map(link => link.pathname))]
    }"""
    try:
        return page.wait_for_function(links, arg=word, timeout=3_000).json_value()
    except NothingFound:
        return []


def test_site_works_in_a_browser_from_disk(site, browser):
    trouble = []
    phone = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    phone.set_default_timeout(60_000)  # other processes may keep the cores busy
    page = phone.new_page()
    page.on("request", lambda asked: asked.url.startswith("file:") or trouble.append(asked.url))
    page.on("console", lambda said: said.type in ("error", "warning") and trouble.append(said.text))
    for name in PAGES:
        page.goto((site / name).as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
    assert page.get_attribute("body", "data-md-color-scheme") == "slate"
    page.goto((site / "mechanisms/dot.html").as_uri())
    assert page.evaluate("document.querySelector('.equation math').getBoundingClientRect().height") > 10
    page.click("label.md-header__button[for=__search]")
    field = page.locator("input.md-search__input")
    wrong = {}
    for word, expected in SEARCHES.items():
        field.fill(word)
        field.press("End")  # the site searches at the end of a key press
        found = search_results(page, word)
        if not any(link.endswith(f"/{expected}") for link in found[:6]):
            wrong[word] = found
    assert wrong == {}
    phone.close()
    assert trouble == []


def test_unknown_latex_command_is_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        assert "<mfrac>" in hooks.typeset(r"\frac{q \cdot k}{\sqrt{D}}", display=True)
        assert not caplog.records
        hooks.typeset(r"\nonsense{x}", display=False)
    assert r"\nonsense" in caplog.text


def test_links_outside_docs_become_records_or_plain_names():
    class Page:
        class file:
            src_uri = "mechanisms/dot.md"

    text = "[run](../../benchmarks/results/x.md), [code](../../src/regard/scores.py), [next](general.md)"
    assert hooks.on_page_markdown(text, Page) == "[run](../records/x.md), code, [next](general.md)"


def test_docstrings_keep_their_lines():
    text = "Compare a_b.\n\ne_s = q . k_s\n\nq: (T, D). k: (S, D).\nMore of k.\n\n>>> 1 + 1\n2"
    assert docstrings.to_markdown(text) == (
        "Compare a\\_b.\n\n```text\ne_s = q . k_s\n```\n\n"
        "- **`q`**: (T, D).\n- **`k`**: (S, D). More of k.\n\n```pycon\n>>> 1 + 1\n2\n```"
    )
