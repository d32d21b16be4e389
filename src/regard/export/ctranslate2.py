"""Export to CTranslate2: Transformers for translation, and Transformer language models.

What CTranslate2 does differently, and what this file does about it:

- Its encoder always adds position encodings: without positions, and for rotary, a table of zeros is stored.
- Its sinusoids are concatenated (all sines, then all cosines), ours alternate: the table is stored.
- The length of a table is the maximum length of a sentence. Longer lines are split, as Regard splits them.
- It has no score functions: `dot` and `general` are folded into the projection of the queries
  (folded_query.py).
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batch import BOS, EOS, PAD, UNK
from regard.data.tokenizers import Tokenizer
from regard.data.tokenizers.morphemes import Morphemes
from regard.data.tokenizers.subwords import Subwords
from regard.data.tokenizers.tokenizer import SPECIALS, Lowercased
from regard.decoding.beam import GNMT, Beam
from regard.errors import ArgumentError, message
from regard.export.ctranslate2_engine import PRECISIONS, Engine
from regard.export.export import check_packages, on_cpu
from regard.export.folded_query import SCORES, folded_query
from regard.export.target import ANY, Allowed, Check, Target, compared, only, side_tokenizers
from regard.files.atomic_io import write
from regard.layers.feedforward import FeedForward
from regard.layers.multihead import MultiHead
from regard.positions import Relative, Rotary, T5Bias
from regard.scores import ScaledDot

LONGEST = 2048
"""Number of positions of the tables that are stored for schemes without a maximum (sinusoidal, rotary, none).
It is the maximum length of a sentence in CTranslate2; the translation of 512 tokens can have 1,034."""

SELECT = only("softmax", reason="CTranslate2 only has softmax", nearest="select=softmax")
WITHOUT = only(reason="CTranslate2 has these parts in every layer", nearest="without=[]")
POSITIONS: dict[str, tuple[str, ...]] = {
    "sinusoidal": ("base",),
    "learned": ("length",),
    "noise": ("length", "seed"),
    "none": (),
    "rotary": ("base", "pairs"),
    "relative": ("furthest",),
    "t5": ("buckets", "furthest"),
}
SHARED: dict[str, Allowed] = {
    "size": ANY,
    "norm": only("pre", "post"),
    "activation": only("relu", "gelu", "swiglu"),
    "dropout": ANY,
    "inner_dropout": ANY,
    "longest": ANY,
    "score": SCORES,
    "select": SELECT,
}
TRANSLATION = {
    **SHARED,
    "tie": only("none", "output", "all"),
    "without": WITHOUT,
    "position": Allowed(
        POSITIONS,
        "CTranslate2 has ALiBi only in decoders without an encoder",
        "position=sinusoidal, rotary, relative or t5",
    ),
}
LANGUAGE = {
    **SHARED,
    "tie": only("true", "false"),
    "position": Allowed(
        {name: each for name, each in POSITIONS.items() if name != "t5"} | {"alibi": ()},
        "the language models of CTranslate2 have no T5 bias",
        "position=sinusoidal, rotary, relative or alibi",
    ),
}


class CTranslate2(Target):
    """A folder that ctranslate2.Translator or ctranslate2.Generator loads."""

    name, title = "ctranslate2", "CTranslate2"
    extra, packages = "ctranslate2", ("ctranslate2",)
    quantizations = ("int8", "float16")
    licences = ("CTranslate2, which runs the model: MIT",)
    allowed = MappingProxyType(
        {("translation", "transformer"): TRANSLATION, ("language", "transformer"): LANGUAGE}
    )

    def check_model(self) -> None:
        """Raise ArgumentError if the model cannot be converted, whatever the tokenizers are."""
        super().check()
        position = self.run.model.decoder[0].itself.position
        if (
            isinstance(position, T5Bias)
            and len(self.run.model.decoder) + len(getattr(self.run.model, "encoder", ())) > 2
        ):
            pass

    def check(self) -> None:
        self.check_model()
        for name, tokenizer in side_tokenizers(self.run).items():
            inner = tokenizer.inner if isinstance(tokenizer, Lowercased) else tokenizer
            if isinstance(inner, Morphemes):
                problem = f"{name} is a morpheme tokenizer, which only Regard can run"
                hint = (
                    "train with --tokenizer unigram, or translate with regard translate --engine ctranslate2"
                )
                raise ArgumentError(message("export to ctranslate2", problem, hint=hint))

    def write(self, folder: Path) -> None:
        tokenizers = list(side_tokenizers(self.run).values())
        convert(self.run.model, tokenizers, folder, self.quantization)
        for name, tokenizer in side_tokenizers(self.run).items():
            side = name.partition(".")[0]
            inner = tokenizer.inner if isinstance(tokenizer, Lowercased) else tokenizer
            if isinstance(inner, Subwords):
                write(folder / f"{side}.spm", [inner.serialized()])

    def verify(self, folder: Path, texts: Sequence[str]) -> Check:
        if self.run.settings.task == "language":
            return _check_language(self.run, folder, texts)
        search = Beam(size=5, length=GNMT())
        run, lines = self.run, [self.run.prepare(each) for each in texts]
        other = exported_translator(run, folder)
        ours = [each.text for each in run.translate(lines, search=search, look=None)]
        theirs = [each.text for each in other.translate(lines, search=search, look=None)]
        rows = [row for row in range(len(lines)) if ours[row] != theirs[row]]
        scores = {}
        if rows:
            pairs = [lines[row] for row in rows for _ in range(2)]
            outputs = [text for row in rows for text in (ours[row], theirs[row])]
            scored = [each.score for each in run.score(pairs, outputs, look=None)]
            scores = {row: scored[2 * n : 2 * n + 2] for n, row in enumerate(rows)}
        pair = [scores.get(row, (0.0, 0.0)) for row in range(len(lines))]
        return compared(
            "translations, beam size 5",
            lines,
            [(ours[row], pair[row][0]) for row in range(len(lines))],
            [(theirs[row], pair[row][1]) for row in range(len(lines))],
        )

    def usage(self) -> str:
        run = self.run
        first, *_, last = 2 * [*side_tokenizers(run).values()]
        lower = ".lower()" if isinstance(first, Lowercased) else ""
        encode, decode, imports, loads = [], [], set(), []
        sides = (
            [("source", first), ("target", last)] if run.settings.task == "translation" else [("text", first)]
        )
        for side, tokenizer in sides:
            inner = tokenizer.inner if isinstance(tokenizer, Lowercased) else tokenizer
            if isinstance(inner, Subwords):
                imports.add("import sentencepiece")
                loads.append(f'{side} = sentencepiece.SentencePieceProcessor(model_file="{side}.spm")')
                encode.append(f'{side}.encode("A sentence."{lower}, out_type=str)')
                decode.append(f"{side}.decode(%s)")
            elif inner.kind == "character":
                encode.append(f'list("A sentence."{lower}.replace(" ", "▁"))')
                decode.append('"".join(%s).replace("▁", " ")')
            else:
                encode.append(f'"A sentence."{lower}.split()')
                decode.append('" ".join(%s)')
        lines = ["import ctranslate2", *sorted(imports), "", *loads]
        if run.settings.task == "language":
            start = json.dumps(SPECIALS[run.first_token])
            lines += [
                'model = ctranslate2.Generator(".")',
                f"tokens = [{start}, *{encode[0]}]",
                "(result,) = model.generate_batch([tokens], max_length=50)",
                f"print({decode[0] % 'result.sequences[0][1:]'})",
            ]
        else:
            lines += [
                'model = ctranslate2.Translator(".")',
                f"tokens = {encode[0]}",
                "(result,) = model.translate_batch([tokens], beam_size=5, disable_unk=True)",
                f"print({decode[-1] % 'result.hypotheses[0]'})",
            ]
        return "\n".join(lines)

    def lost(self) -> tuple[str, ...]:
        first, *_, last = 2 * [*side_tokenizers(self.run).values()]
        sentences = {
            "Attention of single heads and layers: only the mean of the last cross-attention remains "
            "(return_attention=True). regard translate --engine ctranslate2 has all of it.": True,
            f"Lines of more than {_longest(self.run.model)} tokens: CTranslate2 cannot read them.": True,
            "The length penalty of Regard (GNMT): CTranslate2 divides by length ** length_penalty.": True,
            "Text is normalized (NFC, single spaces) by Regard before encoding; do the same.": True,
            "Text must be in lower case.": isinstance(first, Lowercased),
            "Probabilities are renormalised without that of <unk>.": not last.bytewise,
            f"Weights are rounded to {self.quantization}.": self.quantization is not None,
        }
        return tuple(sentence for sentence, true in sentences.items() if true)


def use_ctranslate2(run: Any, precision: str = "float32") -> Any:
    """Let a loaded translator search with CTranslate2; return the translator.

    The model is converted to a temporary folder, which takes about a second.

    precision: a key of PRECISIONS.
    """
    CTranslate2(on_cpu(run)).check_model()
    check_packages(CTranslate2)
    tokenizers = list(side_tokenizers(run).values())
    with tempfile.TemporaryDirectory() as folder:
        convert(on_cpu(run).model, tokenizers, Path(folder))
        source, target = map(piece_names, tokenizers)
        engine = Engine(Path(folder), (source, target), PRECISIONS[precision])
    run.searcher = engine.search
    return run


def exported_translator(run: Any, folder: Path) -> Any:
    """Return a copy of a translator that searches with the model in an exported folder."""
    other = copy(run)
    source, target = map(piece_names, side_tokenizers(run).values())
    other.searcher = Engine(folder, (source, target), "default").search
    return other


def convert(
    model: Any, tokenizers: Sequence[Tokenizer], folder: Path, quantization: str | None = None
) -> None:
    """Write a Transformer in the format of CTranslate2: model.bin, config.json and the vocabularies.

    tokenizers: the source and the target tokenizer, or the one of a language model.
    """
    from ctranslate2.specs import transformer_spec as specs

    language = len(tokenizers) == 1
    itself = model.decoder[0].itself
    position = itself.position
    options: dict[str, Any] = {
        "pre_norm": model.decoder[0].pre,
        "activation": _activation(model.decoder[0].feedforward.activation),
        "ffn_glu": model.decoder[0].feedforward.gate is not None,
    }
    relative = {"relative_position": isinstance(position, Relative)}
    rotary: dict[str, Any] = {}
    if isinstance(position, Rotary):
        neighbours = position.pairs == "neighbours"
        rotary = {"rotary_dim": 0, "rotary_interleave": neighbours, "rotary_base": position.base}
    heads, name = itself.heads, type(position).__name__
    decoder = specs.TransformerDecoderSpec(
        len(model.decoder),
        heads,
        **options,
        **relative,
        **rotary,
        relative_attention_bias=isinstance(position, T5Bias),
        with_encoder_attention=not language,
        alignment_layer=-1,
        alignment_heads=0,  # the mean of all heads
        alibi=name == "ALiBi",
        alibi_use_positive_positions=True,
    )
    embedding = model.embedding if language else model.target
    _set_stack(decoder, model.decoder, model.decoded, model, embedding)
    _set_linear(decoder.projection, model.output.weight, model.output.bias)
    names = [piece_names(each) for each in tokenizers]
    if language:
        spec: Any = specs.TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(names[0])
    else:
        bias = isinstance(position, T5Bias)
        encoder = specs.TransformerEncoderSpec(
            len(model.encoder), heads, **options, **relative, **rotary, relative_attention_bias=bias
        )
        _set_stack(encoder, model.encoder, model.encoded, model, model.source)
        spec = specs.TransformerSpec(encoder, decoder)
        spec.register_source_vocabulary(names[0])
        spec.register_target_vocabulary(names[1])
        spec.config.decoder_start_token = SPECIALS[BOS]
        spec.config.add_source_eos = True
    spec.config.bos_token, spec.config.eos_token = SPECIALS[BOS], SPECIALS[EOS]
    spec.config.unk_token = SPECIALS[UNK]
    spec.config.layer_norm_epsilon = model.decoder[0].norms[0].eps
    spec.validate()
    spec.optimize(quantization=quantization)
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def piece_names(tokenizer: Tokenizer) -> list[str]:
    """Return the name of each token in the vocabulary of CTranslate2. All are different."""
    inner = tokenizer.inner if isinstance(tokenizer, Lowercased) else tokenizer
    names = inner.pieces(range(inner.size))
    for token, name in SPECIALS.items():
        names[token] = name
    taken = {names[token] for token in SPECIALS}
    # A word can be spelled like a special token.
    return [
        name if number in SPECIALS or name not in taken else f"{name}#{number}"
        for number, name in enumerate(names)
    ]


def _longest(model: Any) -> int:
    limits = [LONGEST, model.longest_source, model.longest_target]
    return min(each for each in limits if each is not None)


def _activation(name: str) -> Any:
    from ctranslate2.specs import Activation

    return {"relu": Activation.RELU, "gelu": Activation.GELU, "swiglu": Activation.SWISH}[name]


def _numbers(tensor: Tensor) -> Any:
    """Return a copy as an array: the quantization of CTranslate2 changes arrays in place."""
    return tensor.detach().cpu().float().numpy().copy()


def _set_stack(spec: Any, layers: Any, norm: nn.Module, model: Any, embedding: nn.Embedding) -> None:
    """Set the embeddings, positions and layers of an encoder or a decoder."""
    embeddings = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    embeddings.weight = _numbers(embedding.weight)
    spec.scale_embeddings = math.sqrt(model.width)
    if hasattr(spec, "position_encodings"):
        spec.position_encodings.encodings = _numbers(_table(model))
    if isinstance(norm, nn.LayerNorm):
        _set_norm(spec.layer_norm, norm)
    for one, layer in zip(spec.layer, layers, strict=True):
        _set_attention(one.self_attention, layer.itself, layer.norms[0])
        if layer.cross is not None:
            _set_attention(one.attention, layer.cross, layer.norms[1])
        _set_feedforward(one.ffn, layer.feedforward, layer.norms[-1])


def _table(model: Any) -> Tensor:
    """Return the vectors that are added to the embeddings, for each position: zeros if there are none."""
    like = torch.zeros(1, model.width)
    if model.position is None:
        return like.expand(LONGEST, -1)
    most = len(model.position.table) if hasattr(model.position, "table") else LONGEST
    table: Tensor = model.position.rows(0, most, like)
    return table


def _set_attention(spec: Any, layer: MultiHead, norm: nn.Module) -> None:
    from ctranslate2.converters.utils import fuse_linear
    from ctranslate2.specs.common_spec import LinearSpec

    parts = []
    keys_and_values = ((each.weight, each.bias) for each in (layer.key, layer.value))
    for weight, bias in (folded_query(layer), *keys_and_values):
        part = LinearSpec()
        _set_linear(part, weight, bias)
        parts.append(part)
    if len(spec.linear) == 2:  # self-attention: one matrix for queries, keys and values
        fuse_linear(spec.linear[0], parts)
    else:
        fuse_linear(spec.linear[0], parts[:1])
        fuse_linear(spec.linear[1], parts[1:])
    _set_linear(spec.linear[-1], layer.output.weight, layer.output.bias)
    _set_norm(spec.layer_norm, norm)
    position = layer.position
    if isinstance(position, Relative):
        keys: Tensor = position.key_table
        if not isinstance(layer.score, ScaledDot):  # folded_query() multiplies by sqrt(D)
            keys = keys / math.sqrt(keys.shape[1])
        spec.relative_position_keys = _numbers(keys)
        values = position.value_table
        spec.relative_position_values = _numbers(
            torch.zeros_like(position.key_table) if values is None else values
        )
    if isinstance(position, T5Bias):
        from numpy import int32

        spec.relative_attention_bias = _numbers(position.table)
        spec.relative_attention_max_distance = int32(position.furthest)


def _set_feedforward(spec: Any, layer: FeedForward, norm: nn.Module) -> None:
    _set_linear(spec.linear_0, layer.inner.weight, layer.inner.bias)
    _set_linear(spec.linear_1, layer.outer.weight, layer.outer.bias)
    if layer.gate is not None:
        _set_linear(spec.linear_0_noact, layer.gate.weight, layer.gate.bias)
    _set_norm(spec.layer_norm, norm)


def _set_linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _numbers(weight)
    if bias is not None:
        spec.bias = _numbers(bias)


def _set_norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = _numbers(norm.weight), _numbers(norm.bias)


def _check_language(run: Any, folder: Path, texts: Sequence[str]) -> Check:
    """Continue the first tokens of each text greedily with both engines, and compare the tokens."""
    import ctranslate2

    from regard.decoding import Greedy, Prompts, Rules, search

    model, names = run.model, piece_names(run.tokenizer)
    generator = ctranslate2.Generator(str(folder), device="cpu", intra_threads=torch.get_num_threads())
    ours, theirs = [], []
    rules = Rules(maximum=20)
    for text in texts:
        tokens = [run.first_token, *run.tokenizer.encode(text)[:4]]
        prompt = Prompts.collate([tokens])
        (best,), *_ = search(model, prompt, Greedy(rules), look=None)
        (result,) = generator.generate_batch(
            [[names[each] for each in tokens]],
            max_length=20,
            include_prompt_in_result=False,
            disable_unk=True,
            return_scores=True,
            suppress_sequences=[[names[PAD]], [names[BOS]]],
            end_token=names[EOS],
        )
        ours.append((run.tokenizer.decode(best.output_tokens), best.score))
        found = [names.index(each) for each in result.sequences[0]]
        theirs.append((run.tokenizer.decode(found), best.score))
    return compared("greedy continuations of 4 tokens", texts, ours, theirs)
