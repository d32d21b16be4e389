"""Checks of the style guide: directions of imports, the public API, documentation."""

from __future__ import annotations

import ast
import doctest
import functools
import graphlib
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import regard
from tests.reading import PACKAGE, nodes, python, settings, short

LAYERS = (
    ("__main__",),
    ("cli",),
    ("compare",),
    ("tasks", "huggingface"),
    ("export",),
    ("runs", "aligner"),
    ("training", "decoding", "evaluation"),  # and fast, see TOGETHER
    ("named_models",),
    ("models",),
    ("image_encoders",),
    ("data",),
    ("regard",),  # the public names: src/regard/__init__.py
    ("viewing",),
    ("layers", "explain"),
    ("torch_modules",),
    ("options",),
    ("attention",),
    ("looking",),
    ("backends",),
    ("kernels", "blocks"),
)
"""Layers from top to bottom: a part imports only from layers below its own, and from LEAVES."""

TOGETHER = ("training", "decoding", "fast")
"""Parts that may import each other, but not in a cycle: a twin of the search reads its hypotheses, and the
search asks for the twin."""

LEAVES = (
    "attended",
    "call",
    "checking",
    "dimensions",
    "errors",
    "files",
    "interventions",
    "lazy_package",
    "look",
    "masks",
    "memory",
    "positions",
    "roles",
    "scores",
    "select",
    "sites",
)
"""Modules that every part may import; they may import each other, but not in a cycle."""

ROOT_FILES = 16
"""Maximum number of Python files directly in src/regard, so that its listing is a table of contents."""

DEPTH = {name: depth for depth, names in enumerate((*LAYERS, LEAVES)) for name in names}
DEPTH["fast"] = DEPTH["training"]

PUBLIC = (
    "ALiBi",
    "Additive",
    "ArgumentError",
    "Attended",
    "AttentionLayer",
    "BackendError",
    "Best",
    "Bias",
    "Concat",
    "Cosine",
    "DataError",
    "Dot",
    "Explanation",
    "Gate",
    "General",
    "Hard",
    "Learned",
    "LocalP",
    "Location",
    "Look",
    "LookError",
    "Mask",
    "Memory",
    "MultiHead",
    "Noise",
    "POSITIONS",
    "Position",
    "Record",
    "RegardError",
    "RegardWarning",
    "Relative",
    "Role",
    "Rotary",
    "SCORES",
    "ScaledDot",
    "Score",
    "Select",
    "Selection",
    "Sinusoidal",
    "Soft",
    "Sparse",
    "StraightThrough",
    "T5Bias",
    "Top",
    "UnknownName",
    "align",
    "attention",
    "build_position",
    "build_score",
    "causal",
    "compare",
    "dense",
    "documents",
    "draw",
    "explain",
    "explore",
    "intervene",
    "load",
    "name_sites",
    "padding",
    "picture",
    "prepare",
    "read",
    "record",
    "watch",
    "where",
    "window",
)
"""The public names. Users rely on them: a change must be made here too."""

PARAMETERS = 10  # of a constructor; the aim is about 8
PICKLES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in python("src")}


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield every module that a file imports, at its top or inside a function, with the line number."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner if inner in MODULES else node.module or ""), node.lineno
                assert not node.level, f"{short(path)}:{node.lineno} is a relative import"


def typing_lines(path: Path) -> set[int]:
    """Return the lines that only a type checker evaluates."""
    blocks = [n for n in nodes(path) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)]
    return {line for block in blocks for line in range(block.lineno, (block.end_lineno or 0) + 1)}


def part(module: str) -> str:
    """Return the folder or file of src/regard that a module belongs to, as named in LAYERS and LEAVES."""
    return module.split(".")[1] if "." in module else module


def test_every_part_is_listed_in_a_layer():
    assert {part(name) for name in MODULES} - set(DEPTH) == set()
    assert len(DEPTH) == sum(map(len, LAYERS)) + len(LEAVES) + len({"fast"})


def test_package_root_has_few_files():
    assert len(list(PACKAGE.glob("*.py"))) <= ROOT_FILES


