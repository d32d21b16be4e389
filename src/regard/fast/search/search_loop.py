"""slot_search(): search on preallocated tensors. The same results as those of the simple search, but faster.

The simple search in regard.decoding.beam, greedy and sampling supports every model and every option.
It is the reference for this one: the tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.data.batch import Batch, BatchRows
from regard.decoding.active_rows import ActiveRows, Ends, Prompts, start_decoding, without_encoding
from regard.decoding.beam import Beam
from regard.decoding.greedy import Greedy
from regard.decoding.hypothesis import ROOM, SearchResult
from regard.decoding.rules import TRANSLATION_LIMIT, LengthLimit
from regard.decoding.sampling import Sample, Seed
from regard.fast.freed_memory import keep_freed_memory
from regard.fast.search.beams import BeamSlots
from regard.fast.search.captured import forget_slots, kept_slots, round_up
from regard.fast.search.choice import decoder_for
from regard.fast.search.decoder import SlotDecoder
from regard.fast.search.recorded_attention import RecordedAttention
from regard.fast.search.slots import GreedySlots, Outputs, SampleSlots, SearchSlots
from regard.kernels import is_current
from regard.models.base import Model, State

__all__ = [
    "EarlyEnds",
    "SlotRun",
    "captured_search",
    "not_encoded",
    "recorded_attention",
    "sentences_of",
    "slot_search",
]

FIRST_LENGTH = 32
"""The number of positions of the first buffers on a CPU. When they are full, their length is doubled."""

MOST_LENGTH = 1024
"""The largest number of positions for which decoding steps are captured in CUDA graphs."""

MOST_SLOTS = {"cpu": 64, "cuda": 256}
"""Maximum number of slots. If a batch has more sentences, the others wait until a slot is done."""

SOURCE_SIZES, LENGTHS = (16, 32, 48, 64, 96, 128), (64, 128, 256, 512, 1024)
"""Numbers of source tokens and of positions on a GPU, to which the sizes of a search are rounded up."""

DROP = 8
"""Sentences that are done are replaced or removed when they are at least 1 / DROP of the slots."""

CHECK = 8
"""Number of captured steps after which the host asks which slots are done, which waits for the device."""


def slot_search(
    model: Model,
    batch: Batch | Prompts,
    how: Beam | Greedy | Sample,
    prefixes: Sequence[Sequence[int]] | None = None,
    *,
    limit: LengthLimit = TRANSLATION_LIMIT,
    recorded: RecordedAttention | None = None,
    early_ends: EarlyEnds | None = None,
) -> SearchResult:
    """Run a search on preallocated tensors. search_decoder() must find a decoder.

    The other arguments are those of search(). The result is on the CPU.

    recorded: the attention weights of the hypotheses are stored in it. None records nothing. It is not
        supported with several samples for each source.
    early_ends: ends outputs before EOS. None: only EOS and the maximum length end them.

    If there is not enough memory, the search is repeated with half as many slots; then, some sentences wait.
    """
    most = MOST_SLOTS["cuda" if batch.index.is_cuda else "cpu"]
    if batch.index.device.type == "cpu":
        keep_freed_memory()
    while True:
        try:
            return _search_with_slots(model, batch, how, prefixes, limit, recorded, early_ends, most)
        except torch.OutOfMemoryError:
            most = min(most, len(batch)) // 2
            if not most:
                raise
        # After the except block, where the traceback keeps no tensors of the failed search.
        forget_slots(model)
        for results in (recorded, early_ends):
            if results is not None:
                results.clear()


def _search_with_slots(
    model: Model,
    batch: Batch | Prompts,
    how: Beam | Greedy | Sample,
    prefixes: Sequence[Sequence[int]] | None,
    limit: LengthLimit,
    recorded: RecordedAttention | None,
    early_ends: EarlyEnds | None,
    most: int,
) -> SearchResult:
    """Run slot_search() with at most `most` slots."""
    captures = batch.index.is_cuda and is_current(batch.index.device)
    whole = isinstance(batch, Batch) and batch.source.dim() == 2 and len(batch) <= most
    if captures and whole and not isinstance(how, Sample):
        assert isinstance(batch, Batch)
        later = not_encoded(model, batch, how, prefixes, limit)
        if later.sizes.longest < MOST_LENGTH:
            return captured_search(model, how, later, recorded, batch, early_ends=early_ends)
    sentences = sentences_of(model, batch, how, prefixes, limit)
    sizes = sentences.sizes
    if captures and sizes.position + sizes.longest < MOST_LENGTH:
        return captured_search(model, how, sentences, recorded, most=most, early_ends=early_ends)
    slots = _allocated(model, how, sizes, *_slot_sizes(sizes, most), recorded is not None)
    return SlotRun(slots, sentences, how, False, recorded, early_ends).result()


def recorded_attention(
    model: Model, batch: Batch | Prompts, look: str | None, kind: type[SlotDecoder] | None = None
) -> RecordedAttention | None:
    """Return an object in which slot_search() stores attention weights; None if it cannot record them.

    look: the attention layers (sites), as in search().
    kind: the result of search_decoder(). Default: that of decoder_for().
    """
    if look is None or isinstance(batch, Prompts):
        return None
    decoder = kind or decoder_for(model)
    return None if isinstance(decoder, list) else RecordedAttention.of(model, decoder, look)


def captured_search(
    model: Model,
    how: Beam | Greedy | Sample,
    sentences: Sentences | NotEncoded,
    recorded: RecordedAttention | None = None,
    batch: Batch | None = None,
    most: int | None = None,
    early_ends: EarlyEnds | None = None,
) -> SearchResult:
    """Run the search with steps captured in CUDA graphs. Sizes are rounded up, to use the graphs again.

    batch: the sources, if the sentences are not encoded yet. Then the encoder is captured in a graph too.
    most: the largest number of slots. Default: MOST_SLOTS.
    """
    sizes = sentences.sizes
    count, source, _ = _slot_sizes(sizes, most)
    count, source = round_up(count), round_up(source, SOURCE_SIZES)
    length = round_up(sizes.position + sizes.longest + 1, LENGTHS)

    def allocate() -> SearchSlots:
        slots = _allocated(model, how, sizes, count, source, length, recorded is not None)
        slots.share_buffer()
        return slots

    # The buffers do not depend on the random seed and the number of samples.
    kept_how = replace(how, seed=0, count=1) if isinstance(how, Sample) else how
    settings = (kept_how, count, source, length, sizes.prefix, recorded is not None)
    with kept_slots(model, settings, allocate) as kept:
        loaded = batch is not None and kept.encode(model, batch.source, batch.source_lengths)
        if isinstance(sentences, NotEncoded):
            sentences = sentences.prepare()  # while the GPU encodes them
        if loaded:
            # These tensors have a row for each slot; `sentences` has fewer if slots are unused.
            active = replace(sentences.active, encoded=kept.encoding.encoded)
            sentences = replace(sentences, active=active, state=kept.encoding.state)
        else:
            kept.slots.decoder.refresh()
            if batch is not None:
                encoded = model.encode(batch.source, batch.source_lengths)
                active = replace(sentences.active, encoded=encoded)
                sentences = replace(sentences, active=active, state=model.start(encoded))
        if not kept.replays:
            SlotRun(kept.slots, sentences, how).fill(loaded)
            kept.prepare()
            if loaded and batch is not None:
                kept.encode(model, batch.source, batch.source_lengths)
        return SlotRun(kept.slots, sentences, how, True, recorded, early_ends).result(kept.step, loaded)


class SlotRun:
    """One search: starts sentences in slots, runs the steps, and collects the results.

    A slot that is done gets the next waiting sentence. If no sentence waits, slots that are done are removed.

    fixed: whether the slots keep their buffers, which captured steps need. Then no slots are removed.
    recorded, early_ends: see slot_search().
    """

    def __init__(
        self,
        slots: SearchSlots,
        sentences: Sentences,
        how: Beam | Greedy | Sample,
        fixed: bool = False,
        recorded: RecordedAttention | None = None,
        early_ends: EarlyEnds | None = None,
    ):
        self.fixed, self.early_ends = fixed, early_ends
        self.recorded = recorded if slots.decoder.looks is not None else None
        self.slots, self.sentences, self.device = slots, sentences, sentences.first.device
        self.step_number, self.next_row, self.oldest = 0, 0, 0
        self.rows: list[int | None] = [None] * slots.slots
        self.started = [0] * slots.slots
        self.best = how.best if isinstance(how, Beam) else 1
        self.collected: SearchResult | None = None
        self.unwritten: tuple[list[int], Outputs] | None = None
        slots.done.fill_(True)

    def fill(self, loaded: bool = False) -> None:
        """Start waiting sentences in the slots that are free; loaded: whether the decoder has loaded them."""
        waiting = len(self.sentences.first) * self.sentences.samples - self.next_row
        if not waiting:
            return
        free = [slot for slot, row in enumerate(self.rows) if row is None][:waiting]
        if not free:
            return
        some, rows = self.sentences, range(self.next_row, self.next_row + len(free))
        if len(free) < len(some.first) or some.samples > 1:
            index = torch.arange(rows.start, rows.stop, device=self.device) // some.samples
            some = some.select(index)
        slots = self._on_device(free)
        if not loaded:
            self.slots.decoder.load(slots, some.active.encoded, some.state)
        limits = some.active.limits if self.early_ends is None else self.early_ends.limits(some.active.limits)
        self.slots.start(slots, some.first, limits, some.active.prefix, some.state.position)
        if isinstance(self.slots, SampleSlots) and some.seeds is not None:
            self.slots.seed(free, some.seeds[rows.start : rows.stop])
        for slot in free:
            self.rows[slot], self.started[slot] = self.next_row, self.step_number
            self.next_row += 1

    def result(self, replay: Callable[[int], None] | None = None, loaded: bool = False) -> SearchResult:
        """Run the search.

        replay: a function that replays a captured step. Default: steps run directly.
        loaded: whether the decoder has loaded the sentences already.
        """
        self.fill(loaded)
        check = CHECK if self.fixed else 1
        while any(row is not None for row in self.rows):
            upto = self.sentences.state.position + self.step_number - self.oldest + 1
            # A slot that is done stays at its position, at most the maximum length, until the host checks it.
            upto = min(upto, self.sentences.state.position + self.sentences.longest)
            if upto >= self.slots.decoder.length:
                self._resize(None, min(2 * upto, self.sentences.state.position + self.sentences.longest + 1))
            (self.slots.step if replay is None else replay)(upto)
            self.step_number += 1
            if self.step_number % check == 0:
                self._write()
                if self.early_ends is not None:
                    self.early_ends.check(self.slots, self.rows, self.sentences.samples)
                self._collect(min(self.step_number - self.oldest, self.sentences.longest))
        self._write()
        if self.recorded is not None:
            self.recorded.finish()
        assert self.collected is not None
        return _by_sentence(self.collected, self.sentences.samples)

    def _prepare(self) -> None:
        """Create the objects that do not depend on the outputs, once.

        On a GPU, this is called after the first steps are launched, while the host would only wait for them.
        """
        if self.collected is not None:
            return
        sentences, longest = self.sentences, min(self.sentences.longest, ROOM)
        outputs = len(sentences.first) * sentences.samples
        self.collected = SearchResult.empty(outputs, self.best, longest, torch.device("cpu"))
        if self.recorded is not None:
            self.recorded.store_values(sentences.active.encoded)

    def _collect(self, longest: int) -> None:
        """Find the slots that are done, and start waiting sentences in them or remove them.

        The outputs are kept in `unwritten`. On a GPU, _write() is called after the next steps are launched.

        longest: no slot has generated more tokens than this.
        """
        running = [slot for slot, row in enumerate(self.rows) if row is not None]
        rows = self._rows_of(running)
        self._prepare()
        every = self.slots.done.tolist()
        done = [every[slot] for slot in running]
        count = len(running) - done.count(False)
        if not count or (count < len(running) and count * DROP < len(running)):
            return
        finished = running
        if count < len(running):
            places = [place for place, is_done in enumerate(done) if is_done]
            finished, rows = ([each[place] for place in places] for each in (running, rows))
        self.unwritten = (
            rows,
            self.slots.results(self._on_device(finished), longest, self.recorded is not None),
        )
        for slot in finished:
            self.rows[slot] = None
        self.fill()
        running = [slot for slot, row in enumerate(self.rows) if row is not None]
        self.oldest = min((self.started[slot] for slot in running), default=0)
        if not self.fixed and running and len(running) < len(self.rows):
            self._resize(running, self.slots.decoder.length)

    def _write(self) -> None:
        """Write the outputs that _collect() kept in `unwritten` to `collected` and `recorded`."""
        if self.unwritten is None:
            return
        (rows, outputs), self.unwritten = self.unwritten, None
        assert self.collected is not None
        length = outputs.tokens.shape[-1]
        self.collected = self.collected.with_room_for(length, self.sentences.longest)
        first, last = rows[0], rows[-1] + 1
        whole = rows == list(range(first, last))  # a slice is copied in less time than indexed rows
        self.collected.write_arrays(slice(first, last) if whole else rows, *outputs[:3])
        if self.recorded is not None and outputs.weights is not None:
            self.recorded.write(rows, outputs.weights)

    def _rows_of(self, slots: list[int]) -> list[int]:
        """Return the sentences that some slots decode, as indices."""
        return [row for slot in slots if (row := self.rows[slot]) is not None]

    def _on_device(self, indices: list[int]) -> Tensor:
        """Return indices as a tensor on the device, without waiting for it."""
        count = len(indices)
        if indices[-1] == count - 1 and count <= self.slots.slots and indices == list(range(count)):
            return self.slots.rows[:count]
        pinned = torch.tensor(indices, pin_memory=self.device.type == "cuda")
        return pinned.to(self.device, non_blocking=True)

    def _resize(self, keep: list[int] | None, length: int) -> None:
        """Keep only some slots, or give the buffers another number of positions."""
        if keep is not None:
            self.rows = [self.rows[slot] for slot in keep]
            self.started = [self.started[slot] for slot in keep]
        index = None if keep is None else torch.tensor(keep, device=self.device)
        self.slots = self.slots.resized(index, length)


class EarlyEnds:
    """Ends outputs at a stop string or after Ctrl-C: see `ends` and `stopping` of search().

    On a GPU, several steps are checked at a time. An output ends at the first step for which ends() returns
    True, and its later tokens are dropped. So ends() gives the same outputs as a check after each step. When
    stopping() returns True, each output ends after one more token.

    stopped: whether stopping() has returned True.
    """

    def __init__(self, ends: Ends | None, stopping: Callable[[], bool] | None):
        self.ends, self.stopping, self.stopped = ends, stopping, False
        self._checked: dict[int, int] = {}

    def clear(self) -> None:
        """Forget which steps were checked, because the search starts again."""
        self._checked.clear()

    def check(self, slots: SearchSlots, rows: Sequence[int | None], samples: int) -> None:
        """Check all steps since the last call.

        slots: the state of the search. The slots of outputs that end are marked as done.
        rows: for each slot, the number of the output that it generates, or None.
        samples: the number of outputs of each sentence.
        """
        if self.ends is not None:
            self._end_outputs(self.ends, slots, rows, samples)
        if not self.stopped and self.stopping is not None and self.stopping():
            self.stopped = True
            slots.limits.copy_(torch.minimum(slots.limits, slots.count + 1))

    def limits(self, limits: Tensor) -> Tensor:
        """Return the maximum number of tokens of new outputs: `limits`, or 1 if the search is stopped."""
        return limits.clamp(max=1) if self.stopped else limits

    def _end_outputs(self, ends: Ends, slots: SearchSlots, rows: Sequence[int | None], samples: int) -> None:
        running = [(slot, row) for slot, row in enumerate(rows) if row is not None]
        tokens_BL, counts = slots.tokens[:, :, 0].cpu(), slots.count.tolist()
        checked, ended = self._checked, dict[int, int]()
        first = min(checked.get(row, 0) for _, row in running)
        for step in range(first + 1, max(counts[slot] for slot, _ in running) + 1):
            some = [
                (slot, row)
                for slot, row in running
                if checked.get(row, 0) < step <= counts[slot] and slot not in ended
            ]
            if not some:
                continue
            tokens_b1t = tokens_BL[[slot for slot, _ in some], None, :step]
            flags = ends(tokens_b1t, torch.tensor([row // samples for _, row in some]))
            for (slot, _), end in zip(some, flags[:, 0].tolist(), strict=True):
                if end:
                    ended[slot] = step
        checked.update((row, counts[slot]) for slot, row in running)
        if ended:
            index = torch.tensor(list(ended), device=slots.count.device)
            slots.count.index_copy_(0, index, torch.tensor(list(ended.values()), device=index.device))
            slots.done.index_fill_(0, index, True)


class Sizes(NamedTuple):
    """The sizes of a search, which determine the sizes of its slots.

    outputs: the number of sentences times the number of samples of each.
    source_length, longest: see Sentences.
    prefix: the number of tokens of the longest prefix.
    position: the number of tokens that the decoder has already read, for example of a prompt.
    """

    outputs: int
    source_length: int
    longest: int
    prefix: int
    position: int
    device: torch.device


@dataclass(frozen=True, eq=False)
class Sentences(BatchRows):
    """The sentences of a search: their encoder output and the decoder state before the first output token.

    active: the encoder output, limits and prefixes.
    state: the decoder state, with one row for each sentence.
    first: (B,), the first input of the search: BOS, or the last token of a prompt.
    longest: the maximum number of tokens of all outputs.
    source_length: the number of source tokens, padding included; 0 if the model has no source.
    seeds: the random seeds of all samples, those of one sentence after the other. None without sampling.
    """

    active: ActiveRows
    state: State
    first: Tensor
    longest: int
    source_length: int
    seeds: list[Seed] | None = None

    @property
    def samples(self) -> int:
        """The number of outputs of each sentence."""
        return 1 if self.seeds is None else len(self.seeds) // len(self.first)

    @property
    def sizes(self) -> Sizes:
        """The sizes of the search."""
        first, prefix = self.first, self.active.prefix.shape[1]
        sizes = len(first) * self.samples, self.source_length, self.longest, prefix
        return Sizes(*sizes, self.state.position, first.device)


def sentences_of(
    model: Model,
    batch: Batch | Prompts,
    how: Beam | Greedy | Sample,
    prefixes: Sequence[Sequence[int]] | None = None,
    limit: LengthLimit = TRANSLATION_LIMIT,
) -> Sentences:
    """Encode the sources of a batch, or read prompts. The arguments are those of search()."""
    active, state, last_B1 = start_decoding(model, batch, how.rules, prefixes, 1, limit)
    source_length = max((memory.length for memory in active.encoded.memories), default=0)
    seeds = how.seeds(batch.index.tolist()) if isinstance(how, Sample) else None
    return Sentences(active, state, last_B1[:, 0], int(active.limits.max()), source_length, seeds)


class NotEncoded(NamedTuple):
    """The sentences of a batch before they are encoded: their sizes, and a function that prepares them."""

    sizes: Sizes
    prepare: Callable[[], Sentences]


def not_encoded(
    model: Model,
    batch: Batch,
    how: Beam | Greedy | Sample,
    prefixes: Sequence[Sequence[int]] | None = None,
    limit: LengthLimit = TRANSLATION_LIMIT,
) -> NotEncoded:
    """Return the sentences of a batch before they are encoded. The arguments are those of search()."""
    source_length = batch.source.shape[1]
    longest = how.rules.longest(model, source_length, limit)

    def prepare() -> Sentences:
        active, _, last_B1 = without_encoding(model, batch, how.rules, prefixes, limit)
        most = int(active.limits.max()) if active.prefix.shape[1] else longest
        return Sentences(active, State(), last_B1[:, 0], most, source_length)

    if prefixes is not None and any(prefixes):  # the sizes depend on them
        sentences = prepare()
        return NotEncoded(sentences.sizes, lambda: sentences)
    return NotEncoded(Sizes(len(batch), source_length, longest, 0, 0, batch.index.device), prepare)


def _slot_sizes(sizes: Sizes, most: int | None = None) -> tuple[int, int, int]:
    """Return the number of slots, of source tokens and of positions that a search needs first."""
    most = MOST_SLOTS["cuda" if sizes.device.type == "cuda" else "cpu"] if most is None else most
    length = sizes.position + min(FIRST_LENGTH, sizes.longest + 1)
    return min(sizes.outputs, most), sizes.source_length, length


def _by_sentence(result: SearchResult, samples: int) -> SearchResult:
    """Return a result with one output per row as one with the `samples` outputs of a sentence per row."""
    if samples == 1:
        return result
    parts = (result.tokens, result.token_scores, result.ranking)
    return SearchResult(*(each.unflatten(0, (-1, samples))[:, :, 0] for each in parts))


def _allocated(
    model: Model,
    how: Beam | Greedy | Sample,
    sizes: Sizes,
    count: int,
    source: int,
    length: int,
    records: bool = False,
) -> SearchSlots:
    """Return new slots for a search.

    count: the number of slots.
    source: the number of source tokens.
    length: the number of positions.
    records: whether the decoder stores attention weights, if there is memory for them.
    """
    kind = decoder_for(model)
    assert not isinstance(kind, list)
    decoder = kind(model, count, how.size if isinstance(how, Beam) else 1, length, source)
    if records:
        decoder.record(len(kind.recordable(model)), next(model.parameters()))
    if isinstance(how, Beam):
        return BeamSlots(decoder, how, sizes.prefix, max(sizes.longest, length), sizes.device)
    if isinstance(how, Sample):
        return SampleSlots(decoder, how, sizes.prefix, sizes.device)
    return GreedySlots(decoder, how.rules, sizes.prefix, sizes.device)
