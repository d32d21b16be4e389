"""regard cache: show and delete what Regard has stored in its cache folder."""

from __future__ import annotations

import sys

import typer
from rich.table import Table
from rich.text import Text

from regard.cli import MARKUP, Command, CommandGroup
from regard.cli.options import command
from regard.cli.printing import printable_console
from regard.errors import ArgumentError, DataError, message, shown
from regard.files.user_cache import CacheEntry, cache_entries, cache_folder
from regard.training.command_options import flag

cache = typer.Typer(cls=CommandGroup, invoke_without_command=True, rich_markup_mode=MARKUP)
"""The commands under `regard cache`."""


@cache.callback()
def about(context: typer.Context) -> None:
    """Show what is in the cache folder of Regard, or delete it.

    The cache has files that Regard can create again: sentence pairs as token ids, and converted weights of
    image encoders. It is in the folder of the environment variable REGARD_CACHE, or else in regard in
    XDG_CACHE_HOME, or else in ~/.cache/regard.

    Runs, tokenizers and downloaded data are in the folders that you name, not in the cache. Triton and
    torch.compile have caches of their own for compiled kernels.

    Examples:

    * `regard cache`

    * `regard cache clear`

    * `regard cache clear --yes`
    """
    if context.invoked_subcommand is None:
        _print_entries(_entries())


@cache.command(cls=Command)
@command(flag("--yes -y", "Delete without asking."))
def clear(yes: bool) -> None:
    """Delete what Regard has written to its cache folder, after a question. Other files are not deleted.

    The next training writes what it needs again. Files that another process may be writing are not deleted.

    Examples:

    * `regard cache clear`

    * `regard cache clear --yes`
    """
    entries = [each for each in _entries() if not each.is_used]
    if not entries:
        _print_entries([])
        return
    size = _size(sum(each.size for each in entries))
    if not yes:
        if not _is_terminal():
            problem = "standard input is not a terminal, so the question cannot be answered"
            raise ArgumentError(message("regard cache clear", problem, hint="regard cache clear --yes"))
        _print_entries(entries)
        typer.confirm(f"Delete {size}?", abort=True)
    for each in entries:
        try:
            each.delete()
        except OSError as error:
            raise DataError(message(shown(each.path), f"cannot be deleted: {error.strerror}")) from None
    printable_console().print(Text(f"Deleted {size} from {shown(cache_folder())}"), soft_wrap=True)


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _entries() -> list[CacheEntry]:
    return list(cache_entries(cache_folder()))


def _print_entries(entries: list[CacheEntry]) -> None:
    console, folder = printable_console(), shown(cache_folder())
    if not entries:
        console.print(Text(f"{folder}: nothing is cached"), soft_wrap=True)
        return
    console.print(Text(folder), soft_wrap=True)
    table = Table(box=None, header_style="dim")
    table.add_column("cached")
    table.add_column("number", justify="right")
    table.add_column("size", justify="right", no_wrap=True)
    for kind in dict.fromkeys(each.kind for each in entries):
        own = [each for each in entries if each.kind == kind]
        table.add_row(kind, f"{len(own):,}", _size(sum(each.size for each in own)))
    table.add_row(Text("total", "bold"), f"{len(entries):,}", _size(sum(each.size for each in entries)))
    console.print(table)


def _size(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB" if size >= 2**20 else f"{size / 2**10:,.1f} KiB"
