"""Load the translator of a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard.data.tokenizers import Tokenizer, load_tokenizer
from regard.data.tokenizers.tokenizer import Lowercased, separate_marks
from regard.decoding import Beam, Scored, Translator
from regard.decoding.input_checks import check_load_keywords
from regard.decoding.search_options import build_search
from regard.errors import ArgumentError, UnknownName, message, shown
from regard.fast.search import supports_int8
from regard.models import Model, build_model
from regard.roles import CROSS, matches
from regard.runs.loaded_run import LoadedRun, with_weights
from regard.runs.run_commands import ChosenRun, RunView, ViewOptions
from regard.runs.run_task import RunTask, StoredRun
from regard.runs.stored_runs import stored_scores
from regard.tasks.translation.alignment import ATTENTIVE, check_choice, guided_site, read_choice
from regard.tasks.translation.expected_quality import describe_quality
from regard.tasks.translation.settings import Data, TranslationSettings
from regard.training.command_options import CommandOption

if TYPE_CHECKING:
    from regard.call import Call
    from regard.viewing import Picture, Seen, Site

__all__ = [
    "AUTO",
    "PRECISIONS",
    "TranslationRun",
    "TOKENIZERS",
    "TranslationView",
    "VIEW_OPTIONS",
    "check_options",
    "chosen_dtype",
    "fits_float16",
    "load_tokenizers",
    "translator_of",
    "view_translation",
]

TOKENIZERS = ("source.tokenizer", "target.tokenizer")
"""The tokenizer files of a run folder; with a joint vocabulary, both have the same content."""

AUTO, INT8 = "auto", "int8"
FIRST_HALF = (8, 0)
"""The lowest compute capability of NVIDIA GPUs that decode in half precision by default (Ampere)."""

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""The values of load(precision=...): the dtype of the weights and of the computation. There is also "auto",
the default, see chosen_dtype(); and "int8", float32 with int8 weights in the steps of a search on a CPU."""


class TranslationRun(LoadedRun, Translator):
    """A Translator that was loaded from a run folder, with the settings and the folder of its run."""

    settings: TranslationSettings

    def prepare(self, line: str) -> str:
        """Return a source sentence in the form in which the model was trained on sentences.

        If the run was trained on the built-in corpus, spaces are inserted around punctuation. Otherwise, the
        line is returned unchanged.
        """
        return line if self.settings.data.built_in is None else separate_marks(line)

    @property
    def quality(self) -> str:
        """A sentence about the model if its validation scores are poor, otherwise ""."""
        return describe_quality(stored_scores(self.checkpoint), self.settings.training.best)

    def shown(self) -> dict[str, object]:
        return {**super().shown(), "search": self.search}


def load_tokenizers(folder: Path, data: Data) -> tuple[Tokenizer, Tokenizer]:
    """Load the source and target tokenizers of a run folder."""
    source, target = (load_tokenizer(folder / name, links=False) for name in TOKENIZERS)
    return (Lowercased(source), Lowercased(target)) if data.lowercase else (source, target)


def check_options(options: Mapping[str, Any]) -> None:
    """Raise an error if an option is not `precision` and not an argument of Translator().

    The error suggests the most similar name.
    """
    check_load_keywords(Translator, {name: each for name, each in options.items() if name != "precision"})
    precision = options.get("precision", AUTO)
    if precision not in (AUTO, INT8, *PRECISIONS):
        raise UnknownName("precision", precision, (AUTO, INT8, *PRECISIONS))


