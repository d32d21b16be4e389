"""Scopes and threads: a scope applies to its own thread, to workers that inherit it, or to all threads."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, TypeVar

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import regard
from regard import sites
from regard.decoding import Beam, Greedy, Rules, Translator
from regard.models import build_model
from tests.decoding.toys import Spaced
from tests.making import randn

T = TypeVar("T")
LINES = ["one two three four", "five six", "seven eight nine ten two", "one", "ten nine eight"] * 2
JOBS: list[tuple[str | None, dict[str, Any] | None, float]] = [
    ("*cross", None, 0.0),
    ("*", {"uniform": True, "at": "*cross"}, 0.0),
    (None, {"cut": (None, 0), "at": "*cross"}, 0.0),
    ("decoder.0.*", {"scale": 0.0, "head": 1, "at": "decoder.1.cross"}, 0.0),
    ("decoder.1.cross", {"force": (1, 1, 0.5), "at": "*cross"}, 0.0),
    (None, None, 0.3),
    ("encoder*", {"uniform": True, "at": "encoder.0.*"}, 0.0),
    ("*", None, 0.2),
]
"""For each thread: its look, its intervention, and its coverage penalty (which records in beam search)."""


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_thread(function: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result()


def call(site: str = "here") -> torch.Tensor:
    return regard.attention(torch.eye(3), torch.eye(3), site=site).output


def test_eight_threads_translate_as_one_after_the_other(frequent_switches: None):
    torch.manual_seed(0)
    model = build_model("transformer", 20, 20, width=8, layers=2, heads=2, dropout=0.3).train()
    barrier = threading.Barrier(len(JOBS))

    def translate(number: int, together: bool) -> list[Any]:
        look, intervention, coverage = JOBS[number]
        beam = Beam(2, rules=Rules(maximum=6), coverage=coverage) if coverage else Greedy(Rules(maximum=6))
        words = Spaced(20, cut=9, lines=LINES)
        translator = Translator(model, words, words, search=beam, look=look)
        if together:
            barrier.wait()
        with regard.intervene(**intervention) if intervention else nullcontext():
            return [
                (each.text, each.score, passage.attention)
                for each in translator.translate(LINES)
                for passage in each.passages
            ]

    alone = [translate(number, False) for number in range(len(JOBS))]
    with ThreadPoolExecutor(len(JOBS)) as executor:
        together = list(executor.map(translate, range(len(JOBS)), [True] * len(JOBS)))
    assert len({str(each) for each in alone}) == len(JOBS)
    for ours, theirs in zip(together, alone, strict=True):
        assert [each[:2] for each in ours] == [each[:2] for each in theirs]
        for (*_, seen), (*_, expected) in zip(ours, theirs, strict=True):
            assert list(seen) == list(expected)
            assert all(torch.equal(seen[site], expected[site]) for site in expected)


def test_another_thread_is_neither_recorded_nor_changed():
    plain = call()
    with regard.record() as seen, regard.intervene(cut=(0, 0)) as changed:
        assert torch.equal(in_thread(call), plain)
        assert not seen.called and changed == {"*": 0}
        assert not torch.equal(call(), plain)
    assert len(seen["here"]) == 1 and changed == {"*": 1}


def test_scopes_of_an_asyncio_task_apply_to_no_other_task():
    """Three tasks alternate: one cuts a key, one records, one does neither. New tasks inherit scopes."""

    def alternate() -> None:
        x = randn(1, 3, 4)
        plain = regard.attention(x, x).output
        with regard.intervene(cut=(None, 0)):
            cut = regard.attention(x, x).output

        async def call(site: str) -> torch.Tensor:
            await asyncio.sleep(0)
            return regard.attention(x, x, site=site).output

        async def cuts() -> list[torch.Tensor]:
            with regard.intervene(cut=(None, 0)):
                own = [await call("cut") for _ in range(3)]
                return own + await asyncio.gather(call("cut"), call("cut"))

        async def records() -> list[torch.Tensor]:
            with regard.record() as seen:
                own = [await call("recorded") for _ in range(4)]
            assert list(seen.called) == ["recorded"] and len(seen["recorded"]) == 4
            return own

        async def neither() -> list[torch.Tensor]:
            return [await call("neither") for _ in range(4)]

        async def all_tasks() -> Any:
            return await asyncio.gather(cuts(), records(), neither())

        changed, *others = asyncio.run(all_tasks())
        assert all(torch.equal(each, cut) for each in changed)
        assert all(torch.equal(each, plain) for some in others for each in some)
        with regard.record() as seen:  # opened outside of the event loop: for all tasks inside
            asyncio.run(all_tasks())
        assert list(seen) == ["cut", "recorded", "neither"]
        assert torch.equal(regard.attention(x, x).output, plain) and not sites.open_scopes()

    in_thread(alternate)  # an open browser of other tests has its event loop in the main thread


def test_all_threads_are_recorded_and_changed_when_requested():
    with regard.intervene(cut=(0, 0), all_threads=True) as changed, regard.record(all_threads=True) as seen:
        here, there = call(), in_thread(call)
    assert torch.equal(here, there) and here[0, 0] == 0
    assert len(seen["here"]) == 2 and changed == {"*": 2}
    assert not sites.open_scopes()


def test_scopes_of_one_and_of_all_threads_apply_in_the_order_of_opening():
    order: list[str] = []

    def edit(name: str) -> Any:
        return lambda given: order.append(name) or given

    with (
        sites.scope(edit=edit("own")),
        sites.scope(edit=edit("all"), all_threads=True),
        sites.scope(edit=edit("inner")),
    ):
        call()
    assert order == ["own", "all", "inner"]


def test_workers_inherit_the_scopes_until_they_close():
    with ThreadPoolExecutor(3) as executor:
        with regard.record() as seen, regard.intervene(cut=(0, 0)) as changed:
            wrapped = sites.inherit_scopes(call)
            outputs = list(executor.map(wrapped, ["worker"] * 6))
            executor.submit(call, "stranger").result()
            assert len(sites.open_scopes()) == 2
        assert all(each[0, 0] == 0 for each in outputs)
        assert executor.submit(wrapped, "late").result()[0, 0] > 0
        assert not any(executor.map(lambda _: sites.open_scopes(), range(6)))
    assert list(seen.called) == ["worker"] and len(seen["worker"]) == 6 and changed == {"*": 6}


def test_workers_keep_their_own_scopes_beside_inherited_calls():
    with regard.record() as outer:
        wrapped = sites.inherit_scopes(call)

        def work() -> list[str]:
            with regard.record() as own:
                call("before")
                wrapped("inherited")
                call("after")
            return list(own)

        assert in_thread(work) == ["before", "after"]
    assert list(outer) == ["inherited"]


def test_scopes_close_in_any_order_and_in_another_thread():
    first, second = regard.record(), regard.record()
    one, two = first.__enter__(), second.__enter__()
    call("both")
    first.__exit__(None, None, None)
    call("second")
    in_thread(lambda: second.__exit__(None, None, None))
    call("none")
    assert list(one) == ["both"] and list(two) == ["both", "second"]
    assert not sites.open_scopes()


def test_a_compiled_region_raises_only_in_the_thread_with_the_scope():
    torch._dynamo.reset()
    x, traced = torch.randn(3, 4), []

    def backend(graph: Any, inputs: Any) -> Any:
        traced.append(graph)
        return graph.forward

    compiled = torch.compile(
        lambda x: regard.attention(x, x, site="deep").output, backend=backend, fullgraph=True
    )
    plain = compiled(x)

    def recorded() -> None:
        with pytest.raises(Exception, match="'deep'"):
            compiled(x)

    with regard.record(regard.Look()) as seen:
        assert torch.equal(in_thread(lambda: compiled(x)), plain)
        recorded()
        in_thread(sites.inherit_scopes(recorded))
        with regard.record(regard.Look(), at="other") as nothing:
            assert torch.equal(in_thread(lambda: compiled(x)), plain)
            call("other")
        call()
    assert list(seen) == ["other", "here"] and list(nothing) == ["other"]
    assert torch.equal(compiled(x), plain)
    # One graph for no open scope, one for open scopes of other threads: their number does not matter.
    assert len(traced) == 2
    torch._dynamo.reset()


class Nested(torch.autograd.Function):
    """Its backward pass runs another, `depth` times; the last calls `function`."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, depth: int, function: Callable[[], None]) -> torch.Tensor:
        ctx.depth, ctx.function = depth, function
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        if ctx.depth == 0:
            ctx.function()
        else:
            with torch.enable_grad():
                x = torch.ones(1, requires_grad=True)
                Nested.apply(x, ctx.depth - 1, ctx.function).backward()
        return gradient, None, None


