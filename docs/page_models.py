"""The settings tables of the pages on models: options and defaults from the code, one description each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

from page_tables import table

from regard.named_models import CLASSIFIERS, LANGUAGE_MODELS, PARTS, direct_options
from regard.options.attention_options import model_arguments
from regard.options.transformer_options import SIZES

RECURRENT = {
    "width": "size of the hidden states",
    "embedding": "size of the word embeddings; `None`: `width`",
    "cell": "`rnn` (tanh), `gru` or `lstm`",
    "depth": "number of recurrent layers",
    "dropout": "on embeddings, between layers and before the output layer",
}

SELECT = (
    "`softmax`, `sparsemax`, `entmax`, `gate`, `hard`, `best` or `straight-through`; "
    'with an option: `{"name": "softmax", "temperature": 0.5}`'
)

OPTIONS: dict[str, dict[str, str]] = {
    "seq2seq": {
        **RECURRENT,
        "context": "`first`: the source vector starts the decoder; `every`: it also enters every step",
        "reverse": "read the source words in reverse order",
    },
    "bahdanau": {
        "width": "size of the hidden states, $n$ in the paper",
        "embedding": "size of the word embeddings, $m$ in the paper; `None`: `width`",
        "hidden": "size of the alignment network, $n'$ in the paper; `None`: `width`",
        "encoder": "`gru`: `torch.nn.GRU`; `paper`: the paper's own cell, one step at a time",
        "dropout": "on embeddings, encoder states and the output layer",
        "score": "any [score](../mechanisms/index.md); `dot` and similar ones project the keys to `width`",
        "select": SELECT,
    },
    "luong": {
        **RECURRENT,
        "dropout": "on embeddings, encoder states, between layers and before the output layer",
        "score": "`dot`, `general`, `concat`, `location`, or any other [score](../mechanisms/index.md)",
        "select": f"{SELECT}; `local-p` has its own",
        "view": '`global`, `local-m` or `local-p`; with a window size: `{"name": "local-p", "reach": 4}`',
        "readout": "`attentional`: eq. 5 and 6; `affine`: one linear layer on $[c_t; h_t]$; `latent`: the "
        "exact sum over the attended word",
        "feeding": "input feeding, section 3.3; default `true`, but `false` with the readout `latent`",
        "both_ways": "a bidirectional encoder",
    },
    "lstmn": {
        "width": "size of the states and of the memory",
        "fusion": "`deep` or `shallow`: how the decoder uses the source, see above",
        "embedding": "size of the word embeddings; `None`: `width`",
        "depth": "number of layers of the encoder and of the decoder",
        "connections": "between layers: `plain`, `skip` or `gated`, see above",
        "both_ways": "a second encoder reads the source from the last word to the first, see above",
        "dropout": "on embeddings, encoder states, between layers and in the output layer",
        "score": "of the attention to the source: any [score](../mechanisms/index.md)",
        "select": f"of the attention to the source: {SELECT}",
    },
    "transformer": {
        "size": "`tiny`, `small`, `base` or `big`, see above",
        "width": "overrides the width of `size`",
        "heads": "overrides the number of heads",
        "inner": "overrides the width of the feed-forward layers",
        "layers": "overrides the number of encoder layers",
        "decoder_layers": "number of decoder layers; `None`: as many as encoder layers",
        "position": "any [position scheme](../mechanisms/positions.md), or `none`",
        "norm": "`pre` or `post` (the paper's)",
        "activation": "`relu`, `gelu` or `swiglu`",
        "tie": "what shares the output weights: `none`, `output` (target embeddings) or `all` (both)",
        "dropout": "on embeddings and on the output of each sublayer",
        "inner_dropout": "on attention weights and inside the feed-forward layers; `None`: `dropout`",
        "longest": "number of positions of schemes that have a table (`noise`, `learned`)",
        "score": "any [score](../mechanisms/index.md), in every attention layer",
        "select": f"{SELECT}, in every attention layer",
        "without": "parts to leave out: `causal-mask`, `feed-forward`, `projections` (keys and values)",
    },
}
"""What each option of a model in MODELS means; a test checks that these are all options and no others."""


LSTMN_OPTIONS = {
    "fusion": "translation: `deep` or `shallow`, how the decoder uses the source, see above",
    "width": "size of the states and of the memory",
    "embedding": "size of the word embeddings; `None`: `width`",
    "hidden": "language models: size of the tanh layer of the score; `None`: `width`",
    "depth": "translation and language models: number of layers",
    "layers": "classifiers: number of layers",
    "connections": "between layers: `plain`, `skip` or `gated`, see above",
    "both_ways": "translation: a second encoder reads the source from the last word to the first, see above",
    "tape": "language models: number of past words that a word can attend to, or `window`, see above",
    "dropout": "on embeddings, between layers, and on what the output layer reads",
    "tie": "language models: embedding and output layer share their weights",
    "uniform": "language models: bound of uniform initial weights; `None`: see above",
    "pooling": "classifiers: `attention`, `mean` (the paper's) or `last`",
    "word_dropout": "classifiers: probability of replacing a word by the unknown word in training",
    "pairs": "classifiers: whether a line has two texts; set by the task",
    "score": "[score](../mechanisms/index.md) of the attention to the source, or of the pooling",
    "select": f"selection of the same attention: {SELECT}",
}
"""What each option of the three models lstmn means: of translation, of language models and of classifiers."""


def lstmn_settings() -> str:
    """Return the settings table of lstmn, with the defaults of each of its three models."""
    translation = direct_options("lstmn") | {"score": "additive"}
    language = model_arguments(LANGUAGE_MODELS["lstmn"], 1)
    classifier = model_arguments(CLASSIFIERS["lstmn"], 2) | {"score": "additive"}
    if {*translation, *language, *classifier} != set(LSTMN_OPTIONS):
        differing = {*translation, *language, *classifier} ^ set(LSTMN_OPTIONS)
        raise KeyError(f"LSTMN_OPTIONS and the models differ in {sorted(differing)}")
    rows = [
        (f"`{name}`", *(_default(name, options) for options in (translation, language, classifier)), meaning)
        for name, meaning in LSTMN_OPTIONS.items()
    ]
    return table(("setting", "translation", "language model", "classifier", "meaning"), rows)


def _default(name: str, options: dict[str, Any]) -> str:
    """Return the default of an option for a table: "-" if there is no such option."""
    return f"`{_toml(options[name])}`" if name in options else "-"


def defaults(model: str) -> dict[str, Any]:
    """Return the options of a model with their defaults, as in build_model() and `--set model.NAME=...`."""
    part, whole = PARTS.get(model, ("", None))
    options: dict[str, Any] = {}
    for name, default in direct_options(model).items():
        if name != part or isinstance(default, str):
            options[name] = default
        if name == part and is_dataclass(whole):
            inside = {field.name: getattr(whole, field.name) for field in fields(whole)}
            # A named size has its own numbers; the options only override them.
            options |= dict.fromkeys(inside) if isinstance(default, str) else inside
    return options


def settings(model: str) -> str:
    """Return the settings table of one model."""
    options, about = defaults(model), OPTIONS[model]
    if set(options) != set(about):
        raise KeyError(f"OPTIONS[{model!r}] and the model differ in {sorted(set(options) ^ set(about))}")
    rows = [
        (f"`{name}`", f"`{_toml(value)}`" if value is not None else "", about[name])
        for name, value in options.items()
    ]
    return table(("setting", "default", "meaning"), rows)


def sizes() -> str:
    """Return the table of the named sizes of the Transformer."""
    rows = [
        (f"`{name}`", *(f"{getattr(size, each):,}" for each in ("width", "heads", "inner", "layers")))
        for name, size in SIZES.items()
    ]
    return table(("size", "width", "heads", "inner", "layers, each side"), rows)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return str(list(value)) if isinstance(value, tuple) else str(value)


MODEL_TABLES: dict[str, Callable[[], str]] = {
    **{f"{model}_settings": partial(settings, model) for model in OPTIONS},
    "lstmn_settings": lstmn_settings,
    "transformer_sizes": sizes,
}
