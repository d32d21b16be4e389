"""Finalisers do not wait: no generator owns a thread, a pool, a process, a progress bar or a lock.

The garbage collector closes abandoned generators and calls finalisers at any allocation, so also inside the
locks of `threading`. If a finaliser waits for a thread that needs such a lock, the program hangs. So the
consumer of a generator owns these objects, in a `with` statement or by a method close(). A function with
@contextmanager is allowed: its `with` statement closes it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.reading import parsed, python, short, texts

Function = ast.FunctionDef | ast.AsyncFunctionDef
INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.GeneratorExp)

MANAGERS = ("contextmanager", "asynccontextmanager")

OWNED = (
    *("Thread", "Timer", "ThreadPoolExecutor", "ProcessPoolExecutor", "Pool", "ThreadPool"),
    *("Popen", "Process", "Progress", "Live", "Status", "status", "advancing", "acquire"),
)
"""Names of calls that start a thread or a process, show a progress bar, or acquire a lock."""

HARMLESS = ("open", "os.scandir", "_opened", "ParquetFile", "reading", "suppress")
"""Calls whose `with` statement may be around a yield. They only open a file, and closing it does not wait, or
they only convert errors."""

WAITING = (
    *("join", "wait", "communicate", "acquire", "result", "shutdown", "stop", "close"),
    *("get", "put", "send", "recv", "read", "write", "flush", "synchronize"),
)
"""Names of methods that may wait. A finaliser must not call them."""


SUSPECT = re.compile(r"\byield\b|__del__|__enter__|weakref")
"""Files that do not match have no finaliser, and are not parsed, to save time."""


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of the functions inside it."""
    rest = list(ast.iter_child_nodes(function))
    while rest:
        node = rest.pop()
        yield node
        if not isinstance(node, INNER):
            rest.extend(ast.iter_child_nodes(node))


def yields(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Yield | ast.YieldFrom) for each in own_nodes(node))


def name_of(call: ast.expr) -> str:
    """Return the name of a called function, "os.scandir" or "open"; "" if `call` is not a call."""
    return ast.unparse(call.func) if isinstance(call, ast.Call) else ""


def last(call: ast.expr) -> str:
    return name_of(call).rpartition(".")[2]


def generator_faults(function: Function) -> Iterator[tuple[int, str]]:
    """Yield the line and the source of each part of a generator that its finaliser would end."""
    for node in own_nodes(function):
        if isinstance(node, ast.Call) and last(node) in OWNED:
            yield node.lineno, ast.unparse(node)
        if isinstance(node, ast.With | ast.AsyncWith) and yields(node):
            for item in node.items:
                if name_of(item.context_expr) not in HARMLESS:
                    yield node.lineno, f"with {ast.unparse(item.context_expr)}"
        if isinstance(node, ast.Try | ast.TryStar) and any(map(yields, node.body)):
            if node.finalbody:
                yield node.lineno, "finally"
            for handler in node.handlers:
                caught = "" if handler.type is None else ast.unparse(handler.type)
                if not caught or "GeneratorExit" in caught or "BaseException" in caught:
                    yield handler.lineno, f"except {caught}"


def callback_faults(call: ast.Call, functions: dict[str, Function]) -> Iterator[tuple[int, str]]:
    """Yield the line and the source of the callback of a weak reference if it may wait.

    functions: the functions of the module, by name.
    """
    callback = call.args[1]
    if ast.unparse(callback) == "os.close":
        return
    function = functions.get(callback.id) if isinstance(callback, ast.Name) else None
    if function is None or any(
        isinstance(node, ast.With) or (isinstance(node, ast.Call) and last(node) in WAITING)
        for node in ast.walk(function)
    ):
        yield call.lineno, ast.unparse(callback)


def faults(tree: ast.Module) -> list[tuple[int, str]]:
    """Return the line and the source of each finaliser in a module that may wait."""
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, Function)}
    found = list[tuple[int, str]]()
    for node in ast.walk(tree):
        if isinstance(node, Function):
            managed = any(ast.unparse(each).rpartition(".")[2] in MANAGERS for each in node.decorator_list)
            if node.name == "__del__":
                found.append((node.lineno, "__del__"))
            elif not managed and yields(node):
                found += generator_faults(node)
        elif isinstance(node, ast.Call) and last(node) in ("finalize", "ref") and len(node.args) > 1:
            found += callback_faults(node, functions)
        elif isinstance(node, ast.Call) and last(node) == "__enter__":
            found.append((node.lineno, ast.unparse(node)))
    return found


def test_no_finaliser_in_the_source_waits():
    paths = [path for path in python("src") if SUSPECT.search(texts()[path])]
    assert len(paths) > 50
    assert [f"{short(path)}:{line} {text}" for path in paths for line, text in faults(parsed(path))] == []


BAD = {
    "pool": "def f():\n with ThreadPoolExecutor(1) as pool:\n  yield 1",
    "pool without with": "def f():\n pool = futures.ThreadPoolExecutor(1)\n yield 1",
    "thread": "def f():\n threading.Thread(target=g).start()\n yield from h()",
    "bar": "def f():\n with advancing('x', 1) as reached:\n  for i in x:\n   yield i",
    "lock": "def f(self):\n with self._lock:\n  yield 1",
    "acquire": "def f(lock):\n lock.acquire()\n yield 1",
    "two items": "def f():\n with open('x') as file, lock:\n  yield 1",
    "finally": "def f():\n try:\n  yield 1\n finally:\n  thread.join()",
    "except": "def f():\n try:\n  yield 1\n except BaseException:\n  raise",
    "method": "class Reader:\n def f(self):\n  with self.pool:\n   yield 1",
    "inside": "@contextmanager\ndef f():\n def g():\n  with lock:\n   yield 1\n yield g()",
    "del": "class Reader:\n def __del__(self):\n  self.close()",
    "finalize": "def close(a):\n a.communicate()\nweakref.finalize(x, close, a)",
    "method as callback": "weakref.finalize(x, x.thread.join)",
    "callback": "weakref.ref(x, lambda _: self.remove(1))",
    "entered": "bar.__enter__()",
}
GOOD = {
    "contextmanager": "@contextmanager\ndef f():\n with lock:\n  yield 1",
    "qualified": "@contextlib.contextmanager\ndef f():\n try:\n  yield 1\n finally:\n  thread.join()",
    "file": "def f():\n try:\n  with open('x') as file:\n   yield from file\n except OSError:\n  raise",
    "before": "def f():\n with lock:\n  rows = g()\n yield from rows",
    "function": "def f():\n with lock:\n  return [i for i in x]",
    "lent": "def f(pool):\n yield pool.submit(g).result()",
    "finalize": "def kill(a):\n a.kill()\nweakref.finalize(x, kill, a)\nweakref.finalize(x, os.close, 3)",
    "ref": "weakref.ref(x)",
}


@pytest.mark.parametrize("name", BAD)
def test_finaliser_that_may_wait_is_detected(name: str):
    assert faults(ast.parse(BAD[name]))


@pytest.mark.parametrize("name", GOOD)
def test_finaliser_that_cannot_wait_is_allowed(name: str):
    assert faults(ast.parse(GOOD[name])) == []
