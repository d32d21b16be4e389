"""Export to ONNX: an encoder and one decoding step with its state, with dynamic batch size and lengths.

    encoder(source (B, S), lengths (B,))                  -> memory.*, state.*
    step(tokens (B, 1), lengths (B,), memory.*, state.*)  -> logits (B, V), state.*

memory.* are tensors that all steps read, such as the projected keys of the source. state.* is the decoder
state: the outputs of a step are the inputs of the next one. In a beam search, repeat the tensors for each
hypothesis.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batch import BOS, EOS, PAD, UNK, Batch
from regard.data.tokenizers.morphemes import Morphemes
from regard.data.tokenizers.subwords import Subwords
from regard.data.tokenizers.tokenizer import Lowercased
from regard.decoding import Greedy, Rules
from regard.errors import ArgumentError, message
from regard.export.target import ANY, Check, Target, compared, only, side_tokenizers
from regard.files.atomic_io import write
from regard.layers.recurrent import Hidden, Recurrent
from regard.masks.constructors import padding
from regard.masks.mask import Mask
from regard.memory import Memory
from regard.models.base import Encoded, Model, State
from regard.models.transformer import Transformer

SCORE = only(
    *("dot", "scaled_dot", "general", "additive", "concat"),
    reason="the export has no code for it",
    nearest="score=scaled_dot",
)
SELECT = only("softmax", reason="the export only has softmax", nearest="select=softmax")
RECURRENT = {"width": ANY, "embedding": ANY, "dropout": ANY, "score": SCORE, "select": SELECT}
RECURRENCE = {"recurrence": ANY, "cell": ANY, "depth": ANY, "width": ANY, "embedding": ANY, "dropout": ANY}


class Onnx(Target):
    """Files that onnxruntime loads: encoder.onnx and step.onnx."""

    name, title = "onnx", "ONNX"
    extra, packages = "onnx", ("onnx", "onnxscript", "onnxruntime")
    quantizations = ("int8",)
    licences = ("onnx: Apache-2.0", "onnxruntime and onnxscript: MIT")
    allowed = MappingProxyType(
        {
            ("translation", "transformer"): {
                "size": ANY,
                "position": only(
                    "sinusoidal",
                    "learned",
                    "noise",
                    "rotary",
                    "none",
                    reason="the export has no code for biases of the scores",
                    nearest="position=sinusoidal or rotary",
                ),
                "norm": ANY,
                "activation": ANY,
                "tie": ANY,
                "dropout": ANY,
                "inner_dropout": ANY,
                "longest": ANY,
                "score": SCORE,
                "select": SELECT,
                "without": ANY,
            },
            ("translation", "bahdanau"): {
                **RECURRENT,
                "hidden": ANY,
                "encoder": only("gru", reason="its encoder is a loop in Python", nearest="encoder=gru"),
            },
            ("translation", "luong"): {
                **RECURRENCE,
                "score": SCORE,
                "select": SELECT,
                "view": only(
                    "global",
                    "local-p",
                    reason="its window depends on the number of the step",
                    nearest="view=global",
                ),
                "readout": only("attentional", "affine"),
                "feeding": ANY,
                "both_ways": ANY,
            },
            ("translation", "seq2seq"): {**RECURRENCE, "context": ANY, "reverse": ANY},
        }
    )

    def check(self) -> None:
        super().check()
        for name, tokenizer in side_tokenizers(self.run).items():
            inner = tokenizer.inner if isinstance(tokenizer, Lowercased) else tokenizer
            if isinstance(inner, Morphemes):
                problem = f"{name} is a morpheme tokenizer, which only Regard can run"
                raise ArgumentError(message("export to onnx", problem, hint="train with --tokenizer unigram"))

    def write(self, folder: Path) -> None:
        model = exportable(self.run.model)
        source = torch.tensor([[5, 6, 7, EOS], [5, EOS, PAD, PAD], [4, 5, EOS, PAD]])
        lengths = torch.tensor([4, 2, 3])
        with torch.no_grad():
            memories = self.run.model.encode(source, lengths).memories
        encoder, step = StartedEncoder(model), Step(model, [each.key_size for each in memories])
        with torch.no_grad():
            fixed, state = StartedEncoder(self.run.model)(source, lengths)
            tokens = torch.full((3, 1), BOS)
            if state and isinstance(model, Transformer):  # so that no size of the example is 0 or 1
                for _ in range(2):
                    _, state = step(tokens, lengths, fixed, state)  # the past has two tokens
        memory_names = [f"memory.{number}" for number in range(len(fixed))]
        state_names = [f"state.{number}" for number in range(len(state))]
        batch, dynamic = torch.export.Dim.DYNAMIC, torch.export.Dim.DYNAMIC
        in_memory = [{0: batch, **({2: dynamic} if each.dim() == 4 else {})} for each in fixed]
        if not isinstance(model, Transformer):
            in_memory = [{0: batch, **({1: dynamic} if each.dim() == 3 else {})} for each in fixed]
        grows = isinstance(model, Transformer)
        in_state = [{0: batch, **({2: dynamic} if grows else {})} for each in state]
        _export(
            encoder,
            (source, lengths),
            ({0: batch, 1: dynamic}, {0: batch}),
            folder / "encoder.onnx",
            ["source", "lengths"],
            [*memory_names, *state_names],
        )
        _export(
            step,
            (tokens, lengths, fixed, state),
            ({0: batch}, {0: batch}, in_memory, in_state),
            folder / "step.onnx",
            ["tokens", "lengths", *memory_names, *state_names],
            ["logits", *(f"{name}.next" for name in state_names)],
        )
        if self.quantization:
            _quantize(folder)
        ids = {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS}
        config = {"model": self.run.settings.model.name, "ids": ids, "state": state_names}
        write(folder / "config.json", [(json.dumps(config, indent=2) + "\n").encode()])
        for name, tokenizer in side_tokenizers(self.run).items():
            side = name.partition(".")[0]
            inner = tokenizer.inner if isinstance(tokenizer, Lowercased) else tokenizer
            if isinstance(inner, Subwords):
                write(folder / f"{side}.spm", [inner.serialized()])
            else:
                pieces = json.dumps(inner.pieces(range(inner.size)), ensure_ascii=False)
                write(folder / f"{side}.json", [(pieces + "\n").encode()])

    def verify(self, folder: Path, texts: Sequence[str]) -> Check:
        run = self.run
        lines = [run.prepare(text) for text in texts]
        ours = [each.text for each in run.translate(lines, search=Greedy(), look=None)]
        ids = [[*each, EOS] for each in run.source_tokenizer.encode_lines(lines)]
        rows = [row for row, each in enumerate(ids) if 1 < len(each) <= run.longest]
        theirs, largest = list(ours), 0.0
        decoder = OnnxDecoder(folder, run.model)
        for first in range(0, len(rows), 32):
            some = rows[first : first + 32]
            for row, tokens in zip(some, decoder.greedy([ids[row] for row in some]), strict=True):
                theirs[row] = " ".join(run.target_tokenizer.decode(tokens).splitlines())
        most = run.model.longest_target and run.model.longest_target - 1  # EOS is added
        for count in (1, 2, min(5, len(rows))):  # several shapes
            some = rows[:count]
            target = run.target_tokenizer.encode_lines([ours[row] for row in some])
            batch = Batch.collate([ids[row][:-1] for row in some], [each[:most] for each in target])
            with torch.no_grad():
                difference = (decoder.logits(batch) - run.model(batch)).abs()
            real = torch.arange(difference.shape[1]) < batch.target_lengths[:, None]
            largest = max(largest, float(difference[real].max())) if some else largest
        zeros = [0.0] * len(lines)
        check = compared(
            "greedy translations; logits at several shapes",
            lines,
            list(zip(ours, zeros, strict=True)),
            list(zip(theirs, zeros, strict=True)),
        )
        return Check(check.what, check.count, check.differences, largest)

    def usage(self) -> str:
        source, target = side_tokenizers(self.run).values()
        lower = ".lower()" if isinstance(source, Lowercased) else ""
        source, target = (each.inner if isinstance(each, Lowercased) else each for each in (source, target))
        loads, calls = [], []
        for side, tokenizer in (("source", source), ("target", target)):
            if isinstance(tokenizer, Subwords):
                loads.append(f'{side} = sentencepiece.SentencePieceProcessor(model_file="{side}.spm")')
            else:
                loads.append(f'{side} = json.loads(Path("{side}.json").read_text(encoding="utf-8"))')
        words = (
            'list("A sentence."{}.replace(" ", "▁"))'
            if source.kind == "character"
            else '"A sentence."{}.split()'
        )
        if isinstance(source, Subwords):
            calls.append(f'[*source.encode("A sentence."{lower}), 3]')
        else:
            calls.append(f"[*(source.index(w) if w in source else 1 for w in {words.format(lower)}), 3]")
        joiner = '"".join({}).replace("▁", " ")' if target.kind == "character" else '" ".join({})'
        pieces = "target[t] for t in output if t != 3"
        longest = min(100, self.run.model.longest_target or 100)
        shown = (
            "target.decode([t for t in output if t != 3])"
            if isinstance(target, Subwords)
            else joiner.format(pieces)
        )
        return "\n".join(
            [
                "import json",
                "from pathlib import Path",
                "import numpy",
                "import onnxruntime",
                *["import sentencepiece"] * any(isinstance(each, Subwords) for each in (source, target)),
                "",
                *loads,
                'encoder = onnxruntime.InferenceSession("encoder.onnx")',
                'step = onnxruntime.InferenceSession("step.onnx")',
                f"ids = numpy.array([{calls[0]}])  # 3 is the end of a sentence",
                "lengths = numpy.array([ids.shape[1]])",
                "tokens, output = numpy.array([[2]]), []  # 2 is the beginning",
                "given = [each.name for each in encoder.get_outputs()]",
                'values = dict(zip(given, encoder.run(None, {"source": ids, "lengths": lengths})))',
                f"while tokens[0, 0] != 3 and len(output) < {longest}:",
                '    values |= {"tokens": tokens, "lengths": lengths}',
                "    read = {each.name: values[each.name] for each in step.get_inputs()}",
                "    logits, *state = step.run(None, read)",
                '    values |= {f"state.{number}": each for number, each in enumerate(state)}',
                "    logits[:, :3] = -numpy.inf  # padding, unknown words and the beginning are no output",
                "    tokens = logits.argmax(-1)[:, None]",
                "    output.append(int(tokens[0, 0]))",
                f"print({shown})",
            ]
        )

    def lost(self) -> tuple[str, ...]:
        longest = self.run.model.longest_source
        return tuple(
            filter(
                None,
                (
                    "Search: the loop above is greedy; a beam search is yours to write.",
                    "Attention weights, alignments, and their names.",
                    "Text is normalized (NFC, single spaces) by Regard before encoding.",
                    f"Lines of more than {longest} tokens: the table of positions ends." if longest else "",
                    "Weights of matrix products are rounded to int8." if self.quantization else "",
                ),
            )
        )


class StartedEncoder(nn.Module):
    """encode() and start() of a model, with tensors as result: those that steps read, and the first state."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        encoded = self.model.encode(source, lengths)
        state = self.model.start(encoded)
        fixed = [tensor for memory in encoded.memories for tensor in (memory.key, memory.value)]
        if isinstance(self.model, Transformer):
            layers: Any = self.model.decoder
            heads = layers[0].itself.heads
            empty = encoded.memories[0].key.new_zeros(
                source.shape[0], heads, 0, int(self.model.width) // heads
            )
            return fixed, [empty.clone() for _ in range(2 * len(self.model.decoder))]
        return [*fixed, *(each.clone() for each in encoded.first)], [each.clone() for each in state.hidden]


