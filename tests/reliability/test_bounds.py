"""Numbers from users have bounds: values that are too large, negative, NaN or infinite raise and are named.

Accepted values must be harmless: memory grows with the generated tokens, not with the permitted maximum.
"""

from __future__ import annotations

import gzip
import inspect
import math
import os
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from pydantic import BaseModel

import regard
from regard.cli import app, main
from regard.data import Choices, data_report, pairs_from_lists, read_pairs
from regard.data.batch import Batch
from regard.decoding import GNMT, Average, Beam, Greedy, Rules, Sample, beam, greedy
from regard.decoding.beam import beam_search
from regard.decoding.greedy import greedy_search
from regard.decoding.hypothesis import ROOM
from regard.decoding.sampling import sample_search
from regard.decoding.translator import tokens_per_batch
from regard.tasks.translation.settings import TranslationSettings
from regard.training.settings import build, override
from tests.decoding.toys import Table
from tests.reading import PACKAGE, import_path

EXTREMES = ("1000000000", f"{10**30}", "-1", "nan", "inf")

UNLIMITED = {
    "training.steps": "a run may be as long as its user wants",
    "training.epochs": "likewise",
    "training.minutes": "likewise",
    "training.learning_rate": "a diverging run is detected when it diverges",
    "training.warmup_steps": "compared with the step",
    "training.max_grad_norm": "compared with the norm of the gradient; inf is no clipping",
    "training.evaluate_every": "compared with the step",
    "training.save_every": "compared with the step",
    "training.log_every": "compared with the step",
    "training.patience": "compared with a number of evaluations",
    "data.held_out": "compared with the number of pairs",
    "data.max_length": "compared with the lengths of pairs",
    "evaluation.sentences": "compared with the number of pairs",
    "seed": "any seed is as good as another",
}
"""Settings that accept 10**9, and why that is harmless."""


COMMAND = typer.main.get_command(app)
"""The command line, built once: main() would build it for each call."""


