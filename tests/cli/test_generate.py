"""regard generate and regard score with a language model: output forms, streaming, and invalid input."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from rich.console import Console

import regard
from regard.decoding import Beam
from regard.fast.search.search_loop import EarlyEnds
from regard.runs.prepare_run import Machine
from regard.runs.train_run import train_run
from regard.tasks.language import LanguageTask
from regard.tasks.language.run import StopCheck
from tests.facts import commands, mentions

LINES = ("I learned CS", "you learned music", "I learned CS and math", "you saw a film")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Transformer that has learned four lines by heart. Tests must not change it."""
    folder = tmp_path_factory.mktemp("generate")
    (folder / "a.txt").write_text("".join(f"{line}\n" for line in LINES * 4))
    settings = {
        "data": {
            "train_file": [str(folder / "a.txt")],
            "valid_file": [str(folder / "a.txt")],
            "layout": "documents",
            "tokenizer": "word",
        },
        "model": {"name": "transformer", "width": 16, "heads": 2, "inner": 32, "layers": 1, "dropout": 0.0},
        "training": {"steps": 30, "batch_size": 16, "learning_rate": 0.02, "warmup_steps": 2},
        "evaluation": {"samples": 1},
    }
    console = Console(quiet=True)
    train_run(LanguageTask, settings, folder / "run", machine=Machine("cpu"), console=console)
    return folder / "run"


def test_each_prompt_gives_one_line(command, run, tmp_path):
    said = command("generate", run, "--prompt", "you saw", "--prompt", "I learned", "--stop", "and")
    assert (
        said.status == 0
        and said.lines[0].split() == ["you", "saw", "a", "film"]
        and said.lines[1].startswith("I learned")
    )
    (tmp_path / "prompts.txt").write_text("you saw\nI learned\n")
    with gzip.open(tmp_path / "prompts.gz", "wt") as file:
        file.write("you saw\nI learned\n")
    for name in ("prompts.txt", "prompts.gz"):
        assert command("generate", run, "--prompt-file", tmp_path / name, "--stop", "and").lines == said.lines
    assert command("generate", run, "--stop", "and", stdin=b"you saw\nI learned\n").lines == said.lines
    output = tmp_path / "out.txt"
    assert command("generate", run, "--prompt", "you saw", "--output", output).out == ""
    assert output.read_text().split() == ["you", "saw", "a", "film"]
    assert command("generate", run, "--prompt", "", "--max-new-tokens", 2).status == 0


def test_beam_search_samples_and_json(command, run):
    best = command("generate", run, "--prompt", "I", "--beam-size", 4, "--n-best", 2)
    fields = [line.split("\t") for line in best.lines]
    assert [each[:2] for each in fields] == [["1", "1"], ["1", "2"]]
    expected = regard.load(run, device="cpu").generate("I", search=Beam(4, best=2))
    assert [each[4] for each in fields] == [str(expected), str(expected.others[0])]
    sampled = ("generate", run, "--prompt", "you", "--sample", "--top-k", 9, "--temperature", 2, "--json")
    one, again, other = (command(*sampled, "--seed", seed).lines for seed in (3, 3, 8))
    record = json.loads(one[0])
    assert one == again != other and record["prompt"] == "you"
    assert record["log_probability"] == pytest.approx(sum(record["token_scores"]))
    assert len(record["token_ids"]) == len(record["pieces"]) and record["stop_reason"] in ("end", "length")


def test_attention_is_drawn_in_the_terminal_and_on_a_page(command, run, tmp_path):
    said = command("generate", run, "--prompt", "you saw", "--draw", "--page", tmp_path / "page.html")
    assert said.status == 0 and "decoder.0.self" in said.out and "░" in said.out
    assert " no " not in said.err and str(tmp_path / "page.html") in said.err
    page = (tmp_path / "page.html").read_text()
    assert "you saw<b> a film</b>" in page and "<svg" in page
    file = tmp_path / "drawn"
    assert command("generate", run, "--prompt", "you saw", "--draw", "--output", file).out == ""
    assert "decoder.0.self" in file.read_text()


