"""Mutations of a run folder: changed bytes in every file, hostile values, and files replaced by other things.

mutations(folder, seed, count) depends only on its arguments, so a failure can be repeated by its number.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

REGIONS = 64
"""Number of regions of a file; mutations change one region after the other."""

DEEP = "[" * 100_000
HOSTILE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    3,
    2**31,
    10**12,
    10**30,
    10**400,
    0.5,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\x1b[31m\x9b2J[bold]",
    "../../outside",
    "y" * 100_000,
    [],
    {},
    [[]],
    {"a": {"b": []}},
    [1, "two", None],
)
"""Values of wrong types, extreme numbers and unexpected texts."""


@dataclass(frozen=True)
class Mutation:
    """One change to one file. what: kind and position; signed: whether the manifest is updated too."""

    number: int
    file: str
    what: str
    apply: Callable[[Path], None]
    signed: bool = False

    @property
    def changes_content(self) -> bool:
        """Whether the file is still a regular file, with other bytes."""
        return not self.what.startswith("replaced")

    @property
    def moves_the_position(self) -> bool:
        """Whether only the position in the data is another valid number, and the manifest has its hash.

        Nothing can detect this, as nothing can detect changed weights with a matching hash.
        """
        valid = re.fullmatch("(batch|epoch) = [0-3]", self.what)
        return self.signed and self.file.endswith("state.json") and valid is not None

    def __str__(self) -> str:
        return f"mutation {self.number}: {self.file}, {self.what}" + (", signed" if self.signed else "")


def mutations(folder: Path, seed: int, count: int) -> Iterator[Mutation]:
    """Yield `count` mutations of the files in a folder: all files in turn, then other kinds and regions."""
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    contents = {file: (folder / file).read_bytes() for file in files}
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        file = files[number % len(files)]
        turn = number // len(files)
        yield _mutation(number, file, contents[file], turn, chance)


def _mutation(number: int, file: str, content: bytes, turn: int, chance: random.Random) -> Mutation:
    kinds = ["bytes", "bytes", "replaced"]
    if _structured(file):
        kinds += ["values", "values", "values"]
    kind = kinds[turn % len(kinds)]
    region = (turn * 37 + chance.randrange(7)) % REGIONS
    if kind == "replaced":
        what, apply = _replaced(file, content, turn // len(kinds), chance)
        return Mutation(number, file, f"replaced by {what}", apply)
    if kind == "values":
        what, changed = _with_other_value(file, content, chance)
    else:
        what, changed = _with_other_bytes(content, region, chance)
    # Changed weights with matching hashes cannot be detected; changed values with matching hashes can.
    signed = kind == "values" and "step-" in file and "manifest" not in file and chance.random() < 0.5
    return Mutation(number, file, what, lambda path: _write(path, changed, signed), signed)


def _write(path: Path, content: bytes, signed: bool) -> None:
    path.write_bytes(content)
    manifest = path.with_name("manifest.json")
    if signed and manifest.is_file():
        listed = json.loads(manifest.read_bytes())
        listed["files"][path.name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest.write_text(json.dumps(listed))


def _with_other_bytes(content: bytes, region: int, chance: random.Random) -> tuple[str, bytes]:
    """Return the content with some bytes of one region changed."""
    size = max(len(content) // REGIONS, 1)
    place = min(region * len(content) // REGIONS + chance.randrange(size), max(len(content) - 1, 0))
    length = chance.choice((1, 2, 8, 64))
    before, after = content[:place], content[place:]
    way = chance.choice(("bit", "bit", "bit", "byte", "cut", "zeros", "inserted", "deleted", "repeated"))
    if way == "bit" and after:
        changed = before + bytes([after[0] ^ 1 << chance.randrange(8)]) + after[1:]
    elif way == "byte" and after:
        changed = before + bytes([chance.randrange(256)]) + after[1:]
    elif way == "cut":
        changed = before
    elif way == "zeros":
        changed = before + bytes(min(length, len(after))) + after[length:]
    elif way == "deleted":
        changed = before + after[length:]
    elif way == "repeated":
        changed = before + after[:length] * 2 + after[length:]
    else:
        changed = before + chance.randbytes(length) + after
    return f"{way} at byte {place} of {len(content)}", changed


def _structured(file: str) -> bool:
    return file.endswith((".json", ".jsonl", ".toml", ".safetensors", ".seen", ".tokenizer"))


def _with_other_value(file: str, content: bytes, chance: random.Random) -> tuple[str, bytes]:
    """Return the content with one value replaced, or one key removed, added or repeated."""
    if file.endswith(".toml"):
        return _with_other_setting(content, chance)
    if file.endswith(".jsonl"):
        lines = content.splitlines(keepends=True)
        place = chance.randrange(len(lines))
        what, changed = _with_other_node(lines[place].rstrip(b"\n"), chance)
        return f"line {place + 1}: {what}", b"".join([*lines[:place], changed, b"\n", *lines[place + 1 :]])
    if file.endswith((".safetensors", ".seen")):
        length = int.from_bytes(content[:8], "little")
        what, header = _with_other_node(content[8 : 8 + length], chance)
        return f"header: {what}", len(header).to_bytes(8, "little") + header + content[8 + length :]
    if not content.startswith((b"{", b"[")):
        return _with_other_bytes(content, chance.randrange(REGIONS), chance)
    return _with_other_node(content, chance)


def _with_other_node(content: bytes, chance: random.Random) -> tuple[str, bytes]:
    """Return JSON with one node changed, also inside strings that contain JSON, as in .seen files."""
    whole = {"": json.loads(content)}
    holder, key, place = chance.choice(list(_nodes(whole)))
    value = holder[key]
    if isinstance(value, str) and value.startswith(("{", "[")) and chance.random() < 0.8:
        what, inner = _with_other_node(value.encode(), chance)
        holder[key] = inner.decode("utf-8", "replace")
        return f"in {place}: {what}", json.dumps(whole[""]).encode()
    way = chance.choice(("other", "other", "other", "removed", "added", "doubled", "deep"))
    if way == "removed" and place:
        del holder[key]
    elif way == "added" and isinstance(value, dict):
        value["surprise"] = 1
    elif way == "deep":
        holder[key] = "PLACEHOLDER"
        text = json.dumps(whole[""]).replace('"PLACEHOLDER"', DEEP)
        return f"{place} nested deeply", text.encode()
    elif way == "doubled" and isinstance(value, dict) and value:
        name = next(iter(value))
        text = json.dumps(value)
        holder[key] = "PLACEHOLDER"
        twice = f"{{{json.dumps(name)}: 7, {text[1:]}"
        return f"{place} with {name} twice", json.dumps(whole[""]).replace('"PLACEHOLDER"', twice).encode()
    else:
        holder[key] = chance.choice(HOSTILE)
        return f"{place} = {repr(holder[key])[:30]}", json.dumps(whole[""]).encode()
    return f"{place} {way}", json.dumps(whole[""]).encode()


def _nodes(value: Any, place: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Yield every node as (container, key, path); at most three items of each list."""
    entries = value.items() if isinstance(value, dict) else enumerate(value[:3])
    for key, inner in list(entries):
        yield value, key, f"{place}.{key}".lstrip(".")
        if isinstance(inner, dict | list):
            yield from _nodes(inner, f"{place}.{key}")


