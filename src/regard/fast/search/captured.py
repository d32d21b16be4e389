"""kept_slots(): the slots of a search on a GPU, with their steps captured in CUDA graphs.

A step launches a few hundred small kernels. Replayed from a graph, the host needs one launch. Capturing takes
longer than decoding a batch, so that the slots of a model are kept and used again by later searches with the
same settings and similar sizes. An encoder launches as many kernels as several decoding steps, so that it is
captured too.
"""

from __future__ import annotations

import functools
import gc
import math
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from regard.data.batch import PAD
from regard.errors import RegardWarning
from regard.fast.search.decoder import SlotDecoder
from regard.fast.search.slots import SearchSlots
from regard.models.base import Encoded, Model, State
from regard.torch_modules.eval_mode import all_modules

__all__ = ["CapturedSlots", "forget_slots", "kept_slots", "round_up"]

PARTS = 4
"""Number of graphs for one set of slots. Each reads another part of the positions: 1/4, 2/4, 3/4 or all.

If the kernels of the decoder stop at the position of each slot, there is only one graph."""

MOST_KEPT, KEPT_SHARE = 8, 1 / 8
"""Maximum number of sets of slots that are kept for one model, and the largest share of the memory of the GPU
that their buffers may have. Above it, the least recently used sets are deleted, but not the last one."""

