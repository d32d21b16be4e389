"""The places of src/regard that a mutant can change, and a draw of them; tests/mutants.py runs the tests.

A mutant is the package with one changed line: `<` for `<=`, a constant plus one, an argument left out, a
condition negated. Wording, annotations, assertions and decorators are left as they are.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mutant", "Places", "draw", "room"]

COMPARISONS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "in": "not in", "not in": "in", "is": "is not", "is not": "is",
}  # fmt: skip
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "**": "*", "%": "//"}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
NO_BEHAVIOUR = {"strict", "stacklevel", "maxsize", "help", "hint", "metavar", "hidden", "encoding"}
"""Arguments whose change is no fault: what they say holds without them, or only a person reads it."""


@dataclass(frozen=True)
class Mutant:
    """One changed line. function: its qualified name; outside of functions, the name that it defines."""

    file: str
    function: str
    line: int
    start: int
    stop: int
    after: str
    text: str

    def __str__(self) -> str:
        before = self.text.encode()[self.start : self.stop].decode()
        return f"{self.file} {self.function}: {before or '...'} -> {self.after or 'nothing'}"

    @property
    def changed(self) -> str:
        """The line with the change."""
        raw = self.text.encode()
        return (raw[: self.start] + self.after.encode() + raw[self.stop :]).decode()

    def applied(self, source: str) -> str:
        """Return the source of the file with the change."""
        lines = source.split("\n")
        lines[self.line - 1] = self.changed
        return "\n".join(lines)

    def compiles(self, source: str) -> bool:
        """Whether the change is valid Python, and not only another spelling."""
        try:
            return ast.dump(ast.parse(self.applied(source))) != ast.dump(ast.parse(source))
        except SyntaxError:
            return False

    def rank(self, seed: int) -> bytes:
        """A number that depends on the seed, the function and the line, not on other functions."""
        parts = seed, self.file, self.function, self.text.strip(), self.start, self.after
        return hashlib.sha256(repr(parts).encode()).digest()


class Places(ast.NodeVisitor):
    """Collect the mutants of a module, without wording, annotations, assertions and decorators."""

    def __init__(self, file: str, source: str):
        self.file, self.lines = file, source.split("\n")
        self.names: list[str] = []
        self.functions = 0
        self.found: list[Mutant] = []
        self.visit(ast.parse(source))

    def add(self, node: ast.AST, after: str, start: int | None = None, stop: int | None = None) -> None:
        """Add a mutant that replaces a node, or the bytes from start to stop of its line."""
        if node.lineno == node.end_lineno:  # type: ignore[attr-defined]
            start = node.col_offset if start is None else start  # type: ignore[attr-defined]
            stop = node.end_col_offset if stop is None else stop  # type: ignore[attr-defined]
            line = node.lineno  # type: ignore[attr-defined]
            name = ".".join(self.names)
            self.found.append(Mutant(self.file, name, line, start, stop, after, self.lines[line - 1]))

    def between(self, left: ast.expr, right: ast.expr, whole: ast.expr, changes: dict[str, str]) -> None:
        """Change the operator that stands between two expressions of one line."""
        if left.lineno == left.end_lineno == right.lineno == right.end_lineno:
            start, stop = left.end_col_offset or 0, right.col_offset
            text = self.lines[left.lineno - 1].encode()[start:stop].decode()
            operator = " ".join(text.strip("() ").split())
            if operator in changes:
                self.add(left, text.replace(text.strip("() "), changes[operator]), start, stop)

    def source(self, node: ast.expr) -> str:
        return self.lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.names.append(node.name)
        for each in node.body:
            self.visit(each)
        self.names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.functions += 1
        self.names.append(node.name)
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(default)
        if nested := [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]:
            self.names.append("<locals>")
            for each in nested:
                self.visit(each)
            self.names.pop()
        for other in node.body:
            if other not in nested:
                self.visit(other)
        self.names.pop()
        self.functions -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.assigned(node.target, node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.assigned(node.targets[0], node.value)

    def assigned(self, target: ast.expr, value: ast.expr | None) -> None:
        named = isinstance(target, ast.Name) and not self.functions
        if value is None or (named and target.id.startswith("__")):  # type: ignore[attr-defined]
            return
        self.names += [target.id] if named else []  # type: ignore[attr-defined]
        self.visit(value)
        del self.names[len(self.names) - named :]

    def visit_Raise(self, node: ast.AST) -> None:
        """Nothing: the wording of errors, assertions and texts is no behaviour."""

    visit_Assert = visit_JoinedStr = visit_Raise

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.dump(node.test) and "__name__" not in ast.dump(node.test):
            self.add(node.test, f"not ({self.source(node.test)})")
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.add(node.test, f"(not ({self.source(node.test)}))")
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self.add(condition, "True")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, right in zip((node.left, *node.comparators), node.comparators, strict=False):
            self.between(left, right, node, COMPARISONS)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.between(left, right, node, {"and": "or", "or": "and"})
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not any(isinstance(each, ast.JoinedStr) or is_text(each) for each in (node.left, node.right)):
            self.between(node.left, node.right, node, ARITHMETIC)
            self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self.add(node, f"({self.source(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add(node, str(not node.value))
        elif isinstance(node.value, int):
            self.add(node, str(node.value + 1))
        elif isinstance(node.value, float):
            self.add(node, repr(node.value * 2 or 1.0))

    def visit_Return(self, node: ast.Return) -> None:
        if isinstance(node.value, ast.Name | ast.Attribute | ast.Subscript):  # others hold better places
            self.add(node.value, "None")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add(node, "pass")
        if not ast.unparse(node).startswith(("warnings.warn", "logger.", "print(")):
            self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add(node, "pass")
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in NAMES:
            self.add(node.func, NAMES[node.func.id])
        self.visit(node.func)
        for argument in node.args:
            self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg in NO_BEHAVIOUR:
                continue
            if keyword.arg and not is_text(keyword.value) and not isinstance(keyword.value, ast.JoinedStr):
                rest = self.lines[keyword.lineno - 1].encode()[keyword.end_col_offset :]
                following = re.match(rb",? *", rest)
                stop = (keyword.end_col_offset or 0) + (following.end() if following else 0)
                self.add(keyword, "", keyword.col_offset, stop)
            self.visit(keyword.value)


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def room(file: str) -> str:
    """The folder of src/regard of a file; files of src/regard itself are one room, too."""
    parts = Path(file).parts
    return parts[2] if len(parts) > 3 else "regard"


def draw(sources: dict[str, str], seed: int, count: int) -> list[Mutant]:
    """Draw mutants evenly over the lines of each room, with places for rooms by their numbers of lines."""
    lines: dict[str, int] = defaultdict(int)
    places: dict[str, list[Mutant]] = defaultdict(list)
    for file, source in sources.items():
        lines[room(file)] += source.count("\n")
        ranked = sorted(Places(file, source).found, key=lambda each: each.rank(seed))
        of_line = {(each.function, each.text): each for each in ranked}
        places[room(file)] += of_line.values()
    exact = {name: count * number / sum(lines.values()) for name, number in lines.items()}
    shares = {name: max(1, int(share)) for name, share in exact.items()}
    by_rest = sorted(exact, key=lambda name: shares[name] - exact[name])
    for name in by_rest[: max(0, count - sum(shares.values()))]:
        shares[name] += 1
    drawn: list[Mutant] = []
    for name in sorted(shares):
        ranked = sorted(places[name], key=lambda each: each.rank(seed))
        valid = (each for each in ranked if each.compiles(sources[each.file]))
        drawn += itertools.islice(valid, shares[name])
    return drawn
