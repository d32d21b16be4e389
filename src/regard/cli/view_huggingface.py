"""regard view --huggingface: the attention of a local Hugging Face model for one text."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from regard.errors import ArgumentError, message, shown
from regard.huggingface.token_words import Tokens
from regard.runs.devices import choose_device
from regard.runs.run_commands import LongTextView, ViewOptions
from regard.viewing import VIEWS, Picture, Seen
from regard.viewing.word_groups import spelled

__all__ = ["HuggingFaceView", "view_huggingface"]

TITLE = 400
"""Maximum length of a title, which is the text, in characters."""

SHARE = 0.3
"""If special tokens get more than this share of all weights, a note says so."""

NAMED = 5
"""Maximum number of unknown words that a note lists."""


@dataclass(frozen=True, eq=False)
class HuggingFaceView(LongTextView):
    """What `regard view` draws for a Hugging Face model: the attention of its layers for one text.

    source: the tokens of the text.
    """

    source: Tokens

    def picture(self, options: ViewOptions) -> Picture:
        """Draw the view options.view. Unknown words are shown as in the text, or with --subwords as [UNK]."""
        _check_view(self.seen, options.view)
        seen = _as_tokens(self.seen, self.source) if options.subwords else self.seen
        if options.specials == "show":
            seen = seen.noted(*_special_notes(seen))
        return LongTextView(seen).picture(options)


def view_huggingface(folder: Path, text: str, target: str | None, device: str) -> HuggingFaceView:
    """Run a local Hugging Face model on a text; return its attention and the effect of hiding a token.

    folder: the folder of the model. Nothing is downloaded.
    target: the target text of an encoder-decoder model; None for the text that the model generates.
    device: "auto", or the name of a device.
    """
    from regard import huggingface
    from regard.huggingface.registration import import_transformers

    transformers = import_transformers("regard view --huggingface")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity(logging.ERROR)
    with Console(stderr=True).status(f"loading {shown(folder)}"):
        model = huggingface.load_model(folder, choose_device(device))
        observed = huggingface.observe_text(model, text, target)
        if not observed.seen.sites and not observed.seen.long:
            problem = "the model has no attention layer with a weight for each pair of tokens"
            raise ArgumentError(message(shown(folder), problem))
        erased = huggingface.erase_token(model, observed)
    source = observed.source
    notes = [f"{model.name}, {type(model.model).__name__}", *_unknown_notes(source)]
    notes += [] if erased is None else [str(erased)]
    title = (observed.seen.title or text)[:TITLE]
    return HuggingFaceView(replace(observed.seen, title=title).noted(*notes), source)


def _unknown_notes(source: Tokens) -> list[str]:
    """Return a note that lists the words outside the vocabulary, NAMED at most; [] if there are none."""
    words = list(dict.fromkeys(repr(spelled([source.pieces[place]])) for place in source.unknown))
    if not words:
        return []
    more = f" and {len(words) - NAMED} more" if len(words) > NAMED else ""
    name = spelled([next(iter(source.unknown.values()))])
    return [f"not in the vocabulary, so the model reads {name}: {', '.join(words[:NAMED])}{more}"]


def _special_notes(seen: Seen) -> list[str]:
    """Return a note if the other tokens give more than SHARE of their weights to special tokens."""
    kept = [site.without_specials(renormalise=False).weights for site in seen.sites]
    rows = sum(weights.shape[0] * weights.shape[1] for weights in kept)
    share = 1 - sum(float(weights.sum()) for weights in kept) / rows if rows else 0.0
    if share <= SHARE:
        return []
    return [f"special tokens get {share:.0%} of the weights; --specials hide leaves them out"]


def _as_tokens(seen: Seen, source: Tokens) -> Seen:
    """Return a copy of `seen` in which the tokens of the text have the names that the model reads."""

    def named(pieces: tuple[str, ...]) -> tuple[str, ...]:
        return source.names if pieces == source.pieces else pieces

    sites = [replace(site, rows=named(site.rows), columns=named(site.columns)) for site in seen.sites]
    return replace(seen, sites=tuple(sites), source=named(seen.source), target=named(seen.target))


def _check_view(seen: Seen, view: str | None) -> None:
    """Raise ArgumentError if the model has no attention that this view can draw."""
    problems = {}
    if not any(site.role.kind == "cross" for site in seen.sites):
        problems["player"] = "it draws a translation, and this model has no cross-attention"
    if not any(site.kind == "decoder" for site in seen.sites):
        problems["reading"] = (
            "it draws attention to earlier tokens only, and this model also reads later ones"
        )
    if view in problems and not seen.long:
        expected = ", ".join(name for name in VIEWS if name not in problems)
        raise ArgumentError(message(f"--view {view}", problems[view], expected=expected))
