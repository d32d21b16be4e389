"""regard view --huggingface: the attention of a local Hugging Face model for one text."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from regard.errors import ArgumentError, message, shown
from regard.runs.devices import choose_device
from regard.runs.run_commands import RunView, ViewOptions
from regard.viewing import Picture

__all__ = ["HuggingFaceView", "view_huggingface"]


@dataclass(frozen=True, eq=False)
class HuggingFaceView(RunView):
    """What `regard view` draws for a Hugging Face model: the attention of its layers for one text."""

    def picture(self, options: ViewOptions) -> Picture:
        """Draw the view that options.view names; a long text is drawn as a map of blocks of tokens."""
        if not self.seen.long:
            encodes = any(site.kind == "encoder" for site in self.seen.sites)
            if options.view == "rollout" and options.site is None and not encodes:
                options = replace(options, site="decoder")
            return super().picture(options)
        if options.view not in (None, "long"):
            problem = f"the text has {len(self.seen.source):,} tokens, which are drawn as a map"
            raise ArgumentError(message(f"--view {options.view}", problem, expected="--view long"))
        return self.seen.picture("long", site=options.site, head=options.head)


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
    notes = [f"{model.name}, {type(model.model).__name__}"] + ([] if erased is None else [str(erased)])
    title = observed.seen.title or text
    return HuggingFaceView(replace(observed.seen, title=title).noted(*notes))