def test_a_backward_pass_in_a_thread_of_autograd_keeps_the_scopes_of_its_caller():
    # From a depth of 61 on, autograd runs nested backward passes in threads of its own, as it does for CUDA.
    threads: list[int] = []

    def work() -> None:
        threads.append(threading.get_ident())
        call()

    x = torch.ones(1, requires_grad=True)
    with regard.record() as seen:
        Nested.apply(x, 61, work).backward()
    assert threads != [threading.get_ident()] and len(seen["here"]) == 1
    Nested.apply(x, 61, work).backward()
    assert len(seen["here"]) == 1 and not sites.open_scopes()


def test_activation_checkpointing_repeats_the_intervention():
    query, key = randn(3, 4), randn(3, 4)

    def attend(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return regard.attention(query, key).output

    def checkpointed(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return checkpoint(attend, query, key, use_reentrant=False)

    def gradient(run: Callable[..., torch.Tensor]) -> torch.Tensor:
        with regard.intervene(cut=(0, 0)):
            return torch.autograd.grad(run(query, key).square().sum(), query)[0]

    assert torch.equal(gradient(checkpointed), gradient(attend))


def test_the_warning_names_threads_if_only_they_called_attention():
    x = torch.eye(3)

    async def in_a_thread() -> None:
        with regard.record():
            await asyncio.to_thread(regard.attention, x, x)

    # In a thread of its own, because an open browser of other tests has an event loop in the main thread.
    with pytest.warns(regard.RegardWarning, match="threads") as caught, ThreadPoolExecutor(1) as executor:
        executor.submit(lambda: asyncio.run(in_a_thread())).result()
    assert "inherit_scopes" in str(caught[0].message) and "record(all_threads=True)" in str(caught[0].message)
    warned = pytest.warns(regard.RegardWarning, match="threads")
    with warned, ThreadPoolExecutor() as executor, regard.intervene(cut=(0, 0)):
        executor.submit(regard.attention, x, x).result()
