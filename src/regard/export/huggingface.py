"""Export to Hugging Face: post-norm translators to Marian, pre-norm ones to Pegasus, language models to GPT-2
or GPT-NeoX, and the tokenizers to tokenizer.json.

What the models of transformers do differently, and what this file does about it:

- Marian and Pegasus have concatenated sinusoids (all sines, then all cosines), ours alternate. So all
  dimensions of the residual stream are permuted: even ones first, then odd ones.
- Marian and Pegasus have one vocabulary. Separate ones are concatenated; the output bias of source tokens is
  -1e9.
- GPT-2 and GPT-NeoX do not multiply the embeddings by sqrt(M), and their output layer has no bias. Both are
  folded into the weights, see _folded_output().
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from regard.data.batch import BOS, EOS, PAD, UNK, Batch, TextBatch
from regard.data.tokenizers import Tokenizer
from regard.decoding import Average, Beam, Greedy, Prompts, Rules, search
from regard.errors import ArgumentError, DataError, message, shown
from regard.export.folded_query import SCORES, folded_query
from regard.export.target import ANY, Allowed, Check, Target, compared, only, side_tokenizers
from regard.export.tokenizer_json import NAMES, build_tokenizer, check_tokenizer
from regard.layers.multihead import MultiHead
from regard.positions import Rotary

LONGEST = 1024
"""Number of positions of models whose scheme has no maximum."""

NEVER = -1e9
"""The output bias of tokens that are never generated."""

BEAM = 5

SELECT = only("softmax", reason="transformers only has softmax", nearest="select=softmax")
ACTIVATION = only("relu", "gelu", reason="these models have no gated layers", nearest="activation=relu")
SHARED: dict[str, Allowed] = {
    "size": ANY,
    "activation": ACTIVATION,
    "dropout": ANY,
    "inner_dropout": ANY,
    "longest": ANY,
    "score": SCORES,
    "select": SELECT,
}
TRANSLATION = {
    **SHARED,
    "norm": only("pre", "post"),
    "tie": only("none", "output", "all"),
    "without": only(reason="Marian and Pegasus have these parts in every layer", nearest="without=[]"),
    "position": only(
        "sinusoidal", reason="Marian and Pegasus only have sinusoids", nearest="position=sinusoidal"
    ),
}
LANGUAGE = {
    **SHARED,
    "norm": only("pre", reason="GPT-2 and GPT-NeoX are pre-norm models", nearest="norm=pre"),
    "tie": ANY,
    "position": Allowed(
        {
            "sinusoidal": ("base",),
            "learned": ("length",),
            "noise": ("length", "seed"),
            "none": (),
            "rotary": ("base",),
        },
        "GPT-2 has a table of positions, GPT-NeoX has rotary positions",
        "position=sinusoidal, learned or rotary",
    ),
}


class HuggingFace(Target):
    """A folder that AutoTokenizer and AutoModelForSeq2SeqLM or AutoModelForCausalLM load."""

    name, title = "huggingface", "Hugging Face"
    extra, packages = "huggingface", ("transformers",)
    quantizations = ("float16",)
    licences = ("transformers, which runs the model: Apache-2.0",)
    allowed = MappingProxyType(
        {("translation", "transformer"): TRANSLATION, ("language", "transformer"): LANGUAGE}
    )

    def check(self) -> None:
        super().check()
        for name, tokenizer in side_tokenizers(self.run).items():
            check_tokenizer("export to huggingface", name, tokenizer)
        if self._translates and self.run.model.width % 2:
            problem = f"width is {self.run.model.width}: Marian and Pegasus need an even width"
            raise ArgumentError(message("export to huggingface", problem))

    def write(self, folder: Path) -> None:
        from transformers import GenerationConfig, PreTrainedTokenizerFast

        run = self.run
        tokenizers = _distinct(run)
        model = (build_translation_twin if self._translates else build_language_twin)(run.model, tokenizers)
        shift = len(tokenizers) > 1 and tokenizers[0].size
        common = {
            "pad_token_id": PAD,
            "bos_token_id": BOS + shift,
            "eos_token_id": EOS + shift,
            "suppress_tokens": [PAD + shift, UNK + shift, BOS + shift],
        }
        if self._translates:
            # The same search as Beam(5, length=Average(1.0)).
            search_options = {"num_beams": BEAM, "length_penalty": 1.0, "early_stopping": "never"}
            longest = {"decoder_start_token_id": BOS + shift, "max_length": 256}
            model.generation_config = GenerationConfig(**common, **search_options, **longest)
        else:
            first = run.first_token
            model.generation_config = GenerationConfig(
                **{**common, "bos_token_id": first}, max_new_tokens=100
            )
        try:
            (model.half() if self.quantization else model).save_pretrained(folder)
            fast = build_tokenizer(tokenizers, ends=self._translates)
            prefix = " " if shift else ""
            PreTrainedTokenizerFast(
                tokenizer_object=fast,
                bos_token=prefix + NAMES[BOS],
                eos_token=prefix + NAMES[EOS],
                unk_token=NAMES[UNK],
                pad_token=NAMES[PAD],
                clean_up_tokenization_spaces=False,
                split_special_tokens=True,  # "<s>" in a text is not the token
                padding_side="right" if self._translates else "left",
            ).save_pretrained(folder)
        except SafetensorError as error:
            raise DataError(message(shown(folder), f"the weights could not be written: {error}")) from None

    def verify(self, folder: Path, texts: Sequence[str]) -> Check:
        from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        kind = AutoModelForSeq2SeqLM if self._translates else AutoModelForCausalLM
        model = kind.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.no_grad():
            return (_check_translation if self._translates else _check_language)(
                self.run, model, tokenizer, texts
            )

    def usage(self) -> str:
        kind = "AutoModelForSeq2SeqLM" if self._translates else "AutoModelForCausalLM"
        start = "" if self._translates else ", max_new_tokens=50"
        text = "A sentence."
        inputs = f'inputs = tokenizer("{text}", return_tensors="pt", return_token_type_ids=False)'
        first = []
        if not self._translates:
            first = [
                f"first = torch.tensor([[{self.run.first_token}]])",
                'ids = torch.cat((first, tokenizer("A sentence.", return_tensors="pt").input_ids), 1)',
            ]
        lines = [
            *["import torch"] * (not self._translates),
            f"from transformers import AutoTokenizer, {kind}",
            "",
            'tokenizer = AutoTokenizer.from_pretrained(".")',
            f'model = {kind}.from_pretrained(".")',
            *([inputs] if self._translates else first),
            f"output = model.generate({'**inputs' if self._translates else 'ids'}{start})",
            "print(tokenizer.decode(output[0], skip_special_tokens=True))",
        ]
        return "\n".join(lines)

    def lost(self) -> tuple[str, ...]:
        parts = [
            "Names of attention sites and alignments; regard view --huggingface draws this model.",
            f"Texts of more than {_positions(self.run.model)} tokens.",
            "A text with <0x41> and the like is read as bytes." if _has_bytes(self.run) else "",
            f"Weights are rounded to {self.quantization}." if self.quantization else "",
        ]
        if self._translates:
            parts += [
                "The length penalty of Regard (GNMT): generation_config.json has that of --length-penalty "
                "average:1.",
                "The limit of 2 * source length + 10 tokens: generate() has one limit for a batch.",
            ]
        return tuple(filter(None, parts))

    @property
    def _translates(self) -> bool:
        return bool(self.run.settings.task == "translation")


def _distinct(run: Any) -> list[Tokenizer]:
    """Return the tokenizers, one if source and target tokens have the same ids and embeddings."""
    tokenizers = list(side_tokenizers(run).values())
    shared = len(tokenizers) > 1 and tokenizers[0].fingerprint == tokenizers[1].fingerprint
    return tokenizers[:1] if shared and run.model.source is run.model.target else tokenizers


def _has_bytes(run: Any) -> bool:
    return any(each.bytewise for each in side_tokenizers(run).values())


def _positions(model: Any) -> int:
    return min(LONGEST, *(each for each in (model.longest_source, model.longest_target) if each), LONGEST)


def build_translation_twin(model: Any, tokenizers: Sequence[Tokenizer]) -> Any:
    """Return a MarianMTModel (post-norm) or PegasusForConditionalGeneration (pre-norm) with equal outputs.

    tokenizers: one tokenizer for a shared vocabulary, or those of source and target.
    """
    from transformers import MarianConfig, MarianMTModel, PegasusConfig, PegasusForConditionalGeneration

    pre, itself = model.encoder[0].pre, model.encoder[0].itself
    separate = len(tokenizers) > 1
    source_size = tokenizers[0].size if separate else 0
    size = source_size + model.target_size
    inner = model.encoder[0].feedforward
    options: dict[str, Any] = {
        "vocab_size": size,
        "d_model": model.width,
        "encoder_layers": len(model.encoder),
        "decoder_layers": len(model.decoder),
        "encoder_attention_heads": itself.heads,
        "decoder_attention_heads": itself.heads,
        "encoder_ffn_dim": inner.inner.out_features,
        "decoder_ffn_dim": inner.inner.out_features,
        "activation_function": inner.activation,
        "max_position_embeddings": LONGEST,
        "scale_embedding": True,
        "tie_word_embeddings": model.output.weight is model.target.weight,
        "pad_token_id": PAD,
        "bos_token_id": BOS + source_size,
        "eos_token_id": EOS + source_size,
        "forced_eos_token_id": None,
        "decoder_start_token_id": BOS + source_size,
        "dropout": model.dropout.p,
    }
    config = PegasusConfig(**options) if pre else MarianConfig(**options, decoder_vocab_size=size)
    twin: Any = (PegasusForConditionalGeneration if pre else MarianMTModel)(config)
    order = torch.cat((torch.arange(0, model.width, 2), torch.arange(1, model.width, 2)))

    embedding = model.target.weight[:, order]
    output, bias = model.output.weight[:, order], model.output.bias
    if separate:
        sources = model.source.weight[:, order]
        embedding = torch.cat((sources, embedding))
        output = torch.cat((sources if options["tie_word_embeddings"] else 0 * sources, output))
        bias = torch.cat((torch.full((source_size,), NEVER), bias))
    weights = {
        "model.shared.weight": embedding,
        "model.encoder.embed_tokens.weight": embedding,
        "model.decoder.embed_tokens.weight": embedding,
        "lm_head.weight": output,
        "final_logits_bias": bias[None],
    }
    for side in ("encoder", "decoder"):
        if pre:
            _put_norm(weights, f"model.{side}.layer_norm", getattr(model, f"{side[:-1]}d"), order)
        for number, layer in enumerate(getattr(model, side)):
            place = f"model.{side}.layers.{number}"
            _put_attention(weights, f"{place}.self_attn", layer.itself, order)
            _put_norm(weights, f"{place}.self_attn_layer_norm", layer.norms[0], order)
            if layer.cross is not None:
                _put_attention(weights, f"{place}.encoder_attn", layer.cross, order)
                _put_norm(weights, f"{place}.encoder_attn_layer_norm", layer.norms[1], order)
            feeds = layer.feedforward
            weights[f"{place}.fc1.weight"] = feeds.inner.weight[:, order]
            weights[f"{place}.fc1.bias"] = feeds.inner.bias
            weights[f"{place}.fc2.weight"] = feeds.outer.weight[order]
            weights[f"{place}.fc2.bias"] = feeds.outer.bias[order]
            _put_norm(weights, f"{place}.final_layer_norm", layer.norms[-1], order)
    return _loaded(twin, weights, may_miss="embed_positions")


def _put_attention(weights: dict[str, Tensor], place: str, layer: MultiHead, order: Tensor) -> None:
    query, query_bias = folded_query(layer)
    linears = {"q_proj": (query, query_bias)}
    linears |= {
        "k_proj": (layer.key.weight, layer.key.bias),
        "v_proj": (layer.value.weight, layer.value.bias),
    }
    for name, (weight, bias) in linears.items():
        weights[f"{place}.{name}.weight"], weights[f"{place}.{name}.bias"] = weight[:, order], bias
    weights[f"{place}.out_proj.weight"] = layer.output.weight[order]
    weights[f"{place}.out_proj.bias"] = layer.output.bias[order]


def _put_norm(
    weights: dict[str, Tensor], place: str, norm: nn.LayerNorm, order: Tensor | slice = slice(None)
) -> None:
    weights[f"{place}.weight"], weights[f"{place}.bias"] = norm.weight[order], norm.bias[order]


def build_language_twin(model: Any, tokenizers: Sequence[Tokenizer] = ()) -> Any:
    """Return a GPT2LMHeadModel, or a GPTNeoXForCausalLM for rotary positions, with equal outputs."""
    from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM

    first, width = model.decoder[0], model.width
    rotary = isinstance(first.itself.position, Rotary)
    inner = first.feedforward.inner.out_features
    ids = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "tie_word_embeddings": False}
    eps = {"layer_norm_eps" if rotary else "layer_norm_epsilon": first.norms[0].eps}
    positions = _positions(model)
    weights = dict[str, Tensor]()
    embedding = model.embedding.weight * math.sqrt(width)
    if rotary:
        turn = {
            "rope_type": "default",
            "rope_theta": first.itself.position.base,
            "partial_rotary_factor": 1.0,
        }
        config: Any = GPTNeoXConfig(
            vocab_size=model.target_size,
            hidden_size=width,
            num_hidden_layers=len(model.decoder),
            num_attention_heads=first.itself.heads,
            intermediate_size=inner,
            hidden_act=first.feedforward.activation,
            max_position_embeddings=positions,
            use_parallel_residual=False,
            rope_parameters={**turn, "partial_rotary_factor": 1.0},
            **eps,
            **ids,
        )
        twin: Any = GPTNeoXForCausalLM(config)
        weights["gpt_neox.embed_in.weight"] = embedding
        end, stem = "gpt_neox.final_layer_norm", "gpt_neox.layers"
    else:
        config = GPT2Config(
            vocab_size=model.target_size,
            n_embd=width,
            n_layer=len(model.decoder),
            n_head=first.itself.heads,
            n_inner=inner,
            n_positions=positions,
            activation_function=first.feedforward.activation,
            **eps,
            **ids,
        )
        twin = GPT2LMHeadModel(config)
        table = torch.zeros(positions, width)
        if model.position is not None:
            table = model.position.rows(0, positions, table)
        weights |= {"transformer.wte.weight": embedding, "transformer.wpe.weight": table}
        end, stem = "transformer.ln_f", "transformer.h"
    for number, layer in enumerate(model.decoder):
        place, attention, feeds = f"{stem}.{number}", layer.itself, layer.feedforward
        parts = [
            folded_query(attention),
            *((each.weight, each.bias) for each in (attention.key, attention.value)),
        ]
        if rotary:  # for each head: query, key, value
            names = {"qkv": "attention.query_key_value", "out": "attention.dense"}
            names |= {"up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h"}
            norms = "input_layernorm", "post_attention_layernorm"
            heads = [
                (weight.unflatten(0, (attention.heads, -1)), bias.unflatten(0, (attention.heads, -1)))
                for weight, bias in parts
            ]
            joined = [torch.stack([each[n] for each in heads], 1).flatten(0, 2) for n in range(2)]
        else:
            names = {"qkv": "attn.c_attn", "out": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"}
            norms = "ln_1", "ln_2"
            joined = [torch.cat([each[n] for each in parts]) for n in range(2)]
        matrices = {"qkv": joined} | {
            name: [linear.weight, linear.bias]
            for name, linear in (("out", attention.output), ("up", feeds.inner), ("down", feeds.outer))
        }
        for name, (weight, bias) in matrices.items():
            weights[f"{place}.{names[name]}.weight"] = weight if rotary else weight.T
            weights[f"{place}.{names[name]}.bias"] = bias
        for name, norm in zip(norms, layer.norms, strict=True):
            _put_norm(weights, f"{place}.{name}", norm)
    weights["lm_head.weight"], final = _folded_output(model)
    weights[f"{end}.weight"], weights[f"{end}.bias"] = model.decoded.weight, final
    return _loaded(twin, weights)


def _folded_output(model: Any) -> tuple[Tensor, Tensor]:
    """Return an output matrix W' and a bias beta' of the last LayerNorm that need no output bias b.

    The LayerNorm returns gamma x + beta, where the elements of x sum to 0. With beta' = beta + gamma,
    W'_vi = W_vi + c_v t / gamma_i,  t = 1 / (M + sum_i beta_i / gamma_i)  and  c = b - W gamma, the logits
    W' (gamma x + beta') are W (gamma x + beta) + b: the sum of x vanishes, and c_v times t times the sum of
    beta'_i / gamma_i is c_v.
    """
    gamma, beta = (each.detach().double() for each in (model.decoded.weight, model.decoded.bias))
    matrix, bias = model.output.weight.detach().double(), model.output.bias.detach().double()
    gamma = torch.where(gamma.abs() < 1e-6, 1e-6, gamma)
    share = 1 / (len(gamma) + (beta / gamma).sum())
    folded = matrix + (bias - matrix @ gamma)[:, None] * share / gamma
    return folded.float(), (beta + gamma).float()


def _loaded(twin: Any, weights: Mapping[str, Tensor], may_miss: str = "no weight") -> Any:
    """Load weights into a model of transformers; every weight of both must have its counterpart."""
    contiguous = {name: weight.detach().contiguous().clone() for name, weight in weights.items()}
    missing, unexpected = twin.load_state_dict(contiguous, strict=False)
    left = [name for name in missing if may_miss not in name]
    if left or unexpected:
        raise RuntimeError(
            f"weights without counterpart: {left} {unexpected}"
        )  # another version of transformers
    return twin.eval()


def _check_translation(run: Any, model: Any, tokenizer: Any, texts: Sequence[str]) -> Check:
    """Compare ids, logits, and translations with beam size 5, batch by batch of equal source lengths."""
    lines = [run.prepare(text) for text in texts]
    shift = model.config.eos_token_id - EOS
    search_ = Beam(BEAM, length=Average(1.0))
    ours = [each.text for each in run.translate(lines, search=search_, look=None)]
    encoded = [[*ids, EOS] for ids in run.source_tokenizer.encode_lines(lines)]
    theirs, largest = [""] * len(lines), 0.0
    by_length: dict[int, list[int]] = {}
    for row, ids in enumerate(encoded):
        by_length.setdefault(len(ids), []).append(row)
    for length, rows in by_length.items():
        if length == 1 or length > run.longest:
            for row in rows:
                theirs[row] = ours[row]  # blank, or split by Regard
            continue
        inputs = tokenizer([lines[row] for row in rows], return_tensors="pt", padding=True)
        if inputs["input_ids"].tolist() != [encoded[row] for row in rows]:
            continue  # other ids count as a difference
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        output = model.generate(
            input_ids=ids, attention_mask=mask, max_length=None, max_new_tokens=2 * length + 10
        )
        for row, text in zip(rows, tokenizer.batch_decode(output, skip_special_tokens=True), strict=True):
            theirs[row] = text
        target = run.target_tokenizer.encode_lines([ours[row] for row in rows])
        batch = Batch.collate([encoded[row][:-1] for row in rows], target)
        logits = model(input_ids=ids, attention_mask=mask, decoder_input_ids=batch.inputs + shift).logits
        difference = (logits[..., shift:] - run.model(batch)).abs()
        real = torch.arange(difference.shape[1]) < batch.target_lengths[:, None]
        largest = max(largest, float(difference[real].max()))
    pairs = run.score([*lines, *lines], [*ours, *theirs], look=None) if ours != theirs else None
    scores = [each.score for each in pairs] if pairs else [0.0] * 2 * len(lines)
    check = compared(
        f"translations, beam size {BEAM}, length penalty average:1; logits",
        lines,
        list(zip(ours, scores[: len(lines)], strict=True)),
        list(zip(theirs, scores[len(lines) :], strict=True)),
    )
    return Check(check.what, check.count, check.differences, largest)


def _check_language(run: Any, model: Any, tokenizer: Any, texts: Sequence[str]) -> Check:
    """Compare ids, logits, and greedy continuations of the first four tokens of each text."""
    ours, theirs, largest = [], [], 0.0
    for text in texts:
        ids = run.tokenizer.encode(text)
        same = tokenizer(text)["input_ids"] == ids
        tokens = [run.first_token, *ids[:4]]
        (best,), *_ = search(run.model, Prompts.collate([tokens]), Greedy(Rules(maximum=20)), look=None)
        start = torch.tensor([tokens])
        output = model.generate(
            start, attention_mask=torch.ones_like(start), max_new_tokens=20, do_sample=False
        )
        found = [each for each in output[0, len(tokens) :].tolist() if each not in (EOS, PAD)]
        ours.append((run.tokenizer.decode(best.output_tokens), best.score))
        theirs.append((run.tokenizer.decode(found) if same else "", best.score))
        batch = TextBatch.collate([ids])
        difference = (model(batch.inputs).logits - run.model(batch)).abs()
        largest = max(largest, float(difference.max()))
    check = compared("greedy continuations of 4 tokens; logits", texts, ours, theirs)
    return Check(check.what, check.count, check.differences, largest)
