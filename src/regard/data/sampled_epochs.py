"""SampledEpochs: the sentence pairs of each epoch with sampled subwords, computed by worker processes.

For a small model on a GPU, sampling the subwords of a batch takes longer than a training step. So several
processes sample the pairs of the next epoch during the training steps of the current epoch. The subwords of a
pair depend only on the seed, the epoch and the number of the pair, not on the number of processes.
"""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import IO, Any

import numpy
from numpy.typing import NDArray
from safetensors.numpy import load, save

from regard.data.batching import EncodedPairs, Side
from regard.data.tokenizers import parse_tokenizer
from regard.data.tokenizers.tokenizer import Lowercased, Tokenizer
from regard.errors import DataError, message

HEADER = 8
"""Number of bytes before each message between processes: the length of the message."""

KEPT = 2
"""Number of epochs that are kept in memory."""


def _started() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-m", "regard.data.sampled_epochs"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # it does not receive the Ctrl-C of the terminal
    )


class Sampler:
    """Samples the subwords of sentence pairs.

    source, target: the tokenizers.
    sample: the strength of the sampling, see Tokenizer.encode().
    seed: the random seed of the run.
    longest: maximum number of tokens of each side. Further tokens are removed.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer, *, sample: float, seed: int, longest: int):
        self.source, self.target = source, target
        self.sample, self.seed, self.longest = sample, seed, longest

    def pair(self, epoch: int, number: int, texts: Sequence[str]) -> tuple[list[int], list[int]]:
        """Return the token ids of a pair. They depend only on the seed, the epoch and the number of the pair.

        texts: the source sentence and the target sentence.
        """
        draw = random.Random(f"{self.seed} {epoch} {number}")
        source = self.source.encode(texts[0], sample=self.sample, generator=draw)
        target = self.target.encode(texts[1], sample=self.sample, generator=draw)
        return source[: self.longest], target[: self.longest]

    def sides(self, epoch: int, pairs: Iterable[tuple[int, str, str]]) -> list[Side]:
        """Return the token ids of the sources and of the targets of (number, source, target)."""
        rows = (self.pair(epoch, number, texts) for number, *texts in pairs)
        return [Side.of(side) for side in zip(*rows, strict=True)]

    def settings(self) -> dict[str, Any]:
        """Return the sampler as values for JSON, for restored()."""
        inner = [getattr(each, "inner", each) for each in (self.source, self.target)]
        return {
            "tokenizers": [base64.b64encode(each.serialized()).decode() for each in inner],
            "lowercase": isinstance(self.source, Lowercased),
            "options": {"sample": self.sample, "seed": self.seed, "longest": self.longest},
        }

    @classmethod
    def restored(cls, settings: dict[str, Any]) -> Sampler:
        """Create a sampler from the result of settings()."""
        contents = map(base64.b64decode, settings["tokenizers"])
        tokenizers = [parse_tokenizer(content, "a tokenizer") for content in contents]
        if settings["lowercase"]:
            tokenizers = list(map(Lowercased, tokenizers))
        return cls(*tokenizers, **settings["options"])


class SampledEpochs:
    """Sentence pairs whose subwords are sampled anew in each epoch, in several processes.

    sampler: samples the subwords.
    texts: the source and target sentence of each pair.
    numbers: (N,), the pairs to encode, as indices of `texts`.
    workers: number of processes. They are started by the first request and ended by close(), or killed when
        this object is deleted. 0: the pairs are sampled in this process.

    encoded() can be called by several threads.
    """

    def __init__(
        self,
        sampler: Sampler,
        texts: Sequence[tuple[str, str]],
        numbers: NDArray[numpy.int64],
        workers: int = 1,
    ):
        self.sampler, self.numbers = sampler, numbers
        self._texts, self._count = texts, min(workers, len(numbers))
        self._workers: list[subprocess.Popen[bytes]] = []
        self._epochs: dict[int, Future[EncodedPairs]] = {}
        self._lock, self._pipes = threading.Lock(), threading.Lock()

    def encoded(self, epoch: int) -> EncodedPairs:
        """Return the pairs of an epoch as token ids, and let the processes begin with the next epoch."""
        pairs = self.begin(epoch).result()
        if self._count:
            self.begin(epoch + 1)
        return pairs

    def begin(self, epoch: int) -> Future[EncodedPairs]:
        """Start the processes and let them sample an epoch, without waiting for it."""
        with self._lock:
            if epoch not in self._epochs:
                self._epochs[epoch] = Future()
                thread = threading.Thread(target=self._sample, args=(epoch, self._epochs[epoch]), daemon=True)
                thread.start()
                while len(self._epochs) > KEPT:
                    del self._epochs[next(iter(self._epochs))]
            return self._epochs[epoch]

    def _sample(self, epoch: int, pairs: Future[EncodedPairs]) -> None:
        try:
            with self._pipes:
                if self._count:
                    sides = self._received(epoch)
                else:
                    sides = self.sampler.sides(epoch, ((n, *self._texts[n]) for n in self.numbers.tolist()))
                pairs.set_result(EncodedPairs(sides[0], sides[1], self.numbers))
        except Exception as error:  # encoded() raises it
            pairs.set_exception(error)

    def _received(self, epoch: int) -> list[Side]:
        """Let all processes sample their part of the pairs of an epoch."""
        if not self._workers:
            self._start()
        for worker in self._workers:
            _send(worker, str(epoch).encode())
        parts: list[dict[str, NDArray[Any]]] = []
        for worker in self._workers:
            assert worker.stdout is not None
            content = _read(worker.stdout)
            if not content.startswith(b"."):
                problem = content.decode(errors="replace") or "a process that samples subwords has ended"
                raise DataError(message(f"epoch {epoch}", problem))
            parts.append(load(content[1:]))
        joined = {name: numpy.concatenate([part[name] for part in parts]) for name in parts[0]}
        offsets = [numpy.concatenate(([0], joined[f"lengths {side}"])).cumsum() for side in (0, 1)]
        return [Side(joined[f"tokens {side}"], offsets[side].astype(numpy.int64)) for side in (0, 1)]

    def _start(self) -> None:
        self._workers = [_started() for _ in range(self._count)]
        weakref.finalize(self, _kill, self._workers)
        for numbers, worker in zip(numpy.array_split(self.numbers, self._count), self._workers, strict=True):
            pairs = [(number, *self._texts[number]) for number in numbers.tolist()]
            _send(worker, json.dumps({**self.sampler.settings(), "pairs": pairs}).encode())

    def close(self) -> None:
        """End the processes. The next call of encoded() starts them again."""
        _kill(self._workers)  # so that a thread in _received() receives an error, and releases the lock
        with self._pipes, self._lock:
            _kill(self._workers)
            for worker in self._workers:
                worker.communicate()
            self._workers.clear()
            self._epochs.clear()


def _kill(workers: list[subprocess.Popen[bytes]]) -> None:
    """Send SIGKILL to all processes, without waiting for their end: a finaliser must not wait."""
    for worker in workers:
        worker.kill()


def _send(worker: subprocess.Popen[bytes], content: bytes) -> None:
    assert worker.stdin is not None
    with suppress(BrokenPipeError):  # the process has ended; _received() raises an error
        _write(worker.stdin, content)


def _read(stream: IO[bytes]) -> bytes:
    """Read a message. Return b"" if the other process has closed the stream."""
    header = stream.read(HEADER)
    return stream.read(int.from_bytes(header)) if len(header) == HEADER else b""


def _write(stream: IO[bytes], content: bytes) -> None:
    stream.write(len(content).to_bytes(HEADER) + content)
    stream.flush()


def work(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until the stream is closed. The first message has the sampler and the pairs.

    Each further message is the number of an epoch. The answer is "." and the arrays of both sides as
    safetensors; if this fails, it is an error message.
    """
    settings = json.loads(_read(requests))
    sampler, pairs = Sampler.restored(settings), settings["pairs"]
    while request := _read(requests):
        try:
            arrays: dict[str, NDArray[Any]] = {}
            for number, side in enumerate(sampler.sides(int(request), pairs)):
                arrays |= {f"tokens {number}": side.tokens, f"lengths {number}": side.lengths()}
            answer = b"." + save(arrays)
        except Exception as error:  # raised again by SampledEpochs
            answer = f"{type(error).__name__}: {error}".encode()
        _write(answers, answer)


if __name__ == "__main__":
    work(sys.stdin.buffer, sys.stdout.buffer)