class Terminal(io.TextIOWrapper):
    """Standard output as a terminal; keeps what each flush wrote."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")
        self.written: list[str] = []

    def isatty(self) -> bool:
        return True

    def texts(self) -> str:
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined]


def test_single_text_is_streamed_to_a_terminal(run, monkeypatch, capsys):
    terminal, shown = Terminal(), []
    monkeypatch.setattr(sys, "stdout", terminal)
    original = StopCheck.__call__

    def watched(self, tokens, index):
        ended = original(self, tokens, index)
        shown.append(terminal.texts())
        return ended

    monkeypatch.setattr(StopCheck, "__call__", watched)
    with pytest.raises(SystemExit) as ended:
        regard.cli.main(["generate", str(run), "--prompt", "you saw", "--device", "cpu"])
    assert ended.value.code == 0 and terminal.texts() == "you saw a film\n"
    assert [line.split()[2:] for line in shown[:2]] == [["a"], ["a", "film"]]


@pytest.mark.parametrize("prompt", ["", "I"])
def test_streamed_text_is_the_text_without_a_terminal(command, run, monkeypatch, prompt: str):
    expected, terminal = command("generate", run, "--prompt", prompt).out, Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    with pytest.raises(SystemExit):
        regard.cli.main(["generate", str(run), "--prompt", prompt, "--device", "cpu"])
    assert terminal.texts() == expected and expected.count(" ") > 1


def test_ctrl_c_ends_with_the_text_generated_so_far(command, run, monkeypatch):
    original = EarlyEnds.check

    def interrupted(self, *arguments):
        if not self.stopped:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *arguments)

    monkeypatch.setattr(EarlyEnds, "check", interrupted)
    said = command("generate", run, "--prompt", "you saw", "--json")
    record = json.loads(said.out)
    assert said.status == 130 and "Ctrl-C" in said.err
    assert (record["text"], record["stop_reason"]) == (" a film", "interrupted")


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (("--prompt", "zebra yak"), ["--prompt: no word", "'zebra', 'yak'"]),
        (("--prompt", "I", "--prompt", "zebra"), ["--prompt: no word", "'zebra'"]),
        (("--prompt-file", "bad.txt"), ["bad.txt, line 1", "'zebra'"]),
        (("--prompt-file", "nowhere.txt"), ["nowhere.txt"]),
        (("--prompt", "I", "--prompt-file", "bad.txt"), ["--prompt", "--prompt-file"]),
        (("--prompt-file", "-", "--prompt-file", "-"), ["--prompt-file"]),
        (("--prompt", "I", "--top-k", "3"), ["--top-k", "--sample"]),
        (("--prompt", "I", "--sample", "--beam-size", "3"), ["--beam-size", "--sample"]),
        (("--prompt", "I", "--stop", ""), ["regard: --stop: "]),
        (("--prompt", "I", "--sample", "--temperature", "0"), ["regard: --temperature 0: "]),
        (("--prompt", "I", "--sample", "--top-p", "1.5"), ["regard: --top-p 1.5: "]),
        (("--prompt", "I", "--sample", "--top-p", "nan"), ["--top-p"]),
        (("--prompt", "I", "--max-new-tokens", "0"), ["--max-new-tokens"]),
        (("--prompt", "I", "--draw", "--json"), ["--draw", "--json"]),
        (("--prompt", "I", "--page", "x.png"), ["x.png", ".html"]),
        (("--prompt", "I", "--checkpoint", "7"), ["7"]),
    ],
)
def test_invalid_input_exits_with_2(command, run, tmp_path, monkeypatch, arguments, facts):
    (tmp_path / "bad.txt").write_text("zebra\nyak\n")
    monkeypatch.chdir(tmp_path)
    said = command("generate", run, *arguments)
    assert said.status == 2 and all(fact in said.err for fact in facts), said.err


def test_model_without_attention_is_reported(command, run, tmp_path):
    text, plain = str(run.parent / "a.txt"), tmp_path / "lstm"
    trained = command(
        *("train", "--task", "language", "--model", "lstm", "--train-file", text, "--valid-file", text),
        *("--width", 8, "--steps", 1, "--tokenizer", "word", "--output", plain, "--device", "cpu"),
    )
    assert trained.status == 0, trained.err
    options = ("generate", plain, "--prompt", "I", "--max-new-tokens", 2)
    assert mentions(command(*options, "--draw").err, "--draw", "attention")
    assert mentions(command(*options, "--page", tmp_path / "a.html").err, "--page", "attention")
    assert command(*options).err == ""


def test_partly_unknown_prompt_is_reported(command, run):
    said = command("generate", run, "--prompt", "zebra saw")
    assert said.status == 0 and "'zebra'" in said.err and said.out.split()[:2] == ["zebra", "saw"]


def test_every_prompt_is_continued_or_named(command, run, hostile):
    """Prompts that contain anything give one line each."""
    lines = [b"you " + line for line in hostile.read_bytes().split(b"\n")]
    said = command("generate", run, "--max-new-tokens", 3, stdin=b"\n".join(lines) + b"\n")
    assert said.status == 0 and len(said.lines) == len(lines) and "\x1b" not in said.out


def test_prompt_of_unknown_words_in_a_file_is_named_and_the_others_are_continued(command, run, tmp_path):
    (tmp_path / "a.txt").write_text("I learned\nzebra yak\n")
    (tmp_path / "b.txt").write_text("zebra\n\nyou saw zebra\n")
    options = ("generate", run, "--prompt-file", tmp_path / "a.txt", "--prompt-file", tmp_path / "b.txt")
    said = command(*options)
    assert (
        said.status == 0
        and len(said.lines) == 5
        and [line.split() for line in said.lines[1:3]] == [["zebra", "yak"], ["zebra"]]
    )
    assert said.lines[0].split()[:2] == ["I", "learned"]
    assert re.findall(r"([ab])\.txt, line (\d)", said.err) == [("a", "2"), ("b", "1")]
    assert mentions(said.err, "zebra", "prompt 5")
    records = [json.loads(line) for line in command(*options, "--json").lines]
    assert [each["stop_reason"] == "prompt" for each in records] == [False, True, True, False, False]
    assert [each["unknown"] for each in records] == [[], ["zebra", "yak"], ["zebra"], [], ["zebra"]]
    for name in ("log_probability", "perplexity", "ranking"):
        assert [each[name] is None for each in records] == [False, True, True, False, False]
    best = command(*options, "--beam-size", 2, "--n-best", 2)
    assert {line.split("\t")[0] for line in best.lines} == {"1", "4", "5"}
    (tmp_path / "many.txt").write_text("I\n" + "zebra\n" * 20)
    said = command("generate", run, "--prompt-file", tmp_path / "many.txt", "--max-new-tokens", 2)
    assert said.status == 0 and said.err.count("many.txt") == 5 and mentions(said.err, "20 of 21")
    with pytest.raises(regard.ArgumentError):
        regard.load(run, device="cpu").generate(["I", "zebra"])


def test_unknown_words_are_summarised(command, run, tmp_path):
    lines = [f"I saw word{number}\n" for number in range(30)]
    (tmp_path / "lines.txt").write_text("".join(lines))
    for arguments in (("score", run, tmp_path / "lines.txt"), ("generate", run, "--max-new-tokens", 1)):
        said = command(*arguments, stdin="".join(lines).encode())
        assert said.status == 0 and len(said.lines) == 30
        (line,) = (line for line in said.err.splitlines() if "word0" in line)
        assert "30 words" in line and "in 30 " in line and "word29" not in said.err


def test_other_runs_are_answered_with_their_command(command, run, trained):
    said = command("generate", trained, "--prompt", "I")
    assert said.status == 2 and "language" in said.err and "translate" in commands(said.err)
    said = command("translate", run, "--text", "I")
    assert said.status == 2 and "language" in said.err
    assert "generate" in commands(command("show", run, width=200).out)


def test_score_prints_log_probability_and_perplexities(command, run, tmp_path):
    said = command("score", run, "--text", "I learned CS", "--text", "film zebra")
    results = regard.load(run, device="cpu").score(["I learned CS", "film zebra"])
    numbers = [[float(number) for number in line.split("\t")] for line in said.lines]
    for (total, per_token, per_word), result in zip(numbers, results, strict=True):
        assert total == pytest.approx(result.log_probability, abs=1e-4)
        assert per_token == pytest.approx(result.perplexity, rel=1e-3)
        assert per_word == pytest.approx(math.exp(-result.log_probability / (result.words + 1)), rel=1e-3)
    assert mentions(said.err, "7 tokens", "5 words", "2 line", "line 2", "'zebra'")
    assert mentions(command("score", run, "--text", "I").err, "1 word ", "1 line")
    (tmp_path / "lines.txt").write_text("I learned CS\nfilm zebra\n")
    for arguments, stdin in (((tmp_path / "lines.txt",), b""), ((), b"I learned CS\nfilm zebra\n")):
        assert command("score", run, *arguments, stdin=stdin).lines == said.lines
    record = json.loads(command("score", run, "--text", "I learned CS", "--json").out)
    assert (record["words"], record["line_ends"]) == (3, 1) and record["pieces"][-1] == "</s>"
    assert json.loads(command("score", run, "--text", "I", "--tokens").out)["tokens"] == ["I", "</s>"]


def test_score_takes_texts_or_pairs_depending_on_the_run(command, run, trained, korean):
    said = command("score", run, "--source", "a", "--target", "b")
    assert said.status == 2 and "--source" in said.err and "--text" in said.err
    said = command("score", trained, "--text", "I")
    assert said.status == 2 and "--text" in said.err and "--source" in said.err
    arguments = ("--source", korean / "test.ko", "--target", korean / "test.en")
    pairs = command("score", trained, *arguments, "--json")
    record = json.loads(pairs.lines[0])
    assert f"{record['score']:.4f}" == command("score", trained, *arguments).lines[0]
