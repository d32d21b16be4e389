"""MkDocs hooks: pages that are generated when the site is built, and equations typeset as MathML.

Generated pages: the API reference, one page per public package, and the benchmark records of
benchmarks/results, so that the numbers on a page link to the run that measured them.

Pages in ko/ are Korean. Every page that exists in both languages links to the other one. Neither
mkdocs-static-i18n nor the language selector of Material is used for this. The first builds every page twice,
also those without a translation. The second loads a site map, which a browser refuses for pages on the disk.

Equations are LaTeX between dollar signs, which GitHub renders too. They become MathML at build time, so that
pages need no JavaScript and no font for them.
"""

from __future__ import annotations

import ast
import functools
import html
import logging
import re
from pathlib import Path
from typing import Any

import latex2mathml.converter
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "benchmarks" / "results"
LOG = logging.getLogger("mkdocs.hooks.regard")

API = {
    "regard": ("regard", "The public names of `regard`: everything that `import regard` gives."),
    "layers": ("regard.layers", "Modules with parameters, built on `regard.attention`."),
    "models": (
        "regard.models",
        "Encoder-decoder models on one protocol. [A page on each model](../models/index.md).",
    ),
    "data": ("regard.data", "Parallel text: reading, checking, tokenizers, batches, and a built-in corpus."),
    "decoding": ("regard.decoding", "Search, and `Translator`: from a model to text, scores and alignments."),
    "training": (
        "regard.tasks.translation",
        "Training runs. [The guide](../training.md) explains the run folder and the settings.",
    ),
    "evaluation": ("regard.evaluation", "BLEU, chrF, TER, alignment error rate and faithfulness."),
    "huggingface": (
        "regard.huggingface",
        "Models of Hugging Face transformers. [The guide](../huggingface.md) shows how to use it.",
    ),
    "viewing": ("regard.viewing", "Pictures and pages of attention weights, drawn from plain arrays."),
}
"""Pages of the API reference: file name, package, first sentence."""

GROUPS = {
    "attention": "The call",
    "attended": "The call",
    "memory": "The call",
    "explain": "The call",
    "scores": "Scores",
    "masks": "Masks",
    "positions": "Positions",
    "select": "Selections",
    "look": "Looking",
    "sites": "Looking",
    "interventions": "Looking",
    "viewing": "Looking",
    "layers": "Layers",
    "tasks": "Trained models",
    "errors": "Errors",
}
"""Headings of the page on `regard`, by the module that defines a name."""

OTHER = "More"

LANGUAGES = {"en": "English", "ko": "한국어"}
"""The languages of the site: code, name."""


def public_names(package: str) -> dict[str, str]:
    """The names in `__all__` of a package, each with the module that defines it; nothing is imported."""
    imported, exported = _read(package)
    return {name: _origin(name, imported.get(name, package)) for name in exported}


def _origin(name: str, module: str) -> str:
    """The module that defines a name which this module has, through packages that re-export it."""
    further = _read(module)[0].get(name)
    return module if further is None else _origin(name, further)


@functools.cache
def _read(module: str) -> tuple[dict[str, str], list[str]]:
    """What a module imports from our own modules, by name, and its `__all__`."""
    place = ROOT / "src" / module.replace(".", "/")
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    imported, exported = {}, []
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard"):
            imported |= {alias.asname or alias.name: node.module or "" for alias in node.names}
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            exported = ast.literal_eval(node.value)
    return imported, exported


def api_pages() -> dict[str, str]:
    """The Markdown of each page of the API reference; a name that is public twice is described once."""
    described: dict[str, str] = {}
    pages = {}
    for page, (package, about) in API.items():
        order, groups, elsewhere = list(GROUPS), dict[str, list[tuple[int, str]]](), []
        for name, module in public_names(package).items():
            path, part = f"{module}.{name}", module.split(".")[1] if "." in module else ""
            if described.setdefault(path, page) != page:
                elsewhere.append(f"[`{name}`]({described[path]}.md#{path})")
                continue
            group = GROUPS.get(part, OTHER) if package == "regard" else ""
            groups.setdefault(group, []).append((order.index(part) if part in order else 0, path))
        lines = [f"# {package}", "", about, ""]
        lines += [f"Also public here: {', '.join(elsewhere)}.", ""] if elsewhere else []
        for group in sorted(groups, key=[*dict.fromkeys(GROUPS.values()), OTHER, ""].index):
            lines += [f"## {group}", ""] if group else []
            options = "" if group else "\n    options:\n      heading_level: 2"
            for _, path in sorted(groups[group], key=lambda each: each[0]):
                lines += [f"::: {path}{options}", ""]
        pages[page] = "\n".join(lines)
    return pages


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    for name, text in api_pages().items():
        files.append(File.generated(config, f"api/{name}.md", content=text))
    for path in sorted(RECORDS.glob("*.md")):
        record = File.generated(config, f"records/{path.name}", content=path.read_text(encoding="utf-8"))
        record.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(record)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to files outside of docs/ at their page, or show their name where they have none."""
    if page.file.src_uri.startswith("records/"):
        page.meta["search"] = {"boost": 0.1}  # results of a search show guides and reference first
        return re.sub(r"\[([^\]]*)\]\((?!https?:|#)[^)]*\)", r"\1", markdown)
    root = "../" * (page.file.src_uri.count("/") + 1)
    within = "../" * page.file.src_uri.count("/")
    record = rf"\]\({re.escape(root)}benchmarks/results/([\w.-]+\.md)\)"
    markdown = re.sub(record, rf"]({within}records/\1)", markdown)
    return re.sub(rf"\[([^\]]*)\]\({re.escape(root)}(?:src|tests|recipes|notebooks)/[^)]*\)", r"\1", markdown)


def counterpart(place: str) -> str:
    """Return the source file of a page in the other language, such as "ko/seeing.md" for "seeing.md"."""
    return place.removeprefix("ko/") if place.startswith("ko/") else f"ko/{place}"


def on_page_context(context: Any, config: Any, page: Any, **_: Any) -> Any:
    """Set the language of a page, which the theme uses for its own words and for screen readers."""
    config.theme["language"] = "ko" if page.file.src_uri.startswith("ko/") else "en"
    return context


MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)


def typeset(latex: str, display: bool) -> str:
    """LaTeX as MathML; an unknown command is logged as a warning, which fails a strict build."""
    mathml = latex2mathml.converter.convert(latex, display="block" if display else "inline")
    unknown = re.findall(r"\\[A-Za-z]+", mathml)
    if unknown:
        LOG.warning("the equation %r has unknown commands: %s", latex, ", ".join(unknown))
    # A name of several letters is a function, not an operator with space on both sides.
    return re.sub(r"<mo>([A-Za-z]{2,})</mo>", r"<mi>\1</mi>", mathml)


def on_page_content(content: str, page: Any, files: Files, **_: Any) -> str:
    """Typeset the equations of a page, and link to the page in the other language, if there is one."""
    other = files.get_file_from_path(counterpart(page.file.src_uri))
    if other is not None:
        language = "ko" if other.src_uri.startswith("ko/") else "en"
        address = other.url_relative_to(page.file)
        link = f'<a href="{address}" lang="{language}">{LANGUAGES[language]}</a>'
        content = f'<p class="language">{link}</p>\n{content}'

    def replaced(found: re.Match[str]) -> str:
        mathml = typeset(html.unescape(found[2]).strip(), display=found[1] == "div")
        return f'<div class="equation">{mathml}</div>' if found[1] == "div" else mathml

    return MATH.sub(replaced, content)