def commands(command: Any = COMMAND, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command of the command line, with its path of names."""
    command = getattr(command, "loaded", command)
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, inner in command.commands.items():
        yield from commands(inner, (*path, name))


def numeric_options() -> list[tuple[tuple[str, ...], str, type]]:
    """Return (command, option, int or float) for every numeric option."""
    found = []
    for path, command in commands():
        hints = typing.get_type_hints(inspect.unwrap(command.callback))
        for parameter in command.params:
            kinds = _kinds(hints.get(parameter.name))
            found += [(path, parameter.opts[0], kind) for kind in (int, float) if kind in kinds]
    return found


def _kinds(hint: Any) -> set[Any]:
    return {hint}.union(*map(_kinds, typing.get_args(hint)))


def numeric_settings(kind: type[BaseModel], above: str = "") -> Iterator[str]:
    """Yield the names of all numeric settings, including those of sections."""
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from numeric_settings(field.annotation, f"{above}{name}.")
        elif {int, float} & _kinds(field.annotation):
            yield f"{above}{name}"


OPTIONS = numeric_options()
SETTINGS = sorted({*numeric_settings(TranslationSettings)} - {"data.columns"})


def test_every_numeric_option_and_setting_is_found():
    assert {option for path, option, _ in OPTIONS if path == ("translate",)} >= {
        "--batch-tokens",
        "--n-best",
        "--max-length",
        "--temperature",
        "--threads",
        "--top-k",
        "--top-p",
    }
    assert len(OPTIONS) >= 50 and {path[0] for path, *_ in OPTIONS} >= {"align", "data", "train", "view"}
    assert {"training.learning_rate", "data.pairs", "evaluation.beam_size", "seed"} <= {*SETTINGS} and len(
        SETTINGS
    ) >= 28


@pytest.mark.parametrize(
    ("path", "option", "kind"), OPTIONS, ids=[f"{'-'.join(path)}{option}" for path, option, _ in OPTIONS]
)
def test_options_reject_extreme_numbers(tmp_path: Path, monkeypatch, capsys, path, option, kind):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("regard.cli.app", COMMAND)
    for value in EXTREMES[option == "--seed" :]:  # 10**9 is a valid seed
        with pytest.raises(SystemExit) as ended:
            main([*path, *_needed(path), f"{option}={value}"])
        errors = capsys.readouterr().err
        assert ended.value.code == 2, (value, errors)
        assert "Traceback" not in errors and len(errors) < 20_000
        setting = option.removeprefix("--").replace("-", "_")
        assert option in errors or setting in errors or _needs_more(errors), (value, errors)


def _needed(path: tuple[str, ...]) -> list[str]:
    """Return the required arguments of a command, with files that do not exist."""
    needed = {
        "align": ["absent", "--source", "a", "--target", "b"],
        "average": ["absent", "--output", "new"],
        "export": ["absent", "--to", "safetensors", "--output", "new"],
        "evaluate": ["absent", "--source", "a", "--target", "b"],
        "intervene": ["absent", "a sentence"],
        "score": ["absent", "--source", "a", "--target", "b"],
        "train": ["--source", "a", "--target", "b", "--output", "new"],
        "solve": ["absent"],
        "generate": ["absent", "--prompt", "a", "--sample"],
        "translate": ["absent", "--sample"],
        "view": ["absent", "a sentence"],
        "data": ["--source", "a", "--target", "b", "--output", "new"] if path[-1] == "split" else [],
    }
    return needed.get(path[0], [])


def _needs_more(errors: str) -> bool:
    """Whether the number was accepted, and the error is about a missing file."""
    return "absent" in errors or "no such file" in errors


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_reject_extreme_numbers(name: str):
    for value in (10**9, 10**30, -1, -1.0, math.nan, math.inf, -math.inf, 1e300):
        *section, key = name.split(".")
        content: dict[str, Any] = {"data": {"built_in": "korean"}}
        (content.setdefault(section[0], {}) if section else content)[key] = value
        if value == 10**9 and name in UNLIMITED:
            build(TranslationSettings, content, "the settings")
        elif name == "training.max_grad_norm" and value in (1e300, math.inf, 10**30):
            continue
        else:
            with pytest.raises(regard.ArgumentError) as error:
                build(TranslationSettings, content, "the settings")
            assert name in str(error.value)


@pytest.mark.parametrize("value", [10**9, 10**30, -(10**9), math.nan, math.inf])
@pytest.mark.parametrize("option", ["width", "layers", "view.window"])
def test_model_options_reject_extreme_numbers(option: str, value: float):
    *above, name = option.split(".")
    options: dict[str, Any] = {name: value}
    model = {above[0]: options} if above else options
    with pytest.raises(regard.ArgumentError) as error:
        build(TranslationSettings, {"data": {"built_in": "korean"}, "model": model}, "the settings")
    assert f"{name} is" in str(error.value)


def test_model_larger_than_memory_raises_before_data_are_read(tmp_path: Path, capsys):
    options = ["--built-in", "korean", "--set", "model.width=1000000", "--output", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as ended:
        main(["train", *options])
    assert ended.value.code == 2 and "GB" in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 5000, "1e999", "{" * 900])
def test_any_text_as_a_setting_raises_an_error_that_names_it(text: str):
    content = {"data": {"built_in": "korean"}, **override([f"training.batch_tokens={text}"])}
    with pytest.raises(regard.ArgumentError, match=r"training\.batch_tokens"):
        build(TranslationSettings, content, "the settings")


BAD_CALLS = {
    "beams": lambda: Beam(size=10**9),
    "n-best": lambda: Beam(best=10**9),
    "samples": lambda: Sample(count=10**9),
    "top-k": lambda: Sample(top_k=10**30),
    "seed": lambda: Sample(seed=10**30),
    "maximum": lambda: Rules(maximum=10**9),
    "alpha": lambda: Average(alpha=1e30),
    "alpha NaN": lambda: Average(alpha=math.nan),
    "ratio": lambda: Choices(ratio=math.inf),
    "ratio NaN": lambda: Choices(ratio=math.nan),
    "longest": lambda: Choices(longest=10**30),
    "longest float": lambda: Choices(longest=1.5),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_calls_reject_extreme_numbers(name: str):
    with pytest.raises(regard.ArgumentError, match="expected: "):
        BAD_CALLS[name]()


@pytest.mark.parametrize("columns", [f"1,{10**30}", f"{'9' * 5000},1", "-1,2", "0,1"])
def test_invalid_columns_raise(tmp_path: Path, capsys, columns: str):
    (tmp_path / "a.tsv").write_text("a\tb\n")
    with pytest.raises(SystemExit) as ended:
        main(["data", "check", "--tsv", str(tmp_path / "a.tsv"), f"--columns={columns}"])
    assert ended.value.code == 2 and "column" in capsys.readouterr().err


SEARCHES = {
    "greedy": lambda model, batch, rules: greedy_search(model, batch, Greedy(rules)),
    "beam": lambda model, batch, rules: beam_search(model, batch, Beam(3, 2, GNMT(0.0), rules=rules)),
    "sample": lambda model, batch, rules: sample_search(model, batch, Sample(count=2, rules=rules)),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_memory_of_a_search_grows_with_generated_tokens(name: str, monkeypatch):
    model, batch = Table(6, seed=1), Batch.collate([[4, 5], [5], [4, 4, 5]])
    large = SEARCHES[name](model, batch, Rules(maximum=100_000))
    assert large.tokens.shape[-1] == ROOM and int(large.lengths.max()) < ROOM
    for module in (beam, greedy):
        monkeypatch.setattr(module, "ROOM", 2)
    grown = SEARCHES[name](model, batch, Rules(maximum=100_000))
    assert 2 < grown.tokens.shape[-1] < 4 * int(large.lengths.max())
    assert torch.equal(grown.lengths, large.lengths)
    kept = grown.tokens.shape[-1]
    assert torch.equal(grown.tokens, large.tokens[..., :kept])
    assert torch.equal(grown.token_scores, large.token_scores[..., :kept])


def test_more_hypotheses_give_smaller_batches():
    searches = (Greedy(), Beam(5), Beam(16), Beam(160), Sample(count=1000))
    assert [tokens_per_batch(4096, each) for each in searches] == [4096, 4096, 4096, 409, 65]


def test_duplicates_of_many_pairs_are_counted():
    different, repeated = 4000, 3000
    lines = [f"line {number}" for number in range(different)]
    lines += lines[:repeated] + ["line 7"] * 5000
    exact = pairs_from_lists(lines, lines).inspect()["duplicate"]
    assert exact.count == repeated + 5000 and exact.examples[0].number == different + 1


@pytest.mark.parametrize("full", [True, False])
def test_long_files_are_not_searched_for_the_missing_line(tmp_path: Path, monkeypatch, full: bool):
    source, target = tmp_path / "a.ko", tmp_path / "a.en"
    source.write_text("".join(f"{number}\n" for number in range(30_000)))
    target.write_text("".join(f"{number}\n" for number in range(20_000)))
    monkeypatch.setattr(data_report, "MOST_FEATURES" if full else "BOUNDED", 10)
    monkeypatch.setattr("regard.data.read_text.BLOCK", 4096)
    report = read_pairs(source, target).inspect(full)
    assert report.refused is not None and "30,000 and 20,000" in str(report.refused)
    assert ("regard data check" in str(report.refused)) != full


def test_training_searches_the_first_lines_and_the_full_check_all(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(data_report, "BOUNDED", 100)
    monkeypatch.setattr("regard.data.read_text.BLOCK", 1024)
    lines = [f"{'x' * (7 * number % 50)} {number}" for number in range(2000)]
    for name, left_out in (("a.ko", 900), ("a.en", 1500)):
        rows = [line for number, line in enumerate(lines) if number != left_out]
        (tmp_path / name).write_text("".join(f"{line}\n" for line in rows))
    pairs = read_pairs(tmp_path / "a.ko", tmp_path / "a.en")
    assert pairs.inspect()["misaligned"].count == 0
    assert pairs.inspect(full=True)["misaligned"].count == pairs.inspect()["misaligned"].count == 600


def test_too_long_compressed_line_raises_with_its_number(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr("regard.data.read_text.LONGEST_LINE", 1 << 20)
    bomb, other = tmp_path / "a.gz", tmp_path / "b"
    bomb.write_bytes(gzip.compress(b"one\ntwo\n" + bytes(1 << 24)))
    other.write_text("one\ntwo\n")
    with pytest.raises(SystemExit) as ended:
        main(["data", "check", "--source", str(bomb), "--target", str(other)])
    assert ended.value.code == 2 and f"{bomb}, line 3" in capsys.readouterr().err


@pytest.mark.slow
def test_checking_tens_of_millions_of_lines_takes_bounded_memory(tmp_path: Path):
    for name in ("a.gz", "b.gz"):
        with gzip.open(tmp_path / name, "wb", 1) as file:
            for first in range(0, 40_000_000, 1_000_000):
                file.write(
                    b"".join(b"%d\n" % (number % 25_000_000) for number in range(first, first + 10**6))
                )
    code = (
        "import resource, sys; from regard.data import read_pairs;"
        "report = read_pairs(sys.argv[1], sys.argv[2]).inspect();"
        "print(report.read, report['duplicate'].count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.gz"), str(tmp_path / "b.gz")]
    environment = {**os.environ, "PYTHONPATH": import_path(PACKAGE.parent)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    read, duplicates, kibibytes = map(int, ran.stdout.split())
    assert read == 40_000_000 and abs(duplicates - 15_000_000) < 300_000 and kibibytes < 2.4e6
