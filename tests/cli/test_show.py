"""regard show: facts about a run as text, JSON or a table of several runs, also for damaged runs."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from rich.console import Console

from regard.cli.show import compared, sparkline
from regard.cli.train import _finished
from regard.runs.run_facts import RunFacts, SeedFacts
from regard.tasks.task_table import find_task
from regard.tasks.translation import load_translator
from tests.facts import commands, mentions


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of a run, which a test may change."""
    return shutil.copytree(trained, tmp_path / "copy")


@pytest.mark.parametrize("width", [60, 100])
def test_show_one_run(command, trained, width):
    result = command("show", trained, width=width)
    assert (result.status, result.err) == (0, "")
    assert max(map(cell_len, result.lines)) <= width
    model = load_translator(trained, device="cpu").model
    parameters = f"{sum(each.numel() for each in model.parameters()):,}"
    flat = " ".join(result.out.split())
    for told in (
        "bahdanau (width 16, dropout 0.1)",
        parameters,
        "built_in korean",
        "training.steps 40",
        "evaluation.sentences 5",
        "step 40 of 40",
        "completed all steps",
        "best",
        "latest",
        "★",
    ):
        assert told in flat
    assert "training.accumulation_steps" not in flat, "what is as usual is not told"
    assert commands(result.out)[-1:] == ["evaluate"] or width < 100


def test_suggested_commands_are_quoted_for_the_shell(command, trained, tmp_path, capsys):
    folder = shutil.copytree(trained, tmp_path / "it's a run")
    words = [["regard", "evaluate"], ["regard", "translate"], ["regard", "translate"], ["regard", "train"]]
    texts = [command("show", folder, width=400).out.split("next: ")[1]]
    texts.append(command("generate", folder, "--prompt", "a").err.split("for this run: ")[1])
    for interrupted in (None, "SIGTERM"):
        _finished(find_task("translation"), folder, interrupted, Console(stderr=True))
        texts.append(re.split("Next: |To continue: ", capsys.readouterr().err)[1])
    commands = list(map(shlex.split, texts))
    assert [each[:2] for each in commands] == words and all(str(folder) in each for each in commands)
    refused = command("train", "a b.tsv", "--output", tmp_path / "other")
    assert refused.status == 2 and shlex.split(refused.err.split("hint: ")[1]) == ["--tsv", "a b.tsv"]


def test_json(command, trained):
    report = json.loads(command("show", trained, "--json").out)
    assert report["model"] == {"name": "bahdanau", "width": 16, "dropout": 0.1}
    assert report["progress"]["step"] == report["progress"]["total"] == 40
    assert [each["step"] for each in report["evaluations"]] == [20, 40]
    assert report["best"]["bleu"] == max(each["bleu"] for each in report["evaluations"])
    assert [each["step"] for each in report["checkpoints"]] == [10, 20, 30, 40]
    assert set(report["fingerprints"]) == {"train", "valid", "alignments"} and report["notes"] == []
    assert all(each["damage"] == "" and each["size"] > 0 for each in report["checkpoints"])


def test_table_of_several_runs(command, trained, unseeing, tmp_path, monkeypatch):
    result = command("show", trained, unseeing, tmp_path, width=160)
    assert result.status == 0 and "folder" in result.err
    assert [line.split()[1] for line in result.lines[:3]] == ["model", "bahdanau", "seq2seq"]
    assert "BLEU" in result.lines[3]
    assert [
        each["model"]["name"] for each in json.loads(command("show", trained, unseeing, "--json").out)
    ] == [
        "bahdanau",
        "seq2seq",
    ]
    result = command("show", tmp_path, tmp_path)
    monkeypatch.chdir(trained.parent)
    narrow = command("show", trained, unseeing, width=80)
    assert max(map(len, narrow.lines)) <= 80 and narrow.lines[0].split()[2] == "weights"
    rows = [line.split()[:2] for line in narrow.lines if "bahdanau" in line or "seq2seq" in line]
    assert rows == [["tiny", "bahdanau"], [f"../{unseeing.parent.name}/tiny", "seq2seq"]]
    assert (result.status, result.out) == (2, "") and "none" in result.err


def test_table_names_the_score_that_selects_the_best_checkpoint(command, trained, copied):
    config = copied / "config.toml"
    config.write_text(config.read_text().replace('best = "bleu"', 'best = "exact"'))
    assert "exact" not in command("show", trained, trained, width=160).lines[0]
    result = command("show", copied, copied, width=160)
    assert "exact" in result.lines[0] and "match" in result.lines[-1]
    mixed = command("show", trained, copied, width=160)
    assert "best" in mixed.lines[0] and "BLEU" in mixed.lines[1] and "exact" in mixed.lines[2]
    assert mentions(command("show", copied).out, "★ best", "exact")


