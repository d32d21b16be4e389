"""regard translate: one output line per input line, the search, other output files, and errors."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard.decoding import Beam, Greedy, Scored, Translator
from regard.errors import RegardWarning
from regard.tasks.translation import load_translator
from regard.tasks.translation.task import chosen_dtype
from tests.facts import mentions

ROOT = Path(__file__).parents[2]


def test_translations_equal_those_of_the_library(command, trained, korean):
    result = command("translate", trained, korean / "test.ko")
    assert result.status == 0
    lines = (korean / "test.ko").read_text(encoding="utf-8").split("\n")[:-1]
    translations = load_translator(trained, device="cpu").translate(lines)
    assert result.lines == [each.text for each in translations] and len(result.lines) == 12
    scored = command("translate", trained, korean / "test.ko", "--scores")
    assert scored.lines == [f"{each.score:.4f}\t{each.text}" for each in translations]


def test_json_objects(command, trained, korean, tmp_path):
    out = tmp_path / "out.jsonl"
    result = command("translate", trained, korean / "test.ko", "--n-best", 2, "--json", "--output", out)
    assert result.status == 0
    lines = (korean / "test.ko").read_text(encoding="utf-8").split("\n")[:-1]
    translations = load_translator(trained, device="cpu", search=Beam(best=2)).translate(lines)
    written = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert written == [each.to_dict() for each in translations]
    assert all(each["alignment"] and len(each["others"]) == 1 for each in written)


@pytest.mark.parametrize("options", [("--overlong", "split"), ("--overlong", "truncate", "--n-best", "3")])
def test_one_output_line_per_hostile_line(command, trained, hostile, tmp_path, options):
    links, page, out = tmp_path / "links", tmp_path / "page.html", tmp_path / "out"
    beside = "--alignments", links, "--page", page, "--output", out
    quick = "--max-source-length", 60, "--max-length", 12, *options
    result = command("translate", trained, hostile, *beside, *quick)
    count = len(hostile.read_bytes().split(b"\n"))
    assert (result.status, result.out) == (0, "")
    written = out.read_bytes().decode().split("\n")[:-1]
    if "--n-best" in options:
        written = [line for line in written if line.split("\t")[1] == "1"]
        assert [line.split("\t")[0] for line in written] == [str(number + 1) for number in range(count)]
    assert len(written) == count == len(links.read_text().split("\n")) - 1
    assert "2 lines" in result.err and "UTF-8" in result.err
    assert "<script>alert" not in page.read_text(encoding="utf-8")
    note = "line 13: split into" if "split" in options else "line 13: truncated to 59 of 10,000 tokens"
    assert note in result.err and f"Wrote {page}" in result.err


def test_input_from_stdin_files_or_text(command, trained, korean):
    text = (korean / "test.ko").read_bytes()
    whole = command("translate", trained, korean / "test.ko").lines
    assert command("translate", trained, stdin=text).lines == whole
    assert command("translate", trained, "-", stdin=text).lines == whole
    (korean / "packed.gz").write_bytes(gzip.compress(text))
    both = command("translate", trained, korean / "packed.gz", korean / "test.ko", "--at-once", 5)
    assert both.lines == whole * 2
    (korean / "a.CSV").write_bytes(text)
    table = command("translate", trained, korean / "a.CSV")
    assert table.lines == whole and mentions(table.err, "a.CSV", "one")
    first, second = text.decode().split("\n")[:2]
    assert command("translate", trained, "--text", first, "--text", second).lines == whole[:2]
    assert command("translate", trained, "--text", f"{first}\n{second}").lines == whole[:2]
    assert command("translate", trained, "--text", "").lines == [""]
    assert command("translate", trained, stdin=b"").lines == []


def test_n_best_lines_have_number_and_rank(command, trained, korean):
    result = command("translate", trained, korean / "test.ko", "--n-best", 3)
    rows = [line.split("\t") for line in result.lines]
    assert {row[0] for row in rows} == {str(number) for number in range(1, 13)}
    assert [row[1] for row in rows if row[0] == "4"] == ["1", "2", "3"]
    best = command("translate", trained, korean / "test.ko").lines
    assert [row[4] for row in rows if row[1] == "1"] == best
    ranked = [float(row[2]) for row in rows if row[0] == "4"]
    assert ranked == sorted(ranked, reverse=True) and any(row[2] != row[3] for row in rows)
    scored = command("translate", trained, korean / "test.ko", "--scores").lines
    assert [row[3] for row in rows if row[1] == "1"] == [line.split("\t")[0] for line in scored]
    drawn = command("translate", trained, korean / "test.ko", "--sample", "--n-best", 2, "--seed", 3)
    assert len(drawn.lines) == 24


def test_search_options(command, trained, korean):
    def translated(*options):
        result = command("translate", trained, korean / "test.ko", *options)
        assert result.status == 0
        return result.out

    assert translated("--greedy") == translated("--beam-size", 1)
    drawn = [translated("--sample", "--seed", seed, "--temperature", 2, "--top-k", 50) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert translated("--sample", "--top-p", 0.01) == translated("--greedy")
    lengths = [len(translated("--beam-size", 4, "--length-penalty", alpha)) for alpha in ("0", "average:9")]
    assert lengths[0] < lengths[1]
    assert all(len(line.split()) <= 2 for line in translated("--max-length", 2).split("\n"))
    assert (
        translated("--checkpoint", "latest")
        == translated("--checkpoint", 40)
        != translated("--checkpoint", 10)
    )
    assert translated("--batch-tokens", 30, "--threads", 1) == translated()


def test_alignments_equal_those_of_the_library(command, trained, korean, tmp_path):
    result = command("translate", trained, korean / "test.ko", "--alignments", tmp_path / "links", "--greedy")
    lines = (korean / "test.ko").read_text(encoding="utf-8").split("\n")[:-1]
    translations = load_translator(trained, search=Greedy(), device="cpu").translate(lines)
    assert result.status == 0
    assert (tmp_path / "links").read_text().split("\n")[:-1] == [str(each.alignment) for each in translations]


def test_draw_shows_attention(command, trained, tmp_path):
    result = command("translate", trained, "--text", "나는 학교에 간다 .", "--draw")
    assert (
        result.status == 0
        and mentions(result.out, "source  ", "나는", "학교에", "간다")
        and "█" in result.out
    )
    command("translate", trained, "--text", "나는 학교에 간다 .", "--draw", "--output", tmp_path / "drawn")
    drawn = [line.rstrip() for line in result.out.rstrip().split("\n")]
    assert (tmp_path / "drawn").read_text(encoding="utf-8").rstrip().split("\n") == drawn


def test_page_has_a_maximum_number_of_entries(command, trained, korean, tmp_path, monkeypatch):
    monkeypatch.setattr(Scored, "most", 5)
    result = command("translate", trained, korean / "test.ko", "--page", tmp_path / "x.html")
    assert result.status == 0 and len(result.lines) == 12
    assert mentions(result.err, "x.html", "5 of 12")
    text = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert text.count("<article") == 5 and mentions(text, "5 of 12")


def test_interrupted_output_does_not_replace_the_file(command, trained, korean, monkeypatch):
    whole = Translator.stream

    def broken(self, lines, at_once):
        for number, each in enumerate(whole(self, lines, at_once)):
            if number == 3:
                raise KeyboardInterrupt
            yield each

    output = korean / "out"
    output.write_text("earlier output")
    monkeypatch.setattr(Translator, "stream", broken)
    result = command("translate", trained, korean / "test.ko", "--output", output)
    assert result.status == 130 and "out.part" in result.err
    assert output.read_text() == "earlier output"
    assert len((korean / "out.part").read_text().split("\n")) == 4
    monkeypatch.undo()
    assert command("translate", trained, korean / "test.ko", "--output", output).status == 0
    assert len(output.read_text().split("\n")) == 13 and not (korean / "out.part").exists()


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (("--text", "a", "file"), "--text: "),
        (("-", "-"), "-: standard input"),
        (("nowhere.ko",), "there is no such file"),
        (("나는 고양이로소이다",), '--text "나는 고양이로소이다"'),
        (("고양이 " * 200,), "--text"),
        (("--text", "a", "--greedy", "--beam-size", "3"), "--beam-size: .*--greedy"),
        (("--text", "a", "--greedy", "--n-best", "2"), "--n-best: .*--greedy"),
        (("--text", "a", "--greedy", "--sample"), "--sample: .*--greedy"),
        (("--text", "a", "--sample", "--beam-size", "3"), "--beam-size: .*--sample"),
        (("--text", "a", "--seed", "3"), "--seed: .*beam search"),
        (("--text", "a", "--sample", "--temperature", "0"), "^regard: --temperature 0"),
        (("--text", "a", "--length-penalty", "long"), "--length-penalty"),
        (("--text", "a", "--length-penalty", "avg:1"), "unknown length penalty 'avg'"),
        (("--text", "a", "--overlong", "drop"), "known: split, truncate"),
        (("--text", "a", "--checkpoint", "5"), "unknown step .5."),
        (("--text", "a", "--checkpoint", "newest"), "best, latest, the number of a step"),
        (("--text", "a", "--device", "tpu"), "unknown device 'tpu'"),
        (("--text", "a", "--page", "x.htm"), "does not end in .html"),
        (("--text", "a", "--page", "nowhere/x.html"), "nowhere/x.html: "),
        (("--text", "a", "--output", "nowhere/x"), "the folder first"),
        (("--text", "a", "--draw", "--scores"), "--draw: "),
        (("--text", "a", "--draw", "--json"), "--draw: "),
        (("--text", "a", "--json", "--scores"), "--json: "),
        (("--text", "a", "--probabilities"), "--probabilities: .*--alignments"),
    ],
)
def test_invalid_options_are_errors(command, trained, tmp_path, monkeypatch, arguments, pattern):
    monkeypatch.chdir(tmp_path)
    result = command("translate", trained, *arguments)
    assert (result.status, result.out) == (2, "") and re.search(pattern, result.err)
    assert list(tmp_path.iterdir()) == []


def test_folder_without_run_and_model_without_attention_are_errors(command, unseeing, tmp_path):
    result = command("translate", tmp_path, "--text", "a")
    assert result.status == 2 and "config.toml" in result.err and "--huggingface" not in result.err
    (tmp_path / "config.json").touch()
    assert "--huggingface" in command("translate", tmp_path, "--text", "a").err
    assert command("translate", unseeing, "--text", "나는").status == 0
    result = command("translate", unseeing, "--text", "나는", "--alignments", tmp_path / "links")
    assert result.status == 2 and "attention" in result.err
    assert not (tmp_path / "links").exists()


def test_the_error_of_a_run_or_a_file_is_the_only_message(command, trained, korean):
    for words in (("nowhere.ko",), (korean / "test.ko", "nowhere.ko")):
        answer = command("translate", trained, *words)
        assert answer.status == 2 and answer.err.startswith("regard: nowhere.ko") and "BLEU" not in answer.err
    folder = command("translate", trained.parent, "nowhere")
    assert folder.status == 2 and f"run folders: {trained}" in folder.err


def test_closed_pipe_ends_without_a_message(trained, tmp_path):
    (tmp_path / "many.ko").write_text("나는 학교에 간다 .\n" * 30_000, encoding="utf-8")
    arguments = ["translate", str(trained), str(tmp_path / "many.ko"), "--greedy", "--max-length", "3"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", *arguments, "--at-once", "500", "--scores"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    first = process.stdout.readline()
    process.stdout.close()
    complaints = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 141  # as of commands that SIGPIPE ends
    assert first.endswith(b"\n") and len(complaints.splitlines()) == 1  # only the note on poor scores
    assert b"BLEU" in complaints


def test_precision(command, trained, monkeypatch):
    monkeypatch.setenv("REGARD_FAST", "1")  # otherwise no search uses int8 weights
    half = command("translate", trained, "--text", "나는", "--scores", "--precision", "bfloat16")
    model = load_translator(trained, device="cpu", precision="bfloat16")
    assert half.status == 0
    assert next(model.model.parameters()).dtype == torch.bfloat16
    assert half.lines[0].split("\t")[0] == f"{model.translate(['나는'])[0].score:.4f}"
    rounded = load_translator(trained, device="cpu", precision="int8", search=Beam())
    assert rounded.model.int8_steps and rounded.translate("나는").score < 0
    with pytest.warns(RegardWarning, match="int8"):
        command("translate", trained, "--text", "나는", "--precision", "int8", "--beam-size", 41)
    wrong = command("translate", trained, "--text", "나는", "--precision", "int3")
    assert wrong.status == 2 and "int3" in wrong.err and "bfloat16" in wrong.err


def test_default_precision(trained, monkeypatch):
    """float16 on a GPU that decodes with it by default, otherwise float32."""
    assert next(load_translator(trained, device="cpu").model.parameters()).dtype == torch.float32
    for capability, dtype in (((9, 0), torch.float16), ((7, 5), torch.float32)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert chosen_dtype("auto", torch.device("cuda")) == dtype
