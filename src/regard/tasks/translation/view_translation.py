"""`regard view` for translation: draw the attention while a model translates or reads a translation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from regard.decoding import Scored
from regard.decoding.attention_inputs import drawn_steps
from regard.decoding.search_options import build_search
from regard.errors import ArgumentError, message, shown
from regard.evaluation import faithfulness
from regard.roles import CROSS, matches
from regard.runs.command_options import CommandOption
from regard.runs.run_commands import ChosenRun, RunView, ViewOptions
from regard.runs.run_task import RunTask
from regard.tasks.translation.alignment_choice import ATTENTIVE
from regard.viewing import Picture, Seen, picture

__all__ = ["OWN_VIEWS", "VIEW_OPTIONS", "TranslationView", "view_translation"]

STEPS = "steps"
OWN_VIEWS = MappingProxyType({STEPS: "how the weights are computed from the scores"})
"""The help text of the view that exists only for translation, by the name of the view.

This view is not in VIEWS, because it requires the model: it draws attention scores, which are not in .seen
files.
"""

VIEW_OPTIONS: tuple[CommandOption | str, ...] = (
    "text",
    CommandOption(
        "--target",
        "Show the attention for this translation. By default, the model generates the translation.",
        "TEXT",
    ),
    "beam_size",
    "length_penalty",
    "greedy",
    "max_length",
)
"""The options of `regard view` for translation. All tasks also have the drawing options. A str is the name of
an option that several commands share."""

UNKNOWN = "<unk>"
"""The text of the token for words that are not in the vocabulary."""

SELF_VIEWS = ("self", "rollout")
"""The views that draw self-attention."""


@dataclass(frozen=True, eq=False)
class TranslationView(RunView):
    """The attention of a model for one translation, to be drawn by `regard view`.

    translator: the model with its tokenizers.
    translation: the translation with its attention.
    sentence: the source text that the model has read.
    """

    translator: Any
    translation: Scored
    sentence: str

    def picture(self, options: ViewOptions) -> Picture:
        """Draw the view options.view. Unknown words are shown as in the text, not as <unk>."""
        view, site, head, word = options.view or self.default_view, options.site, options.head, options.word
        if view == STEPS:
            words, text = _with_unknown_words(self.seen.words(), self.translation), self.translation.text
            return drawn_steps(self.translator, self.seen, self.sentence, text, site, head, word, words)
        prepared = options.prepared(self.seen)
        if not options.subwords:
            prepared = _with_unknown_words(prepared, self.translation)
        return picture(prepared, view, site=site, head=head, word=word)


def view_translation(
    task: type[RunTask], run: ChosenRun, options: Mapping[str, Any], drawing: ViewOptions
) -> TranslationView:
    """Translate one sentence, or score a given translation of the sentence, and record the attention.

    task: the task class.
    run: the run folder and the checkpoint to load.
    options: the values of VIEW_OPTIONS.
    drawing: the drawing options, of which view, site, head and subwords are used here.
    """
    search = build_search(
        options["beam_size"],
        options["length_penalty"],
        greedy=options["greedy"],
        max_length=options["max_length"],
    )
    unit = "word" if drawing.subwords is False else "auto"
    translator = run.load(task, search=search, look="*", unit=unit, precision="float32")
    sentence, target = translator.prepare(options["text"]), options["target"]
    translation = translator.translate(sentence) if target is None else translator.score(sentence, target)
    seen = _measured(translator, translation, drawing)
    if not seen.sites and not seen.long:
        problem = f"the model {translator.settings.model.name} has no attention to view"
        raise ArgumentError(message(shown(run.folder), problem, hint=ATTENTIVE))
    return TranslationView(seen, translator, translation, sentence)


def _measured(translator: Any, translation: Any, drawing: ViewOptions) -> Seen:
    """Return the attention of a translation, with a note on its faithfulness for the captions of pictures.

    Faithfulness says whether the output depends on the attended source words. It is measured for the
    cross-attention in the picture: the attention layer drawing.site and the head drawing.head. If the picture
    shows no cross-attention, all cross-attention layers are measured, and the note says so.
    """
    seen, site, head = translation.seen(), drawing.site, drawing.head
    empty = not translation.text.strip() or len(translation.source_units) < 2
    if translation.alignment is None or empty:
        return seen
    cross = [each for each in seen.sites if each.kind == "cross"]
    drawn = [each for each in cross if site is None or matches(site, each.name, each.role)]
    if drawing.view in SELF_VIEWS or not drawn:
        return seen.noted(f"cross-attention: {faithfulness(translator, translation)}")
    exists = head is None or head < min(each.heads for each in drawn)
    head = head if exists else None
    return seen.noted(faithfulness(translator, translation, at=site or CROSS, head=head))


def _with_unknown_words(seen: Seen, pair: Scored) -> Seen:
    """Return a copy of `seen` in which each label <unk> is replaced by the unknown word itself."""
    spelled = {}
    sides = (
        ("source", pair.source_units, seen.source_words),
        ("target", pair.target_units, seen.target_words),
    )
    for side, words, numbers in sides:
        spelled[side] = words if len(words) == max(numbers, default=-1) + 1 else []

    def spell(pieces: tuple[str, ...], numbers: tuple[int, ...] | None, side: str) -> tuple[str, ...]:
        numbered = zip(pieces, numbers or (), strict=True)
        words = spelled[side]
        return tuple(words[n] if words and n >= 0 and UNKNOWN in piece else piece for piece, n in numbered)

    sites = tuple(
        replace(
            site,
            rows=spell(
                site.rows, site.row_words, "source" if site.kind in ("encoder", "reversed") else "target"
            ),
            columns=spell(site.columns, site.column_words, "target" if site.kind == "decoder" else "source"),
        )
        for site in seen.sites
    )
    return replace(seen, sites=sites)
