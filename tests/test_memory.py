"""Memory: equivalent to its keys and values, append, reorder, and immutability."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch

import regard
from tests.making import MASKS, make_score, parameters, randn


@pytest.mark.parametrize("name", regard.SCORES)
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_attention_over_a_memory_equals_attention_over_key_and_value(name: str, shape: tuple[int, ...]):
    score = make_score(name, 3, 3)
    query, key, value = (randn(*shape, length, size) for length, size in ((4, 3), (5, 3), (5, 2)))
    mask = regard.padding(torch.tensor([4]))
    options = {"mask": regard.causal(), "start": 1}
    memory = regard.prepare(key, value, score=score, mask=mask)
    plain = regard.attention(query, key, value, score=score, mask=mask & regard.causal(), start=1)
    assert torch.equal(regard.attention(query, memory, **options).output, plain.output)
    assert memory.length == 5 and regard.prepare(key).value is not None
    assert torch.equal(
        regard.attention(query, regard.prepare(key)).output, regard.attention(query, key).output
    )


@pytest.mark.parametrize("name", regard.SCORES)
def test_an_appended_memory_equals_one_prepared_at_once(name: str):
    score, key, value = make_score(name, 3, 3), randn(2, 2, 5, 3), randn(2, 2, 5, 4)
    query, whole = randn(2, 2, 4, 3), regard.prepare(key, value, score=score)
    memory = first = regard.prepare(key[:, :, :2], value[:, :, :2], score=score)
    for at in (2, 3, 4):
        memory = memory.append(key[:, :, at : at + 1], value[:, :, at : at + 1])
    assert first.length == 2 and memory.length == 5
    torch.testing.assert_close(memory.key, whole.key)
    assert torch.equal(memory.value, whole.value)
    step, at_once = (regard.attention(query, each).output for each in (memory, whole))
    torch.testing.assert_close(step, at_once)
    torch.testing.assert_close(
        *(torch.autograd.grad(output.sum(), (query, value)) for output in (step, at_once))
    )


@pytest.mark.parametrize("name", MASKS)
def test_reorder_also_reorders_the_mask(name: str):
    query, key, index = randn(2, 2, 3, 4), randn(2, 2, 7, 4), torch.tensor([1, 0, 1])
    memory = regard.prepare(key, mask=MASKS[name]())
    plain = regard.attention(query, memory).output[index]
    assert torch.equal(regard.attention(query[index], memory.reorder(index)).output, plain)
    assert memory.key.shape[0] == 2


@pytest.mark.parametrize("name", ["additive", "cosine", "dot"])
@pytest.mark.parametrize("mask", MASKS)
def test_what_no_query_may_see_never_reaches_a_result(name: str, mask: str):
    score, query, key, value = make_score(name, 4, 4), randn(2, 2, 3, 4), randn(2, 2, 7, 4), randn(2, 2, 7, 2)
    hidden = ~MASKS[mask]().dense(3, 7, batch=2, heads=2).expand(2, 2, 3, 7).any(-2)
    assert hidden.any()
    found = []
    for content in (0.5, torch.nan, torch.inf):
        key.data[hidden], value.data[hidden] = content, content
        memory = regard.prepare(key, value, score=score, mask=MASKS[mask]())
        output = regard.attention(query, memory).output
        wanted = (query, key, value, *parameters(score))
        found.append((output, *torch.autograd.grad(output.sum(), wanted, allow_unused=True)))
    for plain, *poisoned in zip(*found, strict=True):
        assert all(each is plain is None or torch.equal(each, plain) for each in poisoned)


def test_a_memory_is_passed_and_never_changed():
    memory = regard.prepare(randn(2, 3, 4))
    with pytest.raises(AttributeError):
        memory.key = randn(2, 3, 4)
    before = memory.key.clone()
    memory.append(randn(2, 1, 4)).reorder(torch.tensor([1, 0]))
    assert torch.equal(memory.key, before)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda memory: memory.append(torch.ones(2, 1, 5)), "D = 4"),
        (lambda memory: memory.append(torch.ones(3, 1, 4)), "B=3"),
        (
            lambda memory: regard.attention(torch.ones(2, 1, 4), memory, torch.ones(2, 3, 4)),
            "already contains values",
        ),
        (
            lambda memory: regard.attention(torch.ones(2, 1, 4), memory, score=regard.Dot()),
            "already contains .* score",
        ),
        (lambda memory: regard.attention(torch.ones(2, 1, 3), memory), "different widths"),
        (lambda memory: regard.attention(torch.ones(3, 1, 4), memory), "batch sizes"),
        (
            lambda memory: regard.attention(
                torch.ones(2, 1, 4), memory.append(torch.ones(2, 2, 4), torch.ones(2, 1, 4))
            ),
            "keys and values",
        ),
    ],
)
def test_arguments_that_do_not_match_a_memory_raise(make: Callable[[regard.Memory], object], says: str):
    with pytest.raises(regard.ArgumentError, match=says):
        make(regard.prepare(torch.ones(2, 3, 4)))


MEMORY = regard.prepare(torch.zeros(2, 5, 4))


@pytest.mark.parametrize(
    ("call", "facts"),
    [
        (lambda: regard.prepare(numpy.zeros((2, 5, 4))), ("prepare()", "ndarray", "as_tensor")),
        (lambda: regard.prepare(torch.zeros(5, 4), [[1.0]]), ("prepare()", "value", "list")),
        (lambda: regard.prepare(torch.zeros(2, 5, 4, dtype=torch.long)), ("prepare()", "Embedding", "int64")),
        (lambda: MEMORY.append(numpy.zeros((2, 1, 4))), ("append()", "ndarray", "as_tensor")),
        (lambda: MEMORY.append(MEMORY), ("append()", "Memory", "a tensor")),
        (lambda: MEMORY.reorder([1, 0]), ("reorder()", "list", "as_tensor")),
        (lambda: MEMORY.reorder(torch.tensor([True, False])), ("reorder()", "bool", "nonzero")),
        (lambda: MEMORY.reorder(torch.tensor([0.0])), ("reorder()", "float32", "B = 2")),
        (lambda: MEMORY.reorder(torch.tensor([0, 2])), ("reorder()", "has 2", "B = 2")),
        (lambda: MEMORY.reorder(torch.tensor([-1])), ("reorder()", "has -1", "B = 2")),
        (lambda: regard.prepare(torch.zeros(5, 4)).reorder(torch.tensor([0])), ("reorder()", "(5, 4)")),
    ],
)
def test_invalid_arguments_of_a_memory_raise(call: Callable[[], object], facts: tuple[str, ...]):
    with pytest.raises(regard.ArgumentError) as error:
        call()
    assert all(fact in str(error.value) for fact in facts)
