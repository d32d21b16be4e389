"""Checks of the arguments of models: checked() runs them before a constructor, which has equations only."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from inspect import signature
from operator import itemgetter
from typing import Any, TypeVar, cast

from torch import Tensor

from regard.errors import ArgumentError, Setting, UnknownName, message, positive
from regard.options.luong_views import Predicted, build_view
from regard.options.transformer_options import NORMS, TIES, find_size
from regard.select import Soft, build_select

__all__ = ["checked", "known"]

Initialize = TypeVar("Initialize", bound=Callable[..., None])
Name = TypeVar("Name")
ENCODINGS = ("position", "bag")
"""The encodings of the sentences of memory networks."""
LARGEST_TAPE = 100_000_000
"""Maximum number of values on the tape of one sequence of a neural Turing machine."""


def checked(check: Callable[[str, Mapping[str, Any]], None]) -> Callable[[Initialize], Initialize]:
    """Decorate the constructor of a model: `check` first raises ArgumentError if an argument is invalid.

    check: function of the call for the error message, such as "Luong()", and of the arguments by name, among
        them "names", the names of all arguments.
    """

    def decorate(initialize: Initialize) -> Initialize:
        parameters = signature(initialize)
        names = list(parameters.parameters)[1:]

        @functools.wraps(initialize)
        def checked_initialize(self: object, *arguments: Any, **options: Any) -> None:
            try:
                bound = parameters.bind(self, *arguments, **options)
            except TypeError:  # Python's own message, from the call below, says more
                bound = None
            if bound is not None:
                bound.apply_defaults()
                check(f"{type(self).__name__}()", bound.arguments | {"names": names})
            initialize(self, *arguments, **options)

        return cast(Initialize, checked_initialize)

    return decorate


def known(kind: str, name: Name, names: Collection[str]) -> Name:
    """Return a name. Raise UnknownName if it is not in `names`."""
    if name not in names:
        raise UnknownName(kind, name, names)
    return name


def check_seq2seq(call: str, given: Mapping[str, Any]) -> None:
    source_size, target_size, context = itemgetter("source_size", "target_size", "context")(given)
    known("context", context, ("first", "every"))
    positive(call, source_size=source_size, target_size=target_size)


def check_bahdanau(call: str, given: Mapping[str, Any]) -> None:
    width, embedding, hidden, encoder, dropout, score = itemgetter(
        "width", "embedding", "hidden", "encoder", "dropout", "score"
    )(given)
    known("encoder", encoder, ("gru", "paper"))
    sizes = {"source_size": given["source_size"], "target_size": given["target_size"], "width": width}
    sizes["embedding"] = width if embedding is None else embedding
    positive(call, dropout, **sizes, hidden=width if hidden is None else hidden)
    name = score.get("name") if isinstance(score, Mapping) else score
    if hidden is not None and name not in ("additive", "concat"):
        problem = f"hidden is {hidden}, but this score has no hidden layer"
        additive, concat = (Setting("build_model", "score", name) for name in ("additive", "concat"))
        raise ArgumentError(message(call, problem, hint=("use ", additive, " or ", concat)))
    if isinstance(score, Mapping) and "hidden" in score and hidden is not None:
        problem = "hidden is set twice: as an option of the model and of the score"
        raise ArgumentError(message(call, problem))


def check_luong(call: str, given: Mapping[str, Any]) -> None:
    source_size, target_size, select, view, readout, feeding = itemgetter(
        "source_size", "target_size", "select", "view", "readout", "feeding"
    )(given)
    known("readout", readout, ("attentional", "affine", "mixture"))
    if readout == "mixture" and feeding:
        problem = 'readout is "mixture", but feeding is true: the state would depend on earlier choices'
        raise ArgumentError(message(call, problem, hint=("use ", Setting("build_model", "feeding", False))))
    positive(call, source_size=source_size, target_size=target_size)
    local_p, selection = isinstance(build_view(view), Predicted), build_select(select)
    if local_p and selection != Soft():
        problem = f"local-p has its own selection, a softmax times a Gaussian; select is {selection}"
        soft, local_m = Setting("build_model", "select", "softmax"), Setting("build_model", "view", "local-m")
        raise ArgumentError(message(call, problem, hint=("use ", soft, " or ", local_m)))


def check_lstmn_translation(call: str, given: Mapping[str, Any]) -> None:
    width, fusion, embedding, depth, dropout, attention, names = itemgetter(
        "width", "fusion", "embedding", "depth", "dropout", "attention", "names"
    )(given)
    known("fusion", fusion, ("shallow", "deep"))
    for option in attention:
        if option not in ("score", "select"):
            raise UnknownName(f"argument of {call}", option, {*names, "score", "select"} - {"attention"})
    sizes = {"source_size": given["source_size"], "target_size": given["target_size"]}
    sizes["embedding"] = width if embedding is None else embedding
    positive(call, dropout, **sizes, width=width, depth=depth)


def check_transformer(call: str, given: Mapping[str, Any]) -> None:
    source_size, target_size, norm, tie, dropout, inner_dropout, longest = itemgetter(
        "source_size", "target_size", "norm", "tie", "dropout", "inner_dropout", "longest"
    )(given)
    known("norm", norm, NORMS)
    known("tie", tie, TIES)
    if tie == "all" and source_size != target_size:
        problem = f'tie="all" needs equal vocabulary sizes, got {source_size} and {target_size}'
        hint = ("train one tokenizer on both sides, or use ", Setting("build_model", "tie", "output"))
        raise ArgumentError(message(call, problem, hint=hint))
    for each in (dropout, dropout if inner_dropout is None else inner_dropout):
        positive(call, each, source_size=source_size, target_size=target_size)
    if longest < 2:
        problem, expected = f"longest is {longest}", "2 or more: one token and EOS"
        raise ArgumentError(message(call, problem, expected=expected))


def check_transformer_language(call: str, given: Mapping[str, Any]) -> None:
    vocabulary_size, size, norm, dropout, inner_dropout, longest = itemgetter(
        "vocabulary_size", "size", "norm", "dropout", "inner_dropout", "longest"
    )(given)
    for each in (dropout, dropout if inner_dropout is None else inner_dropout):
        positive(call, each, vocabulary_size=vocabulary_size, longest=longest)
    known("norm", norm, NORMS)
    layers = find_size(size, call).decoder_layers
    if layers is not None:
        problem = f"decoder_layers is {layers}, but a language model has only `layers`"
        raise ArgumentError(message(call, problem, hint=("use ", Setting("build_model", "layers"))))


def check_transformer_classifier(call: str, given: Mapping[str, Any]) -> None:
    size, norm, pooling, longest = itemgetter("size", "norm", "pooling", "longest")(given)
    known("norm", norm, NORMS)
    check_pooling(call, pooling, ("mean", "first", "attention"))
    if longest < 3:
        problem, expected = f"longest is {longest}", "3 or more: BOS, one token and EOS"
        raise ArgumentError(message(call, problem, expected=expected))
    find_size(size, call)


def check_recurrent_classifier(call: str, given: Mapping[str, Any]) -> None:
    width, layers, pooling, dropout, attention, names = itemgetter(
        "width", "layers", "pooling", "dropout", "attention", "names"
    )(given)
    check_pooling(call, pooling, ("mean", "last", "attention"), attention, names)
    positive(call, dropout, width=width, layers=layers)


def check_lstmn_classifier(call: str, given: Mapping[str, Any]) -> None:
    width, embedding = itemgetter("width", "embedding")(given)
    check_recurrent_classifier(call, given)
    positive(call, embedding=width if embedding is None else embedding)


def check_classifier(call: str, given: Mapping[str, Any]) -> None:
    vocabulary_size, classes, features, hidden, dropout, word_dropout = itemgetter(
        "vocabulary_size", "classes", "features", "hidden", "dropout", "word_dropout"
    )(given)
    positive(call, dropout, vocabulary_size=vocabulary_size, features=features, hidden=hidden)
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < 2:
        raise ArgumentError(message(call, f"classes is {classes!r}", expected="an integer, 2 or more"))
    if isinstance(word_dropout, bool) or not 0 <= word_dropout < 1:
        problem = f"word_dropout is {word_dropout!r}"
        raise ArgumentError(message(call, problem, expected="0 <= word_dropout < 1"))


def check_pooling(
    call: str,
    pooling: object,
    names: Sequence[str],
    attention: Mapping[str, object] | None = None,
    arguments: Sequence[str] = (),
) -> None:
    """Check the option `pooling` of a classifier: a name, or a mapping with the name, score and select.

    names: the known names of poolings.
    attention: values of score and select outside of `pooling`.
    arguments: names of other arguments of the call. An error message about an unknown argument lists them.
    """
    if not isinstance(pooling, str | Mapping):
        problem, expected = f"pooling is {pooling!r}", "a name, or a table with a name"
        raise ArgumentError(message(call, problem, expected=expected))
    own: dict[str, object] = {"name": pooling} if isinstance(pooling, str) else dict(pooling)
    name, options = known("pooling", own.pop("name", None), names), ("score", "select")
    for option in attention or {}:
        if option not in options:
            raise UnknownName(f"argument of {call}", option, {*arguments, *options})
    for option in own:
        known('option of pooling "attention"', option, options)
    if (own or attention) and name != "attention":
        options_set = " and ".join({**(attention or {}), **own})
        problem = f"{options_set} cannot be set: the pooling {name} has no attention"
        raise ArgumentError(message(call, problem, hint=("use ", Setting("model", "pooling", "attention"))))


def check_pairs(classifier: Any, second: object) -> None:
    """Raise ArgumentError if a batch has single texts and the classifier takes pairs, or the reverse."""
    pairs = classifier.pairs
    if (second is None) == pairs:
        batch, needs = ("single texts", "pairs") if pairs else ("pairs", "single texts")
        problem = f"the batch has {batch}, but this classifier was built with pairs={pairs}"
        call, expected = f"{type(classifier).__name__}.forward()", f"a batch of {needs}"
        raise ArgumentError(message(call, problem, expected=expected))


def check_language(call: str, given: Mapping[str, Any]) -> None:
    vocabulary_size = given["vocabulary_size"]
    positive(call, vocabulary_size=vocabulary_size)


def check_tie(call: str, given: Mapping[str, Any]) -> None:
    sizes, tie = itemgetter("sizes", "tie")(given)
    inputs, width = sizes[1:]
    if tie and inputs != width:
        problem = f"tie=True, but embedding is {inputs} and width is {width}"
        raise ArgumentError(message(call, problem, expected="embedding = width"))


def check_bound(bound: float) -> None:
    """Check the argument of initialize_uniform()."""
    if not 0 < bound < float("inf"):
        problem = f"bound is {bound!r}"
        raise ArgumentError(message("initialize_uniform()", problem, expected="a finite number above 0"))


def check_lstmn_language(call: str, given: Mapping[str, Any]) -> None:
    vocabulary_size, width, embedding, depth, tape, dropout = itemgetter(
        "vocabulary_size", "width", "embedding", "depth", "tape", "dropout"
    )(given)
    inputs = width if embedding is None else embedding
    positive(call, dropout, vocabulary_size=vocabulary_size, width=width, embedding=inputs, depth=depth)
    if isinstance(tape, str) and tape != "window":
        expected = 'an integer, 1 or more, or "window"'
        raise ArgumentError(message(call, f"tape is {tape!r}", expected=expected))


def check_carried(model: object, state: Any, rows: int) -> Any:
    """Return the state with which a language model reads a batch that continues the batch before.

    rows: number of texts of the batch. The state must have as many.
    """
    call = f"{type(model).__name__}.read()"
    if state is None:
        problem = "batch.carried is True, but there is no state"
        hint = "pass the state that read() returned for the previous batch"
        raise ArgumentError(message(call, problem, hint=hint))
    others = {len(tensor) for tensor in (*state.hidden, *(memory.key for memory in state.past))} - {rows}
    if others:
        problem = f"the state has {others.pop()} rows, but the batch has {rows}"
        raise ArgumentError(message(call, problem, expected="the same number of rows"))
    return state


def at_least_one(tokens: Tensor) -> Tensor:
    """Return tokens (rows, n) unchanged, but raise ArgumentError if n is 0.

    Recurrent models need at least one token to compute a state.
    """
    if not tokens.shape[1]:
        problem = "tokens is empty: the batch has no targets"
        hint = "use Batch.collate(sources, targets), or regard.decoding.search() to translate"
        raise ArgumentError(message("step()", problem, hint=hint))
    return tokens


def check_captioner(call: str, given: Mapping[str, Any]) -> None:
    sizes = {name: given[name] for name in ("vocabulary_size", "width", "embedding")}
    positive(call, given["dropout"], **sizes)
    known("query", given["query"], ("word", "state"))


def captions_per_image(captions: Sized, images: Sized) -> int:
    """Return the number of captions of each image; raise ArgumentError unless it is the same for all."""
    if len(captions) % max(len(images), 1):
        problem = f"there are {len(captions)} captions for {len(images)} images"
        expected = "the same number of captions for each image"
        raise ArgumentError(message("Captioner()", problem, expected=expected))
    return len(captions) // max(len(images), 1)


def check_feature_vectors(source: Tensor, features: int) -> Tensor:
    """Return the feature vectors (B, L, features) of images, after a check of the shape."""
    if source.dim() != 3 or source.shape[2] != features or not source.shape[1]:
        tensors = {"source": (source, "BLF"[: source.dim()])}
        expected = f"images (B, 3, height, width), or feature vectors (B, L, {features}) with L >= 1"
        raise ArgumentError(message("Captioner.encode()", "the shape of source is wrong", tensors, expected))
    return source


def check_caption_weights(weights: Tensor, lengths: Tensor) -> None:
    """Check the arguments of doubly_stochastic_penalty()."""
    if weights.dim() != 3 or lengths.shape != weights.shape[:1]:
        tensors = {"weights": (weights, "BTL"[: weights.dim()]), "lengths": (lengths, "B"[: lengths.dim()])}
        problem, expected = "the shapes are wrong", "weights (B, T, L) and lengths (B,)"
        raise ArgumentError(message("doubly_stochastic_penalty()", problem, tensors, expected))


def check_story_model(call: str, given: Mapping[str, Any]) -> None:
    """Check the arguments that all memory networks have.

    The vocabulary has padding, the unknown word and all answers, so its size must be 2 + answers or more.
    """
    vocabulary_size, answers, sentences, width, hops, encoding, time = itemgetter(
        "vocabulary_size", "answers", "sentences", "width", "hops", "encoding", "time"
    )(given)
    positive(call, vocabulary_size=vocabulary_size, answers=answers, sentences=sentences)
    if vocabulary_size < 2 + answers:
        problem = f"vocabulary_size is {vocabulary_size}, but there are {answers} answers"
        raise ArgumentError(message(call, problem, expected=f"{2 + answers} words or more"))
    positive(call, width=width, hops=hops)
    known("encoding", encoding, ENCODINGS)
    if not isinstance(time, bool):
        raise ArgumentError(message(call, f"time is {time!r}", expected="true or false"))


def check_memory_network(call: str, given: Mapping[str, Any]) -> None:
    tying, noise, padding = itemgetter("tying", "noise", "padding")(given)
    check_story_model(call, given)
    if len(padding) != 2 or not all(type(size) is int and size >= 0 for size in padding):
        raise ArgumentError(message(call, f"padding is {padding!r}", expected="two sizes, 0 or more"))
    known("tying", tying, ("adjacent", "layer-wise"))
    if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 <= noise <= 1:
        raise ArgumentError(message(call, f"noise is {noise!r}", expected="0 <= noise <= 1"))


def check_supervised_memory_network(call: str, given: Mapping[str, Any]) -> None:
    margin = given["margin"]
    check_story_model(call, given)
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not 0 < margin < float("inf"):
        raise ArgumentError(message(call, f"margin is {margin!r}", expected="a number greater than 0"))


def check_recurrent_sequence(call: str, given: Mapping[str, Any]) -> None:
    input_size, target_size, depth, parameters = itemgetter(
        "input_size", "target_size", "depth", "parameters"
    )(given)
    positive(call, input_size=input_size, target_size=target_size, depth=depth)
    positive(call, parameters=1 if parameters is None else parameters)


def check_turing_machine(call: str, given: Mapping[str, Any]) -> None:
    input_size, target_size, controller, width, slots, initial_heads = itemgetter(
        "input_size", "target_size", "controller", "width", "slots", "initial_heads"
    )(given)
    known("controller", controller, ("lstm", "feedforward"))
    known("initial_heads", initial_heads, ("neutral", "forward"))
    positive(call, input_size=input_size, target_size=target_size, width=width, slots=slots)


def check_slots(slots: int, layout: Any, learned: Tensor | None = None) -> None:
    """Raise ArgumentError if a neural Turing machine cannot use a tape with this number of slots.

    layout: the HeadLayout of the machine.
    learned: the initial tape, if it is learned.
    """
    call = "NeuralTuringMachine()"
    if slots < layout.shifts:
        problem = f"slots is {slots}, but heads move by up to {layout.max_shift}"
        raise ArgumentError(message(call, problem, expected=f"at least {layout.shifts} slots"))
    if slots * layout.width > LARGEST_TAPE:
        problem = f"slots x slot_width is {slots * layout.width:,}"
        raise ArgumentError(message(call, problem, expected=f"at most {LARGEST_TAPE:,}"))
    if learned is not None and slots != len(learned):
        problem = f"the initial tape is learned and has {len(learned):,} slots, not {slots:,}"
        hint = 'train with another model.addressing than "content"'
        raise ArgumentError(message("NeuralTuringMachine.start()", problem, hint=hint))
