"""regard train, as it is typed: from two files to a translator, and what is result when that cannot be."""

from __future__ import annotations

import json
import os
import signal
from inspect import signature
from pathlib import Path

import pytest

from regard.cli.train import _sizes, train
from regard.cli.train_settings import train_options
from regard.errors import RegardWarning
from regard.runs.run_folder import config_of
from regard.tasks.translation import TranslationTask, plan
from regard.tasks.translation import settings as expected_quality
from regard.tasks.translation.data import check_header_lines
from regard.tasks.translation.settings import Data, TranslationSettings
from tests.cli.conftest import HOSTILE
from tests.facts import commands, facts, mentions
from tests.tasks.small import written
from tests.training.toys import bits, records

QUICK = (
    *("--set", "model.width=8", "--set", "training.batch_tokens=300", "--set", "evaluation.sentences=2"),
    *("--set", "evaluation.samples=0", "--set", "data.held_out=5", "--set", "training.evaluate_every=50"),
    *("--device", "cpu"),
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a.ko and a.en, and the place to type in."""
    written(tmp_path, 120)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(command, *more: object, out: str = "runs/x"):
    return command(
        *("train", "--source", "a.ko", "--target", "a.en", "--model", "bahdanau", "--output", out),
        *QUICK,
        *more,
    )


@pytest.mark.parametrize(
    ("options", "recommended"),
    [
        (
            ("--model", "luong", "--readout", "latent", "--set", "model.feeding=true"),
            "--set model.feeding=false",
        ),
        (("--model", "luong", "--select", "hard", "--set", "model.view=local-p"), "--set model.view=local-m"),
        (
            ("--model", "luong", "--set", "model.reach=3"),
            "--set model.view.name=local-m --set model.view.reach=4",
        ),
        (("--set", "model.hidden=8", "--set", "model.score=dot"), "--set model.score=additive"),
        (("--model", "transformer", "--set", "model.tie=all"), "--set model.tie=output"),
        (("--select", "hard"), "--set training.estimator.name=reinforce"),
        (("--estimator", "reinforce"), "--set model.select=hard"),
        (("--set", "training.r_drop=1", "--dropout", 0), "--set model.dropout=0.3"),
        (("--tokenizer", "morpheme", "--set", "data.joint=true"), "--set data.joint=false"),
    ],
)
def test_errors_about_settings_recommend_options(command, here, options, recommended):
    result = trained(command, *options, "--steps", 1)
    text = " ".join(result.err.split())
    assert (
        result.status == 2 and recommended in text and "Luong()" not in text and "Transformer()" not in text
    )


def test_a_recommended_option_is_accepted(command, here):
    latent = "--model", "luong", "--readout", "latent"
    assert trained(command, *latent, "--steps", 1, "--dry-run").status == 0


@pytest.mark.parametrize(("header", "columns"), [("ko\ten", "ko,en"), ("Source\tTarget", "Source,Target")])
def test_header_line_of_a_tsv_file_is_an_error_unless_the_columns_are_named(command, here, header, columns):
    sides = ((here / name).read_text(encoding="utf-8").splitlines() for name in ("a.ko", "a.en"))
    rows = ["\t".join(pair) for pair in zip(*sides, strict=True)]
    (here / "a.tsv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    options = ("train", "--tsv", "a.tsv", "--output", "runs/t", "--width", 8, "--dry-run")
    refused = command(*options)
    assert (
        refused.status == 2
        and mentions(refused.err, "a.tsv", "line 1")
        and f"--columns {columns}" in refused.err
    )
    for other in (("data", "check"), ("data", "split", "--held-out", 5, "--output", "split")):
        refused = command(*other, "--tsv", "a.tsv")
        assert refused.status == 2 and f"--columns {columns}" in refused.err
        assert command(*other, "--tsv", "a.tsv", "--columns", columns).status == 0
    check_header_lines(Data(tsv=["a.tsv"], columns=columns.split(",")))
    wrong = command(*options, "--columns", f"x,{columns.split(',')[1]}")
    assert wrong.status == 2 and "regard train --tsv a.tsv" in wrong.err
    assert f"--columns {columns}" in wrong.err
    (here / "a.tsv").write_text("\n".join(["en route\tunterwegs", *rows]) + "\n", encoding="utf-8")
    with pytest.warns(RegardWarning, match=facts("a.tsv", "line 1")):  # it may be a header or a pair
        check_header_lines(Data(tsv=["a.tsv"]))


def test_each_input_file_has_its_own_unit_of_size(tmp_path):
    for name, size in (("large", 2_300_000), ("small", 210)):
        (tmp_path / name).write_bytes(bytes(size))
    assert _sizes([str(tmp_path / name) for name in ("large", "small")]) == ["2.3 MB", "0.2 kB"]
    assert _sizes([str(tmp_path / "none")]) == []


def test_train_translate_and_resume(command, here: Path):
    result = trained(command, "--steps", 4, "--set", "evaluation.samples=1")
    assert (result.status, result.out) == (0, "")
    assert "reference" in result.err  # what the first sentence should have been
    first = result.err.splitlines()[0]
    assert "a.ko" in first and "a.en" in first and "kB" in first, "the inputs are named at once"
    assert mentions(result.err, "120 pairs", "120 kept", "5 held")
    assert mentions(result.err, "5 validation")
    assert mentions(result.err, "evaluation", "step 4") and commands(result.err.splitlines()[-1]) == [
        "translate"
    ]
    found = command("translate", "runs/x", "--text", "고양이가 잔다 .", "--device", "cpu")
    assert found.status == 0 and len(found.lines) == 1
    assert config_of(here / "runs/x")["data"]["source"] == [str(here / "a.ko")]
    again = command("train", "--output", "runs/x", "--resume")
    assert again.status == 0 and mentions(again.err, "step 4")
    refused = trained(command, "--steps", 4)
    assert refused.status == 2 and "runs/x" in refused.err and "--resume" in refused.err


def test_dry_run_prints_an_estimate_and_writes_nothing(command, here: Path):
    result = trained(command, "--steps", 4, "--dry-run")
    assert mentions(result.out, "search", "training", "code")
    assert result.status == 0 and len(result.err.splitlines()) == 1 and "a.ko" in result.err
    for part in (
        "120 pairs read",
        "ordinary language: 1",
        "steps = 4",
        "parameters",
        "vocabulary",
        "batches per epoch",
        "MiB",
    ):
        assert part in result.out
    assert not (here / "runs").exists()
    minutes = trained(command, "--minutes", 2, "--dry-run")
    assert mentions(minutes.out, "= 2.0", "2 minutes")
    trained(command, "--steps", 2)
    assert trained(command, "--steps", 2, "--dry-run").status == 2
    assert "steps = 2" in command("train", "--output", "runs/x", "--resume", "--dry-run").out
    changed = command("train", "--output", "runs/x", "--resume", "--steps", 3, "--dry-run")
    assert changed.status == 2 and mentions(changed.err, "training.steps", "2 -> 3")


def test_options_override_a_recipe(command, here: Path):
    recipe = '[data]\nsource = "a.ko"\ntarget = "a.en"\n[model]\nname = "luong"\n'
    (here / "recipe.toml").write_text(recipe + "[training]\nsteps = 900\nlearning_rate = 0.5\n")
    more = (
        "--recipe",
        "recipe.toml",
        "--set",
        "training.learning_rate=0.25",
        "--epochs",
        "0.5",
        "--output",
        "runs/r",
    )
    assert command("train", *QUICK, *more).status == 0
    config = config_of(here / "runs/r")
    assert config["model"]["name"] == "luong" and config["training"]["learning_rate"] == 0.25
    assert config["training"]["epochs"] == 0.5 and "steps" not in config["training"]
    assert config["data"]["target"] == [str(here / "a.en")]
    (here / "bad.toml").write_text("[trainig]\nsteps = 2\n")
    result = command("train", *QUICK, "--recipe", "bad.toml", "--output", "runs/b")
    assert result.status == 2 and mentions(result.err, "bad.toml", "'trainig'", "'training'")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--set", "training.learning_rat=1"), "[training]: 'learning_rat'; did you mean 'learning_rate'?"),
        (("--set", "training.lr=1"), "training.learning_rate"),
        (("--set", "lr=1"), "training.learning_rate"),
        (("--set", "model.hidden_size=9"), "model.width"),
        (("--set", "vocab_size=9"), "data.source_vocab_size and data.target_vocab_size"),
        (("--batch-size", "3", "--batch-tokens", "9"), "--batch-tokens and --batch-size"),
        (("--batch-size", "3"), "batch_tokens and batch_size"),  # QUICK sets training.batch_tokens
        (("--learning-rate", "0"), "training.learning_rate is 0"),
        (("--learning-rate", "nan"), "--learning-rate"),
        (("--label-smoothing", "1"), "training.label_smoothing is 1"),
        (("--dropout", "2"), "dropout"),
        (("--patience", "0"), "training.patience is 0"),
        (("--vocab-size", "0"), "--vocab-size 0"),
        (("--valid-tsv", "b.tsv"), "b.tsv: there is no such file"),
        (("--valid-jsonl", "b.jsonl"), "b.jsonl: there is no such file"),
        (("--set", "model.widht=9"), "unknown option of bahdanau 'widht'; did you mean 'width'?"),
        (("--set", "nonsense"), "not a setting"),
        (("--model", "bahdanov"), "unknown model 'bahdanov'; did you mean 'bahdanau'?"),
        (("--steps", "3", "--minutes", "1"), "--minutes and --steps"),
        (("--steps", "0"), "training.steps is 0"),
        (("--threads", "0"), "--threads"),
        (("--recipe", "none.toml"), "none.toml: there is no such file"),
        (("--columns", "2"), "--columns: '2'\nexpected: two different"),
        (("--init-from", "runs/none"), "no such folder"),
        (("--source", "b.ko"), "b.ko: there is no such file"),
        (("--source", "a.en"), "--source and --target: there are 2 source files and 1 target"),
        (("--valid-source", "b.ko", "--valid-target", "b.en"), "there is no such file"),
        (("--gold-alignments", "b.links"), "b.links"),
        (("--device", "abacus"), "unknown device 'abacus'"),
        (("--precision", "float8"), "training.precision is 'float8'"),
        (("pairs.tsv",), "--tsv pairs.tsv"),
        (("a.ko", "a.en"), "--source a.ko --target a.en"),
    ],
)
def test_invalid_options_exit_with_2_and_name_the_option(command, arguments: tuple[str, ...], says: str):
    result = trained(command, *arguments)
    assert result.status == 2 and result.out == ""
    assert says in result.err
    assert not Path("runs/x/config.toml").exists()


def test_missing_files_of_a_public_dataset_name_the_command_that_downloads_them(command, here: Path):
    for language, name in (("de", "multi30k-en-de"), ("fr", "multi30k-en-fr")):
        files = ("--source", "my data/multi30k/train.en", "--target", f"my data/multi30k/train.{language}")
        result = command("train", *files, "--output", "runs/r")
        assert result.status == 2 and "train.en: " in result.err
        assert mentions(result.err, f"fetch {name}", "--output", "'my")
    result = command("train", "--source", "train.en", "--target", "train.de", "--output", "runs/r")
    assert result.status == 2 and "fetch" not in result.err


def test_validation_files_of_a_recipe_beside_own_training_files_are_noted(command, here: Path):
    (here / "recipe.toml").write_text('[data]\nvalid_source = ["x.ko"]\nvalid_target = ["x.en"]\n')
    files = ("--source", "a.ko", "--target", "a.en", "--recipe", "recipe.toml", "--output", "runs/r")
    result = command("train", *files)
    assert result.status == 2 and "x.ko" in result.err
    assert mentions(result.err, "--valid-source", "--valid-target")
    noted = command("train", *files, "--valid-source", "a.ko", "--valid-target", "a.en", "--dry-run")
    assert noted.status == 0 and "--valid-source" not in noted.err


def test_missing_or_unequal_data_files_are_errors(command, here: Path):
    assert "data" in command("train", "--output", "runs/x").err
    (here / "a.en").write_text("one line\n")
    result = trained(command)
    assert result.status == 2 and "a.ko" in result.err and "120" in result.err
    (here / "a.ko").write_bytes(b"")
    (here / "a.en").write_bytes(b"")
    assert trained(command).status == 2


def test_a_checkpoint_is_no_run_folder(command, trained):
    step = max(trained.glob("step-*"))
    answers = [
        (command("train", "--output", step, "--resume"), f"regard train --output {trained} --resume"),
        (command("train", "--built-in", "korean", "--init-from", step, "--output", "x"), str(trained)),
        (command("translate", step, "--text", "a"), f"--checkpoint {int(step.name[5:])}"),
    ]
    for answer, hint in answers:
        assert answer.status == 2 and "checkpoint" in answer.err and hint in answer.err


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        ('[training]\nsteps = "3"\n', ("a.toml: training.steps is '3'",)),
        ("[training]\nsteps = 3\nsteps = 4\n", ("line 3", "steps = 4", "each key once")),
    ],
)
def test_error_in_a_recipe_names_the_recipe(command, tmp_path: Path, content: str, facts: tuple[str, ...]):
    recipe = tmp_path / "a.toml"
    recipe.write_text(content)
    result = command("train", "--recipe", recipe, "--output", tmp_path / "x")
    assert result.status == 2 and str(recipe) in result.err and "--steps" not in result.err
    assert all(fact in result.err for fact in facts)


def test_error_in_a_setting_names_the_option_set(command, tmp_path: Path):
    result = command(
        "train", "--built-in", "korean", "--set", "training.steps=1e4", "--output", tmp_path / "x"
    )
    assert result.status == 2 and mentions(result.err, "--set", "training.steps", "10000.0")
    assert "--steps" not in result.err


def test_a_recipe_that_is_not_there_or_not_toml(command, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("data:\n  src: a\n")
    missing = command("train", "--recipe", "recipes/a.toml", "--output", "x")
    assert missing.status == 2 and "repository" in missing.err
    assert "YAML" in command("train", "--recipe", "a.yaml", "--output", "x").err


def test_resume_needs_a_run_and_the_same_data_options(command, here: Path):
    result = command("train", "--output", "runs/none", "--resume")
    assert result.status == 2 and mentions(result.err, "runs/none", "resume")
    assert "resume" in command("train", "--output", "runs/none", "--resume", "--dry-run").err
    assert trained(command, "--steps", 2).status == 0
    result = command("train", "--tsv", "x.tsv", "--output", "runs/x", "--resume")
    assert result.status == 2 and mentions(result.err, "source", "target", "tsv")


def test_folder_with_other_files_is_an_error(command, here: Path):
    (here / "mine").mkdir()
    (here / "mine" / "thesis.txt").write_text("words")
    result = trained(command, "--steps", 2, out="mine")
    assert result.status == 2 and mentions(result.err, "thesis.txt", "--output")
    assert [path.name for path in (here / "mine").iterdir()] == ["thesis.txt"]
    (here / "mine" / "thesis.txt").rename(
        here / "mine" / "source.tokenizer"
    )  # of a beginning that was killed
    assert trained(command, "--steps", 2, out="mine").status == 0


def test_settings_of_the_built_in_corpus_are_errors_for_files(command, monkeypatch):
    assert plan.DEFAULT_PAIRS == 20_000
    monkeypatch.setattr(plan, "DEFAULT_PAIRS", 300)  # reading 20,000 sentences would take seconds
    assert "pairs = " not in trained(command, "--steps", 2, "--dry-run").out
    result = command(
        "train", "--built-in", "korean", "--set", "model.width=8", "--dry-run", "--output", "runs/k"
    )
    assert "pairs = 300" in result.out


def test_columns_and_fields_select_source_and_target(command, here: Path):
    korean, english = ((here / name).read_text("utf-8").splitlines() for name in ("a.ko", "a.en"))
    pairs = list(zip(korean, english, strict=True))
    (here / "a.tsv").write_text("".join(f"{english}\t{korean}\n" for korean, english in pairs), "utf-8")
    rows = (json.dumps({"en": english, "ko": korean}) for korean, english in pairs)
    (here / "a.jsonl").write_text("".join(f"{row}\n" for row in rows), "utf-8")
    assert trained(command, "--steps", 2).status == 0
    for way, out in (
        (("--tsv", "a.tsv", "--columns", "2,1"), "runs/t"),
        (("--jsonl", "a.jsonl", "--fields", "ko,en"), "runs/j"),
    ):
        result = command("train", *way, *QUICK, "--steps", 2, "--output", out)
        assert result.status == 0, result.err
        for name in ("source.tokenizer", "target.tokenizer"):
            assert (here / out / name).read_bytes() == (here / "runs/x" / name).read_bytes()
    assert config_of(here / "runs/t")["data"]["columns"] == [2, 1]
    result = command("train", "--tsv", "a.ko", *QUICK, "--output", "runs/one")
    assert result.status == 2 and "--columns" in result.err
    result = command("train", "--tsv", "a.tsv", "--columns", "de,en", *QUICK, "--output", "runs/one")
    assert result.status == 2 and "--columns" in result.err


def test_empty_file_has_no_pairs(command, here: Path):
    (here / "empty.tsv").write_bytes(b"")
    result = command("train", "--tsv", "empty.tsv", *QUICK, "--output", "runs/e")
    assert result.status == 2 and mentions(result.err, "empty.tsv", "pairs")
    (here / "empty.tsv").write_bytes(b"\t\n\n")
    assert mentions(command("train", "--tsv", "empty.tsv", "--output", "runs/e").err, "2 pairs", "dropped")


def test_data_report_fits_the_console_and_samples_are_plain_text(
    command, here: Path, monkeypatch: pytest.MonkeyPatch
):
    deep = here / "a-folder-with-a-rather-long-name" / "and-another-inside-of-it"
    deep.mkdir(parents=True)
    for name in ("a.ko", "a.en"):
        text = (here / name).read_text("utf-8")
        (deep / name).write_text(text + "\n" + text.splitlines()[0] + "\n", "utf-8")
    monkeypatch.chdir(deep)
    monkeypatch.setenv("COLUMNS", "80")
    result = trained(command, "--steps", 2, "--set", "evaluation.samples=1")
    assert result.status == 0, result.err
    report = result.err[: result.err.index("5 held out")].splitlines()[:-1]
    assert "a-folder" not in result.err and max(map(len, report)) <= 80
    assert mentions(result.err, "a.ko", "line 121", "duplicate")
    assert "reference  " in result.err and "log-probability" not in result.err and "░" not in result.err
    printed = trained(command, "--steps", 2, "--dry-run", out="runs/d").out
    assert mentions(printed, "a.ko", "line 121")


def test_training_stops_after_its_minutes(command, here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("regard.training.progress.FEW_STEPS", 10**9)
    result = trained(command, "--minutes", 0.005)
    assert result.status == 0 and mentions(result.err, "minutes", "model.width")  # that was set
    budget, *_ = records(here / "runs/x", "budget")
    assert "0.005 minutes" in budget["text"] and budget["total"] > 0
    options = [*QUICK[2:], "--minutes", 0.005]
    free = command("train", "--source", "a.ko", "--target", "a.en", *options, "--output", "runs/y")
    assert free.status == 0 and "minutes" in free.err and "model.width" not in free.err
    (plan,) = records(here / "runs/y", "plan")
    assert f"width {config_of(here / 'runs/y')['model']['width']}" in plan["text"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_saves_a_checkpoint_and_prints_how_to_resume(
    command, here: Path, monkeypatch, number: int, status: int
):
    assert trained(command, "--steps", 6, out="runs/whole").status == 0
    real, calls = TranslationTask.loss, []

    def struck(self: TranslationTask, batch: object) -> object:
        calls.append(batch)
        if len(calls) == 3:
            os.kill(os.getpid(), number)
        return real(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(TranslationTask, "loss", struck)
        result = trained(command, "--steps", 6)
    assert result.status == status and mentions(result.err, "--output", "runs/x", "--resume")
    assert (here / "runs/x" / "latest").read_text() == "step-000003\n"
    assert command("train", "--output", "runs/x", "--resume", "--device", "cpu").status == 0
    assert bits(here / "runs/x") == bits(here / "runs/whole")


def test_hostile_lines_are_repaired_and_counted(command, here: Path):
    korean, english = ((here / name).read_bytes().splitlines() for name in ("a.ko", "a.en"))
    (here / "a.ko").write_bytes(b"\n".join([*HOSTILE, *korean]) + b"\n")
    (here / "a.en").write_bytes(b"\n".join([*reversed(HOSTILE), *english]) + b"\n")
    refused = trained(command, "--steps", 2)
    assert refused.status == 2
    assert mentions(refused.err, "a.ko", "line 10", "UTF-8", "byte 1", "0xED")
    assert mentions(refused.err, "--set", 'data.problems.invalid="replace"')
    result = trained(command, "--steps", 2, "--set", "data.problems.invalid=replace")
    assert result.status == 0, result.err
    read = 120 + len(HOSTILE)
    assert mentions(result.err, f"{read} pairs")
    for repair in ("not valid UTF-8", "NUL", "a side is empty", "over 1000 characters"):
        assert repair in result.err
    kept = records(here / "runs/x", "data")
    assert f"{read} pairs read" in kept[0]["text"] and "repaired" in kept[0]["text"]
    (here / "lines").write_bytes(b"\n".join(HOSTILE) + b"\n")
    assert len(command("translate", "runs/x", "lines", "--greedy", "--max-length", 3).lines) == len(HOSTILE)
    for name in ("score", "align"):
        found = command(name, "runs/x", "--source", "lines", "--target", "lines", "--max-source-length", 50)
        assert (found.status, len(found.lines)) == (0, len(HOSTILE)), found.err


def test_log_is_json_for_any_text(command, here: Path):
    trained(command, "--steps", 2)
    lines = (here / "runs/x/log.jsonl").read_text(encoding="ascii").splitlines()
    assert {json.loads(line)["kind"] for line in lines} == {
        "data",
        "model",
        "plan",
        "threads",
        "evaluation",
        "quality",
        "ended",
    }


def test_poor_scores_are_named_by_train_show_translate_and_evaluate(command, here: Path, monkeypatch):
    result = trained(command, "--steps", 2)
    (record,) = records(here / "runs/x", "quality")
    assert "BLEU" in record["text"] and "--init-from" in record["text"]
    assert any("ordinary language: 1" in each["text"] for each in records(here / "runs/x", "data"))
    commands = {
        "show": ("show", "runs/x", "--json"),
        "translate": ("translate", "runs/x", "--text", "고양이가 잔다 ."),
        "evaluate": ("evaluate", "runs/x", "--source", "a.ko", "--target", "a.en", "--greedy"),
    }
    found = {name: command(*arguments) for name, arguments in commands.items()}
    note = json.loads(found["show"].out)["quality"]
    assert note and note in found["translate"].err and note in " ".join(result.err.split())
    assert " test " in found["evaluate"].out
    shared = command("average", "runs/x", "--steps", "best", "--output", "runs/shared")
    assert note in " ".join(shared.err.split())
    assert json.loads(command("show", "runs/shared", "--json").out)["quality"] == note
    assert note in command("translate", "runs/shared", "--text", "고양이가 잔다 .").err
    monkeypatch.setattr(expected_quality, "POOR", {})  # no scores are poor
    found = {name: command(*arguments) for name, arguments in commands.items()}
    assert json.loads(found["show"].out)["quality"] == "" and "BLEU" not in found["translate"].err
    assert " test " not in found["evaluate"].out
    trained(command, "--steps", 2, out="runs/z")
    assert not list(records(here / "runs/z", "quality"))


def test_options_are_saved_as_settings(command, here: Path):
    sides = [(here / name).read_text("utf-8").splitlines()[:6] for name in ("a.ko", "a.en")]
    rows = "".join(f"{source}\t{target}\n" for source, target in zip(*sides, strict=True))
    (here / "valid.tsv").write_text(rows, encoding="utf-8")
    given = {
        "learning-rate": 0.002,
        "batch-size": 9,
        "label-smoothing": 0.2,
        "width": 6,
        "dropout": 0.15,
        "patience": 2,
        "seed": 5,
        "steps": 3,
        "vocab-size": 300,
        "tokenizer": "bpe",
        "model": "luong",
    }
    options = [str(part) for name, value in given.items() for part in (f"--{name}", value)]
    files = ("--source", "a.ko", "--target", "a.en", "--valid-tsv", "valid.tsv")
    recipe = "seed = 1\n[training]\nbatch_tokens = 300\nlabel_smoothing = 0.0\nminutes = 9\n"
    (here / "recipe.toml").write_text(recipe)
    result = command(
        *("train", "--recipe", "recipe.toml", *files, *options, "--output", "runs/x", "--device", "cpu"),
        "--tensorboard",
    )
    assert result.status == 0, result.err
    config = config_of(here / "runs/x")
    training, data, model = config["training"], config["data"], config["model"]
    assert (training["learning_rate"], training["batch_size"], training["label_smoothing"]) == (0.002, 9, 0.2)
    assert training["tensorboard"] is True and list((here / "runs/x/tensorboard").iterdir())
    assert "batch_tokens" not in training and "minutes" not in training
    assert (training["patience"], training["steps"], config["seed"]) == (2, 3, 5)
    assert (model["name"], model["width"], model["dropout"]) == ("luong", 6, 0.15)
    assert data["source_vocab_size"] == data["target_vocab_size"] == 300
    assert data["valid_tsv"] == [str(here / "valid.tsv")] and "held_out" not in data
    for option in ("--width", "--batch-tokens"):
        result = command("train", *files, option, 0, "--steps", 1, "--output", "runs/y")
        assert result.status == 2 and option.removeprefix("--").replace("-", "_") in result.err
    again = command("train", "--output", "runs/x", "--resume", "--device", "cpu")
    assert again.status == 0, "options that are not given are no changes"


def test_defaults_in_the_help_equal_the_settings():
    parameters = signature(train).parameters
    settings = TranslationSettings(data=Data(built_in="korean"))
    shown = {}
    for option, each in train_options().items():
        default = parameters[option].default
        for name in each.settings if default is not None else ():
            section, _, last = name.rpartition(".")
            assert getattr(getattr(settings, section) if section else settings, last) == default
            shown[option] = default
    assert shown == {"task": "translation", "seed": 0, "guided": 0.0, "tensorboard": False}
    label_smoothing = train_options()["label_smoothing"].option.shown_default
    assert label_smoothing.startswith("0.1; 0 for ") and "answering" not in label_smoothing


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [("--batch-size", 0, "check --batch-size"), ("--set", "training.best=x", "--set: training.best is")],
)
def test_error_of_a_setting_names_the_option(command, tmp_path, option, value, named):
    answer = command("train", "--built-in", "korean", "--output", tmp_path / "run", option, value)
    assert answer.status == 2 and named in answer.err


def test_a_run_is_evaluated_on_the_columns_of_its_training(command, here):
    sides = ((here / name).read_text(encoding="utf-8").splitlines() for name in ("a.ko", "a.en"))
    rows = [f"{number}\t{ko}\t{en}" for number, (ko, en) in enumerate(zip(*sides, strict=True))]
    (here / "a.tsv").write_text("\n".join(["id\tko\ten", *rows]) + "\n", encoding="utf-8")
    (here / "b.tsv").write_text("\n".join(["en\tko", "good\t나는"]) + "\n", encoding="utf-8")
    options = ("--tsv", "a.tsv", "--columns", "ko,en", "--steps", 1, "--width", 8, "--output", "runs/t")
    assert command("train", *options).status == 0
    result = command("evaluate", "runs/t", "b.tsv", "--device", "cpu")
    assert result.status == 0 and result.out.startswith("1 translations") and "training" not in result.err
    result = command("evaluate", "runs/t", "a.tsv", "--device", "cpu")
    assert result.status == 0 and mentions(result.err, "a.tsv", "training")
    assert "empty" not in result.err
    (here / "c.tsv").write_text("en\tko\ngood\t나는\n\t나는\n", encoding="utf-8")
    result = command("evaluate", "runs/t", "c.tsv", "--device", "cpu")
    assert result.status == 0 and mentions(result.err, "1 pair", "empty")
    for name in ("align", "score"):
        both = [command(name, "runs/t", "--tsv", "b.tsv", *more) for more in ((), ("--columns", "ko,en"))]
        assert both[0].status == 0 and both[0].out and both[0].out == both[1].out
