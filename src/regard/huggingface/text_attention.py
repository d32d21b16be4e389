"""observe_text(): run a Hugging Face model on a text, and return its attention as a Seen, to be drawn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attended import Attended
from regard.errors import ArgumentError, message
from regard.huggingface.local_model import TextModel
from regard.huggingface.token_words import Tokens, tokens_of_ids, tokens_of_text
from regard.look import Look
from regard.sites import Record, record
from regard.viewing import Seen, Site, pooled_from_top
from regard.viewing.pooled_attention import block_side

__all__ = ["LONG", "ObservedText", "inputs_of", "observe_text"]

LONG = 256
"""Maximum number of tokens for which all weights are recorded. Of longer texts, the mean weight of each block
of tokens and the largest weights of each token are recorded, and drawn as a map of blocks."""

TOP, TOP_OF_LONGER, LONGER = 16, 4, 8192
"""Number of largest weights of each token that are recorded: TOP, and TOP_OF_LONGER for texts of more than
LONGER tokens, to save memory."""

NEW_TOKENS = 256
"""Maximum number of tokens that an encoder-decoder model generates."""


@dataclass(frozen=True, eq=False)
class ObservedText:
    """The attention of a model for one text.

    seen: the attention of all layers, to draw or to save.
    source: the tokens of the text.
    target: the tokens that an encoder-decoder model generates, or that were given; None for other models.
    inputs: the arguments of the model.
    """

    seen: Seen
    source: Tokens
    target: Tokens | None
    inputs: dict[str, Tensor]


def observe_text(model: TextModel, text: str, target: str | None = None) -> ObservedText:
    """Run a model on a text, and record the attention of every layer and head.

    model: from load_model().
    text: the text; for an encoder-decoder model the source text.
    target: the target text of an encoder-decoder model. Default: the text that the model generates.

    If the text has more than LONG tokens, the largest weights of each token and the mean weight of each block
    of tokens are recorded, instead of all weights. This works for any length: no T x S matrix is stored.
    """
    TextModel.check("observe_text()", model)
    source, target_tokens, inputs = inputs_of(model, text, target)
    lengths = [len(each.pieces) for each in (source, target_tokens) if each is not None]
    look = Look(weights=True) if max(lengths) <= LONG else look_of_long_text(max(lengths))
    with torch.no_grad(), record(look) as recorded:
        model.model(**inputs, use_cache=False)
    seen = _seen(recorded, look, source, target_tokens, title=text if target_tokens is None else "")
    return ObservedText(seen, source, target_tokens, inputs)


def look_of_long_text(length: int) -> Look:
    """Return what is recorded of a text of more than LONG tokens.

    >>> look_of_long_text(32_768).pooled
    128
    """
    return Look(top=TOP if length <= LONGER else TOP_OF_LONGER, pooled=block_side(length))


def inputs_of(
    model: TextModel, text: str, target: str | None = None
) -> tuple[Tokens, Tokens | None, dict[str, Tensor]]:
    """Return the tokens of the text, those of the target or None, and the arguments of the model."""
    source = tokens_of_text(model.tokenizer, text)
    _check_length(model, source, "text")
    device = model.model.device
    inputs = {"input_ids": source.ids.to(device), "attention_mask": torch.ones_like(source.ids).to(device)}
    if not model.has_decoder:
        if target is not None:
            name = type(model.model).__name__
            raise ArgumentError(message("--target", f"{name} has no decoder, so there is no target text"))
        return source, None, inputs
    decoder_ids = _decoder_ids(model, inputs, target)
    outputs = tokens_of_ids(model.tokenizer, decoder_ids[0, 1:].tolist())
    _check_length(model, outputs, "target")
    return source, outputs, {**inputs, "decoder_input_ids": decoder_ids[:, :-1]}


def _decoder_ids(model: TextModel, inputs: dict[str, Tensor], target: str | None) -> Tensor:
    """Return the target of an encoder-decoder model, (1, T + 1); the first token only starts the decoder."""
    if target is None:
        most = NEW_TOKENS if model.longest is None else min(NEW_TOKENS, model.longest - 1)
        options = {"max_new_tokens": most, "num_beams": 1, "do_sample": False}
        with torch.no_grad():
            return model.model.generate(**inputs, **options)
    start = model.model.config.decoder_start_token_id
    if start is None:
        problem = "the config has no decoder_start_token_id"
        raise ArgumentError(message("--target", problem, hint="leave --target out"))
    ids = model.tokenizer(text_target=target)["input_ids"]
    return torch.tensor([[start, *ids]], device=inputs["input_ids"].device)


def _check_length(model: TextModel, tokens: Tokens, which: str) -> None:
    """Raise ArgumentError if there are no tokens, or more than the model reads. which: text or target."""
    count, longest = len(tokens.pieces), model.longest
    if not count:
        raise ArgumentError(message(which, f"the {which} has no tokens", expected="at least one token"))
    if longest is not None and count > longest:
        problem = f"the {which} has {count:,} tokens"
        expected = f"at most {longest:,}, the longest sequence that the model reads"
        raise ArgumentError(message(which, problem, expected=expected, hint=f"use a shorter {which}"))


def _seen(recorded: Record, look: Look, source: Tokens, target: Tokens | None, title: str) -> Seen:
    """Return the recorded attention as a Seen, with the tokens of the rows and columns of each layer.

    Of a long text, the means of blocks are used where the side of the recorded blocks, look.pooled, fits both
    rows and columns: in an encoder-decoder model, not where source and target differ much in length.
    """
    sites: list[Site] = []
    long = []
    for name, calls in recorded.items():
        role = recorded.role(name)
        rows, columns = _side(role.rows, source, target), _side(role.columns, source, target)
        if not _fits(calls[0], rows, columns):
            continue  # for example, a layer that attends over blocks of the text
        weights, top = calls[0].weights, calls[0].top
        if weights is not None:
            arrays = weights[0].float().cpu().numpy()
            pieces, words = (rows.pieces, columns.pieces), (rows.words, columns.words)
            sites.append(Site(name, arrays, *pieces, None, *words, role=role))
        elif top is not None:
            first = type(top)(*(each[0].cpu() for each in top))
            sides = {block_side(len(each.pieces)) for each in (rows, columns)}
            pooled = calls[0].pooled
            means = pooled[0].cpu() if pooled is not None and sides == {look.pooled} else None
            long.append(pooled_from_top(name, first, rows.pieces, columns.pieces, means))
    last = source if target is None else target
    texts = source.pieces, last.pieces
    return Seen(tuple(sites), *texts, source.words, last.words, title=title, long=tuple(long))


def _side(sequence: str, source: Tokens, target: Tokens | None) -> Tokens:
    """Return the tokens of a sequence, as a Role names it: "source", "target", or "input" of the decoder."""
    if target is None or sequence == "source":
        return source
    if sequence == "target":
        return target
    pieces, words = ("<s>", *target.pieces[:-1]), (-1, *target.words[:-1])
    return Tokens(target.ids, pieces, words)


def _fits(attended: Attended, rows: Tokens, columns: Tokens) -> bool:
    if attended.weights is not None:
        return tuple(attended.weights.shape[-2:]) == (len(rows.pieces), len(columns.pieces))
    return attended.top is not None and attended.top.weights.shape[-2] == len(rows.pieces)
