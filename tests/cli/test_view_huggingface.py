"""regard view --huggingface: local models of transformers, in the terminal and in files; errors."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
import regard.huggingface
from regard.viewing import VIEWS, Seen
from tests.conftest import SKIPS
from tests.facts import mentions
from tests.huggingface.small_models import build
from tests.reading import ROOT
from tests.test_readme import COMMANDS, VIEW_MODEL

pytest.importorskip("transformers", reason=SKIPS["transformers"])

TEXT = "the cat <b>sat</b> on the unlikely mat"
SPECIALS = ("[PAD]", "[EOS]", "[CLS]", "[SEP]", "[UNK]")


def tokenizer() -> Any:
    """Return a WordPiece tokenizer with 40 tokens; "unlikely" has two."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["the", "cat", "sat", "on", "mat", "<", ">", "/", "b", "un", "##likely", "dog"]
    names = [*SPECIALS, *words, *(f"w{number}" for number in range(40 - len(SPECIALS) - len(words)))]
    vocabulary = {name: number for number, name in enumerate(names)}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad", "eos", "cls", "sep", "unk"), SPECIALS, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=made, **{f"{key}_token": name for key, name in names.items()}
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with a small model and a tokenizer, as save_pretrained() writes them."""
    paths = {}
    for name in ("bert", "llama", "marian"):
        model, _ = build(name)
        paths[name] = tmp_path_factory.mktemp("models") / name
        model.save_pretrained(paths[name])
        tokenizer().save_pretrained(paths[name])
    return paths


def words_of(line: str) -> list[str]:
    return line.split()


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_terminal_shows_words_weights_and_the_effect_of_hiding(command, folders, name):
    result = command("view", "--huggingface", folders[name], TEXT, "--device", "cpu")
    assert result.status == 0 and result.err == ""
    assert result.lines[0] == TEXT
    assert words_of(result.lines[1])[:4] == ["[CLS]", "the", "cat", "<"] and "unlikely" in result.lines[1]
    caption = " ".join(result.out.split())
    assert re.search(r'hiding the most attended token "\S+" changes the output by -?[\d.]+ nats', caption)


def test_a_note_tells_how_to_leave_out_special_tokens_that_get_most_weights(command, folders, monkeypatch):
    def note(*options: str) -> str | None:
        result = command("view", "--huggingface", folders["bert"], TEXT, "--device", "cpu", *options)
        shares = re.search(r"special tokens get (\d+)% of the weights", " ".join(result.out.split()))
        return None if shares is None else shares[1]

    assert note() is None  # all weights are about equal
    monkeypatch.setattr("regard.cli.view.SHARE", 0.05)
    model = regard.huggingface.load_model(folders["bert"])
    sites = regard.huggingface.observe_text(model, TEXT).seen.sites
    share = sum(site.weights[:, 1:-1, [0, -1]].sum(-1).mean() for site in sites) / len(sites)
    assert note() == f"{100 * share:.0f}"
    assert note("--specials", "hide") is None


def test_load_model_takes_the_devices_and_paths_of_load(folders):
    with pytest.raises(regard.UnknownName, match="gpu"):
        regard.huggingface.load_model(folders["bert"], device="abacus")
    assert regard.huggingface.load_model(folders["bert"], device="auto").name == Path(folders["bert"]).name
    with pytest.raises(regard.ArgumentError, match="bytes"):
        regard.huggingface.load_model(os.fsencode(folders["bert"]))


def test_the_readme_draws_a_model_in_three_lines_and_with_one_command(command, folders):
    from transformers import AutoModel, AutoTokenizer

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```py\n(.*?)^```", readme, re.M | re.S)
    assert len(block.splitlines()) == 3
    inputs = AutoTokenizer.from_pretrained(folders["bert"])(TEXT, return_tensors="pt")
    names: dict[str, Any] = {
        "regard": regard,
        "AutoModel": AutoModel,
        "folder": folders["bert"],
        "inputs": inputs,
    }
    exec(block, names)
    assert [len(calls) for calls in names["seen"].values()] == [1, 1]
    (line,) = (each for each in COMMANDS if "--huggingface" in each)
    assert line == VIEW_MODEL
    words = [str(folders["bert"]) if word == "FOLDER" else word for word in shlex.split(line)]
    result = command(*words[1:], "--device", "cpu")
    assert result.status == 0 and "hiding" in result.out
    assert words_of(result.lines[1])[1:4] == ["The", "animal", "did"]


def test_an_encoder_decoder_model_shows_cross_attention(command, folders, tmp_path):
    options = ("--huggingface", folders["marian"], TEXT, "--device", "cpu", "--target", "dog cat")
    path = tmp_path / "x.seen"
    assert command("view", *options, "--output", path).status == 0
    seen = Seen.load(path)
    kinds = [site.role.kind for site in seen.sites]
    assert kinds.count("cross") == 2 and kinds.count("self") == 3
    cross = next(site for site in seen.sites if site.role.kind == "cross")
    assert cross.rows == ("[CLS]", "dog", "cat", "[SEP]") and cross.columns[1] == "▁the"
    torch.testing.assert_close(torch.tensor(cross.weights).sum(-1), torch.ones(4, 4))
    generated = command("view", *options[:-2])
    assert generated.status == 0 and "the" in generated.out


def test_unknown_words_are_listed_and_subwords_show_the_token_that_is_read(command, folders, tmp_path):
    options = ("view", "--huggingface", folders["bert"], "the yak sat", "--device", "cpu")
    words, subwords = command(*options), command(*options, "--subwords")
    assert words_of(words.lines[1]) == ["[CLS]", "the", "yak", "sat", "[SEP]"]
    assert words_of(subwords.lines[1]) == ["[CLS]", "▁the", "▁[UNK]", "▁sat", "[SEP]"]
    assert all(mentions(result.out, "[UNK]", "'yak'") for result in (words, subwords))
    assert command(*options, "--output", tmp_path / "x.seen").status == 0
    refused = command("view", tmp_path / "x.seen", "--checkpoint", "latest")
    assert refused.status == 2 and "--checkpoint" in refused.err


QUICK = ("matrix", "rollout", "player", "long")


@pytest.mark.parametrize(
    "view",
    [pytest.param(view, marks=() if view in QUICK else pytest.mark.slow) for view in VIEWS],
)
def test_every_view_is_drawn(command, folders, tmp_path, view):
    path = tmp_path / "x.svg"
    folder = folders["marian" if view == "player" else "llama"]
    options = ("--target", "dog") if view == "player" else ()
    options += ("--view", view, "--output", path, "--device", "cpu")
    result = command("view", "--huggingface", folder, TEXT, *options)
    assert result.status == 0 and "Wrote" in result.err
    for file in tmp_path.iterdir():
        ElementTree.fromstring(file.read_bytes())


def test_pages_and_pictures_escape_the_text(command, folders, tmp_path):
    begins = {".png": b"\x89PNG", ".html": b"<!DOCTYPE html>"}
    for suffix, begin in begins.items():
        path = tmp_path / f"x{suffix}"
        options = ("--huggingface", folders["bert"], "<script>cat</script>", "--output", path)
        assert command("view", *options, "--device", "cpu").status == 0
        assert path.read_bytes().startswith(begin)
    assert b"<script>cat" not in path.read_bytes()  # the page


def test_the_map_of_a_long_text_has_exact_means(command, folders, tmp_path):
    path, long = tmp_path / "x.seen", " ".join(["the cat sat on the mat"] * 50)
    options = ("--huggingface", folders["llama"], "-", "--device", "cpu")
    assert command("view", *options, "--output", path, stdin=long.encode()).status == 0
    seen = Seen.load(path)
    model = regard.huggingface.load_model(folders["llama"])
    inputs = model.tokenizer(long, return_tensors="pt")
    with torch.no_grad():
        layers = model.model(input_ids=inputs["input_ids"], output_attentions=True).attentions
    assert len(seen.long) == len(layers) == 2 and not seen.sites
    for site, weights in zip(seen.long, layers, strict=True):
        assert weights.shape[-2:] == (302, 302) and site.exact_means and not site.whole
        means = weights[0].unflatten(-1, (151, 2)).mean(-1).unflatten(-2, (151, 2)).mean(-2)
        torch.testing.assert_close(torch.tensor(site.means), means, atol=1e-6, rtol=1e-4)
        top = weights[0].topk(16).values
        torch.testing.assert_close(torch.tensor(site.weights), top, atol=1e-6, rtol=1e-4)
    assert "share of attention of 2 by 2 tokens" in seen.picture("long").svg()


def test_a_long_text_is_drawn_as_a_map(command, folders, tmp_path):
    path, long = tmp_path / "x.svg", " ".join(["the cat sat on the mat"] * 60)
    options = ("--huggingface", folders["llama"], long, "--device", "cpu")
    assert command("view", *options, "--output", path).status == 0
    ElementTree.fromstring(path.read_bytes())
    refused = command("view", *options, "--view", "matrix")
    assert refused.status == 2 and mentions(refused.err, "--view", "long")
    too_long = command("view", "--huggingface", folders["bert"], "cat " * 600, "--device", "cpu")
    assert too_long.status == 2 and "602" in too_long.err and "512" in too_long.err
    assert "--text" not in too_long.err  # the text was an argument


def test_folders_that_are_no_model_are_refused(command, folders, tmp_path):
    def refused(folder: Path, *words: str) -> None:
        result = command("view", "--huggingface", folder, "the cat", "--device", "cpu")
        assert result.status == 2 and "Traceback" not in result.err and folder.name in result.err
        assert all(word in result.err for word in words), result.err

    refused(tmp_path / "nothing", "no such folder")
    refused(tmp_path, "config.json")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_text("{", encoding="utf-8")
    refused(damaged, "JSON")
    (damaged / "config.json").write_text("{}", encoding="utf-8")
    (damaged / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    refused(damaged, "safetensors")
    (damaged / "model.safetensors").write_bytes(b"abc")
    refused(damaged, "no tokenizer")
    for file in folders["bert"].glob("tokenizer*"):
        (damaged / file.name).write_bytes(file.read_bytes())
    refused(damaged, "config.json cannot be read")
    (damaged / "config.json").write_bytes((folders["bert"] / "config.json").read_bytes())
    refused(damaged, "the model cannot be read")


def test_a_model_that_reads_no_text_is_refused(command, tmp_path):
    build("whisper")[0].save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    result = command("view", "--huggingface", tmp_path, TEXT, "--device", "cpu")
    assert result.status == 2 and "Traceback" not in result.err
    assert "WhisperForConditionalGeneration" in result.err and "input_features" in result.err


def test_a_config_that_names_no_model_class_gives_the_plain_model(command, folders, tmp_path):
    folder = tmp_path / "renamed"
    shutil.copytree(folders["bert"], folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["architectures"] = ["pipeline", "BertConfig", "nothing"]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    result = command("view", "--huggingface", folder, TEXT, "--device", "cpu")
    assert result.status == 0 and "BertModel" in result.out and "cosine" in result.out


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("a", "b"), "several texts"),
        ((), "missing"),
        (("a", "--story", "x"), "--story"),
        (("a", "--view", "hops"), "hops"),
        (("a", "--view", "player"), "rollout, long"),
        (("a", "--view", "reading"), "earlier words"),
        (("a", "--checkpoint", "latest"), "--checkpoint"),
        (("a", "--task", "language"), "--task"),
        (("a", "--target", "b"), "--target"),
        (("a", "--head", "9", "--site", "*"), "4 heads"),
    ],
)
def test_options_that_do_not_apply_are_refused(command, folders, options, word):
    result = command("view", "--huggingface", folders["bert"], *options, "--device", "cpu")
    assert result.status == 2 and word in result.err


def test_an_unknown_site_or_head_is_an_error_for_pages_too(command, folders, tmp_path):
    for options in (("--site", "*.77.*"), ("--site", "*.0.*", "--head", 99)):
        page = tmp_path / "a.html"
        result = command(
            "view", "--huggingface", folders["bert"], TEXT, "--device", "cpu", *options, "--output", page
        )
        assert result.status == 2 and not page.exists() and str(options[-1]) in result.err
