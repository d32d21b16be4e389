"""regard export and run.export(): allow-lists, refusals, self-check, and writing whole folders or nothing."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.data.batch import EOS, UNK
from regard.data.tokenizers import train_tokenizer
from regard.data.tokenizers.tokenizer import Lowercased
from regard.decoding import GNMT, Average, Beam, Greedy, Rules, Sample
from regard.export import TARGETS, export_run
from regard.export.ctranslate2 import piece_names, use_ctranslate2
from regard.export.export import random_texts
from regard.export.onnx import Onnx
from regard.export.safetensors import Safetensors
from regard.export.target import SIZES, TASKS, Check, Difference
from regard.export.tokenizer_json import build_tokenizer
from regard.files import new_folder as new_folder_module
from regard.options.attention_options import model_arguments
from tests.conftest import SKIPS
from tests.export.runs import language_run, pairs, sources, tokenizers, translation_run
from tests.reading import ROOT

TRANSFORMER = [
    {"norm": "post", "activation": "gelu", "tie": "none"},
    {"position": "rotary", "score": "dot"},
    {"position": "relative", "score": "general"},
    {"position": {"name": "t5", "buckets": 8, "furthest": 12}, "activation": "swiglu"},
    {},
    {"activation": "swiglu", "position": "learned", "longest": 100},
    {"position": "noise", "score": "dot", "longest": 100},
    {"position": "none", "decoder_layers": 1},
    {"position": {"name": "rotary", "base": 500.0, "pairs": "neighbours"}},
    {"position": "relative", "score": "dot"},
]


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def in_folder(folder: Path, code: str) -> str:
    """Run the Python code of a README in its folder; return what it prints."""
    printed = io.StringIO()
    before = os.getcwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), {})
    finally:
        os.chdir(before)
    return printed.getvalue()


def code_of(folder: Path) -> str:
    (code, *_) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text("utf-8"), re.DOTALL)
    return code


@pytest.mark.parametrize("name", TARGETS)
def test_allow_lists_have_every_option_of_their_models(name):
    target = TARGETS[name]
    assert target.any_model or target.allowed
    for (task, model), allowed in target.allowed.items():
        options = model_arguments(TASKS[task][model], 1 if task == "language" else 2)
        assert set(options) <= {*allowed, *SIZES}, (task, model)


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("ctranslate2", {"score": "additive"}, ("score = 'additive'", "score=scaled_dot")),
        ("ctranslate2", {"select": "sparsemax"}, ("select = 'sparsemax'", "select=softmax")),
        (
            "ctranslate2",
            {"select": {"name": "softmax", "temperature": 2.0}},
            ("temperature", "select=softmax"),
        ),
        ("ctranslate2", {"without": ["feed-forward"]}, ("feed-forward",)),
        ("ctranslate2", {"position": "alibi"}, ("position = 'alibi'", "rotary")),
        ("ctranslate2", {"score": "cosine", "select": "entmax"}, ("cosine", "entmax")),
        ("huggingface", {"position": "rotary"}, ("position = 'rotary'", "position=sinusoidal")),
        ("huggingface", {"activation": "swiglu"}, ("activation", "relu")),
        ("onnx", {"position": "alibi"}, ("position", "rotary")),
        ("onnx", {"score": "cosine"}, ("score", "score=scaled_dot")),
        ("onnx", {"name": "bahdanau", "encoder": "paper"}, ("encoder = 'paper'", "encoder=gru")),
        ("onnx", {"name": "lstmn"}, ("lstmn", "bahdanau")),
    ],
)
def test_options_that_a_target_cannot_compute_are_refused(tmp_path, name, options, named):
    with pytest.raises(regard.ArgumentError) as error:
        export_run(translation_run(**options), name, tmp_path / "out", texts=sources(2))
    assert all(each in str(error.value) for each in named)
    assert not list(tmp_path.iterdir())


def test_changed_models_other_models_and_other_tasks_are_refused(tmp_path):
    run = translation_run()
    with pytest.raises(regard.ArgumentError, match="bahdanau"):
        export_run(translation_run(name="bahdanau"), "ctranslate2", tmp_path / "out")
    handle = run.model.output.register_forward_hook(lambda *_: None)
    with pytest.raises(regard.ArgumentError, match="hooks"):
        export_run(run, "safetensors", tmp_path / "out")
    handle.remove()

    class Other(torch.nn.Linear):
        pass

    run.model.output = Other(32, run.model.target_size)
    with pytest.raises(regard.ArgumentError, match="Other"):
        export_run(run, "safetensors", tmp_path / "out")
    run.settings = run.settings.model_copy(update={"task": "captioning"})
    with pytest.raises(regard.ArgumentError, match="captioning"):
        export_run(run, "safetensors", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_bad_targets_quantizations_folders_and_missing_extras(tmp_path, monkeypatch):
    run = translation_run()
    with pytest.raises(regard.UnknownName, match="ctranslate2"):
        export_run(run, "ctranslate", tmp_path / "out")
    with pytest.raises(regard.ArgumentError, match="float16"):
        export_run(run, "safetensors", tmp_path / "out", quantization="int8")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(regard.ArgumentError, match="not empty"):
        export_run(run, "safetensors", tmp_path / "full")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ctranslate2" else find(name)
    )
    with pytest.raises(regard.ArgumentError, match=r"pip install.*ctranslate2"):
        export_run(run, "ctranslate2", tmp_path / "out")
    with pytest.raises(regard.ArgumentError) as refused:  # although a package is missing, too
        export_run(translation_run(name="bahdanau"), "ctranslate2", tmp_path / "out")
    assert "pip install" not in str(refused.value) and "bahdanau" in str(refused.value)
    assert [each.name for each in tmp_path.iterdir()] == ["full"]


def test_nothing_is_written_if_the_disk_is_full_or_the_check_fails(tmp_path, monkeypatch):
    run = translation_run()

    def full(self: Any, folder: Path) -> None:
        (folder / "half").write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def broken(self: Any, folder: Path, texts: list[str]) -> Check:
        raise RuntimeError("cannot be loaded")

    with monkeypatch.context() as patch:
        patch.setattr(Safetensors, "write", full)
        with pytest.raises(regard.DataError, match="No space left"):
            export_run(run, "safetensors", tmp_path / "out", texts=[])
    with monkeypatch.context() as patch:
        patch.setattr(Safetensors, "verify", broken)
        with pytest.raises(RuntimeError):
            export_run(run, "safetensors", tmp_path / "out", texts=[])
    assert not list(tmp_path.iterdir())
    with monkeypatch.context() as patch:  # a process that is killed leaves a folder, which is removed later
        patch.setattr(new_folder_module, "remove", lambda path: None)
        patch.setattr(Safetensors, "verify", broken)
        with pytest.raises(RuntimeError):
            export_run(run, "safetensors", tmp_path / "out", texts=[])
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / "out").mkdir()  # an empty folder may exist
    export_run(run, "safetensors", tmp_path / "out", texts=[])
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_check_counts_and_shows_differences():
    check = Check("lines", 3, (Difference("a", "b", "c", 0.25),))
    assert check.equal == 2 and str(check).startswith("2 of 3 equal")
    assert "0.25" in str(check.differences[0])


def test_random_texts_are_encoded_as_tokens_of_the_vocabulary():
    tokenizer = translation_run("unigram").source_tokenizer
    texts = random_texts(tokenizer, 20)
    assert texts == random_texts(tokenizer, 20) and len({*texts}) > 10
    assert sum(map(len, tokenizer.encode_lines(texts))) > 50


@pytest.mark.parametrize(("kind", "lowercase"), [("word", False), ("unigram", True)])
def test_safetensors_holds_each_weight_once_and_is_loaded_from_its_readme(tmp_path, kind, lowercase):
    run = translation_run(kind, lowercase=lowercase, joint=True, tie="all")
    exported = run.export("safetensors", tmp_path / "out")
    assert exported.check.equal == exported.check.count > 20 and exported.size > 1000
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert sum(each.numel() for each in weights.values()) == sum(p.numel() for p in run.model.parameters())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["model_type"], config["hidden_size"], config["eos_token_id"]) == ("transformer", 32, 3)
    assert config["vocab_size"] == run.target_tokenizer.size
    assert in_folder(tmp_path / "out", code_of(tmp_path / "out")).strip() == run.translate("A sentence.").text
    half = run.export("safetensors", tmp_path / "half", quantization="float16")
    assert half.check.equal == half.check.count and half.size < exported.size
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "bleu" in readme and "12.5" in readme and "Apache-2.0" in readme


def test_safetensors_of_a_language_model_is_loaded_from_its_readme(tmp_path):
    run = language_run()
    run.export("safetensors", tmp_path / "out")
    assert in_folder(tmp_path / "out", code_of(tmp_path / "out"))


@pytest.mark.parametrize(
    "options",
    [each if n < 4 else pytest.param(each, marks=pytest.mark.slow) for n, each in enumerate(TRANSFORMER)],
)
def test_ctranslate2_gives_equal_probabilities_and_translations(tmp_path, options):
    run = translation_run(**options)
    exported = export_run(run, "ctranslate2", tmp_path / "out", texts=sources(8))
    # The outputs of random weights are long, and CTranslate2 can end a search before the best one is found.
    assert exported.check.count == 8 and exported.check.equal >= 5, exported.check.differences
    lines = [list(side) for side in zip(*pairs()[:8], strict=True)]
    names = [piece_names(each) for each in (run.source_tokenizer, run.target_tokenizer)]
    ids = [each.encode_lines(own) for each, own in zip(tokenizers("word"), lines, strict=True)]
    pieces = [[[names[side][token] for token in own] for own in ids[side]] for side in (0, 1)]
    results = ctranslate2.Translator(str(tmp_path / "out")).score_batch(*pieces)
    for theirs, ours in zip(results, run.score(*lines, look=None), strict=True):
        torch.testing.assert_close(torch.tensor(theirs.log_probs), torch.tensor(ours.token_scores))


@pytest.mark.parametrize(("kind", "lowercase"), [("bpe", True), ("character", False)])
def test_ctranslate2_runs_from_its_readme(tmp_path, kind, lowercase):
    run = translation_run(kind, lowercase=lowercase)
    exported = export_run(run, "ctranslate2", tmp_path / "out", texts=sources(5))
    assert exported.check.equal == 5 and exported.lost
    assert in_folder(tmp_path / "out", code_of(tmp_path / "out"))


@pytest.mark.parametrize(
    "options",
    [{}, {"norm": "post", "tie": False}, {"position": "alibi"}, {"position": "rotary", "score": "dot"}],
)
def test_ctranslate2_continues_texts_like_the_language_model(tmp_path, options):
    run = language_run(**options)
    exported = export_run(run, "ctranslate2", tmp_path / "out", texts=sources(8))
    assert (exported.check.equal, exported.check.count) == (8, 8), exported.check.differences
    assert in_folder(tmp_path / "out", code_of(tmp_path / "out"))


def test_quantized_model_is_smaller_and_its_differences_are_listed(tmp_path):
    run = translation_run("unigram", width=64, inner=128)
    whole = export_run(run, "ctranslate2", tmp_path / "whole", texts=sources(8))
    weights = {name: weight.clone() for name, weight in run.model.state_dict().items()}
    small = export_run(run, "ctranslate2", tmp_path / "small", quantization="int8", texts=sources(8))
    assert all(torch.equal(weights[name], each) for name, each in run.model.state_dict().items())
    assert small.size < 0.6 * whole.size
    assert small.check.count == 8 and len(small.check.differences) == 8 - small.check.equal


def test_engine_has_the_results_scores_and_alignments_of_the_search():
    run = translation_run()
    searches = [
        Beam(4),
        Beam(3, best=3),
        Greedy(),
        Beam(5, length=Average(1.0)),
        Beam(2, length=GNMT(0.0)),
        Beam(3, rules=Rules(maximum=4)),
    ]
    lines = sources(10)
    ours = [run.translate(lines, search=each) for each in searches]
    use_ctranslate2(run)
    for search, before in zip(searches, ours, strict=True):
        same = 0
        for a, b in zip(before, run.translate(lines, search=search), strict=True):
            # The search of Regard is exact: with random weights, it can find better hypotheses.
            # CTranslate2 returns unfinished ones at the maximum length.
            assert a.ranking > b.ranking - 1e-3 or b.token_ids[-1:] != (EOS,)
            if a.token_ids != b.token_ids:
                continue
            same += 1
            assert (a.text, a.notes) == (b.text, b.notes)
            assert abs(a.score - b.score) < 1e-3 and abs(a.ranking - b.ranking) < 1e-3
            torch.testing.assert_close(torch.tensor(a.token_scores), torch.tensor(b.token_scores))
            assert str(a.alignment) == str(b.alignment)
            for site, weights in a.attention.items():
                torch.testing.assert_close(weights, b.attention[site])
        assert same == len(lines) if isinstance(search, Greedy) else same >= 5, search
    for search in (Sample(), Beam(coverage=0.2), Beam(rules=Rules(repeat=2))):
        with pytest.raises(regard.ArgumentError, match="ctranslate2"):
            run.translate(lines, search=search)


@pytest.mark.parametrize(
    ("kind", "joint", "options"),
    [
        ("unigram", True, {"tie": "all"}),
        ("bpe", False, {"norm": "post", "activation": "gelu", "score": "dot"}),
        ("word", False, {"tie": "none", "score": "general", "decoder_layers": 1}),
    ],
)
def test_huggingface_gives_equal_translations_and_logits(tmp_path, kind, joint, options):
    run = translation_run(kind, joint=joint, **options)
    exported = export_run(run, "huggingface", tmp_path / "out", texts=sources(6))
    assert exported.check.count == 6
    for each in exported.check.differences:  # generate() prefers unfinished outputs of the maximum length
        limit = 2 * len(run.source_tokenizer.encode(each.source)) + 12
        assert len(run.target_tokenizer.encode(each.theirs)) >= limit - 2
    assert exported.check.largest is not None and exported.check.largest < 1e-5
    architecture = json.loads((tmp_path / "out" / "config.json").read_text())["architectures"][0]
    assert ("Marian" if options.get("norm") == "post" else "Pegasus") in architecture
    assert in_folder(tmp_path / "out", code_of(tmp_path / "out"))


@pytest.mark.parametrize(
    ("options", "architecture"),
    [
        ({}, "GPT2LMHeadModel"),
        ({"tie": False, "position": "learned", "longest": 100, "score": "general"}, "GPT2LMHeadModel"),
        ({"position": {"name": "rotary", "base": 500.0}, "activation": "relu"}, "GPTNeoXForCausalLM"),
    ],
)
def test_huggingface_gives_equal_language_models(tmp_path, options, architecture):
    run = language_run("unigram", **options)
    exported = export_run(run, "huggingface", tmp_path / "out", texts=sources(6)[:5])
    assert (exported.check.equal, exported.check.count) == (5, 5), exported.check.differences
    assert exported.check.largest is not None and exported.check.largest < 1e-5
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == [architecture]
    assert in_folder(tmp_path / "out", code_of(tmp_path / "out"))


ODD = (
    "",
    "  zwei  Räume ",
    "e\u0301 NFD u\u0308ber",
    "NBSP\u00a0hier",
    "emoji 😀👩\u200d👧 x",
    "nul\x00nul",
    "<s> hallo </s> <unk> <pad> < s >",
    "한국어 文字 ½ ﬁ",
    "\u3000wide\u2028line\u0085next",
    "▁▁ lower ▁a",
    "ΟΔΟΣ Σ ΣΑΣ",
    "İstanbul",
    "\ufeffbom",
    "x" * 300,
)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("kind", ["unigram", "bpe", "word", "character"])
def test_tokenizer_json_has_equal_ids_and_texts(kind, lowercase):
    inner = tokenizers(kind, True)[0]
    tokenizer = Lowercased(inner) if lowercase else inner
    fast = build_tokenizer([tokenizer, tokenizer], ends=True)
    fast.encode_special_tokens = True
    lines = [*ODD, *(line for pair in pairs() for line in pair)]
    ids = tokenizer.encode_lines(lines)
    assert [each.ids for each in fast.encode_batch(lines)] == [[*own, EOS] for own in ids]
    known = [own for own in ids if UNK not in own]
    assert len(known) > 100
    shifted = [[token + tokenizer.size for token in (*own, EOS)] for own in known]
    assert fast.decode_batch(shifted) == [tokenizer.decode(own) for own in known]


def test_morpheme_tokenizers_are_refused(tmp_path):
    pytest.importorskip("kiwipiepy", reason=SKIPS["kiwipiepy"])
    run = translation_run()
    run.source_tokenizer = train_tokenizer("morpheme", [source for source, _ in pairs()][:50])
    for name in ("ctranslate2", "huggingface"):
        with pytest.raises(regard.ArgumentError, match="morpheme"):
            export_run(run, name, tmp_path / "out")


ONNX = [
    ("transformer", {"position": "rotary"}),
    ("bahdanau", {}),
    ("luong", {}),
    (
        "luong",
        {"cell": "gru", "both_ways": True, "depth": 2, "view": "local-p", "score": "dot", "feeding": False},
    ),
    ("seq2seq", {"cell": "lstm"}),
    ("seq2seq", {"context": "every", "cell": "rnn", "reverse": True}),
    ("transformer", {"norm": "post", "activation": "swiglu", "score": "general", "tie": "none"}),
    (
        "transformer",  # random outputs are longer than the table of positions
        {"position": "learned", "longest": 20, "without": ["feed-forward"], "score": "additive"},
    ),
    ("luong", {"readout": "affine", "score": "concat", "cell": "gru"}),
    ("bahdanau", {"score": "concat"}),
]


@pytest.mark.parametrize(
    ("name", "options"),
    [case if n < 2 else pytest.param(*case, marks=pytest.mark.slow) for n, case in enumerate(ONNX)],
)
def test_onnx_gives_equal_translations_and_logits(tmp_path, name, options):
    run = translation_run("unigram" if name == "bahdanau" else "word", name=name, **options)
    exported = export_run(run, "onnx", tmp_path / "out", texts=sources(9))
    assert (exported.check.equal, exported.check.count) == (9, 9), exported.check.differences
    assert exported.check.largest is not None and exported.check.largest < 1e-5
    ours = run.translate("A sentence.", search=Greedy(Rules(maximum=100))).text
    assert in_folder(tmp_path / "out", code_of(tmp_path / "out")).strip() == ours


def test_the_page_about_export_shows_the_loop_of_the_readme():
    page = (ROOT / "docs" / "export.md").read_text("utf-8")
    (loop,) = re.findall(r"```py\n(while .*?)```", page, re.DOTALL)
    assert loop in f"{Onnx(translation_run('unigram')).usage()}\n"


@pytest.mark.slow
def test_onnx_int8_is_smaller(tmp_path):
    run = translation_run("unigram", width=64, inner=256)
    whole = export_run(run, "onnx", tmp_path / "whole", texts=sources(4))
    small = export_run(run, "onnx", tmp_path / "small", texts=sources(4), quantization="int8")
    assert small.size < whole.size and small.check.count == 4