def test_imports_follow_the_layers():
    wrong = []
    for name, path in MODULES.items():
        ours = part(name)
        for imported, line in imports(path):
            if imported.split(".")[0] != "regard" or (
                ours in ("regard", "models") and line in typing_lines(path)
            ):
                continue
            theirs = part(imported)
            together = any(ours in parts and theirs in parts for parts in (LEAVES, TOGETHER))
            if ours != theirs and not together and DEPTH[theirs] <= DEPTH[ours]:
                wrong.append(f"{short(path)}:{line}: {ours} imports {theirs}")
    assert wrong == []


def test_imports_have_no_cycles():
    graph = {}
    for name, path in MODULES.items():
        typing = typing_lines(path)
        graph[name] = {
            imported for imported, line in imports(path) if imported in MODULES and line not in typing
        }
    order = list(graphlib.TopologicalSorter(graph).static_order())
    places = [order.index(f"regard.{name}") for name in ("errors", "attention", "layers.multihead")]
    assert places == sorted(places)


def test_modules_do_not_import_private_names():
    private = [
        f"{short(path)}:{node.lineno}: {alias.name}"
        for path in MODULES.values()
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard")
        for alias in node.names
        if alias.name.startswith("_")
    ]
    assert private == []


def test_viewing_depends_on_arrays_only():
    known = {"viewing", "errors", "files", "lazy_package", "roles"}
    for path in (path for name, path in MODULES.items() if part(name) == "viewing"):
        outside = {name.split(".")[0] for name, _ in imports(path)} - set(sys.stdlib_module_names)
        assert outside <= {"matplotlib", "numpy", "PIL", "regard", "rich"}, short(path)
        assert {part(name) for name, _ in imports(path) if name.startswith("regard")} <= known, short(path)


def test_ground_floor_imports_nothing_fast():
    """layers/ and models/ are equations: they import no kernel, no backend and no twin."""
    above = {"kernels", "backends", "fast", "training", "decoding"}
    wrong = [
        f"{short(path)}:{line}: {name}"
        for module, path in MODULES.items()
        if part(module) in ("layers", "models")
        for name, line in imports(path)
        if name.startswith("regard.") and part(name) in above
    ]
    assert wrong == []


def test_only_kernels_import_triton():
    users = {
        part(name) for name, path in MODULES.items() for m, _ in imports(path) if m.split(".")[0] == "triton"
    }
    assert users <= {"kernels"}


@functools.cache
def loaded(code: str) -> set[str]:
    """Return the packages that are loaded after this code, in a separate Python process."""
    code = f"import json, sys; {code}; print(json.dumps([name.split('.')[0] for name in sys.modules]))"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return set(json.loads(ran.stdout))


def imported(code: str) -> set[str]:
    """Return the third-party packages that this code imports."""
    return loaded(code) - set(sys.stdlib_module_names) - loaded("pass")


def test_public_names_import_only_what_they_need():
    assert imported("import regard, regard.errors; regard.ArgumentError") == {"regard"}
    with_torch = imported("import torch")
    assert imported("import regard; regard.attention, regard.MultiHead, regard.load") - with_torch == {
        "regard"
    }
    drawing = imported("import regard; regard.draw, regard.picture, regard.explore")
    assert {"regard", "rich", "numpy"} <= drawing and not {"torch", "matplotlib", "PIL"} & drawing


def test_submodules_do_not_replace_public_names():
    there = imported(
        "import regard.attention, regard.layers; assert regard.attention is "
        "sys.modules['regard.attention'].attention; from regard import attention, masks;"
        "assert callable(attention) and attention is regard.attention"
    )
    assert "regard" in there


def test_constructors_have_few_parameters():
    wrong = []
    for path in python("src", "tests", "benchmarks", "docs"):
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                taken = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs) - 1
                if taken > PARAMETERS:
                    wrong.append(f"{short(path)}:{node.lineno}: a constructor of {taken} parameters")
    assert wrong == []


def test_public_names_are_sorted_and_pinned():
    assert regard.__all__ == sorted(regard.__all__)
    assert tuple(regard.__all__) == PUBLIC
    assert {name: getattr(regard, name) for name in PUBLIC} and set(PUBLIC) <= set(dir(regard))
    there = {name for name, value in vars(regard).items() if not isinstance(value, ModuleType)}
    assert {name for name in there if not name.startswith("_")} == set(PUBLIC)
    with pytest.raises(AttributeError, match="atention"):
        regard.atention  # noqa: B018


