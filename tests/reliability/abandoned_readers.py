"""Abandon readers of data, and collect them while a thread lock is held. Run as a process, which may hang.

    python -m tests.reliability.abandoned_readers FOLDER SEED COUNT KIND...

Each reader is part of a reference cycle, as after an error whose traceback refers to it. The garbage
collector can run at any allocation, so also inside a lock of the module `threading`. If a finaliser then
waits for a thread, and the thread needs this lock to end, the process hangs.
"""

from __future__ import annotations

import errno
import faulthandler
import gc
import gzip
import random
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.data import batching, line_io, read_text
from regard.data.pairs import read_pairs
from regard.data.tokenizers import train_tokenizers
from regard.errors import DataError

TIMEOUT = 60.0
"""Seconds after which a reader counts as hanging. The process then prints all stacks and exits."""

LINES = [f"line {number}" for number in range(100)]

LOCKS = [
    getattr(threading, name)
    for name in ("_active_limbo_lock", "_shutdown_locks_lock")
    if hasattr(threading, name)
]
"""Locks that a thread needs to start and to end. Newer versions of Python have only the first one."""


def pairs(folder: Path, draw: random.Random) -> Any:
    """The error of a target file that ends at a random byte. It refers to the reader of the source file."""
    source, target = folder / "a.ko", folder / "a.en"
    source.write_text("".join(f"{line}\n" for line in LINES))
    packed = gzip.compress("".join(f"{line}\n" for line in LINES).encode())
    target.write_bytes(packed[: draw.randrange(len(packed) // 2, len(packed) - 8)])
    try:
        read_pairs(source, target).inspect()
    except DataError as error:
        return error
    raise AssertionError


def encoding(folder: Path, draw: random.Random) -> Any:
    """The error of a disk that is full after a random number of chunks."""
    written = draw.randint(2, 40)

    rows = [(line, line) for line in LINES]
    source, target = train_tokenizers(rows[:1], "character")
    encode_lines, calls = source.encode_lines, list[int]()

    def encode(lines: Any) -> Any:
        calls.append(len(lines))
        if len(calls) > written:
            raise OSError(errno.ENOSPC, "the disk is full")
        return encode_lines(lines)

    source.encode_lines = encode  # type: ignore[method-assign]
    try:
        batching.encode_pairs(rows, source, target, folder)
    except DataError as error:
        return error
    raise AssertionError


KINDS: dict[str, Callable[[Path, random.Random], Any]] = {
    "pairs": pairs,
    "encoding": encoding,
}


class Cycle:
    """A reference cycle that only the garbage collector can delete."""

    def __init__(self, reader: Any):
        self.reader, self.itself = reader, self


def collect_inside_locks(abandoned: Callable[[], Any]) -> None:
    """Collect one reader inside each lock."""
    for lock in LOCKS:
        cycle = Cycle(abandoned())
        with lock:
            del cycle
            gc.collect()


def collect_at_random(abandoned: Callable[[], Any], draw: random.Random) -> None:
    """Collect a reader at a random allocation, while threads are started and ended."""
    cycle = Cycle(abandoned())
    alive = weakref.ref(cycle)
    gc.collect(0)  # it sets the number of allocations since the last collection to 0
    del cycle
    gc.set_threshold(draw.randint(1, 60), 1, 1)
    gc.enable()
    threads = list[threading.Thread]()  # kept, so that the number of allocations grows
    while alive() is not None:
        threads.append(threading.Thread(target=list))
        threads[-1].start()
        threads[-1].join()
    gc.disable()


def main() -> None:
    folder, seed, count, *kinds = sys.argv[1:]
    draw = random.Random(seed)
    read_text.BLOCK, batching.CHUNK, line_io.PATIENCE = 16, 2, 0.0
    gc.disable()
    gc.freeze()  # so that later collections take little time
    for number in range(int(count)):
        kind = KINDS[kinds[number % len(kinds)]]
        faulthandler.dump_traceback_later(TIMEOUT, exit=True)
        if number < len(kinds):
            collect_inside_locks(lambda kind=kind: kind(Path(folder), draw))
        else:
            collect_at_random(lambda kind=kind: kind(Path(folder), draw), draw)
        print(number + 1)


if __name__ == "__main__":
    main()