def test_damaged_checkpoints_are_reported(command, copied):
    (copied / "step-000040" / "weights.safetensors").write_bytes(b"broken")
    with (copied / "log.jsonl").open("ab") as log:
        log.write(b'{"kind": "training", "step": 41, "loss": "NaN"}\n[1]\n{"kind": "eval')
    (copied / "data.json").write_text("{")
    (copied / "source.tokenizer").unlink()
    result = command("show", copied)
    assert result.status == 0 and mentions(result.out, "weights.safetensors", "6 bytes")
    assert mentions(result.out, "log.jsonl", "2 invalid", "data.json:")
    assert mentions(result.out, "30 of 40", "source.tokenizer") and "parameters" not in result.out
    assert "restore" in result.out and "translate" not in commands(result.out)


def test_run_with_a_damaged_optimizer_state_is_still_finished(command, copied):
    path = copied / "step-000040" / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    result = command("show", copied)
    assert mentions(result.out, "40 of 40", "optimizer.safetensors") and "--resume" not in result.out


def test_run_without_checkpoints(command, copied):
    for path in copied.iterdir():
        if path.name.startswith("step-") or path.name in ("latest", "best", "log.jsonl", "data.json"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    result = command("show", copied)
    assert result.status == 0 and "checkpoint" in result.out
    assert json.loads(command("show", copied, "--json").out)["progress"] is None


def test_folder_without_run_is_an_error(command, tmp_path):
    result = command("show", tmp_path)
    assert (result.status, result.out) == (2, "") and "folder" in result.err
    (tmp_path / "config.toml").write_text("[data]\nbuilt_in = 'french'\n")
    result = command("show", tmp_path)
    assert result.status == 2 and "data.built_in" in result.err
    assert command("show").status == 2


def test_control_characters_in_a_log_are_not_printed(command, copied):
    with (copied / "log.jsonl").open("ab") as log:
        log.write(json.dumps({"kind": "evaluation", "step": 50, "\x1b[31m[bold]": 1.0}).encode() + b"\n")
    result = command("show", copied)
    assert result.status == 0 and "\x1b" not in result.out and "[bold]" in result.out


def test_best_evaluation_is_always_shown(command, copied):
    with (copied / "log.jsonl").open("a") as log:
        for step in range(50, 90):
            log.write(
                json.dumps({"kind": "evaluation", "step": step, "bleu": 90.0 - step, "loss": 1.0}) + "\n"
            )
    result = command("show", copied)
    best = next(line for line in result.lines if "★" in line)
    assert best.split()[0] == "50" and "log.jsonl" in result.out


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([1.0], 5, "▁"),
        ([2.0, 1.0], 5, "█▁"),
        ([1.0] * 9, 3, "▁▁▁"),
        (list(range(8)), 8, "▁▂▃▄▅▆▇█"),
        ([math.nan, 2.0, 1.0], 3, " █▁"),
        ([2.0, math.nan, -math.inf, math.inf, 1.0], 5, "█   ▁"),
        ([math.nan] * 4, 2, "  "),
        ([-1e308, 1e308], 2, "▁█"),
    ],
)
def test_sparkline(values, width, expected):
    assert sparkline(values, width) == expected


def test_table_of_runs_of_different_tasks_has_the_mean_over_seeds():
    def run(task: str, score: str, value: float) -> RunFacts:
        evaluations = [{"step": 1, score: value}]
        model, training = SimpleNamespace(name="lstm", options={}), SimpleNamespace(best=score)
        settings = SimpleNamespace(task=task, model=model, training=training)
        return RunFacts(Path(task), find_task(task), settings, evaluations=evaluations)

    seeds = {seed: run("classification", "accuracy", value) for seed, value in enumerate((0.5, 0.7))}
    console = Console(width=120)
    with console.capture() as capture:
        console.print(compared([SeedFacts(Path("seeds"), [0, 1], seeds), run("language", "perplexity", 9.0)]))
    assert "0.600 ± 0.141" in capture.get() and "9.00" in capture.get()


def test_folder_of_a_training_that_failed_is_described_and_can_be_trained(command, trained, tmp_path):
    (tmp_path / "lines.txt").write_text("a b c\n" * 9)
    run = tmp_path / "run"
    options = ("train", "--task", "language", "--train-file", tmp_path / "lines.txt", "--output", run)
    options += ("--steps", 2, "--device", "cpu", "--threads", 1, "--tokenizer", "word", "--width", 4)
    failed = command(*options, "--set", "data.window=1000000")
    assert failed.status == 2 and mentions(failed.err, 1_000_000, "most")
    assert not (run / "config.toml").exists()
    run.mkdir(exist_ok=True)
    (run / ".lock").touch()
    for runs in ([run], [run, trained]):
        said = command("show", *runs)
        assert said.status == (2 if len(runs) == 1 else 0) and "begun" in said.err, said
    said = command(*options)
    assert said.status == 0 and "target tokens" not in said.err
    assert command("show", run).status == 0


def test_folder_that_contains_runs_lists_them(command, trained, tmp_path):
    for name in "abcdefg":
        (tmp_path / "runs" / name).mkdir(parents=True)
        shutil.copy(trained / "config.toml", tmp_path / "runs" / name)
    result = command("show", tmp_path / "runs")
    inside = ", ".join(str(tmp_path / "runs" / name) for name in "abcde")
    assert result.status == 2 and result.err.endswith(f": {inside}, ...\n")
