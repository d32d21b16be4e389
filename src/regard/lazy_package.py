"""Packages whose public names are imported on first use."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import Any, TypeVar

__all__ = ["FirstUse", "ImportedTable", "import_lazily", "imported", "on_first_use"]

Value = TypeVar("Value")


def import_lazily(package: str) -> None:
    """Import the public names of a package on first use, so that importing one of its modules is fast.

    The names are those that `__init__.py` imports for type checkers:

        if TYPE_CHECKING:
            from regard.data.pairs import Pairs, read_pairs
        else:
            import_lazily(__name__)

    >>> import sys, regard.viewing
    >>> regard.viewing.draw.__module__
    'regard.viewing.terminal'
    """
    module = sys.modules[package]
    loader: Any = module.__spec__.loader if module.__spec__ is not None else None
    tree = ast.parse(loader.get_source(package))
    blocks = [node.body for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block if isinstance(node, ast.ImportFrom)]
    vars(module)["_homes"] = {name.name: node.module for node in imports for name in node.names}
    module.__class__ = _LazyPackage


def imported(path: str) -> Any:
    """Import the module of a name, such as "package.module.Name", and return the value of the name.

    >>> imported("regard.roles.CROSS")
    'cross'
    """
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def on_first_use(load: Callable[[], Any], name: str) -> Callable[..., Any]:
    """Return a function of a module that is imported when the function is called first.

    load: function that imports the module and returns it. It is a function with an import statement, because
        torch.compile cannot trace importlib.import_module().
    name: the name of the function in the module.

    >>> def math():
    ...     import math
    ...
    ...     return math
    >>> on_first_use(math, "sqrt")(4.0)
    2.0
    """
    functions: list[Any] = []

    def function(*arguments: Any) -> Any:
        if not functions:
            functions.append(getattr(load(), name))
        return functions[0](*arguments)

    return function


class ImportedTable(MutableMapping[str, Value]):
    """A table whose values are names of other modules. A module is imported when its value is read.

    paths: key -> path of the name, such as "package.module.Name".

    >>> table = ImportedTable[str]({"cross": "regard.roles.CROSS"})
    >>> table["cross"]
    'cross'
    """

    def __init__(self, paths: Mapping[str, str]):
        self._values: dict[str, Any] = {}
        self._paths = dict(paths)

    def __getitem__(self, key: str) -> Value:
        if key not in self._values:
            self._values[key] = imported(self._paths[key])
        value: Value = self._values[key]
        return value

    def __setitem__(self, key: str, value: Value) -> None:
        self._paths.setdefault(key, "")
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        del self._paths[key]
        self._values.pop(key, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


class FirstUse:
    """A class attribute whose value is a name of another module. The module is imported on first use.

    >>> class Page:
    ...     endings = FirstUse("regard.viewing.html_document.SUFFIXES")
    >>> Page.endings
    ('.png', '.svg', '.pdf', '.gif')
    """

    def __init__(self, path: str):
        self.path = path

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return imported(self.path)


class _LazyPackage(ModuleType):
    """A package that imports its public names, and its modules, on first use.

    _homes: public name -> the module that defines it.
    """

    _homes: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        if name in self._homes:
            value = getattr(importlib.import_module(self._homes[name]), name)
        elif name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        else:
            try:
                value = importlib.import_module(f"{self.__name__}.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"{self.__name__}.{name}":
                    raise
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None
        vars(self)[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # When a module is imported, Python sets it as an attribute of its package. If it has the name of a
        # public function, such as regard.attention, the attribute is the function.
        if isinstance(value, ModuleType) and name in self._homes:
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *self._homes})
