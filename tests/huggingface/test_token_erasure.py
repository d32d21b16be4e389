"""erase_token(): the change of the output is that of a model whose mask hides the token."""

from __future__ import annotations

import numpy
import pytest
import torch

import regard
from tests.conftest import SKIPS
from tests.huggingface.small_models import build

pytest.importorskip("transformers", reason=SKIPS["transformers"])

from regard import huggingface
from regard.huggingface.text_attention import ObservedText
from regard.huggingface.token_words import Tokens
from regard.viewing import Seen, Site


def observed(model: torch.nn.Module, ids: torch.Tensor, specials: int = 1) -> ObservedText:
    """Return the attention for these tokens; the first `specials` tokens are special."""
    count = ids.shape[1]
    words = tuple(max(place - specials, -1) for place in range(count))
    tokens = Tokens(ids, tuple(f"t{place}" for place in range(count)), words)
    with torch.no_grad(), regard.record() as seen:
        model(ids)
    sites = [
        Site(name, calls[0].weights[0].numpy(), tokens.pieces, tokens.pieces, role=seen.roles[name])
        for name, calls in seen.items()
    ]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return ObservedText(Seen(sites, tokens.pieces, tokens.pieces, words, words), tokens, None, inputs)


def test_changes_are_those_of_a_model_with_a_mask():
    model, inputs = build("bert")
    huggingface.attach(model)
    ids = inputs["input_ids"][:1]
    text = observed(model, ids)
    result = huggingface.erase_token(huggingface.TextModel(model, None), text)
    assert result is not None and result.samples == 7 and result.measure == "nats"
    weights = numpy.mean([site.weights.mean((0, 1)) for site in text.seen.sites], 0)
    assert result.position == 1 + weights[1:].argmax()
    assert result.weight == pytest.approx(weights[result.position])
    model.set_attn_implementation("eager")
    scores: list[float] = []
    best = 0
    for place in (None, result.position, *(each for each in range(1, 9) if each != result.position)):
        hidden = torch.zeros(9, 9)
        if place is not None:
            hidden[:, place] = -1e9
            hidden[place, place] = 0
        with torch.no_grad():
            logits = model(ids, attention_mask=hidden[None, None]).logits[0, -1].log_softmax(-1)
        best = int(logits.argmax()) if place is None else best
        scores.append(float(logits[best]))
    assert result.change == pytest.approx(scores[0] - scores[1], abs=1e-4)
    assert result.random_change == pytest.approx(scores[0] - numpy.mean(scores[2:]), abs=1e-4)


def test_a_text_of_one_token_is_not_measured():
    model, inputs = build("bert")
    huggingface.attach(model)
    text = observed(model, inputs["input_ids"][:1, :2])
    assert huggingface.erase_token(huggingface.TextModel(model, None), text) is None


def test_a_model_without_tokenizer_is_refused():
    with pytest.raises(regard.ArgumentError, match="load_model"):
        huggingface.erase_tokens(build("bert")[0], ["a text"])
    for wrong in (build("bert")[0], type(build("bert")[0]), "bert-base"):
        with pytest.raises(regard.ArgumentError, match="load_model"):
            huggingface.observe_text(wrong, "a text")
    with pytest.raises(regard.ArgumentError, match="from_pretrained"):
        huggingface.attach(type(build("bert")[0]))
