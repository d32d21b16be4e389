"""The pages: their code runs, their outputs and pictures are up to date, and their links work."""

import importlib.util
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import regard
import regard.models
from tests.benchmarks.recorded import gpu

ROOT = Path(__file__).parents[2]


def load(name: str):
    """Import a script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


load("learned")  # page_results imports it
translations = load("translation_check")
results, tables, models, make = map(load, ("page_results", "page_tables", "page_models", "make"))
PAGES = make.pages()
PICTURES = sorted(make.PICTURES.glob("*.svg"))


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def slow_unless_readme(page: Path):
    """The other pages also run in `make docs ARGS=--check`."""
    return pytest.param(page, id=short(page), marks=[] if page.stem == "README" else pytest.mark.slow)


@pytest.mark.parametrize("page", [slow_unless_readme(page) for page in PAGES])
def test_page_runs_and_is_up_to_date(page):
    made = make.make(page)
    assert made.problems == []
    assert [short(path) for path, _ in make.stale(made)] == []


TRANSLATIONS = [page for page in PAGES if make.original(page)]


def test_korean_pages_have_the_blocks_of_the_english_pages(tmp_path, monkeypatch):
    """Korean pages are not run: test_page_runs_and_is_up_to_date compares them with the English pages."""
    assert {short(page) for page in TRANSLATIONS} >= {"docs/ko/index.md", "docs/ko/soft-dictionary.md"}
    for page in TRANSLATIONS:
        english, korean = (
            [block[0] for block in make.FENCE.finditer(path.read_text(encoding="utf-8"))]
            for path in (make.original(page), page)
        )
        assert english == korean, short(page)
    monkeypatch.setattr(make, "ROOT", tmp_path)
    monkeypatch.setattr(make, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(make, "KOREAN", tmp_path / "docs" / "ko")
    (tmp_path / "docs/ko").mkdir(parents=True)
    english, korean = tmp_path / "docs/page.md", tmp_path / "docs/ko/page.md"
    english.write_text("```python\n1\n```\n\n<!-- made: x -->\n[a](b.md#c)\n<!-- end -->\n", encoding="utf-8")
    korean.write_text("가\n\n```python\n2\n```\n\n<!-- made: x -->\n<!-- end -->\n", encoding="utf-8")
    made = make.make(korean)
    assert made.problems == []
    assert made.text == "가\n\n```python\n1\n```\n\n<!-- made: x -->\n[a](../b.md#c)\n<!-- end -->\n"
    korean.write_text("가\n", encoding="utf-8")
    assert made.path == korean and len(make.make(korean).problems) == 1
    english.write_text("![a cat](pictures/page-1.svg)\n", encoding="utf-8")
    assert len(make.make(korean).problems) == 1
    english.unlink()
    assert len(make.make(korean).problems) == 1


def test_every_figure_has_alternative_text(tmp_path, monkeypatch):
    """make.without_alternative() finds a picture without text; test_page_runs_and_is_up_to_date calls it."""
    assert [short(page) for page in PAGES if "<img" in page.read_text(encoding="utf-8")] == []
    monkeypatch.setattr(make, "ROOT", tmp_path)
    monkeypatch.setattr(make, "KOREAN", tmp_path / "ko")
    english, korean = tmp_path / "page.md", tmp_path / "ko/page.md"
    made = "<!-- made: x -->\n![a cat](a.svg)\n<!-- end -->\n"
    for path, text, count in (
        (english, "![a cat](a.png) ![고양이](b.svg)", 0),
        (english, "![](a.png) ![ ](b.svg)", 2),
        (korean, f"![고양이](a.png)\n{made}", 0),
        (korean, "![a cat](a.png) ![](b.png)", 2),
    ):
        assert len(make.without_alternative(path, text)) == count, text


@pytest.mark.parametrize(
    ("english", "korean", "parts"),
    [
        ("Both have 1,000 pairs, 5 words\n", "둘 다 1000쌍, 다섯 단어\n", []),
        ("2.5 million weights\n", "가중치 250만 개\n", []),
        ("BLEU 60.2 (57.5 to 63.0)\n", "BLEU 60.3(57.5에서 63.0)\n", ["60.2", "60.3"]),
        ("# A\n\n12\n\n# B\n", "# 가\n\n# 나\n\n12\n", ["# 가", "# 나"]),
        ("# A\n", "## 가\n", ["[2]", "[1]"]),
        ("| a | 7 of 10 |\n", "| 가 | 10개 중 7개 |\n", []),
        ("| a | 7 of 10 |\n", "| 가 | 10개 중 8개 |\n", ["10개 중 8개"]),
        ("| a | a tenth |\n", "| 가 | 10분의 1 |\n", []),
        ("| a | 7 |\n| b | 8 |\n", "| 가 | 7 |\n", ["tables"]),
        ("Use `--seeds`\n", "`--seeds`를 쓰세요, 또는 `--seed`\n", []),
        ("Use `--seeds`\n", "`--seed`를 쓰세요\n", ["`--seeds`"]),
        ("```\n12\n```\n<!-- made: x -->\n13\n<!-- end -->\n[a](b14.md)\n", "가\n", []),
    ],
)
def test_numbers_and_names_of_a_translation_are_compared(english, korean, parts):
    found = translations.differences(english, korean)
    assert bool(found) == bool(parts) and all(part in " ".join(found) for part in parts)


def test_every_picture_is_shown():
    shown = {
        (page.parent / found["path"]).resolve()
        for page in PAGES
        for found in make.SHOWN.finditer(page.read_text(encoding="utf-8"))
    }
    assert shown == set(PICTURES)


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_picture_is_self_contained(path):
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"https?:[^\"' ]*", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"url\(|@import|@font-face|href|<script|<foreignObject", text)
    assert ElementTree.fromstring(text).find("{http://www.w3.org/2000/svg}title").text


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_links_and_named_files_exist(page):
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`(src/regard/[\w/.]*)`", text))
    linked = {link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link}
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert [link for link in linked if not (page.parent / link).exists()] == []
    if page.parent.name == "mechanisms" and page.name != "index.md":
        assert named and "```python" in text and "![" in text


def test_equations_also_render_on_github():
    """GitHub does not support \\operatorname, and its Markdown drops a backslash before punctuation."""
    wrong = {}
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        equations = re.findall(r"\$\$(.*?)\$\$|\$([^$\n]+)\$", text, re.S)
        found = [
            each for pair in equations for each in pair if re.search(r"\\operatorname|\\[^A-Za-z]", each)
        ]
        wrong |= {short(page): found} if found else {}
    assert wrong == {}


def test_navigation_has_every_page():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"^ +- .*: (\S+\.md)$", nav, re.M))
    generated = {place for place in listed if place.startswith("api/")}  # by docs/site_hooks.py
    assert generated and listed - generated == {
        str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")
    }


def test_failing_page_is_reported_with_its_line(tmp_path, monkeypatch):
    page = tmp_path / "broken.md"
    page.write_text(
        "# Broken\n\n```python\nx = 1\nprint(x / 0)\n```\n\n```text\nold\n```\n", encoding="utf-8"
    )
    monkeypatch.setattr(make, "ROOT", tmp_path)
    made = make.make(page)
    assert made.problems == ["broken.md:5: ZeroDivisionError: division by zero"]


def test_output_of_a_block_is_written_after_it(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("```python\nprint('new')\n```\n\n```text\nold\n```\n\nend\n", encoding="utf-8")
    monkeypatch.setattr(make, "ROOT", tmp_path)
    made = make.make(page)
    assert made.text == "```python\nprint('new')\n```\n\n```text\nnew\n```\n\nend\n"
    assert [path for path, _ in make.stale(made)] == [page]


def test_readme_picture_shows_learned_weights():
    kept = json.loads(make.learned.KEPT.read_text(encoding="utf-8"))
    assert " ".join(kept["source"]) == make.learned.SENTENCE
    assert " ".join(kept["target"]) == make.learned.TRANSLATION
    assert len(kept["weights"]) == len(kept["target"]) and kept["steps"] > 0
    assert all(len(row) == len(kept["source"]) and 0 < sum(row) < 1.01 for row in kept["weights"])
    svg = (make.PICTURES / "readme-1.svg").read_text(encoding="utf-8")
    assert [word for word in kept["source"] + kept["target"] if f">{word}<" not in svg] == []


def test_readme_shows_what_minilm_attends_to():
    kept = json.loads(make.learned.MINILM.read_text(encoding="utf-8"))
    assert " ".join(kept["words"]).replace(" .", ".") == make.learned.MINILM_TEXT == kept["text"]
    assert all(len(row) == len(kept["words"]) and 0 < sum(row) < 1.01 for row in kept["weights"])
    words, row = kept["words"], kept["weights"][kept["words"].index("it")]
    assert words[row.index(max(row))] == "animal"  # what the alternative text of the picture says
    svg = (make.PICTURES / "readme-2.svg").read_text(encoding="utf-8")
    assert [word for word in words if f">{word}<" not in svg] == []


def test_picture_that_is_not_shown_is_a_problem(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("```python\nfrom rich.text import Text\npicture = Text('x')\n```\n", encoding="utf-8")
    monkeypatch.setattr(make, "ROOT", tmp_path)
    made = make.make(page)
    assert ["drawn" in problem for problem in made.problems] == [True]


def test_pictures_may_differ_only_slightly_in_colour():
    one = '<rect fill="#102030"/><text>나</text>'
    assert make.same_picture(one, one.replace("#102030", "#122e30")) is False
    assert make.same_picture(one, one.replace("#102030", "#112133")) is True
    assert make.same_picture(one, one.replace("나", "너")) is False


def test_new_score_is_in_the_tables(monkeypatch):
    class Negative(regard.Score):
        equation = "-q . k"

    monkeypatch.setitem(regard.SCORES, "negative", Negative)
    assert "| `negative` | `Negative` | `-q . k` | inner |" in tables.scores()
    assert tables.choices().count("negative") == len(tables.PLACES)


def test_readme_is_short_and_starts_with_its_picture():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) < 150
    picture = next(number for number, line in enumerate(lines) if line.startswith("!["))
    assert picture < 6 and not any(line.startswith("## ") for line in lines[:picture])


def test_files_of_the_readme_tree_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = re.findall(r"^ {4}( {2})?([\w./]+\.py|[\w./]+/) {2,}\S", text, re.M)
    named = [ROOT / ("src/regard" if inside else "") / name for inside, name in tree]
    assert len(named) > 15
    assert [short(path) for path in named if not path.exists()] == []


def test_performance_pages_use_the_newest_results(tmp_path, monkeypatch):
    old, new = gpu(), gpu()
    new["environment"]["gpu"] = "A newer device"
    for day, found in (("2026-01-02", new), ("2026-01-01", old)):
        (tmp_path / f"{day}-gpu.json").write_text(json.dumps(found), encoding="utf-8")
    (tmp_path / "2026-01-02-recurrent.md").write_text("Tokens a second.\n", encoding="utf-8")
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    made = make.make(ROOT / "docs" / "kernel-benchmarks.md")
    assert made.problems == []
    for said in ("A newer device", "missed by 12 %", "SDPA flash", "would hold 211 GiB"):
        assert said in made.text, said
    assert "Tokens" in make.make(ROOT / "docs" / "performance.md").text
    drawn = {path.stem for path in made.pictures}
    assert drawn == {f"kernel-benchmarks-gpu-{name}" for name in new["cases"]}


@pytest.mark.parametrize(("page", "tables"), [("performance", 6), ("cpu", 2), ("kernel-benchmarks", 7)])
def test_performance_pages_without_results(page, tables, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    made = make.make(ROOT / "docs" / f"{page}.md")
    assert made.problems == [] and made.pictures == {}
    assert made.text.count(results.NOTHING) == tables


@pytest.mark.parametrize("model", regard.models.MODELS)
def test_all_settings_of_a_model_are_described(model):
    assert set(models.defaults(model)) == set(models.OPTIONS[model])
    written = regard.models.build_model(
        model,
        9,
        9,
        **{name: value for name, value in models.defaults(model).items() if value is not None},
    )
    assert written.source_size == 9
    text = (ROOT / "docs" / "models" / f"{model}.md").read_text(encoding="utf-8")
    assert f"--model {model}" in text and re.search("^## .*default", text, re.MULTILINE) and "$$" in text