def chosen_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype for a value of load(precision=...).

    "auto" is float16 on a GPU from NVIDIA Ampere on, and float32 on other devices. float16 is as fast as
    bfloat16, and three more bits of each number are kept. The result of a search is checked for overflow, see
    decoding.active_rows.

    >>> chosen_dtype("auto", torch.device("cpu"))
    torch.float32
    """
    if precision != AUTO:
        return PRECISIONS.get(precision, torch.float32)
    half = device.type == "cuda" and torch.cuda.get_device_capability(device) >= FIRST_HALF
    return torch.float16 if half else torch.float32


def fits_float16(model: Model) -> bool:
    """Return whether no weight of a model is too large for float16."""
    largest = [each.detach().abs().max().float() for each in model.parameters() if each.numel()]
    return not largest or bool(torch.stack(largest).max() <= torch.finfo(torch.float16).max)


def translator_of(run: StoredRun, device: str, *, precision: str = AUTO, **options: Any) -> TranslationRun:
    """Load the translator of a run.

    The file alignment.json in the run folder says from which attention weights word alignments are computed.
    Without this file, the attention layer (site) that was trained with guided alignment is used. If there is
    no such site, all cross-attention layers are used.

    run: the run folder with its settings and a checkpoint.
    device: the device of the model, for example "cpu".
    precision: the dtype of the weights and of the computation: a name in PRECISIONS, "auto" or "int8".
    options: further arguments of Translator(), such as search.
    """
    check_options({"precision": precision, **options})
    folder, settings = run.folder, run.settings
    source, target = load_tokenizers(folder, settings.data)
    model = build_model(settings.model.name, source.size, target.size, **settings.model.options)
    model = with_weights(model, run, device)
    dtype = chosen_dtype(precision, next(model.parameters()).device)
    if precision == AUTO and dtype == torch.float16 and not fits_float16(model):
        dtype = torch.bfloat16
    model = model.to(dtype)
    if precision == INT8:
        _use_int8(model)
    choice = read_choice(folder)
    if choice is not None:
        check_choice(model, choice, folder)
    alignment = choice or (guided_site(model) if settings.training.guided_alignment else None)
    options = options if alignment is None else {"alignment": alignment, **options}
    return TranslationRun(model, source, target, **{"search": Beam(), **options}).from_run(run)


def _use_int8(model: Model) -> None:
    """Let a search use int8 weights in its steps; raise ArgumentError if the model or the device cannot."""
    device = next(model.parameters()).device.type
    if device != "cpu" or not supports_int8(model):
        problem = f"a {type(model).__name__} on {device} cannot decode with int8 weights"
        expected = "a Transformer or a bahdanau model on a CPU"
        hint = 'set device="cpu", or use another precision'
        raise ArgumentError(message("precision", problem, expected=expected, hint=hint))
    model.int8_steps = True


STEPS = "steps"
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
        from regard.viewing import picture

        view, site, head, word = options.view or self.default_view, options.site, options.head, options.word
        if view == STEPS:
            words, text = _with_unknown_words(self.seen.words(), self.translation), self.translation.text
            return _drawn_steps(self.translator, self.seen, self.sentence, text, site, head, word, words)
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
    from regard.evaluation import faithfulness

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


def _calls_at(translator: Any, source: str, target: str, site: str) -> list[Call]:
    """Return the attention calls (query, key, value and settings) of a site for a sentence pair.

    Forced decoding makes the calls: one for all target tokens or, in a recurrent decoder, one per token.

    site: the name of the site.
    """
    from regard.sites import scope

    calls: list[Call] = []
    with scope(at=site, watch=lambda _, call: calls.append(call)):
        translator.score([source], [target])
    return calls


def _drawn_steps(
    translator: Any,
    seen: Seen,
    source: str,
    target: str,
    site: str | None,
    head: int | None,
    word: str | None,
    words: Seen,
) -> Picture:
    """Draw a picture of one attention computation for a sentence pair, step by step from scores to output.

    seen: the recorded attention of the pair, with one row per target token.
    words: the same attention, with one row per target word.
    site: the name of a site, with * as wildcard. The last matching site is drawn.
    head: the index of the head. Default: 0.
    word: draw only the rows (queries) of this word or token. Default: all rows.
    """
    from regard.viewing import steps
    from regard.viewing.picture import noted
    from regard.viewing.pictures.view_selection import matching, rows_of

    place, head = matching(seen, site)[-1], head or 0
    if not 0 <= head < place.heads:
        problem = f"{place.name} has no head {head}"
        raise ArgumentError(message("--head", problem, expected=f"0 to {place.heads - 1}"))
    rows = list(range(len(place.rows)))
    if word is not None:
        rows = rows_of(word, place, words.site(place.name).rows, "--word")
    query, key, value, scores, formula = _inputs(_calls_at(translator, source, target, place.name), place)
    label = f"{place.name}, head {head}" if place.heads > 1 else place.name
    picture = steps(
        query[head, rows],
        key[head],
        value[head],
        formula,
        scores=scores[head, rows],
        rows=[place.rows[row] for row in rows],
        columns=place.columns,
        title=seen.title,
        about=f"{label}; query and keys after the projections of the score function",
    )
    return noted(picture, *seen.notes)


def _inputs(calls: list[Call], site: Site) -> tuple[Any, Any, Any, Any, str]:
    """Return query, key, value and scores of an attention layer, and the formula of its scores as text.

    The shapes are query (H, T, D), key (H, S, D), value (H, S, E) and scores (H, T, S). A formula is, for
    example, "query · key × 0.125".

    calls: all calls of the layer for one sentence pair.
    site: the recorded attention of the layer, with the labels of its rows and columns.
    """
    import torch

    from regard.backends.reference import compare
    from regard.select import Soft

    rows, shown = sum(call.sizes[2] for call in calls), len(site.rows)
    # The row of EOS is left out if the translation reached the maximum length.
    if not calls or rows not in (shown, shown + 1) or calls[0].sizes[3] != len(site.columns):
        problem = "the sentence is too long: it was translated in several parts"
        raise ArgumentError(message("--view steps", problem, hint="use a shorter sentence"))
    if not all(isinstance(call.select, Soft) for call in calls):
        problem = f"{site.name} does not use softmax, but this view can only draw softmax attention"
        raise ArgumentError(message("--view steps", problem))
    parts = []
    for call in calls:
        compared, visible = compare(call)
        parts.append((compared / call.temperature).masked_fill(~visible, -torch.inf)[0])
    first = calls[0]
    query = torch.cat([call.query[0] for call in calls], dim=1)
    key, value = (first.spread(tensor)[0] for tensor in (first.key, first.value))
    if first.combine == "inner":
        scale = first.scale / first.temperature
        formula = "query · key" if scale == 1 else f"query · key × {scale:.3g}"
    else:
        formula = "v · tanh(query + key)"
    formula = formula if first.bias is None else f"{formula} + bias"
    scores = torch.cat(parts, dim=1)[:, :shown]
    return query[:, :shown].detach(), key.detach(), value.detach(), scores.detach(), formula
