"""encode_short() computes the encoder output of a Transformer for few tokens on a CPU."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from regard.data.batch import Batch
from regard.decoding import Beam, search
from regard.decoding.slots import slot_runs
from regard.decoding.slots.cpu_transformer_encoder import MOST_TOKENS, encode_short
from regard.models import Model
from regard.models.bahdanau import Bahdanau
from regard.models.base import Encoded
from regard.models.transformer import Size, Transformer

SIZE = Size(width=256, heads=4, inner=256, layers=2)
OPTIONS = [{}, {"norm": "post", "activation": "swiglu"}, {"position": "learned", "activation": "gelu"}]


def transformer(**options: str) -> Transformer:
    torch.manual_seed(0)
    return Transformer(30, 20, SIZE, **options).eval()  # type: ignore[arg-type]


def assert_same(result: Encoded | None, expected: Encoded) -> None:
    assert result is not None and torch.equal(result.lengths, expected.lengths)
    for mine, theirs in zip(result.memories, expected.memories, strict=True):
        torch.testing.assert_close(mine.key, theirs.key, rtol=0, atol=2e-5)
        torch.testing.assert_close(mine.value, theirs.value, rtol=0, atol=2e-5)
        assert mine.score is theirs.score and mine.mask.parts == theirs.mask.parts


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("sources", [[[4, 5, 6, 7]], [[4, 5, 6], [7], [8, 9]]], ids=str)
@torch.no_grad()
def test_same_as_the_model(options: dict[str, str], sources: list[list[int]]) -> None:
    model, batch = transformer(**options), Batch.collate(sources)
    arguments = batch.source, batch.source_lengths
    assert_same(encode_short(model, *arguments), model.encode(*arguments))
    for weight in (model.encoder[0].itself.value.weight, model.decoder[1].cross.key.weight):
        weight.mul_(-3.0)  # products are kept only while the weights are the same
        assert_same(encode_short(model, *arguments), model.encode(*arguments))


@torch.no_grad()
def test_other_inputs_and_models_are_not_supported() -> None:
    model, batch = transformer(), Batch.collate([[4, 5, 6]])
    arguments = batch.source, batch.source_lengths
    others: list[Model] = [
        transformer(position="rotary"),
        transformer(score="additive"),
        transformer().bfloat16(),
        Bahdanau(30, 20, 8),
    ]
    assert not any(encode_short(other, *arguments) for other in others)
    long = Batch.collate([[4] * MOST_TOKENS])
    assert encode_short(model, long.source, long.source_lengths) is None
    assert encode_short(model, batch.source, torch.zeros_like(batch.source_lengths)) is None
    hook = model.encoder[0].register_forward_hook(lambda *_: None)
    assert encode_short(model, *arguments) is None
    hook.remove()
    assert encode_short(model, *arguments) is not None


def test_a_search_uses_it() -> None:
    model, batch = transformer(), Batch.collate([[4, 5, 6]])
    with mock.patch.object(slot_runs, "encode_short", mock.Mock(wraps=encode_short)) as called:
        (result,) = search(model, batch, Beam(2))
    called.assert_called_once()
    with mock.patch.object(slot_runs, "encode_short", lambda *_: None):
        (expected,) = search(model, batch, Beam(2))
    assert result[0].tokens == expected[0].tokens
    torch.testing.assert_close(
        result[0].attention["decoder.1.cross"], expected[0].attention["decoder.1.cross"], rtol=0, atol=1e-4
    )
