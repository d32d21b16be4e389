"""Checks of the arguments of models: checked() runs them before a constructor, which has equations only."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from inspect import signature
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from regard.dimensions import autocast_on
from regard.errors import ArgumentError, Setting, UnknownName, message, positive
from regard.memory import Memory
from regard.options.transformer_options import NORMS, TIES, find_size
from regard.positions import Bias, Position
from regard.select import Soft, build_select

__all__ = ["checked", "known"]

Initialize = TypeVar("Initialize", bound=Callable[..., None])
Name = TypeVar("Name")
ENCODINGS = ("position", "bag")
"""The encodings of the sentences of memory networks."""
LARGEST_TAPE = 100_000_000
"""Maximum number of values on the tape of one sequence of a neural Turing machine."""


def checked(check: Callable[[str, Any], None]) -> Callable[[Initialize], Initialize]:
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
                check(f"{type(self).__name__}()", SimpleNamespace(**bound.arguments, names=names))
            initialize(self, *arguments, **options)

        return cast(Initialize, checked_initialize)

    return decorate


def known(kind: str, name: Name, names: Collection[str]) -> Name:
    """Return a name. Raise UnknownName if it is not in `names`."""
    if name not in names:
        raise UnknownName(kind, name, names)
    return name


def sizes_in(given: Any, *names: str) -> dict[str, Any]:
    """Return the arguments of these names, for positive()."""
    return {name: getattr(given, name) for name in names}


def check_multihead(width: int, heads: int, key_heads: int, dropout: float) -> None:
    positive("MultiHead()", dropout, width=width, heads=heads, key_heads=key_heads)
    if width % heads or heads % key_heads:
        problem = f"width={width}, heads={heads} and key_heads={key_heads} do not match"
        expected = "width a multiple of heads, heads a multiple of key_heads"
        raise ArgumentError(message("MultiHead()", problem, expected=expected))


def check_acts_on_heads(position: Position | None) -> None:
    if position is not None and position.acts == "embeddings":
        name = type(position).__name__
        problem = f"{name} is a position embedding, which is added to token embeddings"
        expected = "a scheme for queries and keys or for scores: Rotary, Relative, T5Bias, ALiBi"
        hint = f"apply it to the embeddings before this layer: {name}(...)(embeddings)"
        raise ArgumentError(message("MultiHead()", problem, expected=expected, hint=hint))


def check_multihead_call(
    layer: Any, query: Tensor, key: object, value: object, start: int | None, options: dict[str, Any]
) -> None:
    """Raise an ArgumentError if layer, a MultiHead, cannot compute a call with these arguments.

    query, key, value: the arguments of forward(). options: further arguments of attention().
    """
    keys = query if key is None else key
    inputs = [("query", query), ("key", keys)]
    if value is not None or not isinstance(keys, Memory):
        inputs.append(("value", keys if value is None else value))
    for name, tensor in inputs:
        if isinstance(tensor, Tensor):
            check_multihead_input(
                name, tensor, getattr(layer, name), 2 if query.dim() == 2 else 3, layer.batch_first
            )
    position, problem, hint = layer.position, "", ""
    if key is None and start:
        problem, hint = (
            f"start={start}, but there is no Memory of earlier positions",
            "pass a Memory from remember(): layer(x, memory, start=t)",
        )
    elif isinstance(key, Memory) and value is not None:
        problem = "value is set, but the Memory already contains values"
        hint = "pass the values to remember(key, value) instead"
    elif isinstance(position, Bias) and options.get("bias") is not None:
        problem = f"bias is set, but this layer already adds the bias of {type(position).__name__}"
        hint = "create the layer with position=None, and pass the sum of the two biases as bias=..."
    if problem:
        raise ArgumentError(message("MultiHead()", problem, hint=hint))


def check_multihead_input(name: str, tensor: Tensor, linear: nn.Module, dims: int, batch_first: bool) -> None:
    """Raise an ArgumentError if the shape or the dtype of an input does not match its projection.

    linear: an nn.Linear, or another module. If it has no in_features or weight, these are not checked.
    dims: number of dimensions that the input must have: 2 without a batch, otherwise 3.
    batch_first: that of the layer.
    """
    width = getattr(linear, "in_features", None)
    shown = {name: (tensor, "TM" if tensor.dim() == 2 else "BTM" if batch_first else "TBM")}
    if tensor.dim() != dims or (width is not None and tensor.shape[-1] != width):
        sizes = "length" if dims == 2 else "B, length" if batch_first else "length, B"
        expected = f"({sizes}, {'width' if width is None else width})"
        raise ArgumentError(message("MultiHead()", f"{name} has the wrong shape", shown, expected))
    weight = getattr(linear, "weight", None)
    if isinstance(weight, Tensor) and tensor.dtype != weight.dtype and not autocast_on(weight.device.type):
        raise ArgumentError(
            message(
                "MultiHead()",
                f"{name} and the weights of the layer have different dtypes",
                shown | {"weight": (weight, "MM")},
                hint="use layer.to(x.dtype) or torch.autocast",
            )
        )


def check_seq2seq(call: str, given: Any) -> None:
    known("context", given.context, ("first", "every"))
    positive(call, **sizes_in(given, "source_size", "target_size"))


def check_bahdanau(call: str, given: Any) -> None:
    known("encoder", given.encoder, ("gru", "paper"))
    sizes = {"source_size": given.source_size, "target_size": given.target_size, "width": given.width}
    sizes["embedding"] = given.width if given.embedding is None else given.embedding
    positive(call, given.dropout, **sizes, hidden=given.width if given.hidden is None else given.hidden)
    name = given.score.get("name") if isinstance(given.score, Mapping) else given.score
    if given.hidden is not None and name not in ("additive", "concat"):
        problem = f"hidden is {given.hidden}, but this score has no hidden layer"
        additive, concat = (Setting("build_model", "score", name) for name in ("additive", "concat"))
        raise ArgumentError(message(call, problem, hint=("use ", additive, " or ", concat)))
    if isinstance(given.score, Mapping) and "hidden" in given.score and given.hidden is not None:
        problem = "hidden is set twice: as an option of the model and of the score"
        raise ArgumentError(message(call, problem))


def check_luong(call: str, given: Any) -> None:
    from regard.options.luong_views import Predicted, build_view

    known("readout", given.readout, ("attentional", "affine", "latent", "mixture"))
    if given.feeding is not None and not isinstance(given.feeding, bool):
        raise ArgumentError(message(call, f"feeding is {given.feeding!r}", expected="true or false"))
    if given.readout in ("latent", "mixture") and given.feeding:
        problem = (
            f'readout is "{given.readout}", but feeding is true: the state would depend on earlier choices'
        )
        raise ArgumentError(message(call, problem, hint=("use ", Setting("build_model", "feeding", False))))
    positive(call, **sizes_in(given, "source_size", "target_size"))
    local_p, selection = isinstance(build_view(given.view), Predicted), build_select(given.select)
    if local_p and selection != Soft():
        problem = f"local-p has its own selection, a softmax times a Gaussian; select is {selection}"
        soft, local_m = Setting("build_model", "select", "softmax"), Setting("build_model", "view", "local-m")
        raise ArgumentError(message(call, problem, hint=("use ", soft, " or ", local_m)))


def check_lstmn_translation(call: str, given: Any) -> None:
    known("fusion", given.fusion, ("shallow", "deep"))
    for option in given.attention:
        if option not in ("score", "select"):
            raise UnknownName(
                f"argument of {call}", option, {*given.names, "score", "select"} - {"attention"}
            )
    sizes = {"source_size": given.source_size, "target_size": given.target_size}
    sizes["embedding"] = given.width if given.embedding is None else given.embedding
    positive(call, given.dropout, **sizes_in(given, "width", "depth"), **sizes)


def check_transformer(call: str, given: Any) -> None:
    known("norm", given.norm, NORMS)
    known("tie", given.tie, TIES)
    if given.tie == "all" and given.source_size != given.target_size:
        problem = f'tie="all" needs equal vocabulary sizes, got {given.source_size} and {given.target_size}'
        hint = ("train one tokenizer on both sides, or use ", Setting("build_model", "tie", "output"))
        raise ArgumentError(message(call, problem, hint=hint))
    for each in (given.dropout, given.dropout if given.inner_dropout is None else given.inner_dropout):
        positive(call, each, **sizes_in(given, "source_size", "target_size"))
    if given.longest < 2:
        problem, expected = f"longest is {given.longest}", "2 or more: one token and EOS"
        raise ArgumentError(message(call, problem, expected=expected))


def check_transformer_language(call: str, given: Any) -> None:
    for each in (given.dropout, given.dropout if given.inner_dropout is None else given.inner_dropout):
        positive(call, each, **sizes_in(given, "vocabulary_size", "longest"))
    known("norm", given.norm, NORMS)
    layers = find_size(given.size, call).decoder_layers
    if layers is not None:
        problem = f"decoder_layers is {layers}, but a language model has only `layers`"
        raise ArgumentError(message(call, problem, hint=("use ", Setting("build_model", "layers"))))


def check_transformer_classifier(call: str, given: Any) -> None:
    known("norm", given.norm, NORMS)
    check_pooling(call, given.pooling, ("mean", "first", "attention"))
    if given.longest < 3:
        problem, expected = f"longest is {given.longest}", "3 or more: BOS, one token and EOS"
        raise ArgumentError(message(call, problem, expected=expected))
    find_size(given.size, call)


def check_recurrent_classifier(call: str, given: Any) -> None:
    check_pooling(call, given.pooling, ("mean", "last", "attention"), given.attention, given.names)
    positive(call, given.dropout, **sizes_in(given, "width", "layers"))


def check_lstmn_classifier(call: str, given: Any) -> None:
    check_recurrent_classifier(call, given)
    positive(call, embedding=given.width if given.embedding is None else given.embedding)


def check_classifier(call: str, given: Any) -> None:
    positive(call, given.dropout, **sizes_in(given, "vocabulary_size", "features", "hidden"))
    if isinstance(given.classes, bool) or not isinstance(given.classes, int) or given.classes < 2:
        raise ArgumentError(message(call, f"classes is {given.classes!r}", expected="an integer, 2 or more"))
    if isinstance(given.word_dropout, bool) or not 0 <= given.word_dropout < 1:
        problem = f"word_dropout is {given.word_dropout!r}"
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


def check_language(call: str, given: Any) -> None:
    positive(call, vocabulary_size=given.vocabulary_size)


def check_tie(call: str, given: Any) -> None:
    inputs, width = given.sizes[1:]
    if given.tie and inputs != width:
        problem = f"tie=True, but embedding is {inputs} and width is {width}"
        raise ArgumentError(message(call, problem, expected="embedding = width"))


def check_bound(bound: float) -> None:
    """Check the argument of initialize_uniform()."""
    if not 0 < bound < float("inf"):
        problem = f"bound is {bound!r}"
        raise ArgumentError(message("initialize_uniform()", problem, expected="a finite number above 0"))


def check_lstmn_language(call: str, given: Any) -> None:
    inputs = given.width if given.embedding is None else given.embedding
    positive(call, given.dropout, **sizes_in(given, "vocabulary_size", "width", "depth"), embedding=inputs)
    if isinstance(given.tape, str) and given.tape != "window":
        expected = 'an integer, 1 or more, or "window"'
        raise ArgumentError(message(call, f"tape is {given.tape!r}", expected=expected))


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


def check_captioner(call: str, given: Any) -> None:
    positive(call, given.dropout, **sizes_in(given, "vocabulary_size", "width", "embedding"))
    known("query", given.query, ("word", "state"))


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


def check_story_model(call: str, given: Any) -> None:
    """Check the arguments that all memory networks have.

    The vocabulary has padding, the unknown word and all answers, so its size must be 2 + answers or more.
    """
    positive(call, **sizes_in(given, "vocabulary_size", "answers", "sentences"))
    if given.vocabulary_size < 2 + given.answers:
        problem = f"vocabulary_size is {given.vocabulary_size}, but there are {given.answers} answers"
        raise ArgumentError(message(call, problem, expected=f"{2 + given.answers} words or more"))
    positive(call, **sizes_in(given, "width", "hops"))
    known("encoding", given.encoding, ENCODINGS)
    if not isinstance(given.time, bool):
        raise ArgumentError(message(call, f"time is {given.time!r}", expected="true or false"))


def check_memory_network(call: str, given: Any) -> None:
    check_story_model(call, given)
    if len(given.padding) != 2 or not all(type(size) is int and size >= 0 for size in given.padding):
        raise ArgumentError(message(call, f"padding is {given.padding!r}", expected="two sizes, 0 or more"))
    known("tying", given.tying, ("adjacent", "layer-wise"))
    if isinstance(given.noise, bool) or not isinstance(given.noise, int | float) or not 0 <= given.noise <= 1:
        raise ArgumentError(message(call, f"noise is {given.noise!r}", expected="0 <= noise <= 1"))


def check_supervised_memory_network(call: str, given: Any) -> None:
    check_story_model(call, given)
    if (
        isinstance(given.margin, bool)
        or not isinstance(given.margin, int | float)
        or not 0 < given.margin < float("inf")
    ):
        raise ArgumentError(message(call, f"margin is {given.margin!r}", expected="a number greater than 0"))


def check_recurrent_sequence(call: str, given: Any) -> None:
    positive(call, **sizes_in(given, "input_size", "target_size", "depth"))
    positive(call, parameters=1 if given.parameters is None else given.parameters)


def check_turing_machine(call: str, given: Any) -> None:
    known("controller", given.controller, ("lstm", "feedforward"))
    known("initial_heads", given.initial_heads, ("neutral", "forward"))
    positive(call, **sizes_in(given, "input_size", "target_size", "width", "slots"))


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