def _with_other_setting(content: bytes, chance: random.Random) -> tuple[str, bytes]:
    whole = {"": tomllib.loads(content.decode())}
    nodes = [node for node in _nodes(whole) if node[2]]
    holder, key, place = chance.choice(nodes)
    way = chance.choice(("other", "other", "other", "removed", "added", "deep", "dotted", "digits"))
    text = content.decode()
    if way == "removed":
        del holder[key]
    elif way == "added":
        holder = holder if isinstance(holder, dict) else whole[""]
        holder["surprise"] = chance.choice((1, "x", {"a": 1}))
    elif way == "deep":
        return "deep arrays", f"surprise = {DEEP}\n{text}".encode()
    elif way == "dotted":
        return "a key of many parts", f"{'.'.join('a' * 200_000)} = 1\n{text}".encode()
    elif way == "digits":
        return "a number of many digits", f"seed = {'9' * 5000}\n{text}".encode()
    else:
        values = [value for value in HOSTILE if value is not None and value != [1, "two", None]]
        holder[key] = chance.choice(values)
    shown = repr(holder.get(key) if isinstance(holder, dict) else holder)[:30]
    return f"{place} {way} {shown}", tomli_w.dumps(whole[""]).encode()


def _replaced(
    file: str, content: bytes, turn: int, chance: random.Random
) -> tuple[str, Callable[[Path], None]]:
    """Return a replacement of a file: a description, and the function that replaces it."""

    def linked(path: Path, target: str | None = None) -> None:
        aside = path.with_name(f".aside-{path.name}")
        if target is None:
            shutil.copyfile(path, aside)
        path.unlink()
        path.symlink_to(target or aside)

    def folder(path: Path) -> None:
        path.unlink()
        path.mkdir()

    def fifo(path: Path) -> None:
        path.unlink()
        os.mkfifo(path)

    def sparse(path: Path) -> None:
        with path.open("wb") as opened:
            opened.truncate(1 << 40)

    noise = chance.randbytes(max(len(content), 100))
    ways: dict[str, Callable[[Path], None]] = {
        "a link to a copy": linked,
        "a link to nothing": lambda path: linked(path, "nowhere"),
        "a link to a device": lambda path: linked(path, "/dev/zero"),
        "a FIFO": fifo,
        "a folder": folder,
        "a terabyte of zeros": sparse,
        "nothing": Path.unlink,
        "an empty file": lambda path: _write(path, b"", False),
        "noise": lambda path: _write(path, noise, False),
        "zeros": lambda path: _write(path, bytes(len(content)), False),
        "nested JSON": lambda path: _write(path, DEEP.encode(), False),
        "a JSON list": lambda path: _write(path, b"[1, 2]", False),
        "a JSON number": lambda path: _write(path, b"17", False),
        "invalid UTF-8": lambda path: _write(path, b"\xff\xfe" + content, False),
    }
    names = list(ways)
    name = names[turn % len(names)]
    return name, ways[name]