def test_lazy_packages_import_all_their_names():
    lazy = [name for name in MODULES if hasattr(importlib.import_module(name), "_homes")]
    assert {"regard", "regard.viewing"} <= set(lazy)
    for name in lazy:
        package = importlib.import_module(name)
        assert sorted(package._homes) == sorted(package.__all__), name
        assert all(getattr(package, each) is not None for each in package.__all__)


@pytest.mark.parametrize("name", [name for name in PUBLIC if callable(getattr(regard, name, None))])
def test_public_docstring_begins_with_one_sentence_and_has_an_example(name: str):
    thing = getattr(regard, name)
    first = (inspect.getdoc(thing) or "").partition("\n")[0]
    assert thing.__doc__ and re.fullmatch(r"[A-Z`(].*[^.]\.", first) and not re.search(r"[.?!] [A-Z]", first)
    # pytest runs the examples that this finder finds in the modules of src/regard.
    found = doctest.DocTestFinder().find(importlib.import_module(thing.__module__))
    examples = {each.name: each.examples for each in found}
    assert examples[f"{thing.__module__}.{thing.__qualname__}"]


def test_doctests_run_and_warnings_are_errors():
    options = settings()["tool"]["pytest"]["ini_options"]
    assert "src/regard" in options["testpaths"] and "--doctest-modules" in options["addopts"]
    assert options["filterwarnings"][0] == "error" and options["xfail_strict"]


WEIGHTS_ONLY = "src/regard/image_encoders/efficientnet.py"
"""The one file that may call torch.load(weights_only=True), for weights of a package with a pinned hash."""


def test_pickle_is_not_used():
    wrong = []
    for path in python("src", "benchmarks", "docs"):
        for name, line in imports(path):
            if PICKLES & set(name.split(".")):
                wrong.append(f"{short(path)}:{line}: {name}")
        allowed = {
            id(node.func)
            for node in nodes(path)
            if isinstance(node, ast.Call) and short(path) == WEIGHTS_ONLY
            if "weights_only=True" in map(ast.unparse, node.keywords)
        }
        for node in nodes(path):
            stores = isinstance(node, ast.Attribute) and node.attr in ("load", "save")
            if stores and ast.unparse(node.value) == "torch" and id(node) not in allowed:
                wrong.append(f"{short(path)}:{node.lineno}: torch.{node.attr}")
            if isinstance(node, ast.ImportFrom) and node.module == "torch":
                named = {alias.name for alias in node.names} & {"load", "save"}
                wrong += [f"{short(path)}:{node.lineno}: torch.{name}" for name in named]
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                wrong.append(f"{short(path)}:{node.value.lineno}: allow_pickle")
    assert wrong == []


def test_no_constant_of_a_module_is_assigned_twice():
    """Functions read a constant when they are called, so that all of them would get the second value."""
    twice = []
    for path in python("src"):
        seen = set[str]()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            for name in (
                each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)
            ):
                if name.isupper() and name in seen:
                    twice.append(f"{path}: {name}")
                seen.add(name)
    assert not twice


PRINTED = {"err", "error", "hint", "message", "note", "notes", "out", "output", "problem", "raised", "said"}
PRINTED |= {"caught", "line", "lines", "shown", "stderr", "stdout", "text", "told"}


def wording(test: ast.FunctionDef) -> Iterator[str]:
    """Yield the texts of two or more words that a test compares with an error, an output or a message."""
    for node in ast.walk(test):
        if isinstance(node, ast.keyword):
            compared = node.arg == "match"
        else:
            inside = [*ast.walk(node.test)] if isinstance(node, ast.Assert) else []
            compared = any({getattr(each, "id", ""), getattr(each, "attr", "")} & PRINTED for each in inside)
        for each in ast.walk(node) if compared else ():
            if isinstance(each, ast.Constant) and re.search(r"[^\W\d]{2}\W* \W*[^\W\d]{2}", str(each.value)):
                yield each.value


def test_tests_check_facts_and_not_wording():
    """A sentence can be reworded without changing tests: they look for files, numbers, options and names."""
    paths = [path for path in python("tests") if path.name.startswith("test_")]
    tests = [(path, each) for path in paths for each in nodes(path) if isinstance(each, ast.FunctionDef)]
    tests = [(path, each) for path, each in tests if each.name.startswith("test_")]
    found = [f"{short(path)}: {each.name}: {text}" for path, each in tests for text in [*wording(each)][:1]]
    assert len(found) < len(tests) / 20, "\n".join(found)