class Step(nn.Module):
    """step() of a model for one token, with tensors as arguments and results.

    key_sizes: the field `key_size` of each Memory of the source.
    """

    def __init__(self, model: Any, key_sizes: Sequence[int] = ()):
        super().__init__()
        self.model, self.key_sizes = model, key_sizes

    def forward(
        self, tokens: Tensor, lengths: Tensor, fixed: list[Tensor], state: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        model, visible = self.model, padding(lengths)
        if isinstance(model, Transformer):
            layers: Any = model.decoder
            pairs = zip(fixed[::2], fixed[1::2], strict=True)
            memories = tuple(
                Memory(key, value, layer.cross.score, visible, self.key_sizes[0])
                for (key, value), layer in zip(pairs, layers, strict=True)
            )
            past = tuple(
                Memory(key, value, layer.itself.score, Mask(), self.key_sizes[0])
                for key, value, layer in zip(state[::2], state[1::2], layers, strict=True)
            )
            before = State(state[0].shape[2], past=past)
            after, logits = model.step(before, tokens, Encoded(lengths, memories))
            return logits[:, -1], [each for memory in after.past for each in (memory.key, memory.value)]
        count = 2 * hasattr(model, "score")
        memory = tuple(
            Memory(key, value, model.score, visible, self.key_sizes[0])
            for key, value in zip(fixed[:count:2], fixed[1:count:2], strict=True)
        )
        encoded = Encoded(lengths, memory, tuple(fixed[count:]))
        after, logits = model.step(State(0, tuple(state)), tokens, encoded)
        return logits[:, -1], list(after.hidden)


class SequenceRecurrent(Recurrent):
    """Recurrent layers as the operators GRU, LSTM and RNN of ONNX, which take the lengths of sequences."""

    def encode(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Hidden]:
        return self._run(x, lengths, None)

    def run(self, x: Tensor, hidden: Hidden, position: int = 0) -> tuple[Tensor, Hidden]:
        return self._run(x, None, hidden)

    def _run(self, x: Tensor, lengths: Tensor | None, hidden: Hidden | None) -> tuple[Tensor, Hidden]:
        ways = 2 if self.layers.bidirectional else 1
        last: list[tuple[Tensor, ...]] = []
        for depth in range(self.depth):
            first = None
            if hidden is not None:
                first = [each[:, ways * depth : ways * (depth + 1)].transpose(0, 1) for each in hidden]
            x, end = self._layer(x, depth, ways, lengths, first)
            last.append(end)
        return x, tuple(torch.cat(each, 1) for each in zip(*last, strict=True))

    def _layer(
        self, x: Tensor, depth: int, ways: int, lengths: Tensor | None, first: Any
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run one layer; return its outputs (B, T, ways width) and last states (B, ways, width)."""
        kind, width = type(self.layers).__name__, self.layers.hidden_size
        order = {"GRU": (1, 0, 2), "LSTM": (0, 3, 1, 2), "RNN": (0,)}[kind]

        def gates(name: str) -> Tensor:
            """Return a parameter of both directions, with the gates in the order of ONNX."""
            found = []
            for way in range(ways):
                parameter = getattr(self.layers, f"{name}_l{depth}{'_reverse' * way}")
                chunks = parameter.split(width)
                found.append(torch.cat([chunks[gate] for gate in order]))
            return torch.stack(found)

        biases = torch.cat((gates("bias_ih"), gates("bias_hh")), 1)
        x_TBI = x.transpose(0, 1)
        inputs = [x_TBI, gates("weight_ih"), gates("weight_hh"), biases]
        inputs.append(None if lengths is None else lengths.to(torch.int32))  # type: ignore[arg-type]
        inputs += list(first or ())
        attributes: dict[str, Any] = {"hidden_size": width}
        if ways == 2:
            attributes["direction"] = "bidirectional"
        if kind == "GRU":
            attributes["linear_before_reset"] = 1
        steps, rows = x_TBI.shape[0], x_TBI.shape[1]
        states = 2 if kind == "LSTM" else 1
        y_TWBM, *end = torch.onnx.ops.symbolic_multi_out(
            kind,
            inputs,
            attributes,
            dtypes=[x.dtype] * (1 + states),
            shapes=[(steps, ways, rows, width), *[(ways, rows, width)] * states],
            version=14,
        )
        return y_TWBM.permute(2, 0, 1, 3).flatten(2), tuple(each.transpose(0, 1) for each in end)


def exportable(model: Any) -> Any:
    """Return a copy of a model whose recurrent layers are operators of ONNX."""
    copied = deepcopy(model).eval().requires_grad_(False)
    for module in copied.modules():
        if isinstance(module, Recurrent):
            module.__class__ = SequenceRecurrent
    return copied


def _export(
    module: nn.Module,
    inputs: tuple[Any, ...],
    shapes: tuple[Any, ...],
    path: Path,
    input_names: list[str],
    output_names: list[str],
) -> None:
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            module,
            inputs,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=input_names,
            output_names=output_names,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    write(path, [program.model_proto.SerializeToString()])


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide the progress and the warnings of torch.onnx, which are about the export itself."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "root", "")]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


def _quantize(folder: Path) -> None:
    """Store the weights of the matrix products as int8."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    for name in ("encoder.onnx", "step.onnx"):
        whole = (folder / name).rename(folder / f"float32-{name}")
        with quiet():
            quantize_dynamic(whole, folder / name, weight_type=QuantType.QInt8)
        whole.unlink()


class OnnxDecoder:
    """The two exported files with onnxruntime: greedy search, and the logits of given targets.

    model: the model that was exported. It sets the maximum lengths of outputs.
    """

    def __init__(self, folder: Path, model: Model):
        import onnxruntime

        self._model = model
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        self._encoder, self._step = (
            onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), options)
            for name in ("encoder", "step")
        )

    def start(self, source: Tensor, lengths: Tensor) -> dict[str, Any]:
        names = [each.name for each in self._encoder.get_outputs()]
        given = {"source": source.numpy(), "lengths": lengths.numpy()}
        known = {each.name for each in self._encoder.get_inputs()}
        read = {name: each for name, each in given.items() if name in known}
        return {**dict(zip(names, self._encoder.run(None, read), strict=True)), "lengths": given["lengths"]}

    def step(self, values: dict[str, Any], tokens: Tensor) -> tuple[Tensor, dict[str, Any]]:
        values = {**values, "tokens": tokens.numpy()}
        logits, *state = self._step.run(
            None, {each.name: values[each.name] for each in self._step.get_inputs()}
        )
        return torch.from_numpy(logits), values | {f"state.{n}": each for n, each in enumerate(state)}

    def greedy(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the output tokens of each source, without EOS. The maximum length is that of Greedy()."""
        batch = Batch.collate([each[:-1] for each in sources])
        values = self.start(batch.source, batch.source_lengths)
        limits = Rules().limits(self._model, batch.source_lengths)
        tokens, outputs = torch.full((len(sources), 1), BOS), list[Tensor]()
        ended = torch.zeros(len(sources), dtype=torch.bool)
        for step in range(int(limits.max())):
            logits, values = self.step(values, tokens)
            logits[:, [PAD, UNK, BOS]] = -torch.inf
            tokens = logits.argmax(-1, keepdim=True)
            outputs.append(torch.where(ended[:, None], PAD, tokens))
            ended |= (tokens[:, 0] == EOS) | (step + 1 >= limits)
            if ended.all():
                break
        rows = torch.cat(outputs, 1).tolist()
        return [[token for token in row if token not in (PAD, EOS)] for row in rows]

    def logits(self, batch: Batch) -> Tensor:
        """Return the logits (B, T, V) of all target positions, one step after another."""
        values, found = self.start(batch.source, batch.source_lengths), []
        for tokens in batch.inputs.split(1, 1):
            logits, values = self.step(values, tokens.contiguous())
            found.append(logits)
        return torch.stack(found, 1)
