"""Packages whose public names are imported on first use."""

from __future__ import annotations

import ast
import importlib
import sys
from types import ModuleType
from typing import Any

__all__ = ["FirstUse", "import_lazily"]


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


class FirstUse:
    """A class attribute whose value is a name of another module. The module is imported on first use.

    >>> class Page:
    ...     endings = FirstUse("regard.viewing.html_document", "SUFFIXES")
    >>> Page.endings
    ('.png', '.svg', '.pdf', '.gif')
    """

    def __init__(self, module: str, name: str):
        self.module, self.name = module, name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return getattr(importlib.import_module(self.module), self.name)


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