WARM_UPS = 2
"""Number of times a step runs before it is captured, so that libraries can select their kernels."""

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Sizes are rounded up to one of these numbers, or to a multiple of the last one."""


class CapturedEncoding:
    """The source tokens of B slots, and a captured function that encodes them and loads the decoder.

    source, lengths: (B, S) and (B,), the tokens and the number of tokens of each slot. An unused slot has one
        token, PAD.
    encoded, state: the results of the captured function: encoder output and first decoder state.
    failed: whether capturing has failed, so that sources are encoded without a graph.

    The object has no reference to the model: the slots of a model are kept only as long as the model.
    """

    def __init__(self, slots: int, source_length: int, device: torch.device):
        self.source = torch.full((slots, source_length), PAD, device=device)
        self.lengths = torch.ones(slots, dtype=torch.long, device=device)
        self.rows = torch.arange(slots, device=device)
        self.encoded, self.state = Encoded(self.lengths), State()
        self.replay: Callable[[], None] | None = None
        self.failed = False

    @classmethod
    def for_slots(cls, slots: SearchSlots) -> CapturedEncoding:
        """Return an object with the sizes of some slots."""
        return cls(slots.slots, slots.decoder.source_length, slots.last.device)

    def load(
        self,
        model: Model,
        decoder: SlotDecoder,
        source: Tensor,
        lengths: Tensor,
        capture: Callable[[Callable[[], None]], Callable[[], None]],
    ) -> None:
        """Encode sources, and load them into the first slots of a decoder.

        source: (b, S), padded with PAD. lengths: (b,).
        capture: see CapturedSlots.
        """
        count, longest = source.shape
        self.source.fill_(PAD)
        self.lengths.fill_(1)
        self.source[:count, :longest] = source
        self.lengths[:count] = lengths
        if self.replay is None:
            self.replay = capture(lambda: self._encode(model, decoder))
        self.replay()

    def _encode(self, model: Model, decoder: SlotDecoder) -> None:
        from regard.fast.twins import Twins  # imports all models with a twin; only CUDA graphs need it

        decoder.refresh()
        with Twins(model):  # a plain recurrent encoder waits for the lengths
            self.encoded = model.encode(self.source, self.lengths)
        self.state = model.start(self.encoded)
        decoder.load(self.rows, self.encoded, self.state)


@dataclass(eq=False)
class CapturedSlots:
    """The slots of a search whose steps can be replayed from CUDA graphs.

    slots: the state of the search.
    encoding: the source tokens, and the captured encoder.
    capture: a function that runs a step WARM_UPS times, captures it, and returns a function that replays it.
    replays: for each number of positions, the function that replays a step. Empty if not captured.
    failed: whether capturing has failed, so that steps run without graphs.
    busy: held while a search uses the slots.
    """

    slots: SearchSlots
    encoding: CapturedEncoding
    capture: Callable[[Callable[[], None]], Callable[[], None]]
    replays: dict[int, Callable[[], None]] = field(default_factory=dict)
    failed: bool = False
    busy: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def nbytes(self) -> int:
        """The size of the buffers of the decoder in bytes."""
        values = vars(self.slots.decoder).values()
        tensors = [each for value in values for each in (value if isinstance(value, list) else [value])]
        return sum(each.nbytes for each in tensors if isinstance(each, Tensor))

    def prepare(self) -> None:
        """Capture the graphs. The slots must be loaded, and must be loaded again afterwards."""
        if self.replays or self.failed:
            return
        length = self.slots.decoder.length
        try:
            parts = 1 if self.slots.decoder.stops_at_position else PARTS
            for part in range(1, parts + 1):
                upto = length * part // parts
                self.replays[upto] = self.capture(lambda upto=upto: self.slots.step(upto))  # type: ignore[misc]
        except Exception as error:  # the search continues without graphs
            self.replays, self.failed = {}, True
            _release_generator()
            reason = str(error).strip().splitlines()[:1]
            warnings.warn(
                f"decoding steps are not captured in a CUDA graph: {reason}", RegardWarning, stacklevel=2
            )

    def encode(self, model: Model, source: Tensor, lengths: Tensor) -> bool:
        """Encode sources (b, S) and load them into the first b slots. Return False if capturing failed."""
        if self.encoding.failed:
            return False
        try:
            self.encoding.load(model, self.slots.decoder, source, lengths, self.capture)
        except Exception:  # for example an encoder that waits for the device: it runs without a graph
            self.encoding.failed = True
            _release_generator()
        return not self.encoding.failed

    def step(self, upto: int) -> None:
        """Extend every output by one token; all positions of the decoder are smaller than `upto`."""
        if not self.replays:
            self.slots.step(upto)
            return
        self.replays[next(each for each in self.replays if each >= upto)]()


_kept: WeakKeyDictionary[nn.Module, OrderedDict[Any, CapturedSlots]] = WeakKeyDictionary()
"""The slots of earlier searches, by model and settings."""

_weights: WeakKeyDictionary[nn.Module, tuple[list[int], list[torch.dtype]]] = WeakKeyDictionary()
"""For each model, the addresses and dtypes of the weights with which its slots were created."""

_lock = threading.Lock()


@contextmanager
def kept_slots(
    model: nn.Module,
    settings: tuple[Any, ...],
    allocate: Callable[[], SearchSlots],
    capture: Callable[[Callable[[], None]], Callable[[], None]] | None = None,
) -> Iterator[CapturedSlots]:
    """Context manager that returns slots for a search: those of an earlier search, or new ones.

    settings: what the slots depend on: the search method with its settings, and all sizes.
    allocate: a function that returns new slots.
    capture: see CapturedSlots. Default: a CUDA graph.

    Slots are not used again if a weight of the model was replaced by another tensor. Slots that another
    thread is using are not returned: then, new slots are allocated and not kept.
    """
    capture = _cuda_graph if capture is None else capture
    weights = _addresses(model)
    with _lock:
        kept = _kept.setdefault(model, OrderedDict())
        if _weights.get(model) != weights:
            kept.clear()
            _weights[model] = weights
        slots = kept.get(settings)
        if slots is None or not slots.busy.acquire(blocking=False):
            allocated = allocate()
            slots = CapturedSlots(allocated, CapturedEncoding.for_slots(allocated), capture)
            slots.busy.acquire()
            kept.setdefault(settings, slots)
        kept.move_to_end(settings)
        most = KEPT_SHARE * _memory(slots.slots.last.device)
        while len(kept) > 1 and (len(kept) > MOST_KEPT or sum(each.nbytes for each in kept.values()) > most):
            kept.popitem(last=False)
    try:
        yield slots
    except BaseException:
        with _lock:  # the state of the slots is unknown
            if kept.get(settings) is slots:
                del kept[settings]
        raise
    finally:
        slots.busy.release()


def _addresses(model: nn.Module) -> tuple[list[int], list[torch.dtype]]:
    """Return the addresses and the dtypes of the parameters and buffers of a model."""
    tensors = list[Tensor | None]()
    for module in all_modules(model):
        own = module.__dict__
        for values in (own["_parameters"], own["_buffers"]):
            if values:  # most modules have none, and the device is idle while this function runs
                tensors.extend(values.values())
    weights = [each for each in tensors if each is not None]
    return [each.data_ptr() for each in weights], [each.dtype for each in weights]


def forget_slots(model: nn.Module) -> None:
    """Delete the slots that are kept for a model, and return their memory to the GPU."""
    with _lock:
        _kept.pop(model, None)
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def round_up(size: int, sizes: tuple[int, ...] = SIZES) -> int:
    """Return the smallest of `sizes` that is at least `size`; above them, a multiple of the largest one.

    >>> round_up(5), round_up(64), round_up(300)
    (8, 64, 384)
    """
    largest = sizes[-1]
    return next((each for each in sizes if each >= size), -(-size // largest) * largest)


@functools.cache
def _memory(device: torch.device) -> float:
    """Return the memory of a GPU in bytes; inf for a CPU."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else math.inf


def _release_generator() -> None:
    """Reset the random number generator of the GPU, which a failed capture leaves in capture mode."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        fresh = torch.Generator(torch.device("cuda", torch.cuda.current_device()))
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(fresh.graphsafe_get_state())


def _cuda_graph(step: Callable[[], None]) -> Callable[[], None]:
    """Run a step WARM_UPS times, and capture it in a CUDA graph; return the function that replays it."""
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            step()
    main.wait_stream(side)
    graph, collecting = torch.cuda.CUDAGraph(), gc.isenabled()
    gc.disable()  # it could delete an old graph during the capture, which would then fail
    try:
        with torch.cuda.stream(main), torch.cuda.graph(graph):
            step()
    finally:
        if collecting:
            gc.enable()
    return graph.replay
