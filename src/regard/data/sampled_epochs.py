"""SampledEpochs: the sentence pairs of each epoch with sampled subwords, computed by worker processes.

For a small model on a GPU, sampling the subwords of a batch takes longer than a training step. So several
processes sample the pairs of the next epoch during the training steps of the current epoch. The subwords of a
pair depend only on the seed, the epoch and the number of the pair, not on the number of processes.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy
from numpy.typing import NDArray

from regard.data.encoded_pairs import EncodedPairs, Side
from regard.data.tokenizers import load_tokenizer
from regard.data.tokenizers.lowercased import Lowercased
from regard.data.tokenizers.subword_sampling import Segmenter
from regard.data.tokenizers.tokenizer import Tokenizer
from regard.errors import DataError, message

__all__ = ["SampledEpochs", "Sampler", "start_workers"]

HEADER = 8
"""Number of bytes before each message between processes: the length of the message."""

PREPARED = 100_000
"""Maximum number of pairs that a process keeps prepared for sampling. Each new word takes about 3 kB."""

KEPT = 2
"""Number of epochs that are kept in memory."""


_IDLE: list[subprocess.Popen[bytes]] = []
"""Processes that were started early and have no pairs yet."""


def start_workers(count: int) -> None:
    """Start processes for the next SampledEpochs early, because their imports take seconds."""
    _IDLE.extend(_started() for _ in range(count - len(_IDLE)))


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

    def prepared(self, texts: Sequence[str]) -> list[Sequence[Segmenter]] | None:
        """Prepare a pair for sampled(), which is faster than pair(). None if it is not supported."""
        sides = self.source.segmenters(texts[0], self.sample), self.target.segmenters(texts[1], self.sample)
        both = [side for side in sides if side is not None]
        return both if len(both) == len(sides) else None

    def sampled(
        self, epoch: int, number: int, prepared: Sequence[Sequence[Segmenter]]
    ) -> tuple[list[int], list[int]]:
        """Return the same as pair(), for a pair from prepared()."""
        draw = random.Random(f"{self.seed} {epoch} {number}").random
        sides = []
        for segmenters in prepared:
            tokens = list[int]()
            for segmenter in segmenters:
                tokens += segmenter.drawn(draw)
            sides.append(tokens[: self.longest])
        return sides[0], sides[1]

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
        tokenizers = []
        with tempfile.TemporaryDirectory() as folder:
            for number, content in enumerate(settings["tokenizers"]):
                path = Path(folder) / str(number)
                path.write_bytes(base64.b64decode(content))
                tokenizer = load_tokenizer(path)
                tokenizers.append(Lowercased(tokenizer) if settings["lowercase"] else tokenizer)
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
        self._requested: int | None = None
        self._epochs: dict[int, EncodedPairs] = {}
        self._lock = threading.Lock()

    def encoded(self, epoch: int) -> EncodedPairs:
        """Return the pairs of an epoch as token ids, and let the processes begin with the next epoch."""
        with self._lock:
            if not self._count:
                if epoch not in self._epochs:
                    self._keep(epoch, self._sampled_here(epoch))
                return self._epochs[epoch]
            if epoch not in self._epochs:
                if self._requested not in (None, epoch):
                    self._receive()
                self._request(epoch)
                self._receive()
            if epoch + 1 not in self._epochs:
                self._request(epoch + 1)
            return self._epochs[epoch]

    def begin(self, epoch: int) -> None:
        """Start the processes and let them sample an epoch, without waiting for it."""

        def encode() -> None:
            with suppress(DataError):  # the next call of encoded() raises it again
                self.encoded(epoch)

        threading.Thread(target=encode, daemon=True, name="sampled epochs").start()

    def _request(self, epoch: int) -> None:
        if not self._workers:
            self._start()
        if self._requested is None:
            for worker in self._workers:
                self._send(worker, str(epoch).encode())
            self._requested = epoch

    def _receive(self) -> None:
        """Read the requested epoch from all processes, and keep it."""
        epoch, self._requested = self._requested, None
        assert epoch is not None
        lengths: tuple[list[Any], list[Any]] = [], []
        tokens: tuple[list[Any], list[Any]] = [], []
        for numbers, worker in zip(self._parts(), self._workers, strict=True):
            assert worker.stdout is not None
            content = _read(worker.stdout)
            if not content.startswith(b"."):
                problem = content.decode(errors="replace") or "a process that samples subwords has ended"
                raise DataError(message(f"epoch {epoch}", problem))
            values = numpy.frombuffer(content, numpy.uint32, offset=HEADER)
            for side in range(2):
                own, values = numpy.split(values, [len(numbers)])
                lengths[side].append(own)
            for side in range(2):
                own, values = numpy.split(values, [int(lengths[side][-1].sum())])
                tokens[side].append(own)
        source, target = map(_side, tokens, lengths)
        self._keep(epoch, EncodedPairs(source, target, self.numbers))

    def _sampled_here(self, epoch: int) -> EncodedPairs:
        """Sample the pairs of an epoch in this process."""
        numbers = self.numbers.tolist()
        pairs = [self.sampler.pair(epoch, number, self._texts[number]) for number in numbers]
        source, target = (Side.of([pair[side] for pair in pairs]) for side in range(2))
        return EncodedPairs(source, target, self.numbers)

    def _keep(self, epoch: int, pairs: EncodedPairs) -> None:
        """Keep the pairs of an epoch, and delete the oldest epochs if there are more than KEPT."""
        self._epochs[epoch] = pairs
        while len(self._epochs) > KEPT:
            del self._epochs[next(iter(self._epochs))]

    def _parts(self) -> list[NDArray[numpy.int64]]:
        """Return the pairs of each process."""
        return numpy.array_split(self.numbers, self._count)

    def _start(self) -> None:
        self._workers = [_IDLE.pop() if _IDLE else _started() for _ in range(self._count)]
        weakref.finalize(self, _kill, self._workers)
        for numbers, worker in zip(self._parts(), self._workers, strict=True):
            pairs = [(number, *self._texts[number]) for number in numbers.tolist()]
            self._send(worker, json.dumps({**self.sampler.settings(), "pairs": pairs}).encode())

    def _send(self, worker: subprocess.Popen[bytes], content: bytes) -> None:
        assert worker.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended; _receive() raises an error
            _write(worker.stdin, content)

    def close(self) -> None:
        """End the processes. The next call of encoded() starts them again."""
        _kill(self._workers)  # so that a thread in encoded() receives an error, and releases the lock
        with self._lock:
            _kill(self._workers)
            for worker in self._workers:
                worker.communicate()
            self._workers.clear()
            self._requested = None


def _kill(workers: list[subprocess.Popen[bytes]]) -> None:
    """Send SIGKILL to all processes, without waiting for their end: a finaliser must not wait."""
    for worker in workers:
        worker.kill()


def _side(tokens: Sequence[NDArray[numpy.uint32]], lengths: Sequence[NDArray[numpy.uint32]]) -> Side:
    offsets = numpy.concatenate([[0], *lengths]).astype(numpy.int64).cumsum()
    return Side(numpy.concatenate(tokens), offsets)


def _read(stream: IO[bytes]) -> bytes:
    """Read a message. Return b"" if the other process has closed the stream."""
    header = stream.read(HEADER)
    return stream.read(int.from_bytes(header)) if len(header) == HEADER else b""


def _write(stream: IO[bytes], content: bytes) -> None:
    stream.write(len(content).to_bytes(HEADER) + content)
    stream.flush()


def work(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until the stream is closed. The first message has the sampler and the pairs.

    Each further message is the number of an epoch. The answer is "." and spaces up to 8 bytes, then uint32
    values: the lengths of all sources and of all targets, and the token ids of all sources and of all
    targets. If this fails, the answer is an error message.
    """
    settings = json.loads(_read(requests))
    sampler, pairs = Sampler.restored(settings), settings["pairs"]
    prepared: dict[int, list[Sequence[Segmenter]]] = {}

    def sampled(epoch: int, number: int, texts: Sequence[str]) -> tuple[list[int], list[int]]:
        if number not in prepared:
            segmenters = sampler.prepared(texts) if len(prepared) < PREPARED else None
            if segmenters is None:
                return sampler.pair(epoch, number, texts)
            prepared[number] = segmenters
        return sampler.sampled(epoch, number, prepared[number])

    while request := _read(requests):
        try:
            epoch = int(request)
            sides = zip(*(sampled(epoch, number, texts) for number, *texts in pairs), strict=True)
            rows = list(itertools.chain.from_iterable(sides))
            lengths = numpy.array(list(map(len, rows)), numpy.uint32)
            flat = itertools.chain.from_iterable(rows)
            tokens = numpy.fromiter(flat, numpy.uint32, int(lengths.sum()))
            answer = b".".ljust(HEADER) + lengths.tobytes() + tokens.tobytes()
        except Exception as error:  # raised again by SampledEpochs
            answer = f"{type(error).__name__}: {error}".encode()
        _write(answers, answer)


if __name__ == "__main__":
    work(sys.stdin.buffer, sys.stdout.buffer)
